"""Tensors of one decoder block: what its forward pass makes, what is kept, and how backward rises and falls.

Sizes are bytes of one micro-batch on one rank. Names: R residual stream, G norm output as the projections read it
(the whole sequence, also where the residual stream is sharded over the tensor group), Q, K, F outputs of the query,
key and feed-forward projections, W weights of a projection.

The order of allocations and frees is that of torch's autograd engine over `meshwright.model.decoder.Block` (saved
tensors are dropped after the node that used them has run, gradients when they have been consumed); it was read off
the allocator events of a real step and is held against them in tests/distributed/test_plan_memory.py.
"""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal, NamedTuple

from meshwright.spec.training import RecomputeKind

NormKernel = Literal["decomposed", "cast", "upcast", "fused"]
"""How RMSNorm runs: ``decomposed`` in fp32 by single operators (torch on a CPU: input and normalised input are kept
in fp32), ``cast`` by one kernel over an fp32 copy of the input (ours on accelerators), ``upcast`` decomposed with
16-bit results (torch's composite kernel before 2.9), ``fused`` by one kernel over the input as it is."""

Keep = Literal["autograd", "input", "every second matmul"] | tuple[RecomputeKind, ...]
"""What lives until backward: what autograd saves; the input only; torchtitan's operator policy; or, given kinds of
operators, the results of all others (`meshwright.parallel.recompute`)."""


@dataclass(frozen=True, kw_only=True)
class Block:
    """Shape of a block on one rank.

    Attributes:
        tokens: of one micro-batch on one context rank.
        positions: sequence positions on this rank, rows of the rotary tables.
        query / key_value / inner: columns of the projections on one rank of the tensor group.
        heads: query heads on this rank.
        tensor / sequence: ways the weights are split, and ways the residual stream is split.
        compute / residual: bytes of an element in matrix products, and of the residual stream.
        weight_gradient: bytes of an element of a weight gradient as autograd leaves it.
        expand_keys: keys and values are repeated to the number of query heads before attention.
        gloo: collectives on the host copy their message once more.
        fused_elementwise: a compiler fuses chains of elementwise operators: only what autograd keeps is written.
    """

    tokens: int
    positions: int
    hidden: int
    query: float
    key_value: float
    inner: float
    heads: float
    head_dim: int
    tensor: int = 1
    sequence: int = 1
    compute: int = 2
    residual: int = 2
    weight_gradient: int = 2
    norm: NormKernel = "cast"
    gated: bool = True
    rope: bool = True
    qk_norm: bool = False
    expand_keys: bool = False
    materialised: bool = False
    dropout: bool = False
    autocast: bool = False
    gloo: bool = False
    fused_elementwise: bool = False

    @cached_property
    def R(self) -> float:  # noqa: N802
        """Residual stream."""
        return self.tokens * self.hidden * self.residual / self.sequence

    @cached_property
    def R32(self) -> float:  # noqa: N802
        """The residual stream in fp32."""
        return self.tokens * self.hidden * 4 / self.sequence

    @cached_property
    def n(self) -> float:
        """Output of a norm before it is gathered."""
        return self.tokens * self.hidden * self.compute / self.sequence

    @cached_property
    def G(self) -> float:  # noqa: N802
        """Output of a norm as the projections read it."""
        return float(self.tokens * self.hidden * self.compute)

    @cached_property
    def Q(self) -> float:  # noqa: N802
        """Queries."""
        return self.tokens * self.query * self.compute

    @cached_property
    def K(self) -> float:  # noqa: N802
        """Keys; values are as large."""
        return self.tokens * self.key_value * self.compute

    @cached_property
    def F(self) -> float:  # noqa: N802
        """One feed-forward activation."""
        return self.tokens * self.inner * self.compute

    @cached_property
    def statistics(self) -> float:
        """fp32 log-sum-exp of each query row; the whole score matrix where it is materialised."""
        if self.materialised:
            # Softmax output and, before it, the scores: arXiv:2205.05198 section 4.1.
            return self.tokens * self.heads * self.positions * self.compute
        return 4 * self.tokens * self.heads

    @cached_property
    def tables(self) -> float:
        """cos and sin in the compute dtype, made anew for queries and for keys; kept for backward."""
        return 0.0 if not self.rope or self.compute == 4 else 4 * self.positions * self.head_dim * self.compute


