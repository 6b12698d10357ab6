"""Named tensors to and from a folder, whatever their sharding, on torch.distributed.checkpoint (DCP).

DCP writes one file per rank plus ``.metadata`` (names, shapes, which file holds which block), which is what
lets another layout read it.
"""

from __future__ import annotations

import pickle
import threading
import warnings
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from meshwright.checkpoint.dcp_files import Copies, Planner, Reader, Writer
from meshwright.checkpoint.errors import CheckpointError, CheckpointMismatch, Failure, PeerLost, failed
from meshwright.checkpoint.files import FileRecord
from meshwright.checkpoint.ranks import Ranks

Description = tuple[tuple[int, ...], torch.dtype]
_SHOWN = 10


def write_tensors(
    folder: Path, tensors: Mapping[str, Tensor], ranks: Ranks, copies: Copies | None = None
) -> tuple[dict[str, FileRecord], int]:
    """Write every rank's ``tensors`` into ``folder``; blocks that several ranks hold are written once.

    With ``copies`` what is written is copied first; the tensors may change from then on.

    Returns the files that this rank wrote and, on the first rank, about the bytes of all files (0 elsewhere).
    Raises CheckpointError with the failed ranks and ``needed`` set, PeerLost when a rank died.
    """
    writer, planner = Writer(folder), Planner(folder, copies)
    try:
        with _quiet():
            dcp_save(
                dict(tensors),
                storage_writer=writer,
                planner=planner,
                process_group=ranks.group,
                no_dist=not ranks.together,
            )
    except CheckpointException as error:
        whole = failed("writing tensors", _failures(error, ranks))
        whole.needed = max(ranks.gather(planner.file_bytes))
        raise whole from None
    except RuntimeError as error:
        raise PeerLost(f"writing tensors: rank {ranks.rank} lost contact with another rank ({error})") from error
    return writer.files.records, planner.file_bytes


def read_tensors(folder: Path, tensors: Mapping[str, Tensor], ranks: Ranks, *, reader: Reader | None = None) -> None:
    """Fill ``tensors`` in place; each rank reads the blocks it needs, without talking to others.

    Names, shapes and dtypes must have been checked (``mismatches``). Raises CheckpointError.

    Args:
        reader: of the same folder, given again by callers that read tensor by tensor: it reads the metadata once.
    """
    planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    try:
        with _quiet():
            dcp_load(dict(tensors), storage_reader=reader or Reader(folder), planner=planner, no_dist=True)
    except CheckpointException as error:
        raise CheckpointError(f"{folder}: {_failures(error, ranks)[0].cause}") from None


def stored_tensors(folder: Path) -> dict[str, Description]:
    """Global shape and dtype of every tensor in ``folder``. Raises CheckpointError when unreadable."""
    try:
        entries = Reader(folder).read_metadata().state_dict_metadata
    except (OSError, pickle.UnpicklingError, EOFError, AttributeError, ImportError, IndexError) as error:
        raise CheckpointError(f"{folder}: {type(error).__name__}: {error}") from error
    return {
        name: (tuple(entry.size), entry.properties.dtype)
        for name, entry in entries.items()
        if isinstance(entry, TensorStorageMetadata)
    }


def described(tensors: Mapping[str, Tensor]) -> dict[str, Description]:
    """Global shape and dtype of tensors in memory (a DTensor's shape is the whole tensor's)."""
    return {name: (tuple(t.shape), t.dtype) for name, t in tensors.items()}


def mismatches(
    wanted: Mapping[str, Description],
    stored: Mapping[str, Description],
    *,
    expected: Callable[[str], bool],
    cast: bool,
) -> list[str]:
    """Why a checkpoint does not fit, one line each: names on one side only, shapes, dtypes.

    ``wanted`` is the union over all ranks; ``expected`` says which stored names somebody must want.
    """
    both = sorted(wanted.keys() & stored.keys())
    shapes = [n for n in both if wanted[n][0] != stored[n][0]]
    dtypes = [] if cast else [n for n in both if wanted[n][1] != stored[n][1]]
    groups: dict[str, Iterable[str]] = {
        "missing from the checkpoint": wanted.keys() - stored.keys(),
        "in the checkpoint but not here": filter(expected, stored.keys() - wanted.keys()),
        "of another shape": (f"{n} {list(stored[n][0])}, here {list(wanted[n][0])}" for n in shapes),
        "of another dtype": (f"{n} {stored[n][1]}, here {wanted[n][1]}" for n in dtypes),
    }
    listed = {title: sorted(names) for title, names in groups.items()}
    return [_line(title, names) for title, names in listed.items() if names]


def require_fit(folder: Path, lines: list[str]) -> None:
    """Raises CheckpointMismatch with ``lines``, if there are any."""
    if lines:
        raise CheckpointMismatch(f"{folder} is a checkpoint of another model:\n  " + "\n  ".join(lines))


def _line(title: str, names: list[str]) -> str:
    more = f", and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{title} ({len(names)}): {', '.join(names[:_SHOWN])}{more}"


def _failures(error: CheckpointException, ranks: Ranks) -> list[Failure]:
    return [Failure.of(ranks.global_rank(i), wrapped[0]) for i, wrapped in sorted(error.failures.items())]


@contextmanager
def _quiet() -> Generator[None]:
    # DCP warns about every call without a process group; for eval and generate that is the normal case. Filters are
    # shared by all threads: a save in the background, which has a group, must not touch them.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield
