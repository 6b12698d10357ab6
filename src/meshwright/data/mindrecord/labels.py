"""Labels of MindRecord rows: where they stand, what they supervise, and whether they are the ids of their row.

Labels stand in one of two ways, and all rows of a data set alike. In place, ``labels[t]`` is ``input_ids[t]`` and the
model moves them by one: the older models of MindSpore Transformers, and Hugging Face. Ahead, ``labels[t]`` is
``input_ids[t + 1]`` and ``loss_mask[t]`` is for that label: Megatron, and the newer models. There the last label of a
document may be an id that ``input_ids`` does not have.
"""

from collections.abc import Collection
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from meshwright.data.errors import DataError
from meshwright.data.loss_mask import IGNORED, Bools, Labels
from meshwright.data.mindrecord.files import MindRecord, Row

TOKENS, LABELS, LOSS, POSITIONS = LABEL_COLUMNS = "input_ids", "labels", "loss_mask", "position_ids"

Ids = npt.NDArray[np.integer[Any]]
Bounds = tuple[int, int]


class LabelledRow:
    """The ids and labels of a row.

    Attributes:
        tokens: ``input_ids``, integer [tokens].
        labels: integer [tokens].
        wanted: whether ``labels`` and ``loss_mask`` supervise each label, bool [tokens].
        crossing: labels left out so far because they are the first id of a document, and not for one in it.
    """

    def __init__(self, row: Row, *, ahead: bool) -> None:
        """Take the columns. Raises DataError where they are not of one length, or ``loss_mask`` is no mask."""
        self.row, self._ahead = row, ahead
        self.tokens, self.labels = np.asarray(row.values[TOKENS]), column(row, LABELS)
        self.wanted = self.labels != IGNORED
        self.crossing = 0
        if LOSS in row.values:
            self.wanted &= zeros_and_ones(row, LOSS)

    def first_other(self) -> int | None:
        """The first position with a supervised label that is not the id it should be."""
        wrong = self.wanted & (self.labels != self._targets())
        return int(wrong.argmax()) if wrong.any() else None

    def agrees(self) -> bool | None:
        """Whether supervised labels are the ids they should be; None where there is none that has to be one."""
        if self.first_other() is not None:
            return False
        compared = self.wanted.copy()
        if self._ahead:
            compared[self._last_of_documents()] = False
        return True if compared.any() else None

    def other_id(self, more: str) -> DataError:
        """The error of that position."""
        at = self.first_other()
        stands = "that follows" if self._ahead else "there"
        problem = f"has {self.labels[at]} at position {at}, which is not the id {stands} ({self._targets()[at]}) {more}"
        return refusal(self.row, LABELS, problem)

    def check(self, part: Bounds, *, own: bool) -> None:
        """Check that labels are the ids they should be, or ``own``, and those outside ``part``, padding, unsupervised.

        Raises:
            DataError: they are not.
        """
        if not self._ahead and LOSS in self.row.values and not zeros_and_ones(self.row, LOSS).all():
            raise refusal(self.row, LOSS, "masks positions, but labels in place do not tell whose label that is")
        padding = self.wanted.copy()
        padding[slice(*part)] = False
        if padding.any():
            problem = f"supervises position {padding.argmax()}, which attention_mask calls padding"
            raise refusal(self.row, LABELS, problem)
        if not own and self.first_other() is not None:
            raise self.other_id("as in the rows before")
        if not self._ahead:
            # Nothing comes before the first id that could predict it.
            self.wanted[part[0] : part[0] + 1] = False

    def document(self, start: int, stop: int, following: int | None) -> tuple[Ids, Labels]:
        """One document up to its last supervised id: what follows that cannot change its loss.

        A label of the first id of another document is left out: nothing in that document foretells it, and one ahead,
        at the end of this document, would stand twice.

        Args:
            following: the first id of that document, or None.

        Returns:
            Its ids, and what is to be predicted in the place of each, or -100; integer [tokens] both.
        """
        if not self._ahead and self.wanted[start : start + 1].any():
            self.crossing += 1
            self.wanted[start] = False
        whole = stop
        stop = start + _last(self.wanted[start:stop]) + 1
        tokens = self.tokens[start:stop]
        labels = np.where(self.wanted[start:stop], self.labels[start:stop], IGNORED)
        if stop == start or not self._ahead:
            return tokens, labels
        if stop == whole and labels[-1] == following:
            self.crossing += 1
            return tokens, np.append(IGNORED, labels[:-1])
        return np.append(tokens, labels[-1]), np.append(IGNORED, labels)

    def _targets(self) -> Ids:
        """What labels should be. Of those ahead, the last supervised one of a document can be anything."""
        if not self._ahead:
            return self.tokens
        targets = np.append(self.tokens[1:], self.labels[-1:])
        last = self._last_of_documents()
        targets[last] = self.labels[last]
        return targets

    def _last_of_documents(self) -> list[int]:
        """The last supervised place of each document that has tokens, or its first."""
        bounds = documents(self.row, (0, len(self.tokens)))
        return [start + max(0, _last(self.wanted[start:stop])) for start, stop in bounds if stop > start]


