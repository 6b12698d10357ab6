"""Special tokens spelled in texts, the token that ends a text, and what files beside a vocabulary say of them."""

import json
from pathlib import Path
from typing import Any

import pytest

from meshwright.data.errors import DataError
from meshwright.data.vocabulary.tokenizer import load_tokenizer


def special(number: int, content: str, *, role: bool = True) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": number, "content": content, **flags, "special": role}


def test_ids_beyond_32_bits_are_refused(tmp_path: Path) -> None:
    model = {"type": "WordLevel", "vocab": {"</s>": 0, "a": 3_000_000_000}, "unk_token": "a"}
    (tmp_path / "tokenizer.json").write_text(json.dumps({"added_tokens": [special(0, "</s>")], "model": model}))
    with pytest.raises(DataError, match=r"tokenizer\.json: has the id 3000000000; ids are 32-bit, to 2147483647"):
        load_tokenizer(tmp_path)
