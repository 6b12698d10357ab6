"""Text files to a training corpus: token files, held-out token files, tokenizer and record."""

import contextlib
from collections.abc import Generator, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from meshwright.data.clean.cleaner import NO_CLEANING, Cleaning
from meshwright.data.clean.report import REPORT_SUFFIX, CleanCounts, save_report
from meshwright.data.clean.shards import DIRECTORY, TEXT_KEY, clean_files, directory_name
from meshwright.data.corpus import Tally, find_files, read_documents
from meshwright.data.encode import Encoded, Encoder, chunks
from meshwright.data.errors import DataError
from meshwright.data.indexed import IndexedWriter, bin_path, dtype_for_vocab, idx_path, strip_suffix
from meshwright.data.pool import OrderedMap
from meshwright.data.progress import Progress
from meshwright.data.record import EVAL_SUFFIX, CorpusRecord, SplitCounts, record_path
from meshwright.data.text import is_held_out
from meshwright.data.tokenizer import TextTokenizer, check_vocab_size, load_tokenizer, train_tokenizer
from meshwright.data.workplace import commit, workplace, workplace_path

# In the order in which they get their final names: a corpus is complete when its record is there.
OUTPUTS = (".tokenizer.json", ".bin", ".idx", f"{EVAL_SUFFIX}.bin", f"{EVAL_SUFFIX}.idx", REPORT_SUFFIX, ".json")


def prepare(
    inputs: Sequence[str | Path],
    output: str | Path,
    *,
    tokenizer: str | Path | None = None,
    train_vocab_size: int | None = None,
    suffixes: Sequence[str] = (),
    text_key: str = "text",
    eos_token: str | None = None,
    eval_fraction: float = 0.02,
    cleaning: Cleaning = NO_CLEANING,
    examples: int = 3,
    workers: int = 0,
    overwrite: bool = False,
    show_progress: bool = False,
) -> CorpusRecord:
    """Write ``output``.bin/.idx, .eval.bin/.idx, .tokenizer.json and .json from text, .clean.json where it is cleaned.

    The same inputs give the same bytes, whatever the number of workers. All files get their names at the end,
    together; whatever ends the work before that, nothing is left behind but finished shards of cleaning, with which
    the same request goes on.

    Args:
        inputs: files, directories, glob patterns (see ``corpus.find_files``).
        output: path prefix of the files to write.
        tokenizer: a tokenizer.json to use, or
        train_vocab_size: train a byte-level BPE of this size on the documents that are not held out.
        text_key: where the text is in a .jsonl row.
        eos_token: ends each document; default: the tokenizer's own.
        eval_fraction: share of documents to hold out, chosen by a hash of their text.
        cleaning: which documents to drop, and what to change in the others; default: nothing.
        examples: documents to show in .clean.json for each rule that drops some.
        workers: processes that clean and tokenize; 0 uses the tokenizer's threads in this process.
        overwrite: replace an existing corpus of that name.

    Raises:
        DataError: something about the request or the inputs is wrong.
        DataWorkerError: a worker process ended.
    """
    output = strip_suffix(output)
    _check_request(output, tokenizer, train_vocab_size, eval_fraction, workers, overwrite)
    texts = _Texts(find_files(inputs, suffixes), text_key)
    loaded = load_tokenizer(tokenizer, eos_token=eos_token) if tokenizer is not None else None
    with workplace(output, keep=f"{DIRECTORY}*") as directory:
        files, counts = len(texts.files), None
        if cleaning:
            texts, counts = _clean(texts, cleaning, directory, examples, workers, show_progress)
        text_tokenizer = loaded or _train(texts, train_vocab_size, eval_fraction, show_progress)
        stage = _stage(directory)
        Path(f"{stage}.tokenizer.json").write_bytes(text_tokenizer.body)
        tally = Tally()
        encoded = _encode(texts, Encoder(text_tokenizer, eval_fraction), tally, workers, show_progress)
        with contextlib.closing(encoded):
            train, held_out = _write(stage, encoded, text_tokenizer.vocab_size)
        record = CorpusRecord(
            vocab_size=text_tokenizer.vocab_size,
            dtype=dtype_for_vocab(text_tokenizer.vocab_size).name,
            eos_id=text_tokenizer.eos_id,
            eos_token=text_tokenizer.eos_token,
            tokenizer_sha256=text_tokenizer.fingerprint(),
            eval_fraction=eval_fraction,
            train=train,
            eval=held_out,
            files=files,
            dropped={"empty": tally.empty} if counts is None else {"empty": counts.empty, **counts.by_rule()},
            invalid_utf8=tally.invalid_utf8 if counts is None else counts.invalid_utf8,
            inputs=tuple(str(item) for item in inputs),
        )
        _check_result(record)
        if counts is not None:
            report = {**asdict(cleaning), **counts.as_json(), "kept_tokens": train.tokens + held_out.tokens}
            save_report(Path(f"{stage}{REPORT_SUFFIX}"), report)
        record.save(Path(f"{stage}.json"))
        commit(_final_paths(stage), _final_paths(output))
    return record


