"""Operators of a mixture-of-experts layer on one rank, routing balanced over experts."""

from collections.abc import Iterator

from meshwright.plan.network import Network
from meshwright.plan.time.compute import matmul, streamed
from meshwright.plan.time.machine import Machine
from meshwright.plan.time.operators import Operator, cast, elementwise, linear
from meshwright.plan.time.shapes import Shape, feed_forward_products
from meshwright.plan.time.traits import Traits

ROUTER_KERNELS = 30
"""Scores, top-k, mask, sort, counts and their copies to the host (megatron/core/transformer/moe/router.py and
token_dispatcher.py)."""


def expert_operators(machine: Machine, network: Network, shape: Shape, traits: Traits) -> Iterator[Operator]:
    """Router, permutation, grouped products of the local experts, and the shared experts.

    Each rank keeps num_experts / expert degree experts and receives, balanced, as many token copies as it sends.
    Tensor ranks take their own share of tokens (Megatron's expert-tensor degree of 1) or split each expert.
    """
    experts = network.experts
    assert experts is not None
    copies = shape.expert_tokens * experts.experts_per_token
    local = max(1, experts.num_experts // shape.expert)
    rows = max(1, round(copies / local))
    router = matmul(machine, shape.tokens, experts.num_experts, network.hidden_size)
    yield Operator("expert", router, 2 * router, ROUTER_KERNELS, ROUTER_KERNELS)
    # Copies are gathered by expert before, and weighted and scattered back after: a read and a write each. Across
    # ranks they are sorted by local expert once they have come, and back before they leave (token_dispatcher.py).
    sorts = 4 if shape.expert > 1 and local > 1 else 0
    yield elementwise(
        machine, copies * network.hidden_size * 2, 5 + sorts, 7 + sorts, 6 + sorts, 8 + sorts, kind="expert"
    )
    up, down = feed_forward_products(network, experts.intermediate_size, shape.expert_tensor)
    for inputs, outputs in (up, down):
        yield _grouped(machine, shape, traits, local, rows, inputs, outputs)
    passes = (3, 5) if network.gated else (2, 3)
    yield elementwise(machine, copies * down[0] * 2, *passes, 1, 1, kind="activation")
    if experts.shared_intermediate_size:
        for inputs, outputs in feed_forward_products(network, experts.shared_intermediate_size, shape.tensor):
            yield from linear(machine, shape, traits, inputs, outputs, bias=False)
        shared = shape.tokens * experts.shared_intermediate_size / shape.tensor * 2.0
        yield elementwise(machine, shared, *passes, 1, 1, kind="activation")


def _grouped(
    machine: Machine, shape: Shape, traits: Traits, local: int, rows: int, inputs: int, outputs: int
) -> Operator:
    """Grouped product of ``local`` experts with ``rows`` token copies each."""
    forward = matmul(machine, rows, outputs, inputs, local, float8=shape.float8)
    to_inputs = matmul(machine, rows, inputs, outputs, local, float8=shape.float8)
    if shape.adapter_rank:
        return Operator("expert", forward, to_inputs, local, local)
    fused = shape.fused_gradients
    to_weights = matmul(machine, inputs, outputs, rows, local, float8=shape.float8, accumulate=fused)
    added = 0.0 if fused else streamed(machine, traits.accumulate_bytes * local * inputs * outputs)
    if shape.float8:
        casts = cast(machine, float(rows) * local * inputs, float(rows) * local * outputs)
        forward, to_inputs = forward + casts.forward, to_inputs + casts.backward
    return Operator("expert", forward, to_inputs + to_weights + added, local, 2 * local)
