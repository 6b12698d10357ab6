"""What a published run of torchtitan did otherwise than Meshwright, one by one.

Each difference exchanges one function of the trainer for one that allocates as torchtitan's does, for the duration of
a dry run, so that its bytes come from the same tape and the same allocator as everything else. Values do not matter:
the tensors of a dry run have none. The sources are torchtitan at 9dec370 (December 2024) and torch of that month.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torch.optim import adam
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from meshwright.dryrun.exchange import exchanged
from meshwright.model import attention
from meshwright.model.decoder import Decoder
from meshwright.model.loss import TokenLoss, VocabReduce
from meshwright.parallel import apply, pipeline, zero
from meshwright.parallel.tensor import _VocabEmbedding, local
from meshwright.train import optimizer, step

_aten = torch.ops.aten


@dataclass(frozen=True)
class Difference:
    """One thing that torchtitan did otherwise.

    Attributes:
        name: column of the table.
        text: what it is, and the file that says so.
        applied: context in which a dry run allocates as torchtitan did.
    """

    name: str
    text: str
    applied: Callable[[], AbstractContextManager[None]]


@contextmanager
def _operator_recomputation() -> Iterator[None]:
    with exchanged(apply, "apply_recompute", lambda _own: _keep_every_second_product):
        yield


def _keep_every_second_product(model: Decoder, _recompute: Any) -> None:
    for layer in model.layers.values():
        options: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False}
        forward = partial(checkpoint, layer.forward, context_fn=_contexts_of_one_pass, **options)
        layer.forward = forward  # type: ignore[method-assign]


def _contexts_of_one_pass() -> Any:
    products: dict[bool, int] = defaultdict(int)

    def policy(context: Any, operator: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
        kept = operator is _aten._scaled_dot_product_flash_attention.default
        if operator is _aten.mm.default:
            products[context.is_recompute] += 1
            kept = products[context.is_recompute] % 2 == 1
        return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


@contextmanager
def _fp32_loss() -> Iterator[None]:
    with exchanged(TokenLoss, "_loss", lambda _own: _log_softmax_loss):
        yield


def _log_softmax_loss(self: TokenLoss, hidden_TD: Tensor, weight_VD: Tensor, labels_T: Tensor) -> tuple[Tensor, Tensor]:
    logits_TV = F.linear(hidden_TD, weight_VD)
    if logits_TV.shape[1] >= self.shard.vocab_size:
        total = F.cross_entropy(logits_TV.float(), labels_T, reduction="sum")
    else:
        total = _ShardedCrossEntropy.apply(logits_TV.float(), labels_T, self.shard.reduce)
    # The loss of each token is for blends of corpora, which no dry run has.
    return total, total.detach()


class _ShardedCrossEntropy(torch.autograd.Function):
    """Tensors of ``loss_parallel``: torch/distributed/tensor/parallel/loss.py."""

    @staticmethod
    def forward(ctx: Any, logits_TV: Tensor, labels_T: Tensor, reduce: VocabReduce) -> Tensor:
        shifted_TV = logits_TV - reduce.max(logits_TV.amax(1, keepdim=True))
        total_T1 = reduce.sum(shifted_TV.exp().sum(1, keepdim=True))
        log_TV = shifted_TV - total_T1.log()
        ctx.save_for_backward(log_TV, labels_T)
        return log_TV.gather(1, labels_T[:, None]).sum()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        log_TV, labels_T = ctx.saved_tensors
        gradient_TV = torch.zeros_like(log_TV)
        gradient_TV.scatter_(1, labels_T[:, None], -1.0)
        return (gradient_TV + log_TV.exp()) * grad, None, None


@contextmanager
def _foreach_adamw() -> Iterator[None]:
    def foreach(own: Callable[..., None]) -> Callable[..., None]:
        return lambda *args, **kwargs: own(*args, **{**kwargs, "foreach": True, "fused": False, "found_inf": None})

    with ExitStack() as stack:
        stack.enter_context(exchanged(optimizer, "adamw", foreach))
        # A step count is read back to the host, which a tensor without a value cannot do.
        stack.enter_context(exchanged(adam, "_get_value", lambda _own: lambda _count: 1.0))
        yield


@contextmanager
def _attention() -> Iterator[None]:
    with ExitStack() as stack:
        stack.enter_context(exchanged(attention, "apply_rope", lambda _own: _complex_rope))
        stack.enter_context(exchanged(attention, "takes_fewer_keys", lambda _own: lambda *_args, **_kwargs: False))
        yield


def _complex_rope(x_BNSH: Tensor, cos_SH: Tensor, sin_SH: Tensor) -> Tensor:
    x_BSNH = x_BNSH.transpose(1, 2)
    half = cos_SH.shape[1] // 2
    turns = torch.complex(cos_SH[:, None, :half], sin_SH[:, None, :half])
    pairs = torch.view_as_complex(x_BSNH.float().reshape(*x_BSNH.shape[:-1], half, 2))
    return torch.view_as_real(pairs * turns).flatten(3).type_as(x_BSNH).transpose(1, 2)


@contextmanager
def _root_group() -> Iterator[None]:
    last: list[nn.Module] = []

    def layers_alone(model: Decoder, _comm_fusion: int) -> list[list[nn.Module]]:
        layers = list(model.layers.values())
        last[:] = layers[-1:]
        return [[layer] for layer in layers]

    def wrap(own: Callable[..., None]) -> Callable[..., None]:
        def wrapped(modules: list[nn.Module], mesh: Any, policy: Any, *, keep_weights: bool) -> None:
            own(modules, mesh, policy, keep_weights=keep_weights or modules == last)

        return wrapped

    with exchanged(zero, "_groups", lambda _own: layers_alone), exchanged(zero, "_wrap", wrap):
        yield


@contextmanager
def _receive_buffers() -> Iterator[None]:
    # The parts of torch's own stage that ours replaces.
    names = ("_prepare_forward_infra", "_prepare_backward_infra", "_get_recv_ops", "forward_one_chunk")
    with ExitStack() as stack:
        for name in (*names, "backward_one_chunk"):
            own = getattr(PipelineStage, name)
            stack.enter_context(exchanged(pipeline._Stage, name, lambda _ours, own=own: own))
        yield


class _WholeGradient(torch.autograd.Function):
    """Beside the gradient of this rank's rows, that of all others, added up in fp32."""

    @staticmethod
    def forward(ctx: Any, x_BSD: Tensor, sums: list[Tensor], rows: int) -> Tensor:
        ctx.sums, ctx.rows = sums, rows
        return x_BSD.view_as(x_BSD)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        gradient = grad.new_empty(ctx.rows, grad.shape[-1])
        if not ctx.sums:
            ctx.sums.append(gradient.float())
        return grad, None, None


