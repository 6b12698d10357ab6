"""Byte-level BPE by tiktoken: the same ids as the package tokenizers gives, in a quarter of the time.

Both merge neighbours by rank, the leftmost first among equals. ``tokenizers`` merges the pairs that its file lists;
tiktoken merges any two neighbours that are a token together. Which two neighbours can become a token ``t`` at all is
settled by ``t`` alone: whatever stands around it, the merges inside of ``t`` are those of ``t`` encoded by itself, and
these pass through one state of two parts at most. So both do the same, always, where no token encoded by itself stays
in two parts, and where the tokens come in the order of their merges. ``read_byte_level`` checks that for each token and
says no otherwise.
"""

import json
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from meshwright.data.vocabulary.patterns import ENCODINGS, KNOWN_PATTERNS, PIECE_CHARACTERS

Ids = npt.NDArray[np.int32]
UNKNOWN, TRUSTED, DOUBTFUL = 0, 1, 2


def byte_of_letter() -> dict[str, int]:
    """Which byte each letter of a byte-level vocabulary stands for (GPT-2's ``bytes_to_unicode``)."""
    shown = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {chr(byte): byte for byte in shown} | {chr(256 + at): byte for at, byte in enumerate(hidden)}


@dataclass(frozen=True)
class ByteLevel:
    """A byte-level BPE in the terms of tiktoken.

    Attributes:
        pattern: what a word is.
        ranks: rank of each token, by its bytes.
        ids: int32 [ranks], the id of each rank.
        literals: spellings that ``tokenizers`` looks for in the text, as it is or composed, before anything else.
        compose: whether text is brought to Unicode's form NFC.
    """

    pattern: str
    ranks: Mapping[bytes, int]
    ids: Ids
    literals: tuple[str, ...]
    compose: bool


def read_byte_level(content: dict[str, Any]) -> ByteLevel | None:
    """What tiktoken needs to know of a tokenizer.json, or None where the same ids are not certain."""
    pattern = _pattern(content.get("pre_tokenizer"))
    model = content.get("model") or {}
    compose = content.get("normalizer") == {"type": "NFC"}
    if pattern is None or not _plain_bpe(model) or not (compose or content.get("normalizer") is None):
        return None
    order = _order(model)
    if order is None or not _settled(content, order):
        return None
    letters = byte_of_letter()
    return ByteLevel(
        pattern=pattern,
        ranks={bytes(letters[letter] for letter in token): rank for rank, token in enumerate(order)},
        ids=np.array([model["vocab"][token] for token in order], np.int32),
        literals=_literals(content, compose),
        compose=compose,
    )


def _literals(content: dict[str, Any], compose: bool) -> tuple[str, ...]:
    """Spellings of the tokens that are looked for: as they are listed and, where text is composed, composed."""
    listed = [added["content"] for added in content.get("added_tokens") or () if not added["special"]]
    composed = [unicodedata.normalize("NFC", literal) for literal in listed] if compose else []
    return tuple(dict.fromkeys([*listed, *composed]))


def _pattern(pre: Any) -> str | None:
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
    if _without_offsets(pre) == byte_level:
        return ENCODINGS["gpt2"].pattern
    match pre:
        case {"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": str(found)}} as cut, last]}:
            kept = (cut.get("behavior"), bool(cut.get("invert"))) in (("Isolated", False), ("Removed", True))
            if found in KNOWN_PATTERNS and kept and _without_offsets(last) == byte_level | {"use_regex": False}:
                return found
    return None


def _without_offsets(pre: Any) -> dict[str, Any]:
    if not isinstance(pre, dict):
        return {}
    return {"use_regex": True} | {key: value for key, value in pre.items() if key != "trim_offsets"}


def _plain_bpe(model: dict[str, Any]) -> bool:
    """Whether nothing but merges decides; the token for what is unknown never occurs where all bytes are known."""
    changes = ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback")
    return model.get("type", "BPE") == "BPE" and "merges" in model and not any(model.get(key) for key in changes)


