"""The report of a rank without memory: its numbers, its advice, and what counts as an error about memory."""

from dataclasses import replace
from typing import get_args

import pytest
import torch

from meshwright.checkpoint.errors import CheckpointError, Failure
from meshwright.config.load import load_config
from meshwright.config.run import resolve
from meshwright.diagnose.expected import ORDER, Expected, cluster_of, expected, single_changes, within
from meshwright.diagnose.oom_error import memory_error, ranks_short_of_memory, sizes_told
from meshwright.diagnose.oom_report import EXPANDABLE, Part, Place, Shortage, amount, report
from meshwright.diagnose.run_memory import comparison
from meshwright.diagnose.tracked_memory import PLANNED
from meshwright.dryrun.analysis import Category

GIB = 2**30
CONFIG = """
model: {preset: llama3-8b}
parallel_config: {data_parallel: 8}
train: {seq_length: 4096, micro_batch_size: 4, global_batch_size: 32}
amp_config: {amp_level: O2}
"""
CUDA_MESSAGE = (
    "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 3 has a total capacity of 79.10 GiB of which 1.25 GiB is free."
    " Including non-PyTorch memory, this process has 77.80 GiB memory in use. Of the allocated memory 70.00 GiB is"
    " allocated by PyTorch, and 512.00 MiB is reserved by PyTorch but unallocated. If reserved but unallocated memory"
    " is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
)
PLACE = Place(
    rank=3, world_size=8, step=7, phase="backward", micro_batch=1, micro_batches=1, module="layers.30.mlp.down_proj"
)
SHORTAGE = Shortage(
    requested=GIB,
    allocated=70 * GIB,
    reserved=72 * GIB,
    total=79 * GIB,
    available=78 * GIB,
    parts=(
        Part(name="activations", bytes=50 * GIB, planned=49 * GIB),
        Part(name="weights", bytes=16 * GIB, planned=15 * GIB),
        Part(name="temporaries", bytes=4 * GIB, planned=0),
    ),
    moment="backward of layer 31",
)


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> Expected:
    path = tmp_path_factory.mktemp("run") / "run.yaml"
    path.write_text(CONFIG)
    run = resolve(load_config(path), 8)
    return expected(run, cluster_of("NVIDIA H100 80GB HBM3", "hopper", 79.1 * GIB, 8, 8), 3, "bfloat16")


def test_b10_the_report_names_place_sizes_and_the_biggest_part_against_the_plan(found):
    text = report(PLACE, SHORTAGE, found)
    assert "rank 3 of 8, step 7, backward of micro-batch 1 of 1, in layers.30.mlp.down_proj" in text
    assert "1.00 GiB asked for; 70.00 GiB allocated, 72.00 GiB reserved of 79.00 GiB" in text
    assert "1.00 GiB of it held outside this process's allocator" in text
    assert "biggest part: activations, 50.00 GiB; the plan has 49.00 GiB" in text
    assert "more than planned: temporaries, by 4.00 GiB" in text
    assert "more than the 79.10 GiB there are" in text


def test_b10_one_change_at_a_time_from_the_batch_over_recomputation_and_shards_to_the_split(found):
    assert found.candidate.fit == "over"
    changes = single_changes(found)
    kinds = [next(key for key in ORDER if lever.change.startswith(key)) for lever in changes]
    assert kinds == sorted(kinds, key=ORDER.index)
    assert {"micro_batch_size", "recompute", "zero_stage", "model_parallel"} <= set(kinds)
    lines = report(PLACE, SHORTAGE, found).splitlines()
    first = next(line for line in lines if line.startswith("  1. "))
    assert first.startswith("  1. micro_batch_size 1: ")
    assert " less, " in first
    assert "% time per step" in first
    assert lines[lines.index(first) + 1].split() == ["parallel_config.micro_batch_num=4", "train.micro_batch_size=1"]
    for lever in changes:
        assert lever.saves > 0
        assert lever.supported


def test_what_the_plan_has_fit_is_said_so(found):
    roomy = within(found, 2 * found.candidate.needed)
    assert "what is above the plan is the cause" in report(PLACE, SHORTAGE, roomy)


@pytest.mark.parametrize(
    ("reserved", "requested", "told"),
    [
        (70 + 17, GIB, True),
        (70 + 15, GIB, False),  # less than a fifth of the device
        (70 + 17, 18 * GIB, False),  # would not have been enough in one piece either
    ],
)
def test_b10_fragmentation_is_told_from_a_fifth_of_the_device(found, reserved, requested, told):
    shortage = replace(SHORTAGE, reserved=reserved * GIB, requested=requested)
    text = report(PLACE, shortage, found)
    assert ("fragmentation" in text) == told
    assert (EXPANDABLE in text) == told


def test_torchs_message_tells_the_sizes():
    assert sizes_told(torch.OutOfMemoryError(CUDA_MESSAGE)) == (int(2.5 * GIB), 70 * GIB, 512 * 2**20)
    host = "DefaultCPUAllocator: can't allocate memory: you tried to allocate 800 bytes. Error code 12"
    assert sizes_told(RuntimeError(host)) == (800, None, None)
    assert sizes_told(MemoryError()) == (None, None, None)


def test_errors_about_memory_are_told_from_others():
    for error in (torch.OutOfMemoryError(CUDA_MESSAGE), MemoryError(), RuntimeError("NPU out of memory. Tried to ...")):
        wrapped = RuntimeError("[Stage 0] failed to run forward")
        wrapped.__cause__ = error
        assert memory_error(wrapped) is error
    assert memory_error(RuntimeError("mat1 and mat2 shapes cannot be multiplied")) is None
    failures = (Failure(0, "OSError: disk full", 28), Failure(2, "OutOfMemoryError: CUDA out of memory"))
    assert ranks_short_of_memory(CheckpointError("saving failed", failures)) == [2]
    assert memory_error(CheckpointError("saving failed on rank 2: OutOfMemoryError: CUDA out of memory")) is None


def test_an_unknown_device_is_planned_as_one_of_its_generation():
    cluster = cluster_of("NVIDIA X999", "ampere", 40 * GIB, 4, 4)
    assert (cluster.device.family, cluster.device.memory_bytes, cluster.num_devices) == ("ampere", 40 * GIB, 4)


def test_the_comparison_of_one_rank_and_of_several():
    one = (12.34 * GIB, 12.30 * GIB)
    assert comparison([one]) == "memory: predicted 12.34 GiB, measured 12.30 GiB (+0.3 %)"
    assert comparison([one, (10 * GIB, 10.2 * GIB)]).endswith("(+0.3 %) on rank 0; -2.0 to +0.3 % over all ranks")


def test_everything_that_the_tracker_tells_apart_has_its_place_in_the_plan():
    assert set(PLANNED) == set(get_args(Category))


def test_amounts_are_read_easily():
    assert [amount(size) for size in (3, 1536, 5 * 2**20, 80 * GIB)] == ["3 B", "1.50 KiB", "5.00 MiB", "80.00 GiB"]
