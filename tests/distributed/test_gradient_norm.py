"""One global gradient norm, clipped once, and overflow that all ranks agree on (B-14)."""

from dataclasses import replace

import pytest
import torch

from meshwright.parallel.tensor import local
from meshwright.spec.layout import Layout
from meshwright.spec.training import Precision
from meshwright.train.gradients import global_norm
from meshwright.train.step import train_step
from parity import TINY, layout_run, local_batch, make_state, plain_run, train_spec, whole
from ranks import run_ranks

FP16 = Precision(amp_level="O2", dtype="float16")


class HandSet:
    """An executor that leaves prescribed gradients, multiplied by the loss scale as backward would."""

    def __init__(self, state, entries):
        self.state, self.entries = state, entries

    def forward_backward(self, *_inputs):
        for name, parameter in self.state.optimizer.parameters.items():
            parameter.grad = torch.zeros_like(parameter)
            for index, value in self.entries.get(name, {}).items():
                local(parameter.grad)[index] = value * self.state.loss_scale.scale
        return torch.ones(()) * self.state.loss_scale.scale


class Recorder:
    """An optimizer that keeps the gradients it is given."""

    def __init__(self, parameters):
        self.parameters, self.gradients = parameters, {}

    def step(self, learning_rate, skip):
        self.gradients = {name: whole(p.grad) for name, p in self.parameters.items()}

    def zero_grad(self):
        for parameter in self.parameters.values():
            parameter.grad = None


def hand_set_step(layout, precision, entries):
    state = make_state(TINY, layout, train_spec(layout, precision=precision, grad_clip=1.0))
    recorder = Recorder(state.optimizer.parameters)
    state = replace(state, executor=HandSet(state, entries), optimizer=recorder)
    outcome = train_step(state, local_batch(state, 0), 1e-3)
    for parameter in recorder.parameters.values():
        parameter.grad = torch.zeros_like(parameter)
    HandSet(state, entries).forward_backward(None, None, None)
    largest = global_norm(recorder.parameters, state.mesh, tied=False, device=state.device, norm_type=float("inf"))
    return outcome.grad_norm.item(), recorder.gradients, (largest / state.loss_scale.scale).item()


ENTRIES = {"layers.0.attention_norm.weight": {0: 3.0}, "layers.3.attention_norm.weight": {0: -4.0}}


@pytest.mark.parametrize(
    "precision",
    [Precision(), replace(FP16, loss_scale=1.0), replace(FP16, loss_scale=65536.0)],
    ids=["fp32", "scale_1", "scale_65536"],
)
def test_b14_norms_3_and_4_on_two_stages_are_5_and_both_are_scaled_by_a_fifth(precision):
    results = run_ranks(hand_set_step, 2, Layout(pipeline_stage=2), precision, ENTRIES)
    for norm, _, largest in results:
        assert norm == pytest.approx(5.0, rel=1e-6)
        assert largest == 4.0
    gradients = results[0][1] | results[1][1]
    for name, gradient in gradients.items():
        before = torch.zeros_like(gradient)
        for index, value in ENTRIES.get(name, {}).items():
            before[index] = value
        torch.testing.assert_close(gradient, before * 0.2, rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    "layout",
    [
        Layout(data_parallel=2),
        Layout(data_parallel=2, zero_stage=3),
        Layout(model_parallel=2),
        Layout(model_parallel=2, use_seq_parallel=True),
        Layout(data_parallel=2, model_parallel=2, zero_stage=1, use_seq_parallel=True),
    ],
    ids=["dp2", "fsdp2", "tp2", "tp2_sequence", "tp2_fsdp2"],
)
def test_b14_replicated_weights_count_once(layout):
    train = train_spec(layout)
    expected = run_ranks(plain_run, 1, TINY, steps=2, train=train)[0]
    for trace in run_ranks(layout_run, layout.world_size, TINY, layout, train, 2):
        assert trace.norms == pytest.approx(expected.norms, rel=1e-5)


def gradients_given_to_the_optimizer(layout, precision):
    state = make_state(TINY, layout, train_spec(layout, precision=precision, grad_clip=0.5))
    recorder = Recorder(state.optimizer.parameters)
    outcome = train_step(replace(state, optimizer=recorder), local_batch(state, 0), 1e-3)
    assert outcome.scale == precision.loss_scale
    assert outcome.grad_norm > 0.5
    return recorder.gradients


def test_b14_loss_scale_changes_no_clipped_gradient():
    """Unscaling comes before clipping: otherwise a scale of 65536 would be clipped away."""
    layout = Layout(pipeline_stage=2)
    by_scale = [
        run_ranks(gradients_given_to_the_optimizer, 2, layout, replace(FP16, loss_scale=scale))
        for scale in (1.0, 65536.0)
    ]
    for plain, scaled in zip(*by_scale, strict=True):
        norms = [torch.stack([g.norm() for g in gradients.values()]).norm() for gradients in (plain, scaled)]
        assert norms[1] / norms[0] == pytest.approx(1.0, abs=1e-3)
        for name, gradient in plain.items():
            # fp16 backward underflows without a scale, so that single numbers differ; directions must not.
            cosine = torch.nn.functional.cosine_similarity(gradient.flatten(), scaled[name].flatten(), dim=0)
            assert cosine > 0.999, name


class Overflowing:
    """Runs the real executor; one rank's gradient overflows in the second step."""

    def __init__(self, executor, parameters, rank):
        self.executor, self.parameters, self.rank, self.calls = executor, parameters, rank, 0

    def forward_backward(self, *inputs):
        loss = self.executor.forward_backward(*inputs)
        self.calls += 1
        if self.calls == 2 and torch.distributed.get_rank() == self.rank:
            local(next(iter(self.parameters.values())).grad).flatten()[0] = torch.inf
        return loss


def overflow_run(layout, rank):
    state = make_state(TINY, layout, train_spec(layout, precision=FP16))
    parameters = state.optimizer.parameters
    state = replace(state, executor=Overflowing(state.executor, parameters, rank))
    told = []
    for step in range(3):
        before = {name: whole(p) for name, p in parameters.items()}
        outcome = train_step(state, local_batch(state, step), 1e-3)
        changed = any(not torch.equal(before[name], whole(p)) for name, p in parameters.items())
        finite = all(bool(whole(p).isfinite().all()) for p in parameters.values())
        told.append((outcome.skipped.item(), outcome.scale.item(), changed, finite, state.optimizer.updates.item()))
    return told


@pytest.mark.parametrize("rank", [0, 3])
@pytest.mark.parametrize("stage", [1, 3])
def test_b14_overflow_on_one_rank_skips_the_step_on_all(stage, rank):
    layout = Layout(data_parallel=2, pipeline_stage=2, zero_stage=stage)
    expected = [(0, 65536, True, True, 1), (1, 65536, False, True, 1), (0, 32768, True, True, 2)]
    assert run_ranks(overflow_run, 4, layout, rank) == [expected] * 4
