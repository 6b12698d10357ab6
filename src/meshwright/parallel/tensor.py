"""Tensor parallelism, with the sequence sharded between the blocks or not.

Parameters are stored as DTensors on the ``model`` dimension, so that ZeRO, checkpoints and the gradient norm see
their placements; compute runs on local tensors with the collectives of `collectives`.

B micro-batch, S sequence, D hidden, V vocabulary.
"""

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard

from meshwright.model.decoder import Block, Decoder
from meshwright.model.loss import TokenLoss, VocabShard
from meshwright.model.norm import RMSNorm, rms_norm
from meshwright.parallel.collectives import (
    CopyToModel,
    GatherSequence,
    ReduceFromModel,
    ScatterSequence,
    all_reduce,
)
from meshwright.parallel.mesh import Mesh

COLUMN_WISE = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
ROW_WISE = ("o_proj", "down_proj")

Collective = Callable[[Tensor], Tensor]


def local(parameter: Tensor) -> Tensor:
    """The part of a parameter that this rank holds; gradients flow back as the same part."""
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter


class _ColumnLinear(nn.Linear):
    """Output features split over ranks."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, local(self.weight), local(self.bias) if self.bias is not None else None)


class _RowLinear(nn.Linear):
    """Input features split over ranks; ``leave`` sums the partial results, the bias is added once, after it."""

    leave: Collective

    def forward(self, x: Tensor) -> Tensor:
        out = self.leave(F.linear(x, local(self.weight)))
        return out if self.bias is None else out + local(self.bias)


class _LocalNorm(RMSNorm):
    """The same weight on every rank."""

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, local(self.weight), self.eps)


class _VocabEmbedding(nn.Embedding):
    """Rows split over ranks: ids of other ranks give zeros, ``leave`` sums."""

    leave: Collective
    first_row: int

    def forward(self, ids: Tensor) -> Tensor:
        weight = local(self.weight)
        row = ids - self.first_row
        here = (row >= 0) & (row < weight.shape[0])
        part = F.embedding(row.clamp(0, weight.shape[0] - 1), weight)
        return self.leave(part * here[..., None])


class _GroupReduce:
    """`VocabReduce` over a process group."""

    def __init__(self, group: ProcessGroup) -> None:
        self._group = group

    def max(self, values: Tensor) -> Tensor:
        return all_reduce(values, self._group, "max")

    def sum(self, values: Tensor) -> Tensor:
        return all_reduce(values, self._group, "sum")


class _VocabParallelLoss(TokenLoss):
    """Cross entropy over logits whose columns are split over ranks; ``enter`` brings the whole sequence here."""

    enter: Collective

    def forward(self, hidden_BSD: Tensor, weight_VD: Tensor, labels_BS: Tensor) -> Tensor:
        return super().forward(self.enter(hidden_BSD), local(weight_VD), labels_BS)


def apply_tensor(model: Decoder, mesh: Mesh) -> None:
    """Split ``model`` over the ``model`` dimension in place."""
    group = mesh.model_group
    sharded = mesh.layout.use_seq_parallel

    def enter(x: Tensor) -> Tensor:
        return (GatherSequence if sharded else CopyToModel).apply(x, group)

    def leave(x: Tensor) -> Tensor:
        return (ScatterSequence if sharded else ReduceFromModel).apply(x, group)

    for layer in model.layers.values():
        assert isinstance(layer, Block)
        for part in (layer.attention, layer.mlp):
            part.register_forward_pre_hook(_entering(enter))
    for name, module in model.named_modules():
        kind = name.rpartition(".")[2]
        if kind in COLUMN_WISE:
            module.__class__ = _ColumnLinear
        elif kind in ROW_WISE:
            module.__class__ = _RowLinear
            module.leave = leave
        elif isinstance(module, RMSNorm):
            module.__class__ = _LocalNorm
    if model.embedding is not None:
        _split_embedding(model.embedding, leave, mesh)
    _split_loss(model, enter, mesh)
    _store_as_dtensors(model, mesh)


def _entering(enter: Collective) -> Callable[[nn.Module, tuple[Any, ...]], tuple[Any, ...]]:
    def hook(_module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return (enter(args[0]), *args[1:])

    return hook


def _split_embedding(embedding: nn.Embedding, leave: Collective, mesh: Mesh) -> None:
    rows = embedding.num_embeddings // mesh.layout.model_parallel
    embedding.__class__ = _VocabEmbedding
    embedding.leave = leave  # type: ignore[assignment]
    embedding.first_row = rows * mesh.at.model  # type: ignore[assignment]


def _split_loss(model: Decoder, enter: Collective, mesh: Mesh) -> None:
    columns = model.spec.padded_vocab_size // mesh.layout.model_parallel
    loss = _VocabParallelLoss(model.spec.vocab_size, model.loss.chunk_tokens)
    loss.enter = enter
    loss.shard = VocabShard(
        start=columns * mesh.at.model,
        vocab_size=model.spec.vocab_size,
        reduce=_GroupReduce(mesh.model_group),
    )
    model.loss = loss


def placement_of(name: str) -> Placement:
    """Where a parameter of the decoder lies along the ``model`` dimension."""
    *_, module, kind = name.split(".")
    if module in COLUMN_WISE or name in ("embedding.weight", "head.weight"):
        return Shard(0)
    if module in ROW_WISE and kind == "weight":
        return Shard(1)
    return Replicate()


def _store_as_dtensors(model: Decoder, mesh: Mesh) -> None:
    ways, position = mesh.layout.model_parallel, mesh.at.model
    for name, parameter in list(model.named_parameters()):
        placement = placement_of(name)
        part = parameter.detach()
        if isinstance(placement, Shard):
            part = part.chunk(ways, placement.dim)[position].contiguous()
        owner, _, leaf = name.rpartition(".")
        stored = DTensor.from_local(part, mesh.model, [placement], run_check=False)
        setattr(model.get_submodule(owner), leaf, nn.Parameter(stored))


def partial_gradients(name: str, mesh: Mesh) -> bool:
    """Whether each model rank holds only its share of a replicated parameter's gradient.

    Query and key norms see the heads of one rank. With `use_seq_parallel`, the other norms and the biases of the
    row-wise projections see one part of the sequence.
    """
    if mesh.layout.model_parallel == 1 or not isinstance(placement_of(name), Replicate):
        return False
    return mesh.layout.use_seq_parallel or name.split(".")[-2] in ("q_norm", "k_norm")
