"""The device map, npu included, on a machine that has none of them."""

from types import SimpleNamespace

import pytest
import torch

from meshwright.parallel.devices import KINDS, device_kind, local_device, local_device_kind, memory_use
from meshwright.parallel.precision import formats
from meshwright.spec.support import DEVICES
from meshwright.spec.training import Precision

NPU = KINDS["npu"]
STATS = (("allocated", "current", 5), ("allocated", "peak", 7), ("reserved", "current", 9), ("reserved", "peak", 11))


@pytest.fixture
def npu(monkeypatch):
    """torch.accelerator as torch_npu makes it look."""
    chosen = []
    stats = {f"{kind}_bytes.all.{when}": size for kind, when, size in STATS}
    for name, value in {
        "is_available": lambda: True,
        "current_accelerator": lambda: SimpleNamespace(type="npu"),
        "set_device_index": chosen.append,
        "memory_stats": lambda device: stats,
        "get_memory_info": lambda device: (5, 64),
    }.items():
        monkeypatch.setattr(torch.accelerator, name, value)
    return chosen


@pytest.mark.parametrize(("name", "backend"), [("cpu", "gloo"), ("cuda", "nccl"), ("npu", "hccl")])
def test_backend_of_each_kind(name, backend):
    assert device_kind(name).backend == backend
    assert device_kind(name).name == name


def test_supported_devices_are_the_ones_mapped():
    assert set(DEVICES) == set(KINDS)


def test_an_accelerator_that_is_not_mapped_is_refused():
    with pytest.raises(ValueError, match="device 'xpu' is not supported; supported: cpu, cuda, npu"):
        device_kind("xpu")


def test_npu_is_found_and_made_current(npu, monkeypatch):
    assert local_device_kind() is NPU
    made = []
    monkeypatch.setattr(torch, "device", lambda *args: made.append(args))
    local_device(NPU, 3)
    assert npu == [3]
    assert made == [("npu", 3)]


def test_host_objects_travel_over_gloo():
    assert NPU.process_group_backend == "cpu:gloo,npu:hccl"
    assert KINDS["cpu"].process_group_backend == "gloo"


def test_npu_trains_in_bf16_without_the_fused_kernel():
    assert not NPU.fused_optimizer
    chosen = formats(Precision(amp_level="O2"), NPU)
    assert chosen.compute is torch.bfloat16
    assert "npu supports it" in chosen.reason


def test_npu_memory_comes_from_its_allocator(npu):
    use = memory_use(NPU, SimpleNamespace(type="npu", index=0))
    assert (use.peak_allocated, use.peak_reserved, use.total) == (7, 11, 64)


def test_cpu_where_there_is_no_accelerator(monkeypatch):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    assert local_device_kind() is KINDS["cpu"]
    assert local_device(KINDS["cpu"], 3) == torch.device("cpu")


def test_cpu_beside_an_accelerator_that_is_not_mapped(monkeypatch):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: SimpleNamespace(type="mps"))
    assert local_device_kind() is KINDS["cpu"]


def test_cpu_memory_is_that_of_the_process():
    before = memory_use(KINDS["cpu"], torch.device("cpu"))
    block = torch.ones(64 * 2**20 // 4)
    after = memory_use(KINDS["cpu"], torch.device("cpu"))
    assert 0 < before.peak_allocated <= after.peak_allocated < after.total
    assert after.peak_allocated >= block.nbytes
