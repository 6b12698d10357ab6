"""How byte-level vocabularies cut text into words: the published patterns, and where a long text may be cut.

Sources: GPT-2's ``encoder.py`` (gpt2), ``openai_public.py`` of the package tiktoken (cl100k, o200k), the tokenizers
published with Llama 3 and Qwen. A pattern says what a word is; merges never reach over the border of a word.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
PIECE_CHARACTERS = 1 << 17
NEAR_CHARACTERS = 1 << 12

# In every pattern below a word ends between these: after a letter that no pattern joins to what follows. Letters that
# Unicode has had for long, and white space or a full stop that starts something new.
_BORDER = re.compile(
    r"(?<=[A-Za-z\u0410-\u044f\u0621-\u063a\u0905-\u0939\u3041-\u3096\u30a1-\u30fa\u4e00-\u9fa5\uac00-\ud7a3])"
    r"(?=[ \n.,\u3001\u3002\uff0c])"
)


@dataclass(frozen=True)
class Encoding:
    """A published way to use a byte-level vocabulary.

    Attributes:
        pattern: what a word is.
        specials: tokens beside the ranks, and how far after the first free id each one is.
        end: the one of them that ends a document.
    """

    pattern: str
    specials: tuple[tuple[str, int], ...]
    end: str


def _gpt4(numbers: str) -> str:
    return rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{numbers}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{SPACES}"


def _llama3_specials() -> tuple[tuple[str, int], ...]:
    named = {
        0: "<|begin_of_text|>",
        1: "<|end_of_text|>",
        6: "<|start_header_id|>",
        7: "<|end_header_id|>",
        9: "<|eot_id|>",
    }
    reserved = (number for number in range(256) if number not in named)
    numbers = {place: number for number, place in enumerate(reserved)}
    return tuple((named.get(at) or f"<|reserved_special_token_{numbers[at]}|>", at) for at in range(256))


def _qwen_specials() -> tuple[tuple[str, int], ...]:
    names = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *(f"<|extra_{number}|>" for number in range(205))]
    return tuple((name, number) for number, name in enumerate(names))


ENCODINGS = {
    "gpt2": Encoding(
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
        (("<|endoftext|>", 0),),
        "<|endoftext|>",
    ),
    "cl100k": Encoding(
        _gpt4(r"\p{N}{1,3}"),
        (
            ("<|endoftext|>", 1),
            ("<|fim_prefix|>", 2),
            ("<|fim_middle|>", 3),
            ("<|fim_suffix|>", 4),
            ("<|endofprompt|>", 20),
        ),
        "<|endoftext|>",
    ),
    "o200k": Encoding(
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+" + CONTRACTIONS + "?|"
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*" + CONTRACTIONS + "?|"
        r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + SPACES,
        (("<|endoftext|>", 1), ("<|endofprompt|>", 20)),
        "<|endoftext|>",
    ),
    "llama3": Encoding(
        _gpt4(r"\p{N}{1,3}"),
        _llama3_specials(),
        "<|end_of_text|>",
    ),
    "qwen": Encoding(
        _gpt4(r"\p{N}"),
        _qwen_specials(),
        "<|endoftext|>",
    ),
}
KNOWN_PATTERNS = frozenset(encoding.pattern for encoding in ENCODINGS.values())


def pieces(text: str) -> Iterator[str]:
    """A text in pieces of at most ``PIECE_CHARACTERS``, cut where a word of every known pattern ends.

    A piece is longer where the text has no such border for that long.
    """
    at = 0
    while len(text) - at > PIECE_CHARACTERS:
        end = _last_border(text, at, at + PIECE_CHARACTERS)
        yield text[at:end]
        at = end
    yield text[at:]


def _last_border(text: str, start: int, end: int) -> int:
    """The last border before ``end``, else the first after it, else the end of the text."""
    for first in (max(end - NEAR_CHARACTERS, start + 1), start + 1):
        borders = [match.start() for match in _BORDER.finditer(text, first, end)]
        if borders:
            return borders[-1]
    later = _BORDER.search(text, end)
    return later.start() if later else len(text)
