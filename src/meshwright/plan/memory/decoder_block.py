"""Tensors of one decoder block: what its forward pass makes, and what is kept until backward.

Sizes are bytes of one micro-batch on one rank. Names: R residual stream, G norm output as the projections read it
(the whole sequence, also where the residual stream is sharded over the tensor group), Q, K, F outputs of the query,
key and feed-forward projections, W weights of a projection.

The table is that of `meshwright.model.decoder.Block`, read off the allocator events of a real step and held against
them in tests/distributed/test_plan_memory.py; other engines differ by the attributes of `Block`.
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
        own_positions: rotary tables are by sequence and shared by the layers (`fsdp_mask`).
        adapted: projections with adapters on frozen weights; None trains all weights.
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
    own_positions: bool = False
    qk_norm: bool = False
    expand_keys: bool = False
    materialised: bool = False
    dropout: bool = False
    autocast: bool = False
    gloo: bool = False
    fused_elementwise: bool = False
    adapted: Literal["all", "attention", "qv"] | None = None

    @cached_property
    def R(self) -> float:
        """Residual stream."""
        return self.tokens * self.hidden * self.residual / self.sequence

    @cached_property
    def R32(self) -> float:
        """The residual stream in fp32."""
        return self.tokens * self.hidden * 4 / self.sequence

    @cached_property
    def n(self) -> float:
        """Output of a norm before it is gathered."""
        return self.tokens * self.hidden * self.compute / self.sequence

    @cached_property
    def G(self) -> float:
        """Output of a norm as the projections read it."""
        return float(self.tokens * self.hidden * self.compute)

    @cached_property
    def Q(self) -> float:
        """Queries."""
        return self.tokens * self.query * self.compute

    @cached_property
    def K(self) -> float:
        """Keys; values are as large."""
        return self.tokens * self.key_value * self.compute

    @cached_property
    def F(self) -> float:
        """One feed-forward activation."""
        return self.tokens * self.inner * self.compute

    @cached_property
    def statistics(self) -> float:
        """fp32 log-sum-exp of each query row; the whole score matrix where it is materialised."""
        if self.materialised:
            # Softmax output and, before it, the scores: arXiv:2205.05198 section 4.1.
            return self.tokens * self.heads * self.positions * self.compute
        return 4 * self.tokens * self.heads

    @property
    def projections_read(self) -> bool:
        """Whether backward reads queries and keys as projected: not where a fp32 copy or their turned form is read."""
        if self.qk_norm:
            return self.compute == 4 or self.norm == "fused"
        return not self.rope

    @cached_property
    def tables(self) -> float:
        """cos and sin in the compute dtype, made anew for queries and for keys; kept for backward."""
        made = self.rope and self.compute == 2 and not self.own_positions
        return 4.0 * self.positions * self.head_dim * self.compute if made else 0.0


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


def head_norm_ops(b: Block, name: str, size: float) -> tuple[Op, ...]:
    """Norm over each head of queries or keys; see `_norm_ops`."""
    wide = size * 4 / b.compute
    ops = []
    if b.norm != "fused" and b.compute == 2:
        ops.append(Op(f"{name} in fp32", "elementwise", wide, True))
    if b.norm == "decomposed":
        ops.append(Op(f"{name} squared", "elementwise", wide, False))
        ops.append(Op(f"{name} normalised", "elementwise", wide, True))
    return (*ops, Op(f"{name} scaled", "elementwise", size, not b.rope and (name == "queries" or not b.expand_keys)))


def _rope_ops(name: str, size: float, *, read: bool) -> list[Op]:
    parts = [("times cos", 1.0, False), ("negated half", 0.5, False), ("rotated", 1.0, False)]
    parts += [("times sin", 1.0, False), ("turned", 1.0, read)]
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


def dropout_mask(b: Block) -> float:
    """A mask of one byte an element on accelerators, of the values' dtype on a CPU (``native_dropout``)."""
    return b.R if b.gloo else b.R / b.residual


def _dropout_ops(b: Block, name: str) -> list[Op]:
    if not b.dropout:
        return []
    return [
        Op(f"{name} dropout mask", "elementwise", dropout_mask(b), True),
        Op(f"{name} dropout", "elementwise", b.R, False),
    ]


