"""A dry run on fake tensors says to the byte what the same step allocates for real."""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, record_function

import parity_rows as table
from memory_trace import STEP, Allocation, allocations
from meshwright.dryrun import world
from meshwright.dryrun.analysis import StepMemory, step_memory
from meshwright.dryrun.execute import LEARNING_RATE, execute, rank_batch, rank_state
from meshwright.dryrun.target import target
from meshwright.train import step
from meshwright.train.step import train_step

HOST = "which rank stands where"
ROWS = (*table.fp32_rows()[::5], *table.sixteen_bit_rows()[::5])


@contextmanager
def host_arithmetic_marked(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tensors that torch makes of ranks live on the host under every device: keep them apart."""
    original = world._with_real_tensors

    def marked(function: Any) -> Any:
        inner = original(function)

        @functools.wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            with record_function(HOST):
                return inner(*args, **kwargs)

        return called

    with monkeypatch.context() as patch:
        patch.setattr(world, "_with_real_tensors", marked)
        yield


def allocator_peak(spec, layout, train, rank: int) -> tuple[int, int]:
    """Live bytes before the second step and at its worst, by the events of torch's CPU allocator alone."""
    # oneDNN asks torch for scratch whose size depends on the processor.
    with world.fake_world(rank, layout.world_size, real_tensors=True), torch.backends.mkldnn.flags(enabled=False):
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            state, batch = rank_state(spec, layout, train), rank_batch(train)
            train_step(state, batch, LEARNING_RATE)
            with record_function(STEP):
                train_step(state, batch, LEARNING_RATE)
        roots = profiler.profiler.kineto_results.experimental_event_tree()
    events = sorted(allocations(roots, ()), key=lambda event: event.time)
    return before_and_peak(events)


def before_and_peak(events: list[Allocation]) -> tuple[int, int]:
    host: set[int] = set()
    live = before = peak = 0
    inside = False
    for event in events:
        if not inside and STEP in event.where:
            inside, before = True, live
        if event.size > 0 and HOST in event.where:
            host.add(event.address)
        elif event.size < 0 and event.address in host:
            host.remove(event.address)
        else:
            live += event.size
        if inside and STEP in event.where:
            peak = max(peak, live)
    return before, peak


def by_phase(memory: StepMemory) -> dict[str, tuple[int, dict[str, int]]]:
    return {phase: (peak.bytes, dict(peak.categories)) for phase, peak in memory.phases.items()}


@pytest.mark.parametrize("index", range(len(ROWS)), ids=[table.name_of(row) for row in ROWS])
def test_fake_run_equals_real_tensors_and_the_allocator(index, monkeypatch):
    row = ROWS[index]
    layout, spec = table.layout_of(row), table.model_of(row)
    train = table.train_of(row, layout)
    rank = index % layout.world_size
    fake = execute(spec, layout, train, rank, on=target("cpu"))
    real = execute(spec, layout, train, rank, on=target("cpu"), real=True)
    with host_arithmetic_marked(monkeypatch):
        before, peak = allocator_peak(spec, layout, train, rank)
    memory, expected = step_memory(fake.tape), step_memory(real.tape)
    assert by_phase(memory) == by_phase(expected)
    assert (memory.before, memory.peak.bytes) == (before, peak)


def test_a_change_of_the_trainers_step_changes_the_dry_run(monkeypatch):
    """The dry run has no step of its own."""
    row = ROWS[0]
    layout, spec = table.layout_of(row), table.model_of(row)
    train = table.train_of(row, layout)

    def at_its_worst() -> dict[str, int]:
        memory = step_memory(execute(spec, layout, train, 0, on=target("cpu")).tape)
        return {phase: peak.bytes for phase, peak in memory.phases.items()}

    before = at_its_worst()
    original = step.scale_gradients

    def with_a_copy(gradients: Any, factor: Any) -> None:
        kept = torch.empty(1_000_000)
        original(gradients, factor)
        del kept

    monkeypatch.setattr(step, "scale_gradients", with_a_copy)
    after = at_its_worst()
    assert after["gradients"] > before["gradients"] + 3_900_000
    assert after["backward"] == before["backward"]
