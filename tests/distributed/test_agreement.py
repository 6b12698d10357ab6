"""Ranks compare what they run before they start (DESIGN: ranks agree before they start)."""

import pytest
import torch
import torch.distributed as dist

from meshwright.launch.agreement import DisagreementError, agree, differences, run_facts, span
from ranks import run_ranks


def agree_on(hashes: list[str], versions: list[str]) -> bool:
    rank = dist.get_rank()
    facts = {**run_facts(hashes[rank]), "torch version": versions[rank]}
    agree(facts)
    return True


def test_equal_ranks_go_on():
    assert run_ranks(agree_on, 2, ["a", "a"], ["2.13", "2.13"]) == [True, True]


def test_ranks_that_differ_all_stop_with_the_differences():
    with pytest.raises(DisagreementError) as caught:
        run_ranks(agree_on, 4, ["a", "b", "a", "a"], ["2.13", "2.13", "2.13", "2.11"])
    text = str(caught.value)
    assert "  config hash:\n    a on ranks 0, 2-3\n    b on rank 1" in text
    assert "  torch version:\n    2.13 on ranks 0-2\n    2.11 on rank 3" in text
    assert "python version" not in text


def agree_in_groups() -> bool:
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    agree({"stage": str(dist.get_rank() // 2)}, groups[dist.get_rank() // 2])
    return True


def test_a_group_compares_only_its_own_ranks():
    assert run_ranks(agree_in_groups, 4) == [True] * 4


def test_a_fact_that_only_some_ranks_have_is_a_difference():
    text = differences([{"a": "1", "b": "2"}, {"a": "1"}])
    assert "b:\n    2 on rank 0\n    (not given) on rank 1" in text
    assert "a:" not in text


def test_facts_name_the_versions_in_use():
    facts = run_facts("h", data="d")
    assert facts["torch version"] == torch.__version__
    assert facts["config hash"] == "h"
    assert facts["data"] == "d"


@pytest.mark.parametrize(
    ("ranks", "text"), [([3], "rank 3"), ([0, 1, 2, 5], "ranks 0-2, 5"), ([0, 2, 4], "ranks 0, 2, 4")]
)
def test_rank_lists_are_short(ranks, text):
    assert span(ranks) == text