@lru_cache(maxsize=4096)
def forward_ops(b: Block) -> tuple[Op, ...]:
    """Results of the forward pass of a block in order, without its input."""
    attention = [
        *_norm_ops(b, "attention norm"),
        Op("queries", "matmul", b.Q, b.projections_read),
        Op("keys", "matmul", b.K, b.projections_read and (b.qk_norm or not b.expand_keys)),
        Op("values", "matmul", b.K, not b.expand_keys),
        *(head_norm_ops(b, "queries", b.Q) + head_norm_ops(b, "keys", b.K) if b.qk_norm else ()),
        *((Op("rotary tables", "elementwise", b.tables, True),) if b.tables else ()),
        *(_rope_ops("queries", b.Q, read=True) if b.rope else ()),
        *(_rope_ops("keys", b.K, read=not b.expand_keys) if b.rope else ()),
        *((Op("repeated keys and values", "elementwise", 2 * b.Q, True),) if b.expand_keys else ()),
        Op("attention output", "attention", b.Q + b.statistics, True),
        Op("output projection", "matmul", b.G, False),
        *_leave_ops(b, "output projection"),
        *_dropout_ops(b, "attention"),
        Op("residual after attention", "elementwise", b.R, b.residual == 4 or b.norm == "fused"),
    ]
    ops = (*attention, *_feed_forward_ops(b))
    return ops if b.adapted is None else tuple(_frozen(b, op) for op in ops)


def _frozen(b: Block, op: Op) -> Op:
    """A result without the readers that a frozen weight's gradient would be: inputs of projections without adapter,
    and normalised values, which only the norm's own weight needs (torch/csrc/autograd, ``mm`` and ``mul``)."""
    unread = op.name.endswith("normalised")
    if b.adapted != "all":
        unread |= op.name in ("gated product", "activated", "feed-forward norm output")
        unread |= op.name == "feed-forward norm output of the whole sequence"
    return op._replace(kept=op.kept and not unread)


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
        *_dropout_ops(b, "feed-forward"),
        Op("block output", "elementwise", b.R, False),
    ]


def kept(b: Block, keep: Keep) -> float:
    """Bytes of one block that live until its backward pass, its input included where something reads it."""
    if keep == "autograd":
        return _input(b) + sum(op.size for op in forward_ops(b) if op.kept)
    return sum(op.size for op in _held(b, keep)) + (b.R if _keeps_input(keep) else 0.0)


def _keeps_input(keep: Keep) -> bool:
    """Whether the block's input is kept apart: else it is the kept output of the block before."""
    return not isinstance(keep, tuple) or "elementwise" in keep


def _held(b: Block, keep: Keep) -> list[Op]:
    """Results that selective recomputation keeps."""
    ops = forward_ops(b)
    if keep == "input":
        return []
    if keep == "every second matmul":
        return _every_second_matmul(b)
    if "elementwise" not in keep:
        # Views count as elementwise, and a kept view keeps the result of any operator alive.
        return list(ops)
    return [op for op in ops if op.kind not in keep]


def remade(b: Block, keep: Keep) -> float:
    """Bytes of one block once backward has made its dropped tensors again.

    Recomputation keeps the block's input, and stops once the last saved tensor is there: kept results past that
    point are never taken out of the cache (torch/utils/checkpoint.py, ``early_stop``).
    """
    if keep == "autograd":
        return kept(b, keep)
    all_saved = kept(b, "autograd") - _input(b) + (b.R if _keeps_input(keep) else 0.0)
    return all_saved + sum(op.size for op in _held(b, keep) if op.name.startswith(("down projection", "block output")))


def head_input(b: Block) -> float:
    """Bytes that live from the final norm to its backward: its input and what the head reads."""
    return _input(b) + sum(op.size for op in _norm_ops(b, "final norm") if op.kept)


def _input(b: Block) -> float:
    return b.R if b.residual == 4 or b.norm == "fused" else 0.0


def _every_second_matmul(b: Block) -> list[Op]:
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
    return [*held, *others]