@contextmanager
def _whole_embedding_gradient() -> Iterator[None]:
    sums: list[Tensor] = []

    def forward(own: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def embedded(self: nn.Embedding, ids: Tensor) -> Tensor:
            others = self.num_embeddings - local(self.weight).shape[0]
            return _WholeGradient.apply(own(self, ids), sums, others)

        return embedded

    def reduced(own: Callable[..., None]) -> Callable[..., None]:
        def complete(*args: Any, **kwargs: Any) -> None:
            sums.clear()
            own(*args, **kwargs)

        return complete

    with exchanged(_VocabEmbedding, "forward", forward), exchanged(step, "complete_gradients", reduced):
        yield


RECOMPUTATION = Difference(
    "recompute",
    "keeps attention and every second matrix product of a layer, where `elementwise` keeps every product"
    " (torchtitan/parallelisms/parallelize_llama.py, `_get_custom_policy`)",
    _operator_recomputation,
)
LOSS = Difference(
    "loss",
    "casts the logits to fp32 and keeps their log-softmax, of which the gradient is a second tensor; ours works on"
    " 16-bit logits in blocks and in place (train.py, `loss_fn`; torch's `loss_parallel` under tensor parallelism)",
    _fp32_loss,
)
OPTIMIZER = Difference(
    "optimizer",
    "updates by `foreach` operators, with a temporary as large as the parameters held; ours is fused"
    " (torchtitan/optimizer.py)",
    _foreach_adamw,
)
ATTENTION = Difference(
    "attention",
    "rotates queries and keys as fp32 complex numbers and repeats keys and values for every query head; ours rotates"
    " in 16 bits, and the kernel takes fewer keys (torchtitan/models/llama/model.py, `apply_rotary_emb`, `repeat_kv`)",
    _attention,
)
ROOT = Difference(
    "root group",
    "gathers embedding, last norm and head together for the whole step and does not free the last layer after forward;"
    " ours gathers the embedding alone (torchtitan/parallelisms/parallelize_llama.py, `apply_fsdp`)",
    _root_group,
)
BUFFERS = Difference(
    "receive buffers",
    "keeps a receive buffer for every micro-batch and direction over the whole run, as torch's pipeline stage does;"
    " ours makes them when they are needed (torch/distributed/pipelining/stage.py)",
    _receive_buffers,
)
EMBEDDING = Difference(
    "embedding gradient",
    "adds up the gradient of all rows of an embedding that is split over ranks: DTensor's backward has no such split,"
    " and the gradient is cut only when it is reduced (torch/distributed/tensor/_ops/_embedding_ops.py,"
    " torch/distributed/fsdp/_fully_shard/_fsdp_param.py, `to_accumulated_grad_if_needed`)",
    _whole_embedding_gradient,
)
