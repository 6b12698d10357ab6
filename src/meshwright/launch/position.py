"""The step and phase a rank is in, in a few bytes of shared memory that outlive a killed process."""

import mmap
import os
import struct
from pathlib import Path

FILE_VARIABLE = "MESHWRIGHT_POSITION_FILE"
_RECORD = struct.Struct("<q24s")
_NO_STEP = -1

_memory: mmap.mmap | None = None


def create(path: Path) -> Path:
    """Make the file that one rank will write to: no step, no phase."""
    path.write_bytes(_RECORD.pack(_NO_STEP, b""))
    return path


def write(step: int | None, phase: str | None) -> None:
    """Note this process's step and phase (24 bytes of it), if a launcher gave it a file to write to."""
    global _memory
    if _memory is None:
        path = os.environ.get(FILE_VARIABLE)
        if not path or not os.path.exists(path):
            return
        with open(path, "r+b") as file:
            _memory = mmap.mmap(file.fileno(), _RECORD.size)
    _RECORD.pack_into(_memory, 0, _NO_STEP if step is None else step, (phase or "").encode()[:24])


def read(path: Path) -> tuple[int | None, str | None]:
    """What the rank noted last; (None, None) where there is nothing."""
    try:
        step, phase = _RECORD.unpack(path.read_bytes())
    except (OSError, struct.error):
        return None, None
    return None if step == _NO_STEP else step, phase.rstrip(b"\0").decode(errors="replace") or None
