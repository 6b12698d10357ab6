"""A plan as text: the verdict first, then the table, what came close, and what to paste."""

from collections.abc import Iterator, Sequence

from meshwright.plan.accuracy import expected_error
from meshwright.plan.advice import advise
from meshwright.plan.misses import closest_misses
from meshwright.plan.question import Question
from meshwright.plan.search import FITS_UP_TO, Answer, Candidate, one_per_split
from meshwright.plan.time.attention import EFFICIENT_RATE
from meshwright.plan.time.report import TERMS
from meshwright.plan.words import (
    MESSAGE_TERMS,
    TERM_WORDS,
    gib,
    recompute_choice,
    seconds,
)
from meshwright.spec.batch import equation
from meshwright.spec.cluster import GIB

COLUMNS = (
    "",
    "layout",
    "schedule",
    "mbs x num",
    "recompute",
    "GiB",
    "free",
    "step",
    "tokens/s",
    "MFU",
    "bubble",
    "comm",
    "recomp",
    "why",
)
LEFT = {"layout", "schedule", "recompute", "why"}


def verdict(answer: Answer) -> str:
    """The answer in one line."""
    question, best = answer.question, answer.best
    devices = f"{question.cluster.num_devices} x {_whole_gib(question)}"
    counted = f"{answer.fits} of {answer.considered} layouts on {devices}"
    if answer.fitting and best is not None:
        figures = f"{gib(best.needed)}, {seconds(best.seconds)}/step"
        return f"fits: {counted}; best {best.name}, {figures}"
    if best is not None:
        return (
            f"tight: {counted} with room to spare, {answer.just_fits} without; best {best.name},"
            f" {gib(best.needed)} of {gib(question.limit)}, {seconds(best.seconds)}/step"
        )
    if answer.over:
        closest = answer.over[0]
        return f"does not fit: {counted}; closest {closest.name} needs {gib(closest.needed)} per device"
    return f"no layout: none of the splits of {question.cluster.num_devices} devices is legal"


def plan_text(answer: Answer, *, top: int = 10, override: str | None = None, notices: Sequence[str] = ()) -> str:
    """The whole answer.

    Args:
        top: rows of the table at most.
        override: the config keys of the best layout, ready to paste; None where the engine reads no such config.
        notices: what the reader should know about the request, such as a changed global batch.
    """
    lines = [verdict(answer)]
    if answer.best:
        batch, data = answer.best.job.batch, answer.best.job.layout.data_parallel
        lines.append(f"batch of the best: {equation(batch, data, answer.question.train.seq_length)}")
    lines += [f"notice: {notice}" for notice in notices]
    rows = one_per_split(answer.fitting or answer.tight, top)
    if rows:
        lines += ["", *table(rows)]
    lines += _section("closest misses", (f"{miss.name}: {miss.reason}" for miss in closest_misses(answer)))
    lines += _section("what the numbers say" if answer.best else "what would fit", advise(answer))
    if override:
        lines += _section("to use the best, add", [override])
    lines += _section("assumed", assumptions(answer.question))
    lines += _section("expected error", expected_errors(answer.question))
    lines.append("")
    lines.append(
        f"{answer.considered} layouts considered, the memory of {answer.predicted} predicted, in {answer.seconds:.2f} s"
    )
    return "\n".join(lines)


def table_rows(candidates: Sequence[Candidate]) -> list[tuple[str, ...]]:
    """Cells by `COLUMNS`; the first candidate is what the others are compared with."""
    return [_row(place, item, candidates[0]) for place, item in enumerate(candidates, 1)]


