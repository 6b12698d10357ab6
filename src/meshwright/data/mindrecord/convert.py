"""MindRecord files to a pair of token files and, where rows have labels, a loss mask."""

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from meshwright.data.errors import DataError
from meshwright.data.indexed_format import bin_path, idx_path, strip_suffix
from meshwright.data.indexed_writer import IndexedWriter
from meshwright.data.loss_mask import LossMask
from meshwright.data.mindrecord.files import Row, open_mindrecord
from meshwright.data.mindrecord.tokens import RowTokens
from meshwright.data.own_labels import OwnLabels
from meshwright.data.progress import Progress
from meshwright.data.record import EVAL_SUFFIX, record_path, tokenizer_path
from meshwright.data.vocabulary.beside import CONFIG_SUFFIX, config_bytes
from meshwright.data.vocabulary.tokenizer import TextTokenizer, load_tokenizer


@dataclass(frozen=True, kw_only=True)
class ImportReport:
    """What was written.

    Attributes:
        files: the record files, in the order in which they were read.
        columns: by name, what became of it.
        beside: suffix of the file that says what is supervised; None where rows do not.
        tokenizer: suffix of the tokenizer that was copied; None without one.
        supervised_tokens: tokens that it leaves in the loss.
        empty_rows: rows that gave no document: they supervise nothing, or are nothing but padding.
        left_out_ids: ids of rows that are in no document: padding, and those behind the last supervised one of theirs.
        crossing_labels: labels left out because they are the first token of another document than theirs.
    """

    output: str
    files: list[str]
    documents: int
    tokens: int
    dtype: str
    columns: dict[str, str]
    beside: str | None
    tokenizer: str | None
    supervised_tokens: int | None
    rows: int
    empty_rows: int
    left_out_ids: int
    crossing_labels: int


def import_mindrecord(
    source: str | Path,
    output: str | Path,
    *,
    vocab_size: int | None = None,
    tokenizer: str | Path | None = None,
    eos_token: str | None = None,
    tiktoken_encoding: str | None = None,
    ignore: Collection[str] = (),
    ahead: bool | None = None,
    show_progress: bool = False,
) -> ImportReport:
    """Write ``output``.bin/.idx, .mask or .labels where rows have labels, and .tokenizer.* files where one is given.

    The files get their names when all rows are written; on any error nothing is left behind. Memory is that of two
    rows and of 4 bytes per document.

    Args:
        source: a MindRecord file, any file of a set, or the name of a set without the number.
        vocab_size: ids are below it; it decides the dtype.
        tokenizer: the vocabulary that made the ids: to take ``vocab_size`` from, and to decode them later.
        eos_token: the token that ends a text; default: the tokenizer's own.
        tiktoken_encoding: how ``tokenizer`` is used where it is a tiktoken rank file.
        ignore: columns to leave out although training would need them.
        ahead: whether labels are the ids that follow; None to be told by the rows. Said here, they may be other ids.

    Raises:
        DataError: a file is damaged, a column cannot be kept, an id is outside the vocabulary, or the output exists.
    """
    output = strip_suffix(output)
    _check_output(output)
    if (vocab_size is None) == (tokenizer is None):
        raise DataError("give either --vocab-size N or --tokenizer FILE")
    if tokenizer is None and (eos_token is not None or tiktoken_encoding is not None):
        raise DataError("--eos-token and --tiktoken are about --tokenizer, which is not given")
    text_tokenizer = None
    if tokenizer is not None:
        text_tokenizer = load_tokenizer(tokenizer, eos_token=eos_token, tiktoken_encoding=tiktoken_encoding)
    size = text_tokenizer.vocab_size if text_tokenizer else vocab_size or 0
    records = open_mindrecord(source)
    if not records.rows:
        raise DataError(f"{records.shards[0].path}: has no rows")
    row_tokens = RowTokens(records, size, ignore=ignore, ahead=ahead)
    total = sum(page.used for shard in records.shards for page in shard.header.pages.values())
    output.parent.mkdir(parents=True, exist_ok=True)
    with (
        _named_last(output, text_tokenizer) if text_tokenizer else nullcontext(),
        IndexedWriter(output, vocab_size=size, beside=row_tokens.beside) as writer,
        Progress("importing", total, show=show_progress) as progress,
    ):
        for number, (row, later) in enumerate(_with_later(records.read(row_tokens.columns)), 1):
            for document in row_tokens(row, later):
                writer.add_document(document.tokens, document.labels)
            progress.update(total * number // records.rows)
        if not writer.documents:
            empty = "supervises anything" if row_tokens.beside else "has an id that is no padding"
            raise DataError(f"{records.shards[0].path}: no row {empty}: there is nothing to learn")
    return ImportReport(
        output=str(output),
        files=[str(shard.path) for shard in records.shards],
        documents=writer.documents,
        tokens=writer.tokens,
        dtype=writer.dtype.name,
        columns=row_tokens.outcome(),
        beside=row_tokens.beside.suffix if row_tokens.beside else None,
        tokenizer=f".tokenizer{text_tokenizer.suffix}" if text_tokenizer else None,
        supervised_tokens=writer.supervised,
        rows=records.rows,
        empty_rows=row_tokens.empty_rows,
        left_out_ids=row_tokens.left_out_ids,
        crossing_labels=row_tokens.crossing_labels,
    )


@contextmanager
def _named_last(output: Path, tokenizer: TextTokenizer) -> Iterator[None]:
    """Write the tokenizer of a corpus, and which token ends its texts, before the block, which writes the corpus.

    The files get their names after it.
    """
    files = {
        Path(f"{output}.tokenizer{tokenizer.suffix}"): tokenizer.body,
        Path(f"{output}{CONFIG_SUFFIX}"): config_bytes(tokenizer.eos_token),
    }
    partial = {path: Path(f"{path}.partial") for path in files}
    try:
        for path, content in files.items():
            partial[path].write_bytes(content)
        yield
        for path in files:
            os.replace(partial[path], path)
    finally:
        for path in partial.values():
            path.unlink(missing_ok=True)


def _with_later(rows: Iterator[Row]) -> Iterator[tuple[Row, Row | None]]:
    """Each row and the one after it."""
    row = next(rows, None)
    while row is not None:
        later = next(rows, None)
        yield row, later
        row = later


def _check_output(output: Path) -> None:
    if output.is_dir():
        raise DataError(f"{output}: is a directory; give a prefix, such as {output / 'corpus'}")
    held_out = Path(f"{output}{EVAL_SUFFIX}")
    beside = [Path(f"{output}{kind.suffix}") for kind in (LossMask, OwnLabels)]
    files = (bin_path(output), idx_path(output), *beside, bin_path(held_out), idx_path(held_out))
    for path in (*files, tokenizer_path(output), Path(f"{output}{CONFIG_SUFFIX}"), record_path(output)):
        if path.exists():
            raise DataError(f"{path}: exists already; remove that corpus, or choose another --output")
