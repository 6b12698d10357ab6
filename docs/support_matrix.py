"""Writes support-matrix.md beside this file from the table that refuses unsupported runs: ``make docs``."""

from pathlib import Path

from meshwright.spec.support import support_markdown

PAGE = Path(__file__).with_name("support-matrix.md")
HEAD = """# Support matrix

What the training engine does, one table for each axis, by the config keys. What is marked "no" is refused before
anything starts, with the nearest combination that works. Rules of divisibility (heads, layers, sequence and batch
against the layout) are checked besides, and name the legal values.

This page is written by `make docs` from `meshwright.spec.support`, the same table that the checks read.

"""


def page() -> str:
    """The whole page."""
    return HEAD + support_markdown()


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
