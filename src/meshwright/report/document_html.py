"""Documents on a page: text of strangers, shown as it is and never obeyed."""

import difflib
import re
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

# Control characters have pictures of their own in Unicode, from U+2400 on.
PICTURES = {number: 0x2400 + number for number in range(32) if chr(number) not in "\t\n"} | {0x7F: 0x2421}
WORDS = re.compile(r"\s+|\w+|.", re.DOTALL)


def visible(text: str) -> str:
    """Text with control characters made visible, and nothing in it that UTF-8 has no bytes for."""
    return text.translate(PICTURES).encode("utf-8", "replace").decode("utf-8")


def place(example: Mapping[str, Any]) -> str:
    """Where a document is."""
    if "corpus" in example:
        return f"{example['corpus']}, document {example['document']}"
    unit = "row" if "row" in example else "byte"
    return f"{example['file']}, {unit} {example[unit]:,}"


def example_html(example: Mapping[str, Any]) -> str:
    """A document with its place above it."""
    return _document(place(example), escape(visible(example.get("text", ""))))


def pair_html(example: Mapping[str, Any]) -> str:
    """A document that stays and one dropped for repeating it, side by side, what differs marked."""
    kept = example["repeats"]
    left, right = _marked(visible(kept.get("text", example["text"])), visible(example["text"]))
    titles = f"stays: {place(kept)}", f"dropped, {example['kind']}: {place(example)}"
    # The text of a corpus made before is not at hand.
    left = left if "text" in kept else ""
    return f'<div class="pair">{_document(titles[0], left)}{_document(titles[1], right)}</div>'


def _document(title: str, body: str) -> str:
    text = f'<pre dir="auto">{body}</pre>' if body else ""
    return f"<figure><figcaption>{escape(visible(title))}</figcaption>{text}</figure>"


def _marked(one: str, other: str) -> tuple[str, str]:
    words = WORDS.findall(one), WORDS.findall(other)
    matcher = difflib.SequenceMatcher(None, *words, autojunk=False)
    left: list[str] = []
    right: list[str] = []
    for kind, a, b, c, d in matcher.get_opcodes():
        left += _piece(words[0][a:b], kind)
        right += _piece(words[1][c:d], kind)
    return "".join(left), "".join(right)


def _piece(words: list[str], kind: str) -> Iterator[str]:
    if words:
        text = escape("".join(words))
        yield text if kind == "equal" else f"<mark>{text}</mark>"
