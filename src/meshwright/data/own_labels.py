"""PREFIX.labels, in the place of a loss mask: labels that are other ids than the tokens.

Byte layout as that of a loss mask (see ``loss_mask``), with magic ``MWLABEL`` and, for each token, the id that is to be
predicted in its place as int32, or -100.
"""

import os
from pathlib import Path

import numpy as np

from meshwright.data.errors import DataError
from meshwright.data.loss_mask import HEADER, IGNORED, Bools, Labels, LossMask, MaskWriter

SUFFIX, MAGIC = ".labels", b"MWLABEL\x00"
DTYPE = np.dtype("<i4")


class LabelWriter(MaskWriter):
    """Writes the labels of one pair, as `MaskWriter` does a mask."""

    suffix, magic = SUFFIX, MAGIC

    def _write(self, labels: Labels, supervised: Bools) -> None:
        self._file.write(labels.astype(DTYPE).tobytes())


class OwnLabels(LossMask):
    """Labels, memory mapped, to be used as a loss mask is."""

    suffix, magic, content = SUFFIX, MAGIC, "file of labels"

    @staticmethod
    def bytes_for(tokens: int) -> int:
        """Size of the file without its header."""
        return tokens * DTYPE.itemsize

    def read(self, start: int, count: int) -> Bools:
        """Whether each of ``count`` tokens from ``start`` on is supervised, bool [count]."""
        return self._labels(start, count) != IGNORED

    def apply(self, labels: Labels, start: int, vocab_size: int | None) -> None:
        """Put the labels from ``start`` on into ``labels``, integer [n].

        Raises:
            DataError: one is neither -100 nor an id of the vocabulary.
        """
        labels[:] = self._labels(start, len(labels))
        wrong = (labels != IGNORED) & ((labels < 0) | (labels >= (vocab_size or np.iinfo(DTYPE).max)))
        if wrong.any():
            at = int(wrong.argmax())
            raise DataError(
                f"{self.path}: label {start + at} (byte {HEADER.size + (start + at) * DTYPE.itemsize}) is id "
                f"{labels[at]}, outside the vocabulary of {vocab_size}"
            )

    def _labels(self, start: int, count: int) -> Labels:
        return self._bytes[start * DTYPE.itemsize : (start + count) * DTYPE.itemsize].view(DTYPE)


def open_mask(prefix: Path, tokens: int) -> LossMask | None:
    """The mask or labels of a pair of ``tokens`` tokens; None where there are none: then all tokens are supervised.

    Raises:
        DataError: as `LossMask`; or there are both.
    """
    # A link that leads nowhere is no "no mask": that would train on everything.
    there = [kind for kind in (LossMask, OwnLabels) if os.path.lexists(f"{prefix}{kind.suffix}")]
    if len(there) > 1:
        raise DataError(f"{prefix}: has both a {LossMask.suffix} and a {SUFFIX} file: which of them counts?")
    return there[0](prefix, tokens) if there else None


def remove_mask(prefix: Path) -> None:
    """Remove the mask or labels of a prefix, if any."""
    for kind in (LossMask, OwnLabels):
        Path(f"{prefix}{kind.suffix}").unlink(missing_ok=True)
