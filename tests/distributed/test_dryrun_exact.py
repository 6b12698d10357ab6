"""A dry run on fake tensors says to the byte what the same step allocates for real."""

import functools
import gc
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
from meshwright.model.decoder import Decoder
from meshwright.spec.model import ModelSpec
from meshwright.spec.training import TrainSpec
from meshwright.train import step
from meshwright.train.optimizer import AdamW
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
    # The profiler's events hold each other.
    del profiler, roots
    gc.collect()
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
    train, rank = table.short_train_of(row, layout), index % layout.world_size
    fake, real = (step_memory(execute(spec, layout, train, rank, on=target("cpu"), real=r).tape) for r in (False, True))
    with host_arithmetic_marked(monkeypatch):
        before, peak = allocator_peak(spec, layout, train, rank)
    assert by_phase(fake) == by_phase(real)
    assert fake.before == before
    assert 0 <= fake.peak.bytes - peak <= added_out_of_place(spec, train)


def added_out_of_place(spec: ModelSpec, train: TrainSpec) -> int:
    """Bytes by which the moment of the peak may be off where the loss is cut into chunks.

    torch adds up the gradients that chunks have of one weight in place, unless something dispatches its operators
    (torch/csrc/autograd/input_buffer.cpp, ``can_accumulate_inplace``): from the second chunk on, a tracked step has one
    more gradient of the head. The peak then comes with the last chunk instead of the second, beside all gradients of
    hidden states.
    """
    tokens = train.batch.micro_batch_size * train.seq_length
    return 0 if train.loss_chunk_tokens is None else 4 * tokens * spec.hidden_size


def with_a_tensor(original: Any) -> Any:
    """A function that has 4 MB more while it runs."""

    @functools.wraps(original)
    def changed(*args: Any, **kwargs: Any) -> Any:
        kept = torch.empty(1_000_000)
        result = original(*args, **kwargs)
        del kept
        return result

    return changed


@pytest.mark.parametrize(
    ("owner", "name", "phase"),
    [(Decoder, "forward", "forward"), (step, "scale_gradients", "gradients"), (AdamW, "step", "optimizer")],
)
def test_a_change_of_the_trainer_changes_the_dry_run(owner, name, phase, monkeypatch):
    """The dry run has no step of its own."""
    row = ROWS[0]
    layout, spec = table.layout_of(row), table.model_of(row)
    train = table.short_train_of(row, layout)

    def at_its_worst() -> dict[str, int]:
        memory = step_memory(execute(spec, layout, train, 0, on=target("cpu"), steps=1).tape)
        return {phase: peak.bytes for phase, peak in memory.phases.items()}

    before = at_its_worst()
    monkeypatch.setattr(owner, name, with_a_tensor(getattr(owner, name)))
    after = at_its_worst()
    assert {name for name in before if after[name] > before[name]} == {phase}
    assert after[phase] > before[phase] + 3_000_000
