"""Data parallelism and ZeRO 0 to 3: one code path over replicate / fully_shard (arXiv:1910.02054).

Every reduction is a plain sum: the loss is already divided by the tokens of the global batch.

| stage | wrapped by                                | gradients reduced     | weights gathered        |
|-------|-------------------------------------------|-----------------------|-------------------------|
| 0     | replicate                                 | last micro-batch      | never                   |
| 1     | fully_shard, weights kept after forward   | last micro-batch      | once per step           |
| 2     | fully_shard, weights kept after forward   | every micro-batch     | once per step           |
| 3     | fully_shard, weights freed after forward  | every micro-batch     | forward and backward    |
"""

from torch import nn
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from meshwright.model.decoder import Decoder
from meshwright.parallel.mesh import Mesh
from meshwright.spec.layout import Layout


def apply_zero(model: Decoder, mesh: Mesh, policy: MixedPrecisionPolicy) -> None:
    """Wrap the layers in groups of ``comm_fusion``, the embedding (untied) and the rest.

    A run that shards nothing and casts nothing stays unwrapped: its gradients are complete as they are.
    """
    if mesh.layout.zero_ranks == 1 and policy.param_dtype is None:
        return
    for group in _groups(model, mesh.layout.comm_fusion):
        _wrap(group, mesh, policy, keep_weights=mesh.layout.zero_stage < 3)
    # The head is used right before backward begins: freeing it between would gather it twice.
    _wrap([model], mesh, policy, keep_weights=True)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)


def _groups(model: Decoder, comm_fusion: int) -> list[list[nn.Module]]:
    layers = list(model.layers.values())
    groups: list[list[nn.Module]] = [layers[i : i + comm_fusion] for i in range(0, len(layers), comm_fusion)]
    if model.takes_tokens and model.embedding is not None and not model.spec.tie_word_embeddings:
        groups.insert(0, [model.embedding])
    return groups


def _wrap(modules: list[nn.Module], mesh: Mesh, policy: MixedPrecisionPolicy, *, keep_weights: bool) -> None:
    target = modules if len(modules) > 1 else modules[0]
    if mesh.layout.zero_stage == 0:
        replicate(target, mesh=mesh.zero, mp_policy=policy)
    else:
        fully_shard(target, mesh=mesh.zero, mp_policy=policy, reshard_after_forward=not keep_weights)


def begin_backward(model: nn.Module, layout: Layout, *, last: bool) -> None:
    """Say what the coming backward pass does with gradients and weights.

    Args:
        last: it is the last micro-batch of the optimizer step.
    """
    if not isinstance(model, FSDPModule):
        return
    model.set_is_last_backward(last)
    model.set_requires_gradient_sync(last or layout.zero_stage >= 2)
    # Inside a replicated group of shards only the finished sum has to cross groups.
    model.set_requires_all_reduce(last)
    model.set_reshard_after_backward(last or layout.zero_stage == 3)


def free_gathered_weights(model: nn.Module) -> None:
    """Drop weights that a forward pass without backward has left gathered."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
