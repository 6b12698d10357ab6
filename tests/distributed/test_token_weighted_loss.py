"""The loss is a mean over supervised tokens, however they are spread (B-06, B-15)."""

import math

import pytest
import torch
from torch.distributed.tensor import DTensor, distribute_tensor

from meshwright.data.loader import Batch
from meshwright.model.loss import IGNORE_INDEX
from meshwright.parallel.tensor import local
from meshwright.spec.layout import Layout
from meshwright.spec.model import ModelSpec
from meshwright.spec.training import Batch as BatchSpec
from meshwright.spec.training import TrainSpec
from meshwright.train.gradients import complete_gradients
from meshwright.train.step import evaluate_batch, train_step
from parity import GLOBAL_BATCH, TINY, largest_difference, make_state, train_spec, whole
from ranks import run_ranks

VOCAB, LENGTH = 4, 100
TWO_TOKENS = ModelSpec(
    num_layers=2,
    hidden_size=16,
    num_heads=4,
    num_kv_heads=2,
    head_dim=4,
    intermediate_size=32,
    vocab_size=VOCAB,
    norm_eps=1e-9,
)


def prescribe_losses(state):
    """Weights under which token 0 is predicted with loss 2.0 and token 1 with loss 1.0, whatever comes before.

    The blocks add nothing to the residual (their gradients are not zero); token t is the unit vector t; the head
    gives label 0 the logit z with log(1 + (VOCAB - 1) exp(-z)) = loss and all others 0.
    """
    spec = state.model.spec
    embedding, head = (torch.zeros(spec.padded_vocab_size, spec.hidden_size) for _ in range(2))
    for token, loss in enumerate((2.0, 1.0)):
        embedding[token, token] = 1.0
        logit = -math.log(math.expm1(loss) / (VOCAB - 1))
        head[0, token] = logit / math.sqrt(spec.hidden_size)
    for name, parameter in state.optimizer.parameters.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            fill(parameter, torch.zeros(parameter.shape))
        elif name in ("embedding.weight", "head.weight"):
            fill(parameter, embedding if name == "embedding.weight" else head)


@torch.no_grad()
def fill(parameter, value):
    """Write a whole value into a parameter of any placement."""
    if isinstance(parameter, DTensor):
        value = distribute_tensor(value, parameter.device_mesh, parameter.placements, src_data_rank=None).to_local()
    local(parameter).copy_(value)


def ten_and_ninety():
    """Sequence A: token 0, 10 supervised; sequence B: token 1, 90 supervised."""
    tokens = torch.stack((torch.zeros(LENGTH), torch.ones(LENGTH))).long()
    labels = torch.full((2, LENGTH), IGNORE_INDEX)
    labels[0, 40:50] = 0
    labels[1, 10:] = 0
    return tokens, labels


def ten_and_ninety_run(layout, micro_batch_num):
    batch = BatchSpec(
        micro_batch_size=2 // layout.data_parallel // micro_batch_num,
        micro_batch_num=micro_batch_num,
        global_batch_size=2,
    )
    state = make_state(TWO_TOKENS, layout, TrainSpec(seq_length=LENGTH, batch=batch))
    prescribe_losses(state)
    mine = local_part(state, *ten_and_ninety())
    gradients = gradients_of(state, mine, tokens=100)
    loss_sum, tokens = evaluate_batch(state, mine)
    return train_step(state, mine, 1e-3).loss.item(), (loss_sum / tokens).item(), gradients


def local_part(state, tokens, labels):
    ways, rank = state.mesh.layout.zero_ranks, state.mesh.zero_rank
    return Batch(tokens=tokens.chunk(ways)[rank], labels=labels.chunk(ways)[rank])


def gradients_of(state, batch, tokens):
    state.executor.forward_backward(batch.tokens, batch.labels, torch.tensor(1.0 / tokens))
    complete_gradients(state.optimizer.parameters, state.mesh, tied=state.tied)
    gradients = {name: whole(p.grad) for name, p in state.optimizer.parameters.items() if p.grad is not None}
    state.optimizer.zero_grad()
    return gradients


SPLITS = {
    "two_steps_of_accumulation": (Layout(), 2),
    "dp2": (Layout(data_parallel=2), 1),
    "fsdp2": (Layout(data_parallel=2, zero_stage=3), 1),
    "pp2": (Layout(pipeline_stage=2), 2),
    "tp2": (Layout(model_parallel=2, use_seq_parallel=True), 1),
}


@pytest.fixture(scope="module")
def one_batch():
    return run_ranks(ten_and_ninety_run, 1, Layout(), 1)[0]


def test_b06_ten_tokens_of_loss_2_and_ninety_of_loss_1_are_1_10(one_batch):
    loss, evaluated, gradients = one_batch
    assert loss == pytest.approx(1.10, abs=1e-5)
    assert evaluated == pytest.approx(1.10, abs=1e-5)
    assert sum(bool(gradient.abs().max() > 0) for gradient in gradients.values()) >= 6


