"""One run on any layout, and the same run as a plain loop on one process."""

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.tensor import DTensor

from meshwright.data.loader import Batch
from meshwright.model.decoder import Decoder
from meshwright.model.init import init_weights
from meshwright.parallel.devices import KINDS
from meshwright.parallel.precision import formats
from meshwright.spec.layout import Layout
from meshwright.spec.model import ModelSpec
from meshwright.spec.training import Batch as BatchSpec
from meshwright.spec.training import OptimizerSpec, TrainSpec
from meshwright.train.build import build_state
from meshwright.train.gradients import complete_gradients
from meshwright.train.optimizer import decays
from meshwright.train.step import TrainState, train_step

TINY = ModelSpec(
    num_layers=4,
    hidden_size=64,
    num_heads=8,
    num_kv_heads=8,
    head_dim=8,
    intermediate_size=96,
    vocab_size=251,
)
SEQ_LENGTH = 32
GLOBAL_BATCH = 8
CPU = torch.device("cpu")
# With a tiny eps the update of near-zero gradients is a sign: rounding differences would be blown up to the step size.
OPTIMIZER = OptimizerSpec(learning_rate=1e-3, eps=1e-5)


@dataclass
class Trace:
    """What a run came to. Gradients and weights are whole tensors by name."""

    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    gradients: dict[str, Tensor] = field(default_factory=dict)
    weights: dict[str, Tensor] = field(default_factory=dict)
    skipped: list[float] = field(default_factory=list)


def train_spec(layout: Layout, *, micro_batch_num: int = 4, **changes: Any) -> TrainSpec:
    """The shared global batch cut for a layout."""
    micro_batch_size = GLOBAL_BATCH // layout.data_parallel // micro_batch_num
    if micro_batch_size == 0:
        micro_batch_num, micro_batch_size = GLOBAL_BATCH // layout.data_parallel, 1
    batch = BatchSpec(
        micro_batch_size=micro_batch_size, micro_batch_num=micro_batch_num, global_batch_size=GLOBAL_BATCH
    )
    return TrainSpec(seq_length=SEQ_LENGTH, batch=batch, **{"optimizer": OPTIMIZER, **changes})


