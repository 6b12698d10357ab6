"""A tied embedding is one parameter, even where two pipeline ends hold a copy of it (B-13)."""

from dataclasses import replace

import pytest
import torch

from meshwright.checkpoint import store
from meshwright.parallel.tensor import local
from meshwright.spec.layout import Layout
from meshwright.spec.parameters import parameter_counts, total
from meshwright.train.gradients import TIED, counted
from meshwright.train.step import train_step
from parity import TINY, local_batch, make_state, plain_run, train_spec, whole
from ranks import run_ranks

SPEC = replace(TINY, tie_word_embeddings=True)
STEPS = 20
SPLIT = Layout(pipeline_stage=2, data_parallel=2, model_parallel=2, zero_stage=1, use_seq_parallel=True)
DATA_ONLY = Layout(data_parallel=4, zero_stage=3)


@pytest.fixture(scope="module")
def plain():
    return run_ranks(plain_run, 1, SPEC, steps=STEPS + 4, train=train_spec(Layout()))[0]


def new_state(layout):
    return make_state(SPEC, layout, train_spec(layout))


def steps(state, first, last):
    return [train_step(state, local_batch(state, step), 1e-3).loss.item() for step in range(first, last)]


def copies_of_each_step(layout):
    """Position, losses, and this rank's embedding and its optimizer states after every step."""
    state = new_state(layout)
    losses, copies = [], []
    for step in range(STEPS):
        losses += steps(state, step, step + 1)
        optimizer = state.optimizer
        if TIED in optimizer.parameters:
            tensors = (optimizer.parameters[TIED], optimizer.exp_avg[TIED], optimizer.exp_avg_sq[TIED])
            copies.append([local(tensor).detach().clone() for tensor in tensors])
    names = {name for name in optimizer.state_tensors() if name.endswith(TIED)}
    return state.mesh.at, losses, copies, names


@pytest.mark.parametrize(
    "layout",
    [
        Layout(pipeline_stage=2),
        Layout(pipeline_stage=4, pipeline_schedule="gpipe"),
        Layout(pipeline_stage=2, data_parallel=2, zero_stage=3),
        SPLIT,
    ],
    ids=["pp2", "pp4", "pp2_fsdp2", "pp2_dp2_tp2"],
)
def test_b13_both_ends_hold_the_same_bits_after_every_step(layout, plain):
    results = run_ranks(copies_of_each_step, layout.world_size, layout)
    ends = {(at.data, at.model, at.pipeline): copies for at, _, copies, _ in results if copies}
    last = layout.pipeline_stage - 1
    assert {pipeline for _, _, pipeline in ends} == {0, last}
    for (data, model, pipeline), copies in ends.items():
        assert len(copies) == STEPS
        for mine, first in zip(copies, ends[data, model, 0], strict=True):
            assert all(torch.equal(a, b) for a, b in zip(mine, first, strict=True)), (data, model, pipeline)
    for at, losses, _, names in results:
        assert losses == pytest.approx(plain.losses[:STEPS], abs=1e-4)
        assert names == ({f"exp_avg.{TIED}", f"exp_avg_sq.{TIED}"} if at.pipeline in (0, last) else set())


def fsdp_without_pipeline(layout):
    state = new_state(layout)
    names = list(state.optimizer.parameters)
    head = state.model.output_weight
    return names, head is state.model.embedding.weight, steps(state, 0, STEPS)


def test_b13_one_weight_without_a_pipeline(plain):
    for names, same, losses in run_ranks(fsdp_without_pipeline, 2, Layout(data_parallel=2, zero_stage=3)):
        assert sorted(names) == sorted(parameter_counts(SPEC))
        assert same
        assert losses == pytest.approx(plain.losses[:STEPS], abs=1e-4)


def numbers_counted(layout):
    state = new_state(layout)
    mine = counted(state.optimizer.parameters, state.mesh, tied=True)
    return sum(local(parameter).numel() for parameter in mine)


@pytest.mark.parametrize("layout", [Layout(pipeline_stage=2), SPLIT, DATA_ONLY], ids=["pp2", "pp2_dp2_tp2", "fsdp4"])
def test_b13_parameter_number_counts_it_once(layout):
    assert sum(run_ranks(numbers_counted, layout.world_size, layout)) == total(SPEC, padded=True)


def checkpoint_tensors(state, *, saving):
    """Weights and optimizer states by name; a save leaves out the last stage's copy, a load fills it."""
    copy = saving and state.mesh.at.pipeline > 0
    model = {f"model.{name}": p.detach() for name, p in state.optimizer.parameters.items()}
    optimizer = {f"optim.{name}": tensor for name, tensor in state.optimizer.state_tensors().items()}
    return {name: t for name, t in (model | optimizer).items() if not (copy and name.endswith(TIED))}


def save_run(layout, root, first, last):
    """Train some steps, from the newest checkpoint where there is one, and save."""
    state = new_state(layout)
    if first:
        found = store.find_latest(root, "tied")
        store.load_tensors(found.path, checkpoint_tensors(state, saving=False))
    ends = whole(state.optimizer.parameters[TIED]) if TIED in state.optimizer.parameters else None
    losses = steps(state, first, last)
    tensors = checkpoint_tensors(state, saving=True)
    store.save(root, last, tensors=tensors, state={}, rank_state={}, run_id="tied")
    return losses, ends


def test_b13_save_under_three_splits_and_go_on_under_data_parallel_alone(plain, tmp_path):
    """pp2 x dp2 x tp2, then fsdp4, then back: losses go on as if nothing had happened."""
    plan = [(SPLIT, 0, STEPS), (DATA_ONLY, STEPS, STEPS + 2), (SPLIT, STEPS + 2, STEPS + 4)]
    for layout, first, last in plan:
        results = run_ranks(save_run, layout.world_size, layout, tmp_path, first, last)
        for losses, _ in results:
            assert losses == pytest.approx(plain.losses[first:last], abs=1e-4)
        loaded = [ends for _, ends in results if ends is not None]
        assert all(torch.equal(ends, loaded[0]) for ends in loaded)
    stored = store.tensor_metadata(tmp_path / f"step-{STEPS:08d}")
    rows = (SPEC.padded_vocab_size, SPEC.hidden_size)
    once = {f"{kind}.{TIED}": rows for kind in ("model", "optim.exp_avg", "optim.exp_avg_sq")}
    assert {name: shape for name, (shape, _) in stored.items() if name.endswith(TIED)} == once
    weights = [name for name in stored if name.startswith("model.")]
    assert sorted(weights) == sorted(f"model.{name}" for name in parameter_counts(SPEC))
