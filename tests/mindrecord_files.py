"""MindRecord files for tests: those that MindSpore wrote, and small ones with any columns."""

import json
import sqlite3
import struct
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

DATA = Path(__file__).parent / "data" / "mindspore"
HEADER_SIZE, PAGE_SIZE = 16 << 10, 32 << 10


def extract(folder: Path) -> Path:
    """Unpack the files that MindSpore wrote."""
    with zipfile.ZipFile(DATA / "mindrecord.zip") as files:
        files.extractall(folder)
    return folder


def edit_header(path: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    """Change the JSON header of a file in place."""
    raw = path.read_bytes()
    (length,) = struct.unpack_from("<Q", raw)
    content = json.loads(raw[8 : 8 + length])
    edit(content)
    path.write_bytes(_header(content) + raw[HEADER_SIZE:])


def write(path: Path, columns: dict[str, str], rows: Sequence[Sequence[Sequence[int]]]) -> None:
    """Write one file of integer columns (name: type); a row holds the values of each."""
    pages: list[list[bytes]] = [[]]
    index = []
    for number, row in enumerate(rows):
        parts = [_integers(part) for part in row]
        blob = parts[0] if len(parts) == 1 else b"".join(struct.pack(">Q", len(part)) + part for part in parts)
        record = struct.pack("<Q", len(blob)) + blob
        if sum(map(len, pages[-1])) + len(record) > PAGE_SIZE:
            pages.append([])
        start = sum(map(len, pages[-1]))
        pages[-1].append(record)
        index.append((number, -1, 0, 0, 0, len(pages) - 1, start, start + len(record)))
    used = [b"".join(page) for page in pages]
    content = {
        "header_size": HEADER_SIZE,
        "page_size": PAGE_SIZE,
        "page": [
            {"page_id": number, "page_type": "BLOB_DATA", "page_size": len(page), "end_row_id": len(rows)}
            for number, page in enumerate(used)
        ],
        "schema": [
            {
                "blob_fields": list(columns),
                "schema": {name: {"type": kind, "shape": [-1]} for name, kind in columns.items()},
            }
        ],
        "shard_addresses": [path.name],
        "shard_id": 0,
        "version": "3.0",
    }
    path.write_bytes(_header(content) + b"".join(page.ljust(PAGE_SIZE, b"\0") for page in used))
    connection = sqlite3.connect(f"{path}.db")
    names = "ROW_ID, PAGE_ID_RAW, PAGE_OFFSET_RAW, PAGE_OFFSET_RAW_END, ROW_GROUP_ID, PAGE_ID_BLOB, PAGE_OFFSET_BLOB"
    connection.execute(f"CREATE TABLE INDEXES ({names}, PAGE_OFFSET_BLOB_END, PRIMARY KEY (ROW_ID))")
    connection.executemany("INSERT INTO INDEXES VALUES (?, ?, ?, ?, ?, ?, ?, ?)", index)
    connection.commit()
    connection.close()


def _integers(values: Sequence[int]) -> bytes:
    """Values of one byte each, or of eight where one is too large for that."""
    code, kind = (0, "i1") if -128 <= min(values, default=0) <= max(values, default=0) < 128 else (0xFF, "<i8")
    return struct.pack(">I", len(values)) + bytes([code]) * -(-len(values) // 4) + np.asarray(values, kind).tobytes()


def _header(content: dict[str, Any]) -> bytes:
    body = json.dumps(content).encode()
    return (struct.pack("<Q", len(body)) + body).ljust(HEADER_SIZE, b"\0")