@pytest.mark.parametrize("split", SPLITS)
def test_b06_any_split_of_ten_and_ninety(split, one_batch):
    layout, micro_batch_num = SPLITS[split]
    for loss, evaluated, gradients in run_ranks(ten_and_ninety_run, layout.world_size, layout, micro_batch_num):
        assert loss == pytest.approx(1.10, abs=1e-5)
        assert evaluated == pytest.approx(1.10, abs=1e-5)
        assert largest_difference(gradients, one_batch[2]) <= 1e-6


LOSSES = {
    "plain": (Layout(), None),
    "chunked": (Layout(), 12),
    "vocab_parallel": (Layout(model_parallel=2), None),
    "vocab_parallel_chunked": (Layout(model_parallel=2, use_seq_parallel=True), 12),
    "pipeline": (Layout(pipeline_stage=2), 12),
}
MASKED_RANK = {
    "dp2": Layout(data_parallel=2),
    "fsdp2": Layout(data_parallel=2, zero_stage=3),
    "dp2_tp2": Layout(data_parallel=2, model_parallel=2, zero_stage=1),
}


def half_masked():
    """A global batch whose first half has no supervised token."""
    generator = torch.Generator().manual_seed(7)
    ids = torch.randint(0, TINY.vocab_size, (GLOBAL_BATCH, 33), generator=generator)
    tokens, labels = ids[:, :-1].contiguous(), ids[:, 1:].clone()
    labels[: GLOBAL_BATCH // 2] = IGNORE_INDEX
    return tokens, labels


def half_masked_run(layout, chunk):
    """Gradients of the half-masked batch, and the step made with it."""
    state = make_state(TINY, layout, train_spec(layout, micro_batch_num=2, loss_chunk_tokens=chunk))
    tokens, labels = half_masked()
    mine = local_part(state, tokens, labels)
    gradients = gradients_of(state, mine, tokens=int((labels != IGNORE_INDEX).sum()))
    outcome = train_step(state, mine, 1e-3)
    return gradients, outcome.loss.item(), outcome.skipped.item()


def second_half_alone():
    """The same by the second half alone, in one micro-batch."""
    state = make_state(TINY, Layout(), train_spec(Layout(), micro_batch_num=1))
    tokens, labels = (t[GLOBAL_BATCH // 2 :] for t in half_masked())
    mine = Batch(tokens=tokens, labels=labels)
    gradients = gradients_of(state, mine, tokens=labels.numel())
    return gradients, train_step(state, mine, 1e-3).loss.item()


@pytest.fixture(scope="module")
def alone():
    return run_ranks(second_half_alone, 1)[0]


def assert_as_alone(results, alone):
    gradients, loss = alone
    for found, its_loss, skipped in results:
        assert largest_difference(found, gradients) <= 1e-6
        assert its_loss == pytest.approx(loss, abs=1e-5)
        assert skipped == 0


@pytest.mark.parametrize("kind", LOSSES)
def test_b15_masked_micro_batch_counts_nothing(kind, alone):
    layout, chunk = LOSSES[kind]
    assert_as_alone(run_ranks(half_masked_run, layout.world_size, layout, chunk), alone)


@pytest.mark.parametrize("layout", MASKED_RANK.values(), ids=MASKED_RANK.keys())
def test_b15_masked_data_rank_counts_nothing(layout, alone):
    assert_as_alone(run_ranks(half_masked_run, layout.world_size, layout, None), alone)


def all_masked_run(layout, chunk):
    state = make_state(TINY, layout, train_spec(layout, micro_batch_num=2, loss_chunk_tokens=chunk))
    tokens, labels = half_masked()
    before = {name: whole(p) for name, p in state.optimizer.parameters.items()}
    outcome = train_step(state, local_part(state, tokens, torch.full_like(labels, IGNORE_INDEX)), 1e-3)
    unchanged = all(torch.equal(before[name], whole(p)) for name, p in state.optimizer.parameters.items())
    next_one = train_step(state, local_part(state, tokens, labels), 1e-3)
    return (
        (outcome.skipped.item(), outcome.tokens.item(), outcome.grad_norm.item(), unchanged),
        (next_one.skipped.item(), state.optimizer.updates.item(), math.isfinite(next_one.loss.item())),
    )


@pytest.mark.parametrize(
    ("layout", "chunk"), [*LOSSES.values(), (Layout(data_parallel=2, zero_stage=2), None)], ids=[*LOSSES, "fsdp2"]
)
def test_b15_masked_global_batch_is_skipped_and_counted(layout, chunk):
    for masked, after in run_ranks(all_masked_run, layout.world_size, layout, chunk):
        assert masked == (1, 0, 0, True)
        assert after == (0, 1, True)
