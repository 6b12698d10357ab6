"""Undo wrong decodings, with ftfy."""

from collections.abc import Callable

from meshwright.data.errors import DataError


def unicode_repair() -> Callable[[str], str]:
    """A function that mends what programs broke (mojibake, HTML entities, control characters) and changes no style.

    Curly quotes, ligatures, full-width letters, line ends and normal forms stay as the author wrote them.

    Raises:
        DataError: ftfy is not installed.
    """
    try:
        from ftfy import TextFixerConfig, fix_text
    except ImportError:
        raise DataError("the package `ftfy` is not installed: pip install 'meshwright[clean]'") from None
    config = TextFixerConfig(
        uncurl_quotes=False,
        fix_latin_ligatures=False,
        fix_character_width=False,
        fix_line_breaks=False,
        normalization=None,
        explain=False,
    )
    return lambda text: fix_text(text, config)