class Op(NamedTuple):
    """One result of the forward pass. ``kept``: autograd saves it; ``used``: backward reads it or remakes it."""

    name: str
    kind: RecomputeKind
    size: float
    kept: bool


def _norm_ops(b: Block, name: str) -> list[Op]:
    ops = []
    wide = b.residual == 4
    if b.norm in ("decomposed", "cast", "upcast") and not wide:
        ops.append(Op(f"{name} input in fp32", "elementwise", b.R32, True))
    if b.norm == "decomposed":
        ops.append(Op(f"{name} squares", "elementwise", b.R32, False))
        ops.append(Op(f"{name} normalised", "elementwise", b.R32, True))
    if b.norm == "upcast":
        ops.append(Op(f"{name} squares", "elementwise", b.R32, False))
        ops.append(Op(f"{name} normalised", "elementwise", b.n, True))
    if b.norm in ("decomposed", "cast") and b.compute == 2:
        ops.append(Op(f"{name} output in fp32", "elementwise", b.R32, False))
    gathered = b.sequence > 1
    ops.append(Op(f"{name} output", "elementwise", b.n, not gathered))
    if gathered:
        ops.append(Op(f"{name} output as received", "communication", b.G, False))
        ops.append(Op(f"{name} output of the whole sequence", "elementwise", b.G, True))
    return ops


def _rope_ops(b: Block, name: str, size: float) -> list[Op]:
    parts = [("times cos", 1.0, False), ("negated half", 0.5, False), ("rotated", 1.0, False)]
    parts += [("times sin", 1.0, False), ("turned", 1.0, True)]
    return [Op(f"{name} {part}", "elementwise", share * size, kept) for part, share, kept in parts]


def _leave_ops(b: Block, name: str) -> list[Op]:
    """Sum of partial results over the tensor group."""
    if b.tensor == 1:
        return []
    if b.sequence == 1:
        return [Op(f"{name} summed", "communication", b.G, False)]
    return [
        Op(f"{name} in chunks", "elementwise", b.G, False),
        Op(f"{name} summed", "communication", b.n, False),
    ]


@lru_cache(maxsize=4096)
def forward_ops(b: Block) -> tuple[Op, ...]:
    """Results of the forward pass of a block in order, without its input."""
    attention = [
        *_norm_ops(b, "attention norm"),
        Op("queries", "matmul", b.Q, not b.rope or b.qk_norm),
        Op("keys", "matmul", b.K, not b.rope or b.qk_norm),
        Op("values", "matmul", b.K, not b.expand_keys),
        *((Op("rotary tables", "elementwise", b.tables, True),) if b.tables else ()),
        *(_rope_ops(b, "queries", b.Q) if b.rope else ()),
        *(_rope_ops(b, "keys", b.K) if b.rope else ()),
        *((Op("repeated keys and values", "elementwise", 2 * b.Q, True),) if b.expand_keys else ()),
        Op("attention output", "attention", b.Q + b.statistics, True),
        Op("output projection", "matmul", b.G, False),
        *_leave_ops(b, "output projection"),
        Op("residual after attention", "elementwise", b.R, b.residual == 4 or b.norm == "fused"),
    ]
    return (*attention, *_feed_forward_ops(b))


