"""Special tokens that are pieces of the model too, as in the tokenizer.json of T5 and XLM-R, kept out of texts.

A model that looks up pieces or words finds ``</s>`` in a text by its spelling, whether or not special tokens are looked
for. So text is encoded by a copy of the file in which these pieces have names that no text has, in the same places and
with the same scores: what else the model gives does not change, as it depends on the other pieces alone.
"""

import re
import secrets
from typing import Any

# BPE makes a token by its merges, not by its spelling.
LOOK_UP = ("Unigram", "WordLevel", "WordPiece")
# Unlike other tokens these stand for a byte, by their names.
_BYTE = re.compile("<0x[0-9A-F]{2}>")


def hidden_names(content: dict[str, Any]) -> dict[str, str]:
    """For each special token of a tokenizer.json that is a piece of a model that looks pieces up: a name of no text."""
    vocab = content["model"]["vocab"]
    pieces = {row[0] for row in vocab} if isinstance(vocab, list) else vocab.keys()
    special = [token["content"] for token in content.get("added_tokens", []) if token["special"]]
    # A character that Unicode sets aside for use inside of a program, and what nobody can know.
    hidden = f"\ufdd0{secrets.token_hex(16)}"
    return {token: f"{hidden}{token}" for token in special if token in pieces and not _BYTE.fullmatch(token)}


def hide(content: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    """The tokenizer.json with tokens renamed wherever it has their ids from."""

    def renamed(token: Any) -> Any:
        return names.get(token, token)

    model = content["model"]
    vocab = model["vocab"]
    if isinstance(vocab, list):
        vocab = [[renamed(piece), score] for piece, score in vocab]
    else:
        vocab = {renamed(piece): number for piece, number in vocab.items()}
    model = model | {"vocab": vocab} | ({"unk_token": renamed(model["unk_token"])} if "unk_token" in model else {})
    added = [token | {"content": renamed(token["content"])} for token in content["added_tokens"]]
    return content | {"model": model, "added_tokens": added}