def _order(model: dict[str, Any]) -> list[str] | None:
    """Tokens in the order of their merges, after the 256 bytes; None where there is no such order."""
    vocab: dict[str, int] = model["vocab"]
    letters = set(byte_of_letter())
    order = dict.fromkeys(byte_of_letter())
    last = ""
    for merge in model["merges"]:
        token = "".join(merge if isinstance(merge, list) else merge.split(" "))
        if (token in order and token != last) or not letters.issuperset(token):
            return None
        order[token] = None
        last = token
    if model.get("ignore_merges"):
        # Tokens that no merge makes are taken where a whole word spells them.
        order.update(dict.fromkeys(token for token in vocab if letters.issuperset(token)))
    return list(order) if vocab.keys() >= order.keys() else None


def _settled(content: dict[str, Any], order: list[str]) -> bool:
    """Whether no token, merged from its bytes as any text, stays in two parts (see the text of the module)."""
    import tokenizers

    direct = content["model"].get("ignore_merges")
    model = content["model"] | {"ignore_merges": False}
    others = ("truncation", "padding", "normalizer", "post_processor", "decoder")
    bare = {"version": "1.0", "added_tokens": [], "model": model, **dict.fromkeys(others)}
    # One text of all of them costs less than as many texts: no letter that stands for a byte is white space.
    merger = tokenizers.Tokenizer.from_str(json.dumps(bare | {"pre_tokenizer": {"type": "WhitespaceSplit"}}))
    encoded = merger.encode(" ".join(order), add_special_tokens=False)
    parts = np.bincount(np.array(encoded.word_ids))
    return len(parts) == len(order) and not ((parts == 2) if direct else (parts != 1)).any()


class ByteLevelEncoder:
    """Encodes texts with tiktoken where that gives certainly the same ids."""

    def __init__(self, vocabulary: ByteLevel) -> None:
        """Raises ImportError without the package tiktoken."""
        import tiktoken

        self._vocabulary = vocabulary
        self._same = bool(np.array_equal(vocabulary.ids, np.arange(len(vocabulary.ids))))
        self._encoding = tiktoken.Encoding(
            "corpus", pat_str=vocabulary.pattern, mergeable_ranks=dict(vocabulary.ranks), special_tokens={}
        )
        self._letters = np.zeros(0x110000, np.uint8)

    def has_literal(self, text: str) -> bool:
        """Whether ``tokenizers`` would find a token in the text before cutting it into words."""
        literals = self._vocabulary.literals
        if any(literal in text for literal in literals):
            return True
        if not literals or not self._vocabulary.compose or text.isascii():
            return False
        composed = unicodedata.normalize("NFC", text)
        return any(literal in composed for literal in literals)

    def encode(self, text: str) -> Ids | None:
        """Ids of a text without such tokens, int32 [tokens], or None where they are not certain."""
        if len(text) > PIECE_CHARACTERS:
            return None
        if not text.isascii():
            if not self._all_trusted(text):
                return None
            if self._vocabulary.compose:
                text = unicodedata.normalize("NFC", text)
        ranks = np.array(self._encoding.encode_ordinary(text), np.int32)
        return ranks if self._same else self._vocabulary.ids[ranks]

    def _all_trusted(self, text: str) -> bool:
        numbers = np.frombuffer(text.encode("utf-32-le"), np.uint32)
        trust = self._letters[numbers]
        if not trust.all():
            for number in np.unique(numbers[trust == UNKNOWN]).tolist():
                self._letters[number] = TRUSTED if _trusted(chr(number)) else DOUBTFUL
            trust = self._letters[numbers]
        return int(trust.max(initial=TRUSTED)) == TRUSTED


def _trusted(char: str) -> bool:
    """Whether all versions of Unicode that the packages may follow class this character alike.

    Those that are as old as Unicode 3.2, and marks of punctuation and symbols, which count as an unknown one does.
    """
    category = unicodedata.category(char)
    return unicodedata.ucd_3_2_0.category(char) != "Cn" or (category[0] in "PSC" and category != "Cn")
