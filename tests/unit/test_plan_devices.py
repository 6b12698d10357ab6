"""Every device of the catalogue can be planned for."""

import math

import pytest
from plan_questions import answer

from meshwright.spec.catalogue import HARDWARE

SIXTEEN_BIT = [entry.name for entry in HARDWARE if entry.family != "cpu"]


@pytest.mark.parametrize("name", SIXTEEN_BIT)
def test_a_7b_model_on_32_devices(name):
    found = answer("llama2-7b", 32, name, batch=64, seq=4096, fix="cp=1,pp=1")
    best = found.best
    assert best is not None
    cluster = best.job.cluster
    assert best.memory.worst.device_total <= cluster.device.memory_bytes
    assert math.isfinite(best.time.seconds)
    assert 0.02 < best.time.mfu < 0.8
    # Nothing runs faster than the data sheet, and no term is negative.
    assert min(best.time.terms.values()) > -1e-9
    assert sum(best.time.terms.values()) == pytest.approx(best.time.seconds, rel=1e-6)


@pytest.mark.parametrize("engine", ["megatron", "torchtitan", "deepspeed", "nanotron", "mindspeed"])
@pytest.mark.parametrize("name", ["a100-40g", "h100", "ascend-910b", "mi300x"])
def test_other_engines_on_other_devices(engine, name):
    found = answer("llama2-7b", 16, name, batch=32, seq=4096, framework=engine, fix="cp=1,pp=1,zero=1")
    assert found.best is not None
    assert 0.02 < found.best.time.mfu < 0.8


def test_processes_of_a_cpu():
    found = answer("llama2-7b", 16, "cpu", batch=16, seq=512, amp="O0")
    assert found.best is not None
    assert found.best.time.seconds > 60


def test_more_memory_never_needs_more_sharding():
    """The same chip with less memory: fewer layouts fit, and the best is no faster."""
    small, large = (answer("llama2-7b", 8, name, batch=64, seq=4096) for name in ("a100-40g", "a100-80g"))
    assert len(small.fitting) < len(large.fitting)
    assert small.best is not None
    assert large.best is not None
    assert small.best.time.seconds >= large.best.time.seconds * 0.999


def test_fast_links_matter_most_where_messages_are_many():
    """arXiv:2104.04473, section 3: tensor parallelism across slow links is what hurts."""

    def tensor_seconds(name):
        found = answer("llama2-7b", 8, name, batch=64, seq=4096, fix="tp=8")
        assert found.best is not None
        return found.best.time.terms["tensor"] / found.best.time.seconds

    assert tensor_seconds("a100-pcie-80g") > 2 * tensor_seconds("a100-80g")