@dataclass(frozen=True)
class _Texts:
    """Files of documents, and where the text is in a .jsonl row."""

    files: Sequence[Path]
    key: str

    def read(self, tally: Tally) -> Iterator[str]:
        return read_documents(self.files, text_key=self.key, tally=tally)

    def size(self) -> int:
        return sum(path.stat().st_size for path in self.files)


def _check_request(
    output: Path,
    tokenizer: str | Path | None,
    train_vocab_size: int | None,
    eval_fraction: float,
    workers: int,
    overwrite: bool,
) -> None:
    if (tokenizer is None) == (train_vocab_size is None):
        raise DataError("give either --tokenizer FILE or --train-tokenizer VOCAB_SIZE")
    if train_vocab_size is not None:
        check_vocab_size(train_vocab_size)
    if not 0 <= eval_fraction < 1:
        raise DataError(f"eval_fraction {eval_fraction} must be at least 0 and below 1")
    if workers < 0:
        raise DataError(f"workers {workers} must be at least 0")
    if output.is_dir():
        raise DataError(f"{output}: is a directory; give a prefix, such as {output / 'corpus'}")
    existing = [path for path in _final_paths(output) if path.exists()]
    # A run that was killed while it gave the files their names had leave to do so; the record comes last.
    interrupted = Path(f"{_stage(workplace_path(output))}.json").exists() and not record_path(output).exists()
    if existing and not overwrite and not interrupted:
        raise DataError(f"{existing[0]}: exists already; choose another --output, or replace it with --overwrite")


def _check_result(record: CorpusRecord) -> None:
    if not record.train.documents:
        reasons = ", ".join(f"{count} {reason}" for reason, count in record.dropped.items())
        raise DataError(
            f"no document is left for training: {reasons}, {record.eval.documents} held out "
            f"(eval_fraction {record.eval_fraction})"
        )


def _stage(directory: Path) -> Path:
    return directory / "corpus"


def _final_paths(prefix: Path) -> list[Path]:
    return [Path(f"{prefix}{suffix}") for suffix in OUTPUTS]


def _clean(
    texts: _Texts, cleaning: Cleaning, directory: Path, examples: int, workers: int, show: bool
) -> tuple[_Texts, CleanCounts]:
    shards = directory / directory_name(texts.files, cleaning, texts.key, examples)
    files, counts = clean_files(
        texts.files, cleaning, shards, text_key=texts.key, examples=examples, workers=workers, show_progress=show
    )
    return _Texts(files, TEXT_KEY), counts


def _train(texts: _Texts, vocab_size: int | None, eval_fraction: float, show: bool) -> TextTokenizer:
    assert vocab_size is not None
    return train_tokenizer(_training_text(texts, eval_fraction, show), vocab_size)


def _training_text(texts: _Texts, eval_fraction: float, show: bool) -> Iterator[str]:
    tally = Tally()
    with Progress("training the tokenizer", texts.size(), show=show) as progress:
        for text in texts.read(tally):
            progress.update(tally.bytes_read)
            if not is_held_out(text.encode("utf-8"), eval_fraction):
                yield text


def _encode(
    texts: _Texts, encoder: Encoder, tally: Tally, workers: int, show: bool
) -> Generator[tuple[Encoded, Encoded], None, None]:
    """Train and held-out documents of all files, a chunk at a time, in file order."""
    tasks = chunks(texts.read(tally))
    encoded: OrderedMap[list[str], tuple[Encoded, Encoded]] = OrderedMap(
        encoder, tasks, workers=workers, ahead=2 * workers + 1, name=_chunk_name, finish=lambda parts: parts
    )
    with encoded, Progress("tokenizing", texts.size(), show=show) as progress:
        for parts in encoded:
            yield parts
            progress.update(tally.bytes_read)


def _chunk_name(texts: list[str]) -> str:
    return f"the document that starts with {texts[0][:40]!r}, or one of the {len(texts) - 1} after it"


def _write(stage: Path, encoded: Iterator[tuple[Encoded, Encoded]], vocab_size: int) -> tuple[SplitCounts, SplitCounts]:
    prefixes = (stage, Path(f"{stage}{EVAL_SUFFIX}"))
    with contextlib.ExitStack() as stack:
        writers = [stack.enter_context(IndexedWriter(prefix, vocab_size=vocab_size)) for prefix in prefixes]
        utf8_bytes = [0, 0]
        for parts in encoded:
            for side, part in enumerate(parts):
                writers[side].add_documents(part.tokens, part.lengths)
                utf8_bytes[side] += part.utf8_bytes
    if not writers[1].documents:
        for path in (bin_path(prefixes[1]), idx_path(prefixes[1])):
            path.unlink()
    train, held_out = (
        SplitCounts(documents=writer.documents, tokens=writer.tokens, utf8_bytes=size)
        for writer, size in zip(writers, utf8_bytes, strict=True)
    )
    return train, held_out
