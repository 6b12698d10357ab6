"""Pipeline parallelism over ``torch.distributed.pipelining``.

B micro-batch, S sequence, D hidden.
"""

from typing import Any

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.pipelining._backward import stage_backward
from torch.distributed.pipelining.schedules import PipelineScheduleSingle

from meshwright.model.decoder import Decoder
from meshwright.parallel.mesh import Mesh
from meshwright.parallel.zero import begin_backward, free_gathered_weights
from meshwright.spec.layers import layer_map
from meshwright.spec.layout import Layout

SCHEDULES: dict[str, type[PipelineScheduleSingle]] = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}


def cut(model: Decoder, layout: Layout, stage: int) -> None:
    """Leave only the parts of one stage in ``model``."""
    layers = layer_map(model.spec.num_layers, layout)
    model.keep_stage(layers[stage], first=stage == 0, last=stage == layout.pipeline_stage - 1)


class _Stage(PipelineStage):
    """A stage that holds no more than its micro-batches in flight need.

    torch's own stage reduces gradients once per step, which would keep ZeRO-2 and ZeRO-3 gradients whole until then,
    and owns a receive buffer for every micro-batch and direction, which would make memory grow with their number.
    """

    layout: Layout

    def _prepare_forward_infra(self, *args: Any, **kwargs: Any) -> Any:
        prepared = super()._prepare_forward_infra(*args, **kwargs)
        for infos in self.args_recv_info.values():
            _drop_buffers(infos)
        return prepared

    def _prepare_backward_infra(self, *args: Any, **kwargs: Any) -> Any:
        prepared = super()._prepare_backward_infra(*args, **kwargs)
        for infos in self.grad_recv_info.values():
            _drop_buffers(infos)
        return prepared

    def _get_recv_ops(self, recv_infos: tuple[Any, ...]) -> list[Any]:
        for info in recv_infos:
            if info.tensor_meta is not None and not info.is_root_arg:
                info.buffer = torch.empty(info.tensor_meta.shape, dtype=info.tensor_meta.dtype, device=self.device)
        return super()._get_recv_ops(recv_infos)

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        output = super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)
        if not torch.is_grad_enabled():
            _drop_buffers(self.args_recv_info[fwd_chunk_id])
        return output

    def backward_maybe_with_nosync(
        self, backward_type: Any, bwd_kwargs: dict[str, Any], last_backward: bool = False
    ) -> Any:
        if not isinstance(self.submod, FSDPModule) or self.layout.zero_stage < 2:
            return super().backward_maybe_with_nosync(backward_type, bwd_kwargs, last_backward)
        assert backward_type == "full", "schedules that split backward do not reduce per micro-batch"
        begin_backward(self.submod, self.layout, last=last_backward)
        grads = stage_backward(bwd_kwargs["stage_output"], bwd_kwargs["output_grads"], bwd_kwargs["input_values"])
        return grads, None

    def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> None:
        super().backward_one_chunk(bwd_chunk_id, *args, **kwargs)
        for info in self.args_recv_info[bwd_chunk_id]:
            if info.buffer is not None:
                # The loss is kept until the step ends and its graph keeps this leaf: only the bytes can go.
                info.buffer.untyped_storage().resize_(0)
        _drop_buffers(self.args_recv_info[bwd_chunk_id])
        _drop_buffers(self.grad_recv_info.get(bwd_chunk_id, ()))


def _drop_buffers(infos: tuple[Any, ...]) -> None:
    for info in infos:
        if not info.is_root_arg:
            info.buffer = None


