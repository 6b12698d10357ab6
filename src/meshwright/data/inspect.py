"""Look into a corpus: sizes, dtype, documents, tokens, and the text of its beginning."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from meshwright.data.errors import DataError
from meshwright.data.indexed import IndexedDataset, idx_path, strip_suffix
from meshwright.data.record import EVAL_SUFFIX, load_record, tokenizer_path
from meshwright.data.tokenizer import load_tokenizer

SAMPLE_TOKENS = 64


@dataclass(frozen=True, kw_only=True)
class SplitReport:
    """One pair of token files; document lengths are in tokens. ``sample`` is the text of its beginning."""

    prefix: str
    dtype: str
    bin_bytes: int
    idx_bytes: int
    documents: int
    tokens: int
    shortest: int
    mean: float
    longest: int
    sample_ids: list[int]
    sample: str | None


def inspect_corpus(prefix: str | Path) -> dict[str, Any]:
    """A report of the corpus and, where there is one, of its held-out split, ready for JSON.

    Raises:
        DataError: files are missing or damaged (every entry of the index is checked).
    """
    prefix = strip_suffix(prefix)
    prefixes = [prefix]
    held_out = Path(f"{prefix}{EVAL_SUFFIX}")
    if idx_path(held_out).exists():
        prefixes.append(held_out)
    splits = [asdict(_split(path)) for path in prefixes]
    record = load_record(prefix)
    return {"splits": splits, "record": record.as_json() if record else None}


def _split(prefix: Path) -> SplitReport:
    record = load_record(prefix)
    data = IndexedDataset(prefix, dtype=record.dtype if record else None)
    data.verify()
    lengths = data.lengths
    ids = [int(token) for token in data.tokens[:SAMPLE_TOKENS]]
    return SplitReport(
        prefix=str(prefix),
        dtype=data.dtype.name,
        bin_bytes=data.bin_path.stat().st_size,
        idx_bytes=data.idx_path.stat().st_size,
        documents=data.documents,
        tokens=len(data.tokens),
        shortest=int(lengths.min()) if len(lengths) else 0,
        mean=float(lengths.mean()) if len(lengths) else 0.0,
        longest=int(lengths.max()) if len(lengths) else 0,
        sample_ids=ids,
        sample=_decode(prefix, ids, record.eos_token if record else None),
    )


def _decode(prefix: Path, ids: list[int], eos_token: str | None) -> str | None:
    path = tokenizer_path(prefix)
    if not path.exists():
        return None
    tokenizer = load_tokenizer(path, eos_token=eos_token)
    if ids and max(ids) >= tokenizer.vocab_size:
        raise DataError(f"{path}: knows ids below {tokenizer.vocab_size}, but the corpus has {max(ids)}")
    return tokenizer.decode(ids)
