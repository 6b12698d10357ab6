"""Text files to a training corpus: token files, held-out token files, tokenizer and record."""

import contextlib
import os
import shutil
import signal
import threading
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from types import FrameType

from meshwright.data.corpus import Tally, find_files, read_documents
from meshwright.data.encode import Encoded, Encoder, chunks
from meshwright.data.errors import DataError
from meshwright.data.indexed import IndexedWriter, bin_path, dtype_for_vocab, idx_path, strip_suffix
from meshwright.data.pool import OrderedMap
from meshwright.data.progress import Progress
from meshwright.data.record import EVAL_SUFFIX, CorpusRecord, SplitCounts
from meshwright.data.text import is_held_out
from meshwright.data.tokenizer import load_tokenizer, train_tokenizer

# In the order in which they get their final names: a corpus is complete when its record is there.
OUTPUTS = (".tokenizer.json", ".bin", ".idx", f"{EVAL_SUFFIX}.bin", f"{EVAL_SUFFIX}.idx", ".json")


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
    workers: int = 0,
    overwrite: bool = False,
    show_progress: bool = False,
) -> CorpusRecord:
    """Write ``output``.bin/.idx, .eval.bin/.idx, .tokenizer.json and .json from text.

    The same inputs give the same bytes, whatever the number of workers. All files get their names at the end,
    together; whatever ends the work before that, nothing is left behind.

    Args:
        inputs: files, directories, glob patterns (see ``corpus.find_files``).
        output: path prefix of the files to write.
        tokenizer: a tokenizer.json to use, or
        train_vocab_size: train a byte-level BPE of this size on the documents that are not held out.
        text_key: where the text is in a .jsonl row.
        eos_token: ends each document; default: the tokenizer's own.
        eval_fraction: share of documents to hold out, chosen by a hash of their text.
        workers: processes that tokenize; 0 uses the tokenizer's threads in this process.
        overwrite: replace an existing corpus of that name.

    Raises:
        DataError: something about the request or the inputs is wrong.
        DataWorkerError: a worker process ended.
    """
    output = strip_suffix(output)
    _check_request(output, tokenizer, train_vocab_size, eval_fraction, workers, overwrite)
    files = find_files(inputs, suffixes)
    if train_vocab_size is not None:
        text = _training_text(files, text_key, eval_fraction, show_progress)
        text_tokenizer = train_tokenizer(text, train_vocab_size)
    else:
        assert tokenizer is not None
        text_tokenizer = load_tokenizer(tokenizer, eos_token=eos_token)
    tally = Tally()
    with _staged(output) as stage:
        Path(f"{stage}.tokenizer.json").write_bytes(text_tokenizer.body)
        encoded = _encode(files, text_key, Encoder(text_tokenizer, eval_fraction), tally, workers, show_progress)
        with contextlib.closing(encoded):
            train, held_out = _write(stage, encoded, text_tokenizer.vocab_size)
        if not train.documents:
            raise DataError(
                f"no document is left for training: {tally.empty} empty, {held_out.documents} held out "
                f"(eval_fraction {eval_fraction})"
            )
        record = CorpusRecord(
            vocab_size=text_tokenizer.vocab_size,
            dtype=dtype_for_vocab(text_tokenizer.vocab_size).name,
            eos_id=text_tokenizer.eos_id,
            eos_token=text_tokenizer.eos_token,
            tokenizer_sha256=text_tokenizer.fingerprint(),
            eval_fraction=eval_fraction,
            train=train,
            eval=held_out,
            files=len(files),
            dropped={"empty": tally.empty},
            invalid_utf8=tally.invalid_utf8,
            inputs=tuple(str(item) for item in inputs),
        )
        record.save(Path(f"{stage}.json"))
        _commit(stage, output)
    return record


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
    if not 0 <= eval_fraction < 1:
        raise DataError(f"eval_fraction {eval_fraction} must be at least 0 and below 1")
    if workers < 0:
        raise DataError(f"workers {workers} must be at least 0")
    if output.is_dir():
        raise DataError(f"{output}: is a directory; give a prefix, such as {output / 'corpus'}")
    existing = [path for path in _final_paths(output) if path.exists()]
    if existing and not overwrite:
        raise DataError(f"{existing[0]}: exists already; choose another --output, or replace it with --overwrite")


def _final_paths(prefix: Path) -> list[Path]:
    return [Path(f"{prefix}{suffix}") for suffix in OUTPUTS]


def _total_size(files: Sequence[Path]) -> int:
    return sum(path.stat().st_size for path in files)


def _training_text(files: Sequence[Path], text_key: str, eval_fraction: float, show: bool) -> Iterator[str]:
    tally = Tally()
    with Progress("training the tokenizer", _total_size(files), show=show) as progress:
        for text in read_documents(files, text_key=text_key, tally=tally):
            progress.update(tally.bytes_read)
            if not is_held_out(text.encode("utf-8"), eval_fraction):
                yield text


def _encode(
    files: Sequence[Path], text_key: str, encoder: Encoder, tally: Tally, workers: int, show: bool
) -> Generator[tuple[Encoded, Encoded], None, None]:
    """Train and held-out documents of all files, a chunk at a time, in file order."""
    tasks = chunks(read_documents(files, text_key=text_key, tally=tally))
    encoded: OrderedMap[list[str], tuple[Encoded, Encoded]] = OrderedMap(
        encoder, tasks, workers=workers, ahead=2 * workers + 1, name=_chunk_name, finish=lambda parts: parts
    )
    with encoded, Progress("tokenizing", _total_size(files), show=show) as progress:
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


@contextlib.contextmanager
def _staged(output: Path) -> Iterator[Path]:
    """A prefix in a directory of its own beside the output, which is removed at the end."""
    directory = output.parent / f".{output.name}.partial-{os.getpid()}"
    directory.mkdir(parents=True)
    try:
        yield directory / "corpus"
    finally:
        shutil.rmtree(directory)


def _commit(stage: Path, output: Path) -> None:
    with _uninterrupted():
        for path in reversed(_final_paths(output)):
            path.unlink(missing_ok=True)
        for staged, final in zip(_final_paths(stage), _final_paths(output), strict=True):
            if staged.exists():
                os.replace(staged, final)


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Put off Ctrl-C until the end of the block."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pending: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        pending.append(number)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if pending:
        raise KeyboardInterrupt
