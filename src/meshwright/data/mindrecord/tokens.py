"""From a MindRecord row to documents: which ids are written, and which of them are supervised.

Every column must say something that documents and a loss mask can hold; any other is refused by name, unless the caller
chose to do without it.
"""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from meshwright.data.errors import DataError
from meshwright.data.loss_mask import IGNORED, Labels, MaskWriter
from meshwright.data.mindrecord.files import MindRecord, Row
from meshwright.data.mindrecord.labels import (
    LABELS,
    LOSS,
    POSITIONS,
    TOKENS,
    Bounds,
    Ids,
    LabelledRow,
    column,
    documents,
    first_own_label,
    labels_are_ahead,
    refusal,
    zeros_and_ones,
)
from meshwright.data.mindrecord.values import FLOATS, INTEGERS
from meshwright.data.own_labels import LabelWriter

ATTENTION = "attention_mask"


@dataclass(frozen=True)
class RowDocument:
    """One document.

    Attributes:
        tokens: ids, integer [tokens].
        labels: what is to be predicted in the place of each, or -100, integer [tokens]; None where rows do not say.
    """

    tokens: Ids
    labels: Labels | None


class RowTokens:
    """Turns rows into documents, one call per row.

    Attributes:
        columns: the columns that have to be read.
        beside: what writes their labels beside the tokens; None where rows have none.
        empty_rows: rows so far that gave no document: they supervise nothing, or are nothing but padding.
        left_out_ids: ids of rows so far that are in no document.
        crossing_labels: labels so far that were left out because they are the first id of another document.
    """

    def __init__(
        self, records: MindRecord, vocab_size: int, *, ignore: Collection[str] = (), ahead: bool | None = None
    ) -> None:
        """Check the schema, and read rows until they tell how labels stand.

        Args:
            ahead: whether labels stand one place ahead; None to be told by the rows. Said here, they may be other ids.

        Raises:
            DataError: there is no one-dimensional integer column ``input_ids``, a column has no place in a corpus, one
                to ignore is not there or is needed, or labels are not the ids of their row.
        """
        self.columns = _chosen_columns(records, ignore)
        self._masked, self._own = LABELS in self.columns, None
        if ahead is None and self._masked:
            ahead = labels_are_ahead(records, self.columns)
        elif ahead is not None and self._masked:
            self._own = first_own_label(records, self.columns, ahead=ahead)
        self.beside = (LabelWriter if self._own else MaskWriter) if self._masked else None
        self.empty_rows = self.left_out_ids = self.crossing_labels = self._packed_rows = 0
        self._ahead = bool(ahead)
        self._vocab_size = vocab_size
        self._ignored = tuple(name for name in records.columns if name in ignore)

    def __call__(self, row: Row, later: Row | None) -> list[RowDocument]:
        """The documents of a row: one, several where its positions start anew, none where there is nothing to learn.

        Args:
            later: the row after it; None after the last.

        Raises:
            DataError: an id is outside the vocabulary, or columns contradict each other.
        """
        part = self._without_padding(row)
        labelled = LabelledRow(row, ahead=self._ahead) if self._masked else None
        if labelled is not None:
            labelled.check(part, own=self._own is not None)
        elif LOSS in self.columns and not zeros_and_ones(row, LOSS).all():
            raise refusal(row, LOSS, "masks positions, but there are no labels that it could be for")
        ids, found, kept = np.asarray(row.values[TOKENS]), [], 0
        for start, stop in documents(row, part):
            if start < stop and (labelled is None or labelled.wanted[start:stop].any()):
                self._check_position(row, start)
            if labelled is None:
                document = RowDocument(ids[start:stop], None)
            else:
                following = labelled.tokens[stop] if stop < part[1] else self._first_of(later, labelled, part)
                document = self._labelled(labelled, start, stop, following)
            if len(document.tokens):
                self._check_ids(row, TOKENS, document.tokens, start)
                found.append(document)
                kept += _ids_kept(document.tokens, ids[start:stop])
        self.empty_rows += not found
        self.left_out_ids += len(ids) - kept
        self._packed_rows += len(found) > 1
        self.crossing_labels += labelled.crossing if labelled is not None else 0
        return found

    def _labelled(self, labelled: LabelledRow, start: int, stop: int, following: int | None) -> RowDocument:
        tokens, labels = labelled.document(start, stop, following)
        if self._own is not None:
            self._check_ids(labelled.row, LABELS, np.where(labels == IGNORED, 0, labels), start - self._ahead)
        return RowDocument(tokens, labels)

    def outcome(self) -> dict[str, str]:
        """What became of each column, after all rows."""
        stand = "the ids that follow" if self._ahead else "the ids in their places"
        own = f"not {stand}, from {self._own} on: written as labels"
        packed = f"start anew inside {self._packed_rows} rows, which became several documents"
        kept = {
            TOKENS: "written",
            LABELS: own if self._own else f"{stand}, or {IGNORED}: written as loss mask",
            LOSS: "says which labels count" if self._masked else "redundant: masks nothing",
            ATTENTION: "what it masks was left out",
            POSITIONS: packed if self._packed_rows else "redundant: counts from 0 in every row",
        }
        return {name: kept[name] for name in self.columns} | dict.fromkeys(self._ignored, "left out by --ignore")

    def _without_padding(self, row: Row) -> Bounds:
        """Where the ids of a row start and stop that attention sees."""
        if ATTENTION not in self.columns:
            return 0, len(np.asarray(row.values[TOKENS]))
        seen = zeros_and_ones(row, ATTENTION)
        places = np.flatnonzero(seen)
        start, stop = (int(places[0]), int(places[-1]) + 1) if len(places) else (0, 0)
        if stop - start > len(places):
            inside = start + int(seen[start:stop].argmin())
            raise refusal(row, ATTENTION, f"masks position {inside}, which is not at an end of the row")
        return start, stop

    def _first_of(self, later: Row | None, labelled: LabelledRow, part: Bounds) -> int | None:
        """The first id of the row after a labelled one; None where the two cannot be parts of one stream.

        Padding says so, and rows that begin alike: where one token begins and ends texts, that is the last label.
        """
        if not self._ahead or later is None:
            return None
        if part != (0, len(labelled.tokens)) or not len(labelled.tokens):
            return None
        start, stop = self._without_padding(later)
        if start > 0 or stop == 0:
            return None
        first = np.asarray(later.values[TOKENS])[0]
        return int(first) if first != labelled.tokens[0] else None

    def _check_position(self, row: Row, start: int) -> None:
        """Documents count from 0, or go on through the padding before the first."""
        if POSITIONS in self.columns and (found := column(row, POSITIONS)[start]) not in (0, start):
            raise refusal(row, POSITIONS, f"has {found} at position {start}: neither goes on nor starts anew from 0")

    def _check_ids(self, row: Row, name: str, ids: Ids, start: int) -> None:
        wrong = (ids < 0) | (ids >= self._vocab_size)
        if wrong.any():
            at = int(wrong.argmax())
            raise DataError(
                f"{row}: column {name!r}: position {start + at} is id {ids[at]}, outside the vocabulary of "
                f"{self._vocab_size}"
            )


