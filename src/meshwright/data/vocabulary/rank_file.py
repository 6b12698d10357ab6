"""tiktoken's rank files (base64 of a token's bytes, a space, its rank) as tokenizer.json.

A rank file merges any two neighbours that are a token together, the lowest rank first. A tokenizer.json lists the pairs
to merge. For each token there is at most one pair of which it can ever be made: the two parts that its own bytes are
merged into before they become the token (see ``byte_level``). So the merges listed here are these pairs, by rank, and
both give the same ids.
"""

import base64
import binascii
import json
import re
from itertools import pairwise
from typing import Any

from meshwright.data.errors import DataError
from meshwright.data.vocabulary.byte_level import byte_of_letter
from meshwright.data.vocabulary.patterns import ENCODINGS

_LINE = re.compile(rb"[A-Za-z0-9+/]+={0,2} \d+\s")
HOW = f"--tiktoken {'|'.join(ENCODINGS)}"


def is_rank_file(body: bytes) -> bool:
    """Whether bytes start as a rank file does."""
    return _LINE.match(body) is not None


def convert(body: bytes, encoding: str | None, source: str) -> bytes:
    """The tokenizer.json that gives the same ids as the rank file with the encoding of that name.

    Raises:
        DataError: no encoding or an unknown one, or the ranks are not those of a byte-level vocabulary.
    """
    if encoding is None:
        raise DataError(
            f"{source}: a tiktoken rank file does not say how text is cut into words: name it with {HOW} "
            "(or use the tokenizer.json that `meshwright data prepare` wrote with it)"
        )
    if encoding not in ENCODINGS:
        raise DataError(f"--tiktoken {encoding}: not known; legal: {', '.join(ENCODINGS)}")
    ranks = _ranks(body, source)
    taken = set(ranks.values())
    first_free = next(number for number in range(len(ranks) + 1) if number not in taken)
    specials = {first_free + after: name for name, after in ENCODINGS[encoding].specials}
    if clash := sorted(specials.keys() & taken):
        raise DataError(f"{source}: id {clash[0]} is taken, where {encoding} has {specials[clash[0]]!r}")
    content = _content(ranks, ENCODINGS[encoding].pattern, specials)
    return json.dumps(content, ensure_ascii=False).encode("utf-8")


def _ranks(body: bytes, source: str) -> dict[bytes, int]:
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(body.splitlines(), 1):
        if not line:
            continue
        try:
            token, rank = line.split()
            ranks[base64.b64decode(token, validate=True)] = int(rank)
        except (ValueError, binascii.Error):
            raise DataError(f"{source}:{number}: not a line of a tiktoken rank file: {line[:60]!r}") from None
    missing = [byte for byte in range(256) if bytes([byte]) not in ranks]
    if missing:
        raise DataError(f"{source}: no token for the single byte {missing[0]:#04x}; each of the 256 needs one")
    if len(set(ranks.values())) != len(ranks):
        raise DataError(f"{source}: two tokens have the same rank")
    return ranks


def _content(ranks: dict[bytes, int], pattern: str, specials: dict[int, str]) -> dict[str, Any]:
    letters = {byte: letter for letter, byte in byte_of_letter().items()}

    def spelled(token: bytes) -> str:
        return "".join(letters[byte] for byte in token)

    by_rank = sorted(ranks, key=ranks.__getitem__)
    pairs = [pair for token in by_rank if len(token) > 1 and (pair := parts_of(token, ranks))]
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_special(number, name) for number, name in specials.items()],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": True,
            # Added tokens keep their ids only where the vocabulary has them too.
            "vocab": {spelled(token): ranks[token] for token in by_rank}
            | {name: number for number, name in specials.items()},
            "merges": [[spelled(left), spelled(right)] for left, right in pairs],
        },
    }


def _special(number: int, name: str) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": number, "content": name, **flags, "special": True}


def parts_of(token: bytes, ranks: dict[bytes, int]) -> tuple[bytes, bytes] | None:
    """The two parts that the bytes of a token are merged into; None where they stay in more."""
    parts = [token[at : at + 1] for at in range(len(token))]
    while len(parts) > 2:
        found = [ranks.get(left + right) for left, right in pairwise(parts)]
        known = [(rank, at) for at, rank in enumerate(found) if rank is not None]
        if not known:
            return None
        at = min(known)[1]
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts[0], parts[1]