def global_batch(
    step: int, vocab_size: int, masked: bool = True, *, isolated: bool = False
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Tokens, labels and perhaps positions of one step, unevenly masked: every mean over a part of the batch is wrong.

    Isolated, every row has documents that begin at places of its own.
    """
    generator = torch.Generator().manual_seed(100 + step)
    ids = torch.randint(0, vocab_size, (GLOBAL_BATCH, SEQ_LENGTH + 1), generator=generator)
    tokens, labels = ids[:, :-1].contiguous(), ids[:, 1:].clone()
    if masked:
        labels[:3, 5:] = -100
        labels[6, ::2] = -100
    if not isolated:
        return tokens, labels, None
    begins = torch.rand(tokens.shape, generator=generator) < 0.1
    begins[:, 0] = True
    place = torch.arange(SEQ_LENGTH).expand_as(tokens)
    positions = place - torch.where(begins, place, 0).cummax(dim=1).values
    labels[:, :-1][begins[:, 1:]] = -100
    return tokens, labels, positions


def each_alone(model: Decoder, tokens: Tensor, positions: Tensor) -> Tensor:
    """Logits of documents that the model is given one by one, [B, S, V]."""
    rows = []
    for row, inside in zip(tokens, positions, strict=True):
        borders = [*(inside == 0).nonzero().flatten().tolist(), len(row)]
        lengths = [stop - start for start, stop in pairwise(borders)]
        rows.append(torch.cat([model(document[None])[0] for document in row.split(lengths)]))
    return torch.stack(rows)


def plain_run(spec: ModelSpec, *, steps: int, train: TrainSpec, masked: bool = True) -> Trace:
    """The run as anyone would write it on one process: no code of `parallel` or `train`."""
    model = Decoder(spec, seq_length=SEQ_LENGTH)
    init_weights(model, spec, train.seed)
    named = dict(model.named_parameters())
    options = train.optimizer
    optimizer = torch.optim.AdamW(
        [
            {"params": [p for n, p in named.items() if decays(n)], "weight_decay": options.weight_decay},
            {"params": [p for n, p in named.items() if not decays(n)], "weight_decay": 0.0},
        ],
        lr=options.learning_rate,
        betas=options.betas,
        eps=options.eps,
    )
    trace = Trace()
    for step in range(steps):
        tokens, labels, positions = global_batch(step, spec.vocab_size, masked, isolated=train.isolate_documents)
        optimizer.zero_grad()
        logits = model(tokens) if positions is None else each_alone(model, tokens, positions)
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        loss.backward()
        if step == 0:
            trace.gradients = {n: p.grad.clone() for n, p in named.items()}
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), train.grad_clip or float("inf"))
        optimizer.step()
        trace.losses.append(loss.item())
        trace.norms.append(norm.item())
    trace.weights = {n: p.detach().clone() for n, p in named.items()}
    return trace


def local_batch(state: TrainState, step: int, masked: bool = True, *, isolated: bool = False) -> Batch:
    """This rank's slice of the global batch."""
    batch = Batch(*global_batch(step, state.model.spec.vocab_size, masked, isolated=isolated))
    ways, rank = state.mesh.layout.zero_ranks, state.mesh.zero_rank
    return batch.map(lambda tensor: tensor.chunk(ways)[rank])


def make_state(spec: ModelSpec, layout: Layout, train: TrainSpec) -> TrainState:
    """Build the state of this rank on the CPU."""
    kind = KINDS["cpu"]
    return build_state(spec, layout, train, kind=kind, device=CPU, chosen=formats(train.precision, kind))


def whole(tensor: Tensor) -> Tensor:
    """The full tensor behind a DTensor, as a copy."""
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def first_gradients(state: TrainState, masked: bool = True, *, isolated: bool = False) -> dict[str, Tensor]:
    """Complete gradients of the first batch for this rank's parameters, whole."""
    batch = local_batch(state, 0, masked, isolated=isolated)
    tokens = (global_batch(0, state.model.spec.vocab_size, masked, isolated=isolated)[1] != -100).sum()
    state.executor.forward_backward(batch.tokens, batch.labels, state.loss_scale.scale / tokens, batch.positions)
    complete_gradients(state.optimizer.parameters, state.mesh, tied=state.tied)
    scale = state.loss_scale.scale
    gradients = {n: whole(p.grad).float() / scale for n, p in state.optimizer.parameters.items() if p.grad is not None}
    state.optimizer.zero_grad()
    return gradients


def layout_run(spec: ModelSpec, layout: Layout, train: TrainSpec, steps: int, masked: bool = True) -> Trace:
    """The run on this rank of a layout; called on every rank."""
    state = make_state(spec, layout, train)
    isolated = train.isolate_documents
    trace = Trace(gradients=first_gradients(state, masked, isolated=isolated))
    for step in range(steps):
        batch = local_batch(state, step, masked, isolated=isolated)
        outcome = train_step(state, batch, train.optimizer.learning_rate)
        trace.losses.append(outcome.loss.item())
        trace.norms.append(outcome.grad_norm.item())
        trace.skipped.append(outcome.skipped.item())
    trace.weights = {n: whole(p) for n, p in state.optimizer.parameters.items()}
    dist.barrier()
    return trace


def largest_difference(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    """Largest elementwise difference over the names of ``a``."""
    return max((a[name].float() - b[name].float()).abs().max().item() for name in a)


def errors(traces: list[Trace], reference: Trace) -> dict[str, float]:
    """How far the ranks of a run are from the reference."""
    covered = {name for trace in traces for name in trace.gradients}
    assert covered == set(reference.gradients), covered ^ set(reference.gradients)
    return {
        "loss_0": max(abs(t.losses[0] - reference.losses[0]) for t in traces),
        "loss": max(abs(a - b) for t in traces for a, b in zip(t.losses, reference.losses, strict=True)),
        "norm": max(abs(a - b) / b for t in traces for a, b in zip(t.norms, reference.norms, strict=True)),
        "gradient": max(largest_difference(t.gradients, reference.gradients) for t in traces),
        "weight": max(largest_difference(t.weights, reference.weights) for t in traces),
    }


def cosine(traces: list[Trace], reference: Trace) -> float:
    """Smallest cosine between the first gradients of a run and of the reference, over parameters."""
    pairs = [(trace.gradients[name], reference.gradients[name]) for trace in traces for name in trace.gradients]
    return min(F.cosine_similarity(a.double().flatten(), b.double().flatten(), dim=0).item() for a, b in pairs)