def _ids_kept(tokens: Ids, ids: Ids) -> int:
    """How many of the ids in its place in the row a document has; its last token may be a label instead."""
    same = min(len(tokens), len(ids))
    return int(np.count_nonzero(tokens[:same] == ids[:same]))


def _chosen_columns(records: MindRecord, ignore: Collection[str]) -> tuple[str, ...]:
    """The columns to read; all are understood, and arrays of the type that they need."""
    path, schema = records.shards[0].path, records.columns
    listed = ", ".join(f"{column.name} ({column})" for column in schema.values())
    if TOKENS not in schema:
        raise DataError(f"{path}: no column {TOKENS!r} with token ids; it has {listed}")
    for name in ignore:
        if name not in schema or name == TOKENS:
            raise DataError(f"{path}: cannot ignore column {name!r}; it has {listed}, and {TOKENS} is needed")
    chosen = tuple(name for name in schema if name not in ignore)
    for name in chosen:
        kind = schema[name]
        if name not in (TOKENS, LABELS, POSITIONS, LOSS, ATTENTION):
            raise DataError(
                f"{path}: column {name!r} ({kind}) is not known; known are {TOKENS}, {LABELS}, {LOSS}, {ATTENTION} "
                f"and {POSITIONS}; --ignore {name} imports the others without it"
            )
        legal = (*INTEGERS, *FLOATS) if name in (LOSS, ATTENTION) else tuple(INTEGERS)
        if kind.type not in legal or kind.shape is None or len(kind.shape) != 1:
            raise DataError(f"{path}: column {name!r} is {kind}; legal are {', '.join(legal)} in one dimension")
    return chosen
