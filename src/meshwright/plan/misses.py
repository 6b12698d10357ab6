"""The closest layouts that are not offered, each with what binds it, in words."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from meshwright.plan.memory.report import CATEGORIES, Category
from meshwright.plan.question import Question
from meshwright.plan.search import Answer, Candidate
from meshwright.plan.variants import Illegal
from meshwright.plan.words import CATEGORY_WORDS, gib, recompute_word
from meshwright.spec.layout import Layout
from meshwright.spec.violation import Violation

STATES: tuple[Category, ...] = ("weights", "gradients", "optimizer")
LOADING = "loading"
OVER_MEMORY, BROKEN_RULES = 3, 3
DEGREE = re.compile(r"([a-z]+)(\d+)")


@dataclass(frozen=True, kw_only=True)
class Miss:
    """One layout, or a degree that stands for many, that is not offered.

    Attributes:
        name: the layout or degree, such as ``dp8 zero0`` or ``tp16``.
        needed: bytes per device, where memory binds.
    """

    name: str
    reason: str
    kind: str
    needed: float | None = None


def closest_misses(answer: Answer) -> list[Miss]:
    """At most seven: those nearest to the memory there is, then broken rules, then what is not supported."""
    over = [memory_miss(candidate) for candidate in _nearest_over(answer)]
    broken = list(_distinct(miss for item in answer.illegal for miss in _rule_misses(answer.question, item)))
    rules = [miss for miss in broken if miss.kind == "rule"][:BROKEN_RULES]
    unsupported = [miss for miss in broken if miss.kind == "unsupported"][:1]
    return [*over, *rules, *unsupported]


def memory_miss(candidate: Candidate) -> Miss:
    """A layout that is over memory, with the part that binds it."""
    return Miss(name=candidate.name, reason=_binding(candidate), kind="memory", needed=candidate.needed)


def _nearest_over(answer: Answer) -> list[Candidate]:
    """One per split, the nearest first; the plain data-parallel one where it is among them, for it says most."""
    chosen: dict[tuple[int, int, int], Candidate] = {}
    for candidate in answer.over:
        layout = candidate.job.layout
        split = (layout.model_parallel, layout.pipeline_stage, layout.context_parallel)
        chosen.setdefault(split, candidate)
    nearest = list(chosen.values())[:OVER_MEMORY]
    plain = [
        candidate for candidate in answer.over if candidate.job.layout.zero_ranks == candidate.job.layout.world_size
    ]
    if plain and plain[-1] not in nearest:
        nearest = [*nearest[: OVER_MEMORY - 1], plain[-1]]
    return sorted(nearest, key=lambda candidate: candidate.needed)


def _binding(candidate: Candidate) -> str:
    worst, limit = candidate.memory.worst, candidate.limit
    parts = worst.peak.parts
    if worst.peak.name == LOADING and len(worst.moments) > 1:
        training = max(moment.total for moment in worst.moments if moment.name != LOADING)
        return f"loading takes {gib(worst.allocated)}, before weights are sharded; training {gib(training)}"
    states = {category: parts.get(category, 0.0) for category in STATES}
    for category, size in sorted(states.items(), key=lambda item: -item[1]):
        if size > limit:
            return f"{CATEGORY_WORDS[category]} alone {gib(size)}"
    if sum(states.values()) > limit:
        named = " + ".join(CATEGORY_WORDS[category] for category, size in states.items() if size)
        return f"{named} alone {gib(sum(states.values()))}"
    largest = max(CATEGORIES, key=lambda category: parts.get(category, 0.0))
    job = candidate.job
    how = f"micro_batch_size {job.batch.micro_batch_size}, {recompute_word(job.recompute)}"
    where = f" on stage {worst.stage}" if job.layout.pipeline_stage > 1 else ""
    return (
        f"needs {gib(candidate.needed)} of {gib(limit)}{where} even with {how};"
        f" most is {CATEGORY_WORDS[largest]}, {gib(parts.get(largest, 0.0))} at the {worst.peak.name}"
    )


def _rule_misses(question: Question, illegal: Illegal) -> Iterator[Miss]:
    kind = "unsupported" if illegal.unsupported else "rule"
    for violation in illegal.violations:
        name, reason = _in_words(question, illegal.layout, violation)
        yield Miss(name=name, reason=reason, kind=kind)


def _in_words(question: Question, layout: Layout, violation: Violation) -> tuple[str, str]:
    """(degree, short reason) of a broken rule; the rule's own message where there is no shorter one."""
    model, tensor = question.model, layout.model_parallel
    key = violation.key_path.rpartition(".")[2]
    legal = f" ({' or '.join(violation.legal[:2])} would do)" if violation.legal else ""
    if key == "model_parallel":
        for size, what in (
            (model.num_heads, "heads"),
            (model.num_kv_heads, "key/value heads"),
            (model.intermediate_size, "columns of intermediate_size"),
        ):
            if size % tensor:
                return f"tp{tensor}", f"{size} {what} do not divide by {tensor}"
    if key == "vocab_pad_multiple":
        return f"tp{tensor}", f"{model.padded_vocab_size} rows of the padded vocabulary do not divide by {tensor}"
    if key == "pipeline_stage":
        return f"pp{layout.pipeline_stage}", f"{model.num_layers} layers cannot fill {layout.pipeline_stage} stages"
    if key == "global_batch_size":
        return (
            f"dp{layout.data_parallel}",
            f"global batch {question.global_batch_size} does not divide by {layout.data_parallel} data ranks{legal}",
        )
    if key == "micro_batch_num":
        each = question.global_batch_size // layout.data_parallel
        return (
            f"dp{layout.data_parallel} pp{layout.pipeline_stage}",
            f"{each} sequences per data rank cannot fill {layout.pipeline_stage} stages with one micro-batch each",
        )
    if key == "seq_length":
        return f"tp{tensor} cp{layout.context_parallel}", f"seq_length {violation.message}{legal}"
    if key == "context_parallel":
        return f"cp{layout.context_parallel}", violation.message
    return layout.short(), violation.message


def _distinct(misses: Iterable[Miss]) -> Iterator[Miss]:
    """One for each axis: the smallest degree that breaks a rule, the first reason it breaks."""
    by_axis: dict[str, list[tuple[int, Miss]]] = {}
    for miss in misses:
        found = DEGREE.match(miss.name)
        axis, degree = (found[1], int(found[2])) if found else (miss.name, 0)
        by_axis.setdefault(axis, []).append((degree, miss))
    for ranked in by_axis.values():
        yield min(ranked, key=lambda item: item[0])[1]
