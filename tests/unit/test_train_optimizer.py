"""Our AdamW against torch's, step by step."""

import pytest
import torch

from meshwright.spec.training import OptimizerSpec
from meshwright.train.optimizer import AdamW, decays

SPEC = OptimizerSpec(learning_rate=1e-2, betas=(0.8, 0.9), eps=1e-6, weight_decay=0.3)
SHAPES = {
    "embedding.weight": (12, 6),
    "layers.0.attention.q_proj.weight": (6, 6),
    "layers.0.attention.q_proj.bias": (6,),
    "layers.0.attention.q_norm.weight": (3,),
    "norm.weight": (6,),
}
RATES = (1e-2, 5e-3, 2e-2, 1e-2)
DECAYED = {"embedding.weight", "layers.0.attention.q_proj.weight"}


def parameters(dtype=torch.float32):
    generator = torch.Generator().manual_seed(1)
    return {
        name: torch.nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for name, shape in SHAPES.items()
    }


def set_gradients(named, step, without=()):
    generator = torch.Generator().manual_seed(10 + step)
    for name, parameter in named.items():
        gradient = torch.randn(parameter.shape, generator=generator).to(parameter.dtype)
        parameter.grad = None if name in without else gradient


def torch_adamw(named, *, fused):
    groups = [
        {"params": [p for n, p in named.items() if n in DECAYED], "weight_decay": SPEC.weight_decay},
        {"params": [p for n, p in named.items() if n not in DECAYED], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, betas=SPEC.betas, eps=SPEC.eps, fused=fused)


def torch_step(optimizer, learning_rate):
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
    optimizer.step()


GO, SKIP = torch.tensor(0.0), torch.tensor(1.0)


def test_only_matrices_decay():
    assert {name for name in SHAPES if decays(name)} == DECAYED


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("fused", [True, False], ids=["fused", "unfused"])
def test_same_updates_as_torch(fused, dtype):
    ours, theirs = parameters(dtype), parameters(dtype)
    optimizer, reference = AdamW(ours, SPEC, fused=fused), torch_adamw(theirs, fused=fused)
    for step, rate in enumerate(RATES):
        for named in (ours, theirs):
            set_gradients(named, step)
        optimizer.step(rate, GO)
        torch_step(reference, rate)
        for name in SHAPES:
            torch.testing.assert_close(ours[name], theirs[name], rtol=0, atol=0)
    for name in SHAPES:
        state = reference.state[theirs[name]]
        assert optimizer.exp_avg[name].dtype == dtype
        torch.testing.assert_close(optimizer.exp_avg[name], state["exp_avg"], rtol=0, atol=0)
        torch.testing.assert_close(optimizer.exp_avg_sq[name], state["exp_avg_sq"], rtol=0, atol=0)
    assert optimizer.updates == len(RATES)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("fused", [True, False], ids=["fused", "unfused"])
def test_a_skipped_step_never_happened(fused, dtype):
    """Weights, states and the bias correction of the next step are those of a run without it."""
    ours, theirs = parameters(dtype), parameters(dtype)
    optimizer, reference = AdamW(ours, SPEC, fused=fused), torch_adamw(theirs, fused=fused)
    for step, rate in enumerate(RATES):
        for named in (ours, theirs):
            set_gradients(named, step)
        if step == 1:
            before = {name: tensor.clone() for name, tensor in optimizer.state_tensors().items()}
            ours["norm.weight"].grad.fill_(torch.inf)
            optimizer.step(rate, SKIP)
            assert all(torch.equal(before[name], now) for name, now in optimizer.state_tensors().items())
        else:
            optimizer.step(rate, GO)
            torch_step(reference, rate)
        for name in SHAPES:
            torch.testing.assert_close(ours[name], theirs[name], rtol=0, atol=0)
    assert optimizer.updates == len(RATES) - 1


def test_fused_and_unfused_agree():
    runs = []
    for fused in (True, False):
        named = parameters()
        optimizer = AdamW(named, SPEC, fused=fused)
        for step, rate in enumerate(RATES):
            set_gradients(named, step)
            optimizer.step(rate, GO)
        runs.append(named)
    for name in SHAPES:
        torch.testing.assert_close(runs[0][name], runs[1][name], rtol=1e-6, atol=1e-6)


def test_a_parameter_without_gradient_stays():
    named = parameters()
    before = named["norm.weight"].detach().clone()
    optimizer = AdamW(named, SPEC, fused=True)
    set_gradients(named, 0, without=("norm.weight",))
    optimizer.step(1e-2, GO)
    assert torch.equal(named["norm.weight"], before)
    optimizer.zero_grad()
    assert all(parameter.grad is None for parameter in named.values())


def test_states_are_named_after_their_parameters():
    tensors = AdamW(parameters(), SPEC, fused=True).state_tensors()
    expected = {f"{state}.{name}": shape for state in ("exp_avg", "exp_avg_sq") for name, shape in SHAPES.items()}
    assert {name: tuple(tensor.shape) for name, tensor in tensors.items()} == expected | {"updates": ()}
