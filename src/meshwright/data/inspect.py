"""Look into a corpus: sizes, dtype, documents, duplicates, how often ids occur, and a sample as training reads it."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from meshwright.data.contents import (
    Digests,
    Duplicates,
    Supervision,
    TokenHistogram,
    count_supervised,
    count_tokens,
    document_bounds,
    document_digests,
    find_duplicates,
)
from meshwright.data.indexed import IndexedDataset
from meshwright.data.indexed_format import idx_path, strip_suffix
from meshwright.data.own_labels import open_mask
from meshwright.data.progress import Progress
from meshwright.data.record import EVAL_SUFFIX, load_record, tokenizer_path
from meshwright.data.sample import SampleRun, sample_runs, token_text
from meshwright.data.vocabulary.tokenizer import TextTokenizer, load_tokenizer

FREQUENT_IDS = 10
# Below this, reading ends before anybody asks how far it is.
WORTH_A_BAR = 1 << 28


@dataclass(frozen=True, kw_only=True)
class FrequentId:
    """One id and how often it occurs; ``share`` is of all tokens."""

    id: int
    count: int
    share: float
    text: str | None


@dataclass(frozen=True, kw_only=True)
class SplitReport:
    """One pair of token files.

    Document lengths are in tokens; ``supervision`` is from the loss mask or labels with suffix ``beside``, None both
    without one.
    """

    prefix: str
    dtype: str
    bin_bytes: int
    idx_bytes: int
    documents: int
    tokens: int
    shortest: int
    median: float
    mean: float
    longest: int
    beside: str | None
    supervision: Supervision | None
    duplicates: Duplicates
    histogram: TokenHistogram
    most_frequent: list[FrequentId]
    sample: list[SampleRun]


def inspect_corpus(prefix: str | Path, *, eos_token: str | None = None, show_progress: bool = False) -> dict[str, Any]:
    """A report of the corpus and, where there is one, of its held-out split, ready for JSON.

    Reads the token files twice, from end to end. Memory, beside the mapped files, is about 80 bytes per document.

    Args:
        eos_token: the token that ends a text; default: that of the tokenizer (see ``load_tokenizer``).

    Raises:
        DataError: files are missing or damaged (every entry of the index is checked).
    """
    prefix = strip_suffix(prefix)
    record = load_record(prefix)
    tokenizer = None
    if tokenizer_path(prefix).exists():
        tokenizer = load_tokenizer(tokenizer_path(prefix), eos_token=eos_token)
    report, digests = _split(prefix, tokenizer, None, show_progress)
    splits = [report]
    held_out = Path(f"{prefix}{EVAL_SUFFIX}")
    if idx_path(held_out).exists():
        splits.append(_split(held_out, tokenizer, digests, show_progress)[0])
    return {"splits": [asdict(split) for split in splits], "record": record.as_json() if record else None}


def _split(
    prefix: Path, tokenizer: TextTokenizer | None, train: Digests | None, show: bool
) -> tuple[SplitReport, Digests]:
    """The report of one split and the digests of its documents; ``train`` are those of the training split."""
    record = load_record(prefix)
    data = IndexedDataset(prefix, dtype=record.dtype if record else None)
    data.verify()
    vocab_size = record.vocab_size if record else tokenizer.vocab_size if tokenizer else None
    bounds = document_bounds(data)
    size = data.bin_path.stat().st_size
    show = show and size > WORTH_A_BAR
    with Progress(f"counting tokens of {prefix}", size, show=show) as progress:
        counts, histogram = count_tokens(data, vocab_size, progress)
    with Progress(f"comparing documents of {prefix}", size, show=show) as progress:
        digests = document_digests(data, bounds, progress)
    lengths = np.diff(bounds)
    mask = open_mask(prefix, len(data.tokens))
    report = SplitReport(
        prefix=str(prefix),
        dtype=data.dtype.name,
        bin_bytes=size,
        idx_bytes=data.idx_path.stat().st_size,
        documents=data.documents,
        tokens=len(data.tokens),
        shortest=int(lengths.min()) if len(lengths) else 0,
        median=float(np.median(lengths)) if len(lengths) else 0.0,
        mean=float(lengths.mean()) if len(lengths) else 0.0,
        longest=int(lengths.max()) if len(lengths) else 0,
        beside=mask.suffix if mask else None,
        supervision=count_supervised(mask, bounds) if mask else None,
        duplicates=find_duplicates(digests, train),
        histogram=histogram,
        most_frequent=[
            FrequentId(
                id=token,
                count=int(counts[token]),
                share=int(counts[token]) / len(data.tokens),
                text=token_text(tokenizer, [token]),
            )
            for token in np.argsort(-counts, kind="stable")[: min(FREQUENT_IDS, histogram.used)].tolist()
        ],
        sample=sample_runs(data, mask, bounds, tokenizer),
    )
    return report, digests
