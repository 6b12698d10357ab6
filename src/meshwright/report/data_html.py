"""The making of a corpus as one static HTML page: what was read, dropped, edited and kept, with examples."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from meshwright.data.clean.catalogue import THRESHOLDS
from meshwright.report.bars import BarRow, bar_table
from meshwright.report.clean_html import DROPPED, KEPT, READ, cleaning_sections, dropped_examples
from meshwright.report.document_html import pair_html, visible
from meshwright.report.numbers import count, percent, short
from meshwright.report.page import page, table

STEPS = {
    "cleaning": "dropped by rules",
    "editing": "edited away",
    "exact_duplicates": "exact duplicates",
    "near_duplicates": "near duplicates",
}
KIND = "meshwright data prepare"

Report = Mapping[str, Any]


def data_page(report: Report) -> str:
    """The page of a report: the content of PREFIX.report.json, and ``seconds`` by stage if they are known."""
    kept, read = report["flow"]["kept"], report["flow"]["read"]
    cleaning, inputs = report["cleaning"], visible(", ".join(report["inputs"]))
    sections = [_flow(report)]
    if cleaning:
        sections += cleaning_sections(cleaning)
    sections += [_duplicates(report), dropped_examples(cleaning) if cleaning else "", _settings(report)]
    sections.append(_seconds(report.get("seconds", {})))
    return page(
        kind=KIND,
        title=f"{KIND}: {inputs}",
        heading=f"{kept['documents']:,} of {read['documents']:,} documents kept: {short(kept['tokens'])} tokens",
        asked=f"{inputs}: {count(report['files'], 'file')}",
        sections=sections,
        footer=visible(" ".join(["Tokens after ~ are estimates.", *report["notes"]])),
    )


def is_data_page(content: str) -> bool:
    """Whether the content of a file is such a page."""
    return content.startswith("<!doctype html>") and f'<p class="kind">{KIND}</p>' in content


def _flow(report: Report) -> str:
    """From what was read to what was kept, each step at the place of what it takes away."""
    flow = report["flow"]
    whole = flow["read"]["tokens"] or 1
    rows = [_flow_row("read", flow["read"], flow["read"], (READ, 0.0, 1.0), strong=True)]
    left = float(flow["read"]["tokens"])
    for step, title in STEPS.items():
        if step in flow and (flow[step]["documents"] or flow[step]["characters"]):
            taken = flow[step]["tokens"]
            left -= taken
            rows.append(_flow_row(title, flow[step], flow["read"], (DROPPED, left / whole, taken / whole)))
    share = flow["kept"]["tokens"] / whole
    rows.append(_flow_row("kept", flow["kept"], flow["read"], (KEPT, 0.0, share), strong=True))
    train, held_out = report["train"], report["eval"]
    words = [f"{count(flow['empty']['documents'], 'document')} of white space only"]
    if flow["too_long"]["documents"]:
        words.append(f"{flow['too_long']['documents']:,} too long to read")
    return (
        "<section><h2>From what was read to what was kept</h2>"
        f'<p class="note">Bars: tokens. Not among what was read: {" and ".join(words)}.</p>'
        f"{bar_table(('', 'documents', 'characters', 'tokens', 'of all tokens'), rows)}"
        f"<p>For training: {count(train['documents'], 'document')}, {short(train['tokens'])} tokens. Held out:"
        f" {count(held_out['documents'], 'document')}, {short(held_out['tokens'])} tokens."
        f" Kept with U+FFFD in the place of bytes that are not UTF-8: {report['invalid_utf8']:,}.</p></section>"
    )


def _flow_row(
    name: str, amount: Report, read: Report, fill: tuple[str, float, float], *, strong: bool = False
) -> BarRow:
    documents = f"{amount['documents']:,}" if amount["documents"] or strong else ""
    tokens = f"{'~ ' if amount['estimated'] else ''}{short(amount['tokens'])}"
    cells = (documents, short(amount["characters"]), tokens, percent(amount["tokens"], read["tokens"]))
    return BarRow(name=name, fills=(fill,), cells=cells, strong=strong)


def _duplicates(report: Report) -> str:
    if not report["deduplication"]:
        return ""
    found, settings = report["deduplication"]["found"], report["deduplication"]
    rows = [
        (
            name,
            f"{found[kind]['documents']:,}",
            percent(found[kind]["documents"], found["read"]["documents"]),
            short(found[kind]["characters"]),
        )
        for name, kind in (("exact: the same text", "exact"), ("near: most of the same words", "near"))
        if settings[kind]
    ]
    pairs = "".join(map(pair_html, found["examples"]))
    against = f" {found['against']:,} of them repeat corpora made before." if found["against"] else ""
    return (
        f'<section><h2>Duplicates</h2><p class="note">{count(found["clusters"], "group")} of documents that repeat each'
        f" other; the first of each stays.{against}</p>"
        f"{table(('', 'documents', 'of all compared', 'characters'), rows, {0: 'left'})}"
        f"{f'<h3>Examples</h3>{pairs}' if pairs else ''}</section>"
    )


def _settings(report: Report) -> str:
    rows = [*_asked(report), *((f"version of {name}", version) for name, version in report["versions"].items())]
    used: Mapping[str, float] = report["cleaning"]["thresholds"] if report["cleaning"] else {}
    return (
        f"<section><h2>Settings</h2>{table(('', ''), rows, {0: 'left', 1: 'left'})}"
        f"{_thresholds(used) if used else ''}</section>"
    )


def _thresholds(used: Mapping[str, float]) -> str:
    rows = [(name, f"{value:g}", f"{THRESHOLDS[name].default:g}") for name, value in used.items()]
    body = table(("threshold", "value", "published"), rows, {0: "left"})
    return f"<details><summary>All {len(rows)} thresholds</summary>{body}</details>"


def _asked(report: Report) -> Iterator[Sequence[str]]:
    """Settings by the keys of the config file."""
    cleaning, deduplication = report["cleaning"], report["deduplication"]
    if cleaning:
        yield "clean.repair_unicode", _word(cleaning["repair_unicode"])
        yield "clean.languages", ", ".join(cleaning["languages"]) or "-"
        yield "clean.rules", ", ".join(cleaning["rule_sets"]) or "-"
        yield "clean.mask_pii", _word(cleaning["mask_pii"])
        for name, value in cleaning["thresholds"].items():
            if value != (published := THRESHOLDS[name].default):
                yield f"clean.thresholds: {name}", f"{value:g}; published: {published:g}"
    if deduplication:
        yield from ((f"deduplicate.{name}", _word(value)) for name, value in deduplication.items() if name != "found")
    yield "eval_fraction", f"{report['eval_fraction']:g}"
    yield "size of the vocabulary", f"{report['vocab_size']:,}"


def _word(value: object) -> str:
    return ", ".join(map(str, value)) or "-" if isinstance(value, list) else str(value).lower()


def _seconds(stages: Mapping[str, float]) -> str:
    if not stages:
        return ""
    most = max(stages.values()) or 1.0
    rows = [
        BarRow(name=title, fills=((READ, 0.0, seconds / most),), cells=(f"{seconds:,.1f}",))
        for title, seconds in stages.items()
    ]
    return (
        '<section><h2>Time</h2><p class="note">Of the run that finished the corpus; shards done before are not in it.'
        f"</p>{bar_table(('stage', 'seconds'), rows)}</section>"
    )
