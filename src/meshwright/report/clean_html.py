"""What cleaning did, as sections of a page."""

from collections.abc import Mapping
from html import escape
from typing import Any

from meshwright.data.clean.catalogue import ListedRule, listed_rules
from meshwright.report.bars import BarRow, bar_table, histogram
from meshwright.report.charts import legend
from meshwright.report.document_html import example_html, visible
from meshwright.report.numbers import count, percent, short
from meshwright.report.page import table

READ, KEPT, DROPPED = "slack", "weights", "activations"
EDITS = {
    "repair_unicode": "wrong decodings undone",
    "mask_pii.email": "e-mail addresses replaced",
    "mask_pii.ipv4": "public IPv4 addresses replaced",
    "mask_pii.ipv6": "public IPv6 addresses replaced",
}

Cleaning = Mapping[str, Any]


def cleaning_sections(cleaning: Cleaning) -> list[str]:
    """Rules, inputs, lengths, languages and edits, of ``cleaning`` in a report."""
    return [part(cleaning) for part in (_rules, _groups, _lengths, _languages, _edits)]


def _rules(cleaning: Cleaning) -> str:
    dropped = cleaning["dropped"]
    if not dropped:
        return "<section><h2>Dropped by each rule</h2><p>No document was dropped.</p></section>"
    read = cleaning["read"]["documents"]
    most = max(rule["documents"] for rule in dropped.values())
    known = {rule.name: rule for rule in listed_rules()}
    rows = [
        BarRow(
            name=name,
            about=_about(known.get(name), cleaning["thresholds"]),
            fills=((DROPPED, 0.0, rule["documents"] / most),),
            cells=(
                f"{rule['documents']:,}",
                percent(rule["documents"], read),
                short(rule["characters"]),
                f"~ {short(rule['tokens'])}",
            ),
        )
        for name, rule in dropped.items()
    ]
    head = ("rule", "documents", "of all read", "characters", "tokens")
    return (
        "<section><h2>Dropped by each rule</h2>"
        '<p class="note">A document counts for the first rule that drops it.</p>'
        f"{bar_table(head, rows)}</section>"
    )


def _about(rule: ListedRule | None, values: Mapping[str, float]) -> str:
    if rule is None:
        return ""
    limits = [f"{name}\xa0=\xa0{values[name]:g}" for name in rule.thresholds if name in values]
    return "; ".join([rule.about, *limits])


def _groups(cleaning: Cleaning) -> str:
    groups = cleaning["groups"]
    if len(groups) < 2:
        return ""
    most = max(group["read"]["characters"] for group in groups.values()) or 1
    rows = []
    for name, group in groups.items():
        read, kept = group["read"], group["kept"]
        share = kept["characters"] / most
        fills = ((KEPT, 0.0, share), (READ, share, read["characters"] / most - share))
        cells = (
            f"{read['documents']:,}",
            f"{kept['documents']:,}",
            percent(kept["documents"], read["documents"]),
            short(read["characters"]),
            short(kept["characters"]),
            percent(kept["characters"], read["characters"]),
        )
        rows.append(BarRow(name=visible(name), fills=fills, cells=cells))
    head = ("input", "documents", "kept", "share", "characters", "kept", "share")
    return (
        "<section><h2>Kept by cleaning, by input</h2>"
        f"{legend({KEPT: 'characters kept', READ: 'dropped or edited away'})}{bar_table(head, rows)}</section>"
    )


def _lengths(cleaning: Cleaning) -> str:
    read, kept = ({int(at): n for at, n in cleaning[f"lengths_{name}"].items()} for name in ("read", "kept"))
    if not read:
        return ""
    reached = [1 << power for power in range(min(read).bit_length() - 1, max(read).bit_length())]
    series = {READ: [read.get(at, 0) for at in reached], KEPT: [kept.get(at, 0) for at in reached]}
    names = [_binary(at) for at in reached]
    return (
        "<section><h2>Lengths of documents</h2>"
        '<p class="note">Documents by characters, in steps of 2: a column has those from its number up to the next.</p>'
        f"{legend({READ: 'as read', KEPT: 'as kept by cleaning'})}"
        f"{histogram(names, series, unit='characters', label='documents by length')}</section>"
    )


def _binary(number: int) -> str:
    for unit, size in (("Mi", 1 << 20), ("Ki", 1 << 10)):
        if number >= size:
            return f"{number // size} {unit}"
    return str(number)


def _languages(cleaning: Cleaning) -> str:
    found = cleaning["languages_found"]
    if not found:
        return ""
    total = sum(size["documents"] for size in found.values())
    most = max(size["documents"] for size in found.values())
    rows = [
        BarRow(
            name=language,
            fills=((KEPT if language in cleaning["languages"] else DROPPED, 0.0, size["documents"] / most),),
            cells=(f"{size['documents']:,}", percent(size["documents"], total), short(size["characters"])),
        )
        for language, size in found.items()
    ]
    return (
        f"<section><h2>Languages</h2>{legend({KEPT: 'asked for', DROPPED: 'dropped'})}"
        f"{bar_table(('language', 'documents', 'share', 'characters'), rows)}</section>"
    )


def _edits(cleaning: Cleaning) -> str:
    if not cleaning["edited"]:
        return ""
    about = {rule.name: f"{rule.drops}s dropped: {rule.about}" for rule in listed_rules()} | EDITS
    rows = [
        (name, about[name], f"{edit['documents']:,}", f"{edit['times']:,}")
        for name, edit in sorted(cleaning["edits"].items())
    ]
    body = table(("by", "what", "documents", "times"), rows, {0: "left", 1: "left"})
    return (
        f'<section><h2>Edited</h2><p class="note">{count(cleaning["edited"], "document")} kept with another text'
        f" than they came with. c4 also takes away blank lines and white space around lines.</p>{body}</section>"
    )


def dropped_examples(cleaning: Cleaning) -> str:
    """The starts of some documents that each rule dropped."""
    dropped = {rule: counts for rule, counts in cleaning["dropped"].items() if counts["examples"]}
    if not dropped:
        return ""
    parts = "".join(
        f"<details{' open' if place == 0 else ''}><summary>{escape(rule)}: {counts['documents']:,}</summary>"
        f"{''.join(map(example_html, counts['examples']))}</details>"
        for place, (rule, counts) in enumerate(dropped.items())
    )
    return f"<section><h2>Dropped documents, their starts</h2>{parts}</section>"
