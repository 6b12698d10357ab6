"""Samples of seq_length tokens over one or several token files.

Shapes: N samples asked for, S seq_length.
"""

import hashlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Protocol

import numpy as np

from meshwright.data.errors import DataError
from meshwright.data.indexed import IndexedDataset
from meshwright.data.indexed_format import Tokens, strip_suffix
from meshwright.data.isolation import only_single_tokens, positions_in_documents
from meshwright.data.loss_mask import IGNORED
from meshwright.data.order import GlobalOrder, Int64s
from meshwright.data.own_labels import open_mask
from meshwright.data.record import load_record
from meshwright.data.windows import DocumentWindows, EvenWindows, Windows

FINGERPRINT_BLOCKS, FINGERPRINT_BYTES = 32, 1 << 16


class SampleSource(Protocol):
    """What the loader asks of a data set; a source decides which positions are supervised."""

    @property
    def num_samples(self) -> int:
        """Number of samples."""
        ...

    def batch(self, samples: Int64s) -> tuple[Int64s, ...]:
        """Tokens, labels and, where documents are isolated, positions, int64 [N, S] each, of samples int64 [N]."""
        ...


class TokenDataset:
    """Windows of ``seq_length + 1`` tokens, ``seq_length`` apart, over the concatenated token stream.

    Neighbouring windows share one token, so every token but the first is a label exactly once; documents
    follow one another inside a window, divided by their end-of-text tokens. Without ``pad_last`` the rest
    that does not fill a window is left out; with it the last window is filled up with unsupervised zeros.

    With ``align_documents`` windows hold whole documents, as many as fit, and all are filled up so.

    With ``isolate_documents`` samples have positions, which count from the first token of each document in the
    window, and that token is no label: nothing of its document foretells it.

    Where a file has a loss mask, its unsupervised tokens are no labels either; where it has labels of its own, those
    stand in the places of its tokens.
    """

    def __init__(
        self,
        paths: Sequence[str | Path],
        seq_length: int,
        *,
        vocab_size: int | None = None,
        pad_last: bool = False,
        isolate_documents: bool = False,
        align_documents: bool = False,
    ) -> None:
        """Open the token files.

        Args:
            paths: prefixes of ``.bin/.idx`` pairs.
            vocab_size: of the model; ids must be below it. Checked here against each corpus record and, as
                samples are read, against the ids themselves.

        Raises:
            DataError: a corpus is missing, damaged, too short, or of another vocabulary.
        """
        if not paths:
            raise DataError("dataset.paths is empty: name at least one prefix of a .bin/.idx pair")
        self.seq_length = seq_length
        self.vocab_size = vocab_size
        self.isolate_documents = isolate_documents
        self.files = [_open(strip_suffix(path), vocab_size) for path in paths]
        self.masks = [open_mask(file.prefix, len(file.tokens)) for file in self.files]
        self._starts = list(accumulate((len(file.tokens) for file in self.files), initial=0))
        self.num_tokens = self._starts[-1]
        self._aligned = DocumentWindows(self.files, seq_length) if align_documents else None
        self._windows: Windows = self._aligned or EvenWindows(self.num_tokens, seq_length, pad_last)
        self.num_samples = self._windows.count
        if self.num_samples == 0:
            needed = 2 if pad_last or align_documents else seq_length + 1
            raise DataError(
                f"{', '.join(str(file.prefix) for file in self.files)}: {self.num_tokens} tokens, too few for "
                f"one sample: seq_length {seq_length} needs at least {needed}"
            )
        if not self.supervised_tokens:
            masks = ", ".join(str(mask.path) for mask in self.masks if mask)
            raise DataError(f"{masks}: no token is supervised: there is nothing to learn")
        if self._only_first_tokens():
            files = ", ".join(str(file.prefix) for file in self.files)
            raise DataError(f"{files}: only first tokens could be predicted, from nothing: there is nothing to learn")

    def __len__(self) -> int:
        return self.num_samples

    @property
    def supervised_tokens(self) -> int:
        """How many tokens the loss masks leave, of ``num_tokens``."""
        return sum(
            len(file.tokens) if mask is None else mask.supervised
            for file, mask in zip(self.files, self.masks, strict=True)
        )

    def _only_first_tokens(self) -> bool:
        """Whether the only supervised token is that of the stream, or isolated documents have but one each."""
        if self.isolate_documents:
            return all(only_single_tokens(file) for file in self.files)
        first = self.masks[bisect_right(self._starts, 0) - 1]
        return self.supervised_tokens == 1 and first is not None and bool(first.read(0, 1)[0])

    def note(self) -> str:
        """What to say behind the number of samples: nothing, or how documents lie and what loss masks leave."""
        padding = 1 - self._aligned.labels / (self.num_samples * self.seq_length) if self._aligned else 0
        aligned = f", documents aligned with {padding:.1%} padding" if self._aligned else ""
        share = f"{self.supervised_tokens / self.num_tokens:.1%}"
        masked = f", {share} of the tokens supervised by loss masks" if any(self.masks) else ""
        isolated = ", documents isolated" if self.isolate_documents else ""
        return aligned + isolated + masked

    def order(self, seed: int) -> GlobalOrder:
        """The order in which a run reads the samples."""
        return GlobalOrder(self.num_samples, seed)

    def __getitem__(self, sample: int) -> Int64s:
        """The window of one sample, int64 [S + 1] (shorter where it will be filled up)."""
        if not 0 <= sample < self.num_samples:
            raise IndexError(f"sample {sample} of {self.num_samples}")
        start, labels = self._windows.span(sample)
        window = np.empty(labels + 1, np.int64)
        for number, offset, part in self._parts(start, len(window)):
            window[part] = self._ids(number, offset, part.stop - part.start)
        return window

    def empty(self, number: int) -> tuple[Int64s, ...]:
        """Zeros in the form of a batch of ``number`` samples."""
        # In one piece: allocators give that back to the system less often, and new pages cost more than the reading.
        return tuple(np.zeros((2 + self.isolate_documents, number, self.seq_length), np.int64))

    def batch(self, samples: Int64s) -> tuple[Int64s, ...]:
        """Tokens, labels and, with ``isolate_documents``, positions, int64 [N, S] each.

        ``labels[:, t]`` is the token after ``tokens[:, t]``, or -100 where nothing is to be predicted. Sample -1 gives
        a row without supervised tokens.

        Raises:
            DataError: an id outside the vocabulary, with file and position.
            IndexError: a number that is no sample's.
        """
        arrays = self.empty(len(samples))
        self.read(samples, arrays, range(len(samples)))
        return arrays

    def read(self, samples: Int64s, arrays: tuple[Int64s, ...], rows: Iterable[int]) -> None:
        """Write samples into ``rows`` of arrays that `empty` made; otherwise as `batch`."""
        tokens, labels, *positions = arrays
        if samples.max(initial=-1) >= self.num_samples:
            raise IndexError(f"sample {samples.max()} of {self.num_samples}")
        for row, sample in zip(rows, samples.tolist(), strict=True):
            start, length = (0, 0) if sample < 0 else self._windows.span(sample)
            if length:
                here = labels[row, :length]
                self._fill(tokens[row, :length], here, start)
                self._mask(here, start + 1)
                if positions:
                    inside = positions_in_documents(self.files, self._starts, start, length + 1)
                    positions[0][row, :length] = inside[:-1]
                    np.putmask(here, inside[1:] == 0, IGNORED)
            labels[row, length:] = IGNORED

    def _fill(self, tokens: Int64s, labels: Int64s, start: int) -> None:
        """Read tokens of the whole stream from ``start`` on, and labels from the next one on, int64 [n] both."""
        for number, offset, part in self._parts(start, len(tokens) + 1):
            ids = self._ids(number, offset, part.stop - part.start)
            tokens[part] = ids[: len(tokens) - part.start]
            labels[max(part.start - 1, 0) : part.stop - 1] = ids[part.start == 0 :]

    def _mask(self, labels: Int64s, start: int) -> None:
        """Apply the masks to the tokens of the whole stream from ``start`` on, int64 [n]."""
        if any(self.masks):
            for number, offset, part in self._parts(start, len(labels)):
                if (mask := self.masks[number]) is not None:
                    mask.apply(labels[part], offset, self.vocab_size)

    def _parts(self, start: int, length: int) -> Iterator[tuple[int, int, slice]]:
        """Files that a window of the stream touches: number, first token there, and the part of the window it fills."""
        number, filled = bisect_right(self._starts, start) - 1, 0
        while filled < length:
            offset = start + filled - self._starts[number]
            count = min(length - filled, self._starts[number + 1] - self._starts[number] - offset)
            yield number, offset, slice(filled, filled + count)
            filled += count
            number += 1

    def _ids(self, number: int, first: int, count: int) -> Tokens:
        """Some ids of a file, in the dtype of the file. Raises DataError where one is outside the vocabulary."""
        file = self.files[number]
        ids = file.tokens[first : first + count]
        # Taken as unsigned, negative ids are the largest of all.
        if self.vocab_size is None or ids.view(f"u{ids.itemsize}").max(initial=0) < self.vocab_size:
            return ids
        token = first + int(np.flatnonzero((ids < 0) | (ids >= self.vocab_size))[0])
        raise DataError(
            f"{file.bin_path}: token {token} (byte {token * ids.itemsize}) is id {file.tokens[token]}, outside the "
            f"vocabulary of {self.vocab_size}"
        )

    def fingerprint(self) -> str:
        """sha256 hex of the data's identity: of each file its size and 32 blocks of 64 KiB at even distances."""
        digest = hashlib.sha256()
        for path in self._paths():
            size = path.stat().st_size
            digest.update(size.to_bytes(8, "little"))
            last = max(0, size - FINGERPRINT_BYTES)
            with open(path, "rb") as raw:
                for number in range(FINGERPRINT_BLOCKS):
                    raw.seek(last * number // (FINGERPRINT_BLOCKS - 1))
                    digest.update(raw.read(FINGERPRINT_BYTES))
        return digest.hexdigest()

    def _paths(self) -> Iterator[Path]:
        for file, mask in zip(self.files, self.masks, strict=True):
            yield from (file.idx_path, file.bin_path)
            if mask is not None:
                yield mask.path


def _open(prefix: Path, vocab_size: int | None) -> IndexedDataset:
    record = load_record(prefix)
    if record is None:
        return IndexedDataset(prefix, vocab_size=vocab_size)
    if vocab_size is not None and record.vocab_size > vocab_size:
        raise DataError(
            f"{prefix}: tokenized with a vocabulary of {record.vocab_size}, but model.vocab_size is "
            f"{vocab_size}; it must be at least {record.vocab_size}"
        )
    return IndexedDataset(prefix, dtype=record.dtype, vocab_size=record.vocab_size)
