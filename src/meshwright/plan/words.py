"""Short words and figures shared by everything that a plan prints."""

from collections.abc import Mapping

from meshwright.plan.memory.report import Category
from meshwright.plan.time.report import Term
from meshwright.spec.cluster import GIB
from meshwright.spec.training import Recompute

CATEGORY_WORDS: Mapping[Category, str] = {
    "weights": "weights",
    "gradients": "gradients",
    "optimizer": "optimizer states",
    "activations": "activations",
    "logits": "logits and loss",
    "communication": "communication buffers",
    "temporaries": "temporaries",
    "framework": "framework",
}
TERM_WORDS: Mapping[Term, str] = {
    "compute": "compute",
    "recompute": "recomputation",
    "tensor": "tensor messages",
    "context": "context messages",
    "expert": "expert messages",
    "pipeline": "pipeline messages",
    "data": "data-parallel messages",
    "bubble": "pipeline bubble",
    "optimizer": "optimizer step",
    "host": "host",
}
MESSAGE_TERMS: tuple[Term, ...] = ("tensor", "context", "expert", "pipeline", "data")


def gib(size: float) -> str:
    """Bytes as GiB, three digits."""
    return f"{size / GIB:.1f} GiB" if size >= 0.1 * GIB else f"{size / GIB:.3f} GiB"


def seconds(value: float) -> str:
    """A duration with three digits: ``1.45 s``, ``12.3 ms``."""
    if value >= 1 or value == 0:
        return f"{value:.3g} s" if value < 1000 else f"{value:.0f} s"
    return f"{value * 1e3:.3g} ms" if value >= 1e-3 else f"{value * 1e6:.3g} us"


def size(value: float) -> str:
    """Bytes of messages, decimal as link speeds are: ``3.2 GB``, ``410 MB``."""
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if value >= unit:
            return f"{value / unit:.3g} {name}"
    return f"{value:.0f} B"


def recompute_word(recompute: Recompute) -> str:
    """``no recomputation``, ``everything recomputed`` or what is chosen."""
    if recompute.layers == "all":
        return "everything recomputed"
    if isinstance(recompute.layers, tuple):
        return f"{len(recompute.layers)} layers recomputed"
    return f"{' and '.join(recompute.select)} recomputed" if recompute.select else "no recomputation"


def recompute_choice(recompute: Recompute) -> str:
    """The value of ``recompute`` in tables and ``--fix``: none, select or all."""
    if recompute.layers == "none":
        return "select" if recompute.select else "none"
    return "all" if recompute.layers == "all" else f"{len(recompute.layers)} layers"
