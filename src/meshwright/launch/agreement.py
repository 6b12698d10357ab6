"""All ranks run the same thing, or none does: config, versions and identity compared before the first step."""

import platform
from collections import defaultdict
from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist

import meshwright


class DisagreementError(RuntimeError):
    """Ranks were started with different configs or software; the message lists what differs on which."""


def run_facts(config_hash: str, **more: str) -> dict[str, str]:
    """What must be equal on all ranks: the resolved config's hash, versions, and whatever the caller adds."""
    return {
        "config hash": config_hash,
        "meshwright version": meshwright.__version__,
        "torch version": torch.__version__,
        "python version": platform.python_version(),
        **more,
    }


def agree(facts: Mapping[str, str], group: dist.ProcessGroup | None = None) -> None:
    """Compare facts over all ranks of a group (None: the world); returns when they are equal.

    Collective. Raises DisagreementError on every rank, with the same text, when they are not.
    """
    everyone: list[dict[str, str]] = [{} for _ in range(dist.get_world_size(group))]
    dist.all_gather_object(everyone, dict(facts), group=group)
    if text := differences(everyone):
        raise DisagreementError(text)


def differences(everyone: Sequence[Mapping[str, str]]) -> str:
    """Facts that are not the same for all, one line per value with its ranks; empty when all agree."""
    lines = []
    for name in dict.fromkeys(name for facts in everyone for name in facts):
        ranks: defaultdict[str, list[int]] = defaultdict(list)
        for rank, facts in enumerate(everyone):
            ranks[facts.get(name, "(not given)")].append(rank)
        if len(ranks) > 1:
            lines.append(f"  {name}:")
            lines.extend(f"    {value} on {span(list_)}" for value, list_ in ranks.items())
    head = "the ranks were not started with the same config and software; nothing was trained:"
    return "\n".join([head, *lines]) if lines else ""


def span(ranks: Sequence[int]) -> str:
    """``ranks 0-3, 6`` for sorted rank numbers."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    text = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
    return f"rank {text}" if len(ranks) == 1 else f"ranks {text}"
