"""From a model and a layout to what one rank runs."""

from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from meshwright.model.decoder import Decoder
from meshwright.model.init import Initial, Rows, copy_whole, fill_weights, initial_rows
from meshwright.parallel.mesh import Mesh
from meshwright.parallel.pipeline import PipelineExecutor, cut
from meshwright.parallel.precision import Formats, apply_autocast
from meshwright.parallel.recompute import apply_recompute
from meshwright.parallel.tensor import apply_tensor
from meshwright.parallel.zero import apply_zero, begin_backward, free_gathered_weights
from meshwright.spec.layout import Layout
from meshwright.spec.model import ModelSpec
from meshwright.spec.training import TrainSpec


class Executor(Protocol):
    """Runs the micro-batches of one step; see `PipelineExecutor` for the contract of both methods."""

    def forward_backward(
        self, tokens: Tensor, labels: Tensor, weight: Tensor, positions: Tensor | None = None
    ) -> Tensor:
        """Accumulate gradients; return the weighted loss of the local batch."""
        ...

    def evaluate(self, tokens: Tensor, labels: Tensor, positions: Tensor | None = None) -> Tensor:
        """Return the sum of token losses of the local batch."""
        ...


class MicroBatchExecutor:
    """Runs micro-batches one after the other through a model that is whole along its depth."""

    def __init__(self, model: Decoder, layout: Layout, micro_batch_num: int) -> None:
        self._model, self._layout, self._micro_batch_num = model, layout, micro_batch_num

    def forward_backward(
        self, tokens: Tensor, labels: Tensor, weight: Tensor, positions: Tensor | None = None
    ) -> Tensor:
        """See `PipelineExecutor.forward_backward`."""
        total = torch.zeros_like(weight)
        micro_batches = self._micro_batches(tokens, labels, positions)
        for number, micro_batch in enumerate(micro_batches, start=1):
            begin_backward(self._model, self._layout, last=number == len(micro_batches))
            loss = self._model(*micro_batch) * weight
            loss.backward()
            total += loss.detach()
        return total

    @torch.no_grad()
    def evaluate(self, tokens: Tensor, labels: Tensor, positions: Tensor | None = None) -> Tensor:
        """See `PipelineExecutor.evaluate`."""
        micro_batches = self._micro_batches(tokens, labels, positions)
        total = torch.stack([self._model(*micro_batch) for micro_batch in micro_batches]).sum()
        free_gathered_weights(self._model)
        return total

    def _micro_batches(
        self, tokens: Tensor, labels: Tensor, positions: Tensor | None
    ) -> list[tuple[Tensor, Tensor, Tensor | None]]:
        """Arguments of the model for each micro-batch."""
        number = self._micro_batch_num
        apart = [None] * number if positions is None else positions.chunk(number)
        return list(zip(tokens.chunk(number), labels.chunk(number), apart, strict=True))


@dataclass(frozen=True, kw_only=True)
class ParallelModel:
    """This rank's part of the model and the way to run it."""

    model: Decoder
    executor: Executor


def parallelize(
    spec: ModelSpec,
    layout: Layout,
    train: TrainSpec,
    *,
    mesh: Mesh,
    device: torch.device,
    formats: Formats,
    initial: Initial | None = None,
) -> ParallelModel:
    """Build this rank's part of the model with its initial weights, in the order that the package names.

    The model is rewritten on the meta device, so no rank ever holds more than its part.

    Args:
        initial: where the weights come from; None draws them from the run's seed.
    """
    # Until there is a device, shapes are all there is: a mode that makes fake tensors of a device comes in after.
    with unset_fake_temporarily():
        model = _rewritten(spec, layout, train, mesh=mesh, device=device, formats=formats)
    model.to_empty(device=device)
    fill_weights(model, initial or partial(initial_rows, spec, train.seed), place_part)
    return ParallelModel(model=model, executor=_executor(model, layout, train, mesh, device, formats))


def _rewritten(
    spec: ModelSpec, layout: Layout, train: TrainSpec, *, mesh: Mesh, device: torch.device, formats: Formats
) -> Decoder:
    with torch.device("meta"):
        model = Decoder(spec, seq_length=train.seq_length, loss_chunk_tokens=train.loss_chunk_tokens)
        model.to(formats.stored)
    if layout.pipeline_stage > 1:
        cut(model, layout, mesh.at.pipeline)
    if layout.model_parallel > 1:
        apply_tensor(model, mesh)
    apply_recompute(model, train.recompute)
    if train.compile:
        apply_compile(model)
    apply_autocast(model, device.type, formats)
    apply_zero(model, mesh, formats.policy)
    return model


def _executor(
    model: Decoder, layout: Layout, train: TrainSpec, mesh: Mesh, device: torch.device, formats: Formats
) -> Executor:
    batch = train.batch
    if layout.pipeline_stage == 1:
        return MicroBatchExecutor(model, layout, batch.micro_batch_num)
    return PipelineExecutor(
        model,
        mesh,
        hidden_dtype=formats.hidden,
        device=device,
        micro_batch_size=batch.micro_batch_size,
        micro_batch_num=batch.micro_batch_num,
    )


def apply_compile(model: Decoder) -> None:
    """Compile the forward of each block."""
    for layer in model.layers.values():
        layer.forward = torch.compile(layer.forward)  # type: ignore[method-assign]


def place_part(parameter: Tensor, rows: Rows) -> None:
    """Fill a parameter, whole or sharded, with this rank's part of its initial value."""
    if not isinstance(parameter, DTensor):
        copy_whole(parameter, rows)
        return
    shape, offset = compute_local_shape_and_global_offset(parameter.shape, parameter.device_mesh, parameter.placements)
    part = rows(offset[0], offset[0] + shape[0])
    for dim in range(1, len(shape)):
        part = part.narrow(dim, offset[dim], shape[dim])
    parameter.to_local().copy_(part)
