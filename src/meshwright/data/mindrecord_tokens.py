"""What of a MindRecord row a token file can hold.

Token files say which ids come in which order, and training supervises all of them. A column that says no more than
that is left out without loss; any other is refused by name, unless the caller chose to do without it.
"""

from collections.abc import Collection
from typing import Any

import numpy as np
import numpy.typing as npt

from meshwright.data.dataset import IGNORED
from meshwright.data.errors import DataError
from meshwright.data.mindrecord import MindRecord, Row
from meshwright.data.mindrecord_values import INTEGERS

TOKENS, LABELS, POSITIONS = "input_ids", "labels", "position_ids"
MASKS = ("loss_mask", "attention_mask")

Ids = npt.NDArray[np.integer[Any]]


class RowTokens:
    """Turns rows into token ids, one call per row.

    Attributes:
        columns: the columns that have to be read.
    """

    def __init__(self, records: MindRecord, vocab_size: int, ignore: Collection[str]) -> None:
        """Check the schema.

        Raises:
            DataError: there is no one-dimensional integer column ``input_ids``, a column has no place in a token file,
                or one to ignore is not there or is needed.
        """
        path, schema = records.shards[0].path, records.columns
        listed = ", ".join(f"{column.name} ({column})" for column in schema.values())
        if TOKENS not in schema:
            raise DataError(f"{path}: no column {TOKENS!r} with token ids; it has {listed}")
        tokens = schema[TOKENS]
        if tokens.type not in INTEGERS or tokens.shape is None or len(tokens.shape) != 1:
            raise DataError(f"{path}: column {TOKENS!r} is {tokens}; token ids are int32 or int64 in one dimension")
        for name in ignore:
            if name not in schema or name == TOKENS:
                raise DataError(f"{path}: cannot ignore column {name!r}; it has {listed}, and {TOKENS} is needed")
        self.columns = tuple(name for name in schema if name not in ignore)
        for name in self.columns:
            if name not in (TOKENS, LABELS, POSITIONS, *MASKS):
                raise DataError(
                    f"{path}: column {name!r} ({schema[name]}) has no place in a token file; "
                    f"--ignore {name} imports the tokens without it"
                )
        self._vocab_size = vocab_size
        self._ignored = tuple(name for name in schema if name in ignore)
        self._shifted: bool | None = None

    def __call__(self, row: Row) -> Ids:
        """Token ids of one row, integer [tokens]; one more than ``input_ids`` has where ``labels`` are shifted by one.

        Raises:
            DataError: an id is outside the vocabulary, or a column says what a token file cannot hold.
        """
        tokens = np.asarray(row.values[TOKENS])
        for name in self.columns:
            value = np.asarray(row.values[name])
            if name in MASKS and not (value.shape == tokens.shape and value.all()):
                raise _refusal(row, name, f"masks {int((value == 0).sum())} of {value.size} positions")
            if name == POSITIONS and not np.array_equal(value, np.arange(len(tokens))):
                raise _refusal(row, name, "does not count from 0 through the row")
        if LABELS in self.columns:
            tokens = self._with_labels(row, tokens, np.asarray(row.values[LABELS]))
        self._check_ids(row, tokens)
        return tokens

    def outcome(self) -> dict[str, str]:
        """What became of each column, after all rows."""
        labels = "the ids that follow input_ids; the last one is kept" if self._shifted else "equal to input_ids"
        kept = {
            TOKENS: "written",
            LABELS: f"redundant: {labels}",
            POSITIONS: "redundant: counts from 0 in every row",
            **dict.fromkeys(MASKS, "redundant: masks nothing"),
        }
        return {name: kept[name] for name in self.columns} | dict.fromkeys(self._ignored, "left out by --ignore")

    def _with_labels(self, row: Row, tokens: Ids, labels: Ids) -> Ids:
        """Labels are the same ids (the model shifts them), or the ids that follow; all rows alike."""
        if self._shifted is not True and np.array_equal(labels, tokens):
            self._shifted = False
            return tokens
        follows = labels.shape == tokens.shape and len(labels) > 0 and np.array_equal(labels[:-1], tokens[1:])
        if self._shifted is not False and follows and labels[-1] != IGNORED:
            self._shifted = True
            return np.append(tokens, labels[-1:])
        if left_out := int((labels == IGNORED).sum()):
            raise _refusal(row, LABELS, f"leaves {left_out} of {labels.size} positions out of the loss ({IGNORED})")
        raise _refusal(row, LABELS, f"is neither {TOKENS} nor the ids that follow them, as in the rows before")

    def _check_ids(self, row: Row, tokens: Ids) -> None:
        if len(tokens) and not 0 <= tokens.min() <= tokens.max() < self._vocab_size:
            at = int(np.flatnonzero((tokens < 0) | (tokens >= self._vocab_size))[0])
            raise DataError(
                f"{row}: column {TOKENS!r}: position {at} is id {tokens[at]}, outside the vocabulary of "
                f"{self._vocab_size}"
            )


def _refusal(row: Row, name: str, problem: str) -> DataError:
    return DataError(
        f"{row}: column {name!r} {problem}, and training supervises every token of a token file; "
        f"--ignore {name} imports the tokens without it"
    )