def _feed_forward_ops(b: Block) -> list[Op]:
    gated = [
        Op("gate projection", "matmul", b.F, True),
        Op("activated gate", "elementwise", b.F, True),
        Op("up projection", "matmul", b.F, True),
        Op("gated product", "elementwise", b.F, True),
    ]
    plain = [Op("up projection", "matmul", b.F, True), Op("activated", "elementwise", b.F, True)]
    return [
        *_norm_ops(b, "feed-forward norm"),
        *(gated if b.gated else plain),
        Op("down projection", "matmul", b.G, False),
        *_leave_ops(b, "down projection"),
        Op("block output", "elementwise", b.R, False),
    ]


@lru_cache(maxsize=4096)
def kept(b: Block, keep: Keep) -> float:
    """Bytes of one block that live until its backward pass, its input included where something reads it."""
    ops = forward_ops(b)
    if keep == "input":
        return b.R
    if keep == "autograd":
        return _input(b) + sum(op.size for op in ops if op.kept)
    if keep == "every second matmul":
        return b.R + _every_second_matmul(b)
    return sum(op.size for op in ops if op.kind not in keep)


@lru_cache(maxsize=4096)
def head_input(b: Block) -> float:
    """Bytes that live from the final norm to its backward: its input and what the head reads."""
    return _input(b) + sum(op.size for op in _norm_ops(b, "final norm") if op.kept)


def _input(b: Block) -> float:
    return b.R if b.residual == 4 or b.norm == "fused" else 0.0


def _every_second_matmul(b: Block) -> float:
    """torchtitan's policy: attention, reduce-scatter and matrix products number 1, 3, 5, ... of a block are kept.

    A compiler drops the kept results that backward does not read (torchtitan/parallelisms/parallelize_llama.py,
    ``_apply_ac_to_transformer_block``): the last product of each half of a block.
    """
    products = [op for op in forward_ops(b) if op.kind == "matmul"]
    unread = ("output projection", "down projection")
    held = [op for op in products[::2] if not (b.fused_elementwise and op.name in unread)]
    others = [
        op for op in forward_ops(b) if op.kind == "attention" or (op.kind == "communication" and "summed" in op.name)
    ]
    return sum(op.size for op in [*held, *others])


class Pass(NamedTuple):
    """Backward of one block, relative to its beginning, at the moment that needs most.

    Attributes:
        temporaries: gradients of activations and scratch, the incoming gradient included.
        freed: saved tensors already dropped.
        gradients: weight gradients already made.
    """

    temporaries: float
    freed: float
    gradients: float


Event = tuple[float, float, float]
"""Change of temporaries, of dropped saved tensors, and of weight gradients (elements)."""


def _leave_backward(b: Block) -> list[Event]:
    """Gradient of the residual stream to the gradient of a row-wise projection's output."""
    if b.sequence == 1:
        return []
    return [(b.G + b.gloo * b.n, 0, 0), (b.G - b.gloo * b.n, 0, 0), (-b.G, 0, 0)]


def _enter_backward(b: Block) -> list[Event]:
    """Gradient of the gathered norm output to that of this rank's part; a sum over the tensor group without one."""
    if b.tensor == 1:
        return []
    if b.sequence == 1:
        return [(b.G, 0, 0), (-b.G, 0, 0)]
    return [(b.G, 0, 0), (b.n + b.gloo * b.G, 0, 0), (-(2 + b.gloo) * b.G, 0, 0)]


def _norm_backward(b: Block) -> list[Event]:
    """Gradient of the norm output to that added to the residual gradient; begins with the former alive."""
    cast: list[Event] = [] if b.compute == 4 else [(b.R32, 0, 0), (-b.n, 0, 0)]
    back: list[Event] = [] if b.residual == 4 else [(b.R, 0, 0), (-b.R32, 0, 0)]
    own = 0.0 if b.residual == 4 else b.R32
    if b.norm == "fused":
        return [(b.R, 0, 0), (-b.n, b.R, 0), (-b.R, 0, 0)]
    if b.norm == "cast":
        return [*cast, (b.R32, 0, 0), (-b.R32, own or b.R, 0), *back, (-b.R, 0, 0)]
    return [
        *cast,
        (2 * b.R32, 0, 0),
        (-2 * b.R32, b.R32, 0),
        (2 * b.R32, 0, 0),
        (-2 * b.R32, 0, 0),
        (4 * b.R32, 0, 0),
        (-4 * b.R32, own or b.R, 0),
        *back,
        (-b.R, 0, 0),
    ]


