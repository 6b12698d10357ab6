"""Look into MindRecord files before they are imported: files, rows, columns and the first row."""

import math
from pathlib import Path
from typing import Any

import numpy as np

from meshwright.data.mindrecord.files import Value, open_mindrecord

SHOWN = 32


def inspect_mindrecord(path: str | Path) -> dict[str, Any]:
    """A report of a file or set, ready for JSON: of long values the first ones, None for NaN and infinities.

    Raises:
        DataError: a file of the set or its index is missing or damaged, or the first row is.
    """
    records = open_mindrecord(path)
    first = next(records.read(records.columns), None)
    return {
        "files": [
            {"path": str(shard.path), "rows": shard.rows, "bytes": shard.path.stat().st_size}
            for shard in records.shards
        ],
        "rows": records.rows,
        "columns": {name: str(column) for name, column in records.columns.items()},
        "first_row": {name: _shown(value) for name, value in first.values.items()} if first else None,
    }


def _shown(value: Value) -> Any:
    if isinstance(value, np.ndarray):
        return [_shown(item) for item in value.reshape(-1)[:SHOWN].tolist()]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, bytes):
        return value[:SHOWN].hex()
    return value[:SHOWN] if isinstance(value, str) else value
