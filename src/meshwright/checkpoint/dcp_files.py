"""torch.distributed.checkpoint's parts, made fit for folders that are committed as a whole.

On top of DCP: ranks without anything to write leave no empty file, bytes are hashed on the way to the disk, a
disk that is too small is told before the first byte, reading the metadata cannot run code, and of a block a rank reads
only the rows that it wants.
"""

from __future__ import annotations

import errno
import io
import os
import pickle
import zipfile
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemReader, FileSystemWriter, _StorageInfo
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, ReadItem, SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from meshwright.checkpoint.blocks import Stored, read_part
from meshwright.checkpoint.errors import CheckpointError
from meshwright.checkpoint.files import FileRecord, free_bytes, hashed_file

METADATA = ".metadata"
# torch.save puts every block into a zip archive of its own: names, alignment, directory (measured).
_ZIP_BYTES = 1560


class HashingFileSystem(FileSystem):
    """Collects size and hash of every file written, by name."""

    def __init__(self) -> None:
        self.records: dict[str, FileRecord] = {}

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Generator[Any]:
        with hashed_file(Path(path), self.records) as stream:
            yield stream

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        super().rename(path, new_path)
        self.records[Path(new_path).name] = self.records.pop(Path(path).name)


class Writer(FileSystemWriter):
    """Writes through ``files`` and raises the operating system's own error, which torch.save hides."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, sync_files=False)
        self.files = HashingFileSystem()
        self.fs = self.files

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        if not plan.items:
            nothing: Future[list[WriteResult]] = Future()
            nothing.set_result([])
            return nothing
        try:
            return super().write_data(plan, planner)
        except Exception as error:
            raise _os_error_behind(error) or error from None


Block = MetadataIndex
"""Which part of which tensor: its name, and its offset where it is one of several."""


class Copies(Protocol):
    """Something that keeps tensors as they are at one moment."""

    def take(self, blocks: Mapping[Block, Tensor]) -> Mapping[Block, Tensor]:
        """Copies of ``blocks`` that nobody changes."""
        ...


class Planner(DefaultSavePlanner):
    """Writes blocks held by several ranks once, contiguous. On the first rank ``file_bytes`` is about what that takes.

    With ``copies`` the blocks that this rank writes are copied when the plan is final, and the copies are written.
    """

    def __init__(self, folder: Path, copies: Copies | None = None) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self.folder = folder
        self.file_bytes = 0
        self._copies = copies
        self._copied: Mapping[Block, Tensor] | None = None

    def finish_plan(self, new_plan: SavePlan) -> SavePlan:
        plan = super().finish_plan(new_plan)
        if self._copies is not None:
            indices = [item.index for item in plan.items]
            self._copied = self._copies.take({i: super(Planner, self).lookup_object(i).detach() for i in indices})
        return plan

    def lookup_object(self, index: Block) -> Any:
        return super().lookup_object(index).contiguous() if self._copied is None else self._copied[index]

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        plans, metadata = super().create_global_plan(all_plans)
        sizes = [item.tensor_storage_size() or 0 for plan in plans for item in plan.items]
        self.file_bytes = sum(sizes) + _ZIP_BYTES * len(sizes)
        # Refused for what is certain only: the blocks themselves, without the estimated frame.
        if sum(sizes) > free_bytes(self.folder):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.folder))
        return plans, metadata


class Reader(FileSystemReader):
    """Reads DCP's metadata, once, with an unpickler that knows only what DCP writes, and parts of blocks."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._metadata: Metadata | None = None

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        if self._metadata is None:
            with (Path(self.path) / METADATA).open("rb") as stream:
                self._metadata = _MetadataUnpickler(stream).load()
        return self._metadata

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        def place(item: ReadItem) -> tuple[str, int]:
            info = self.place(item.storage_index)
            return info.relative_path, info.offset

        for name, items in groupby(sorted(plan.items, key=place), key=lambda item: place(item)[0]):
            with self.open(name) as file:
                for item in items:
                    target = planner.resolve_tensor(item)
                    self.read_part(file, item.storage_index, item.storage_offsets, target.detach())
                    planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def open(self, name: str) -> io.FileIO:
        """One of the files with blocks. Raises OSError."""
        return (Path(self.path) / name).open("rb", buffering=0)

    def read_part(self, file: io.FileIO, block: Block, offsets: Sequence[int], target: Tensor) -> None:
        """Fill ``target`` with the part at ``offsets`` of a block that lies in ``file``. Raises CheckpointError."""
        info, entry = self.place(block), self.read_metadata().state_dict_metadata[block.fqn]
        assert isinstance(entry, TensorStorageMetadata)
        stored = Stored(info.offset, info.length, self._sizes[block], entry.properties.dtype)
        try:
            read_part(file, stored, offsets, target)
        except (OSError, zipfile.BadZipFile, ValueError) as error:
            raise CheckpointError(f"{file.name}: {block.fqn}: {error}") from error

    def place(self, block: Block) -> _StorageInfo:
        """Where a block lies."""
        info: _StorageInfo = self.read_metadata().storage_data[block]
        return info

    @cached_property
    def _sizes(self) -> dict[Block, torch.Size]:
        entries = self.read_metadata().state_dict_metadata.items()
        tensors = [(name, entry) for name, entry in entries if isinstance(entry, TensorStorageMetadata)]
        return {Block(name, chunk.offsets): chunk.sizes for name, entry in tensors for chunk in entry.chunks}


class _MetadataUnpickler(pickle.Unpickler):
    _DCP = "torch.distributed.checkpoint"
    _NAMES = {
        (f"{_DCP}.metadata", "Metadata"),
        (f"{_DCP}.metadata", "MetadataIndex"),
        (f"{_DCP}.metadata", "StorageMeta"),
        (f"{_DCP}.metadata", "ChunkStorageMetadata"),
        (f"{_DCP}.metadata", "TensorStorageMetadata"),
        (f"{_DCP}.metadata", "BytesStorageMetadata"),
        (f"{_DCP}.metadata", "TensorProperties"),
        (f"{_DCP}.metadata", "_MEM_FORMAT_ENCODING"),
        (f"{_DCP}.filesystem", "_StorageInfo"),
        ("torch.serialization", "_get_layout"),
        ("torch", "Size"),
        ("pathlib", "PosixPath"),
        ("pathlib._local", "PosixPath"),
    }

    def find_class(self, module: str, name: str) -> Any:
        is_dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if is_dtype or (module, name) in self._NAMES:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{METADATA} refers to {module}.{name}, which no checkpoint needs")


def _os_error_behind(error: BaseException) -> OSError | None:
    seen: BaseException | None = error
    while seen is not None and not isinstance(seen, OSError):
        seen = seen.__cause__ or seen.__context__
    return seen
