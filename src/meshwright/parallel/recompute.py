"""Recomputation: which activations a block keeps for backward.

A whole recomputed layer keeps its input (arXiv:1604.06174). Selective recomputation keeps the results of chosen kinds
of operators and computes the others again from them (arXiv:2205.05198).
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from meshwright.model.decoder import Decoder
from meshwright.spec.training import Recompute, RecomputeKind

_aten = torch.ops.aten
_collectives = torch.ops._c10d_functional

OPERATORS: dict[RecomputeKind, frozenset[Any]] = {
    "matmul": frozenset(
        {_aten.mm.default, _aten.addmm.default, _aten.bmm.default, _aten.linear.default, _aten.matmul.default}
    ),
    "attention": frozenset(
        {
            _aten._scaled_dot_product_flash_attention_for_cpu.default,
            _aten._scaled_dot_product_flash_attention.default,
            _aten._scaled_dot_product_efficient_attention.default,
            _aten._scaled_dot_product_cudnn_attention.default,
            _aten._scaled_dot_product_fused_attention_overrideable.default,
        }
    ),
    "communication": frozenset(
        {
            _collectives.all_gather_into_tensor.default,
            _collectives.reduce_scatter_tensor.default,
            _collectives.all_reduce.default,
        }
    ),
}
"""Operators of each kind; every other operator is ``elementwise``."""

# torch's RMS norm adds epsilon to its mean in place, and a kept result must not change after it was kept.
NEVER_KEPT = frozenset({_aten.mean.dim, _aten.add_.Scalar})


def kind_of(operator: Any) -> RecomputeKind:
    """The kind that an aten or collective overload belongs to."""
    for kind, operators in OPERATORS.items():
        if operator in operators:
            return kind
    return "elementwise"


def apply_recompute(model: Decoder, recompute: Recompute) -> None:
    """Replace the forward of the layers that recompute something. Parameter names do not change."""
    random = model.spec.hidden_dropout > 0 or model.spec.attention_dropout > 0
    for name, layer in model.layers.items():
        if recompute.whole(int(name)):
            context = None
        elif recompute.select:
            context = partial(create_selective_checkpoint_contexts, _policy(recompute.select))
        else:
            continue
        layer.forward = _recomputed(layer.forward, context, random=random)  # type: ignore[method-assign]


def _policy(select: tuple[RecomputeKind, ...]) -> Callable[..., CheckpointPolicy]:
    def policy(_context: Any, operator: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
        again = operator in NEVER_KEPT or kind_of(operator) in select
        return CheckpointPolicy.PREFER_RECOMPUTE if again else CheckpointPolicy.MUST_SAVE

    return policy


def _recomputed(forward: Callable[..., Any], context: Callable[[], Any] | None, *, random: bool) -> Callable[..., Any]:
    options: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": random}
    if context is not None:
        options["context_fn"] = context
    return partial(checkpoint, forward, **options)