class PipelineExecutor:
    """Runs the micro-batches of a step through this rank's stage.

    Args:
        model: the stage, already parallelised.
        hidden_dtype: dtype of hidden states between stages.
        device: where the stage lives.
        micro_batch_size: sequences of one micro-batch.
        micro_batch_num: micro-batches of one step.
    """

    def __init__(
        self,
        model: Decoder,
        mesh: Mesh,
        *,
        hidden_dtype: torch.dtype,
        device: torch.device,
        micro_batch_size: int,
        micro_batch_num: int,
    ) -> None:
        self._model, self._mesh = model, mesh
        self._hidden_dtype, self._device = hidden_dtype, device
        self._micro_batch_size = micro_batch_size
        self._batch_shape = (micro_batch_size * micro_batch_num, model.seq_length)
        self._schedule = self._build(micro_batch_num)
        self._weight = torch.ones((), device=device)

    def _build(self, micro_batch_num: int) -> PipelineScheduleSingle:
        model, mesh = self._model, self._mesh
        stage = _Stage(
            model,
            mesh.at.pipeline,
            mesh.layout.pipeline_stage,
            self._device,
            input_args=self._example(tokens=model.takes_tokens),
            output_args=self._loss_example() if model.gives_loss else self._example(tokens=False),
            group=mesh.pipeline_group,
        )
        stage.layout = mesh.layout
        return SCHEDULES[mesh.layout.pipeline_schedule](
            stage, micro_batch_num, loss_fn=self._weighted, scale_grads=False
        )

    def _example(self, *, tokens: bool) -> Tensor:
        layout, model = self._mesh.layout, self._model
        length = model.seq_length
        if tokens:
            return torch.empty((self._micro_batch_size, length), dtype=torch.int64, device="meta")
        if layout.use_seq_parallel:
            length //= layout.model_parallel
        shape = (self._micro_batch_size, length, model.spec.hidden_size)
        return torch.empty(shape, dtype=self._hidden_dtype, device="meta", requires_grad=True)

    def _loss_example(self) -> Tensor:
        return torch.empty((), device="meta", requires_grad=True)

    def _weighted(self, loss_sum: Tensor, _target: Tensor) -> Tensor:
        return loss_sum * self._weight

    def _inputs(
        self, tokens: Tensor, labels: Tensor, positions: Tensor | None
    ) -> tuple[tuple[Tensor, ...], dict[str, Any]]:
        # Receive buffers are made once: another shape would fail late, in the loss, or not at all.
        for name, given in (("tokens", tokens), ("labels", labels), ("positions", positions)):
            if given is not None and given.shape != self._batch_shape:
                raise ValueError(
                    f"{name} of shape {tuple(given.shape)} given to a pipeline built for {self._batch_shape}"
                    " (sequences of all micro-batches, seq_length)"
                )
        args = (tokens,) if self._model.takes_tokens else ()
        kwargs = {"labels_BS": labels} if self._model.gives_loss else {}
        # Every stage is given its own micro-batches of them: nothing but hidden states travels between stages.
        return args, kwargs if positions is None else {**kwargs, "positions_BS": positions}

    def forward_backward(
        self, tokens: Tensor, labels: Tensor, weight: Tensor, positions: Tensor | None = None
    ) -> Tensor:
        """Accumulate the gradients of ``weight`` x the sum of token losses of the local batch.

        Args:
            tokens: int64 [micro_batch_num x B, S].
            labels: int64, as ``tokens``.
            weight: 0-d fp32 factor.
            positions: int64, as ``tokens``; see `Decoder.forward`.

        Returns:
            That weighted loss on the last stage, zero elsewhere; 0-d fp32.

        Raises:
            ValueError: another shape than the pipeline was built for.
        """
        self._weight = weight
        args, kwargs = self._inputs(tokens, labels, positions)
        losses: list[Tensor] = []
        target = labels if self._model.gives_loss else None
        self._schedule.step(*args, target=target, losses=losses, return_outputs=False, **kwargs)
        return torch.stack([loss.detach() for loss in losses]).sum() if losses else torch.zeros_like(weight)

    @torch.no_grad()
    def evaluate(self, tokens: Tensor, labels: Tensor, positions: Tensor | None = None) -> Tensor:
        """Sum of token losses of the local batch on the last stage, zero elsewhere; 0-d fp32."""
        self._weight = torch.ones_like(self._weight)
        args, kwargs = self._inputs(tokens, labels, positions)
        losses: list[Tensor] = []
        target = labels if self._model.gives_loss else None
        self._schedule.eval(*args, target=target, losses=losses, return_outputs=False, **kwargs)
        free_gathered_weights(self._model)
        return torch.stack(losses).sum() if losses else torch.zeros_like(self._weight)