def _feed_forward_backward(b: Block) -> list[Event]:
    weight = b.hidden * b.inner
    done: Event = (-b.G if b.sequence > 1 else 0.0, 0, 0)
    head: list[Event] = [*_leave_backward(b), (b.F, 0, weight), done, (0, b.F, 0)]
    if not b.gated:
        tail: list[Event] = [(b.F, 0, 0), (-b.F, b.F, 0), (b.G, 0, weight), (-b.F, b.G, 0)]
        return [*head, *tail]
    return [
        *head,
        (2 * b.F, 0, 0),
        (-b.F, 2 * b.F, 0),
        (b.G, 0, weight),
        (-b.F, 0, 0),
        (b.F, 0, 0),
        (-b.F, b.F, 0),
        (b.G, 0, weight),
        (-b.F, b.G, 0),
        (b.G, 0, 0),
        (-2 * b.G, 0, 0),
    ]


def _rope_backward(size: float) -> list[Event]:
    return [(2.5 * size, 0, 0), (-size, 0, 0), (size, 0, 0), (-2.5 * size, 0, 0)]


def _attention_backward(b: Block) -> list[Event]:
    keys = b.Q if b.expand_keys else b.K
    # FlashAttention-2 accumulates the query gradient in fp32 (flash_api.cpp, dq_accum).
    scratch = 0.0 if b.gloo else 4 * b.Q / b.compute
    folded: list[Event] = [(2 * b.K, 0, 0), (-2 * b.Q, 0, 0)] if b.expand_keys else []
    rope = [*_rope_backward(b.K), *_rope_backward(b.Q)] if b.rope else []
    return [
        *_leave_backward(b),
        (b.Q, 0, b.hidden * b.query),
        (-b.G if b.sequence > 1 else 0.0, 0, 0),
        (b.Q + 2 * keys + scratch, 0, 0),
        (-b.Q - scratch, 2 * b.Q + 2 * keys + b.statistics, 0),
        *folded,
        *rope,
        (b.G - b.K, b.tables, b.hidden * b.key_value),
        (b.G, 0, b.hidden * b.key_value),
        (b.G - b.K, 0, 0),
        (-2 * b.G, 0, 0),
        (b.G, 0, b.hidden * b.query),
        (-b.Q - b.G, b.G, 0),
    ]


@lru_cache(maxsize=4096)
def backward_events(b: Block) -> tuple[Event, ...]:
    """Rise and fall of memory over the backward pass of a block whose saved tensors are all there."""
    return (
        (b.R, 0, 0),
        *_feed_forward_backward(b),
        *_enter_backward(b),
        *_norm_backward(b),
        *_attention_backward(b),
        *_enter_backward(b),
        *_norm_backward(b),
    )


@lru_cache(maxsize=4096)
def backward_pass(b: Block, gradients_stay: bool) -> Pass:
    """The worst moment of the backward pass.

    Args:
        gradients_stay: weight gradients live on; otherwise each is added to an older one and dropped.
    """
    temporaries = freed = elements = 0.0
    best, worst = Pass(0, 0, 0), -1.0
    for temporary, dropped, made in backward_events(b):
        temporaries, freed, elements = temporaries + temporary, freed + dropped, elements + made
        gradient = (elements if gradients_stay else made) * b.weight_gradient
        if temporaries - freed + gradient > worst:
            worst, best = temporaries - freed + gradient, Pass(temporaries, freed, gradient)
    return best