def table(candidates: Sequence[Candidate]) -> list[str]:
    """Aligned rows with a heading."""
    rows = [COLUMNS, *table_rows(candidates)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
    aligned = []
    for row in rows:
        cells = [
            cell.ljust(width) if name in LEFT else cell.rjust(width)
            for cell, width, name in zip(row, widths, COLUMNS, strict=True)
        ]
        aligned.append("  ".join(cells).rstrip())
    return aligned


def why(candidate: Candidate, best: Candidate) -> str:
    """One phrase: what the best loses most to, or what sets another layout apart from it."""
    if candidate.time is None or best.time is None:
        return "not timed"
    terms = candidate.time.terms
    if candidate is best:
        worst = max((term for term in TERMS if term != "compute"), key=lambda term: terms.get(term, 0.0))
        share = terms.get(worst, 0.0) / candidate.seconds
        return "nearly all compute" if share < 0.01 else f"loses most to {TERM_WORDS[worst]}, {share:.0%}"
    more = {term: terms.get(term, 0.0) - best.time.terms.get(term, 0.0) for term in TERM_WORDS}
    most = max(more, key=lambda name: more[name])
    if more[most] < 0.005 * best.seconds:
        change = candidate.needed - best.needed
        return f"as fast, {gib(abs(change))} {'more' if change >= 0 else 'less'}"
    return f"+{seconds(more[most])} {TERM_WORDS[most]}"


def assumptions(question: Question) -> list[str]:
    """What the figures rest on."""
    cluster, train, device = question.cluster, question.train, question.cluster.device
    nodes = f"{cluster.num_nodes} node{'s' * (cluster.num_nodes > 1)} of up to {cluster.devices_per_node}"
    links = f"{cluster.intra.name} {cluster.intra.bandwidth / 1e9:.0f} GB/s inside"
    if cluster.num_nodes > 1:
        links += f", {cluster.inter.name} {cluster.inter.bandwidth / 1e9:.3g} GB/s per device between"
    precision = train.precision
    steps = [
        f"{question.engine.title} on {cluster.num_devices} x {device.title} in {nodes}: {links}",
        f"global_batch_size {question.global_batch_size} x seq_length {train.seq_length} on every layout;"
        f" amp_level {precision.amp_level}, {_loss(question)}, full-length sequences",
        f"fits: up to {FITS_UP_TO:.0%} of {gib(question.limit)} usable memory; tight: up to all of it",
    ]
    if train.isolate_documents and question.engine.name == "meshwright":
        steps.append(
            f"isolated documents: attention over whole rows, at {EFFICIENT_RATE:.0%} of the rate of flash attention;"
            " never measured"
        )
    if cluster.calibration.matmul or cluster.calibration.collectives:
        steps.append("rates measured by meshwright bench --calibrate on this kind of machine")
    return steps


def expected_errors(question: Question) -> list[str]:
    """How far off such predictions were on published measurements."""
    family, adapters = question.cluster.device.family, question.adapter is not None
    found = [expected_error(question.engine, family, name, adapters=adapters) for name in ("memory", "time")]
    told = [str(error) for error in found if error is not None]
    return told or ["no published measurements of such an engine or device to compare with"]


def _row(place: int, candidate: Candidate, best: Candidate) -> tuple[str, ...]:
    job, report = candidate.job, candidate.time
    assert report is not None
    stage = f" s{candidate.memory.worst.stage}" if job.layout.pipeline_stage > 1 else ""
    messages = sum(report.terms.get(term, 0.0) for term in MESSAGE_TERMS)
    losses = (report.terms.get("bubble", 0.0), messages, report.terms.get("recompute", 0.0))
    return (
        str(place),
        layout_words(candidate),
        job.layout.pipeline_schedule if job.layout.pipeline_stage > 1 else "-",
        f"{job.batch.micro_batch_size} x {job.batch.micro_batch_num}",
        recompute_choice(job.recompute),
        f"{candidate.needed / GIB:.1f}{stage}",
        f"{1 - candidate.needed / candidate.limit:.0%}",
        seconds(report.seconds),
        _thousands(report.tokens_per_second),
        f"{report.mfu:.1%}",
        *(f"{lost / report.seconds:.0%}" for lost in losses),
        why(candidate, best),
    )


def layout_words(candidate: Candidate) -> str:
    """The layout in the words that ``--explain`` reads."""
    job = candidate.job
    words = candidate.name
    if job.layout.model_parallel > 1 and not job.layout.use_seq_parallel:
        words += " sp=off"
    return words + (f" vpp{job.virtual_stages}" if job.virtual_stages > 1 else "")


def full_name(candidate: Candidate) -> str:
    """Everything that sets a layout apart, in the words that ``--explain`` reads."""
    job = candidate.job
    schedule = f" {job.layout.pipeline_schedule}" if job.layout.pipeline_stage > 1 else ""
    recompute = f" recompute={recompute_choice(job.recompute)}"
    return f"{layout_words(candidate)} mbs{job.batch.micro_batch_size}{schedule}{recompute}"


def _section(title: str, lines: Iterator[str] | Sequence[str]) -> list[str]:
    told = list(lines)
    return ["", f"{title}:", *(f"  {line}" for line in told)] if told else []


def _thousands(rate: float) -> str:
    return f"{rate / 1e6:.2f}M" if rate >= 1e6 else f"{rate / 1e3:.1f}k" if rate >= 1e4 else f"{rate:,.0f}"


def _whole_gib(question: Question) -> str:
    return f"{question.limit / GIB:.3g} GiB"


def _loss(question: Question) -> str:
    chunk = question.train.loss_chunk_tokens
    return f"loss in chunks of {chunk} tokens" if chunk else "loss over all tokens at once"