def labels_are_ahead(records: MindRecord, columns: Collection[str]) -> bool:
    """Whether labels are the ids that follow, told by the first row in which only that or only the other is so.

    A row in which no label has to be the id that follows does not tell.

    Raises:
        DataError: the labels of a row are neither, or no row tells.
    """
    for row in records.read([name for name in LABEL_COLUMNS if name in columns]):
        in_place, ahead = (LabelledRow(row, ahead=way).agrees() for way in (False, True))
        if ahead is not None and in_place is not None and in_place != ahead:
            return ahead
        if ahead is False:
            raise LabelledRow(row, ahead=False).other_id(
                "nor the one that follows; --labels in-place or ahead keeps labels of their own"
            )
    raise DataError(
        f"{records.shards[0].path}: no row tells whether labels are the ids in their places or those that follow; say "
        "--labels in-place or --labels ahead"
    )


def first_own_label(records: MindRecord, columns: Collection[str], *, ahead: bool) -> str | None:
    """The first row and position of a supervised label that is not the id it should be; None where there is none."""
    for row in records.read([name for name in LABEL_COLUMNS if name in columns]):
        if (at := LabelledRow(row, ahead=ahead).first_other()) is not None:
            return f"row {row.number}, position {at}"
    return None


def documents(row: Row, part: Bounds) -> list[Bounds]:
    """Start and end of each document in a part of a row: they begin where ``position_ids`` do not count on."""
    start, stop = part
    if POSITIONS not in row.values:
        return [part]
    begins = np.flatnonzero(np.diff(column(row, POSITIONS)[start:stop]) != 1) + 1 + start
    return list(pairwise([start, *begins.tolist(), stop]))


def zeros_and_ones(row: Row, name: str) -> Bools:
    """A mask column, bool [tokens]. Raises DataError where it has other values, or another length than the row."""
    mask = column(row, name)
    other = (mask != 0) & (mask != 1)
    if other.any():
        raise refusal(row, name, f"has {mask[other.argmax()]} at position {other.argmax()}; known are 0 and 1")
    return mask != 0


def column(row: Row, name: str) -> npt.NDArray[Any]:
    """A column with a value for each id, [tokens]. Raises DataError where it has another shape."""
    tokens, values = np.asarray(row.values[TOKENS]), np.asarray(row.values[name])
    if values.shape != tokens.shape:
        raise refusal(row, name, f"has another shape than {TOKENS}: {list(values.shape)}, not {list(tokens.shape)}")
    return values


def refusal(row: Row, name: str, problem: str) -> DataError:
    """The error of a column whose meaning cannot be kept."""
    return DataError(f"{row}: column {name!r} {problem}; --ignore {name} imports the others without it")


def _last(wanted: Bools) -> int:
    """The last place that is wanted, or -1."""
    return int(np.flatnonzero(wanted).max(initial=-1))
