"""Saves that go on while training does: this rank's part is copied to host memory, a thread writes the copy.

Training waits for the plan (which rank writes what, and that it fits on the disk) and for the copy. The rest, up to
the commit by one rename, is the same code as a blocking save, on a process group of its own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from meshwright.checkpoint.dcp_files import Block
from meshwright.checkpoint.store import save


@dataclass(frozen=True)
class Saved:
    """A finished save: its folder, its step and the seconds from its start to its commit."""

    path: Path
    step: int
    seconds: float


@dataclass
class _Task:
    step: int
    copied: threading.Event = field(default_factory=threading.Event)
    thread: threading.Thread | None = None
    saved: Saved | None = None
    error: BaseException | None = None


class BackgroundSaver:
    """At most one save at a time; all ranks call the same methods in the same order.

    Args:
        group: a gloo group of all ranks that nothing else uses; None where there is no process group.
        device: where the tensors live.
    """

    def __init__(self, group: dist.ProcessGroup | None, device: torch.device) -> None:
        self._group, self._device = group, device
        self._copies = HostCopies()
        self._task: _Task | None = None

    def save(self, root: Path, step: int, **what: Any) -> Saved | None:
        """Start a save with the arguments of `store.save`; the tensors may change as soon as this returns.

        Returns what `wait` returns for the save before, which is waited for first.

        Raises:
            CheckpointError: this save was refused before anything was copied (no space, another run's place), or the
                one before failed.
        """
        before = self.wait()
        task = self._task = _Task(step)
        task.thread = threading.Thread(target=self._run, args=(task, root, what), name=f"save {step}", daemon=True)
        task.thread.start()
        task.copied.wait()
        if task.error is not None:
            self.wait()
        return before

    def finished(self) -> Saved | None:
        """What came of a save that has ended since the last call; None while there is nothing to tell.

        Raises the error that a save ended with, once.
        """
        running = self._task is not None and self._task.thread is not None and self._task.thread.is_alive()
        return None if running else self.wait()

    def wait(self) -> Saved | None:
        """Wait for the save that is under way, if there is one; result and errors as in `finished`."""
        task, self._task = self._task, None
        if task is None or task.thread is None:
            return None
        task.thread.join()
        if task.error is not None:
            raise task.error
        return task.saved

    def _run(self, task: _Task, root: Path, what: dict[str, Any]) -> None:
        started = time.perf_counter()
        try:
            if self._device.type != "cpu":
                # The current device belongs to a thread; copies are ordered behind the step on its default stream.
                torch.accelerator.set_device_index(self._device)
            self._copies.taken = task.copied
            path = save(root, task.step, **what, group=self._group, copies=self._copies)
            task.saved = Saved(path, task.step, time.perf_counter() - started)
        except BaseException as error:
            task.error = error
        finally:
            task.copied.set()


class HostCopies:
    """Copies in host memory, pinned where they come from a device. The memory is used again by the next save.

    Attributes:
        taken: set once the copies are complete.
    """

    def __init__(self) -> None:
        self.taken = threading.Event()
        self._blocks: dict[Block, Tensor] = {}

    def take(self, blocks: Mapping[Block, Tensor]) -> Mapping[Block, Tensor]:
        """Copy all of ``blocks``; returns when every byte is there."""
        self._blocks = {block: self._room(block, tensor) for block, tensor in blocks.items()}
        for block, tensor in blocks.items():
            self._blocks[block].copy_(tensor, non_blocking=True)
        for device in {tensor.device for tensor in blocks.values() if tensor.device.type != "cpu"}:
            torch.accelerator.current_stream(device).synchronize()
        self.taken.set()
        return self._blocks

    def _room(self, block: Block, tensor: Tensor) -> Tensor:
        room = self._blocks.get(block)
        if room is not None and (room.shape, room.dtype) == (tensor.shape, tensor.dtype):
            return room
        return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=tensor.device.type != "cpu")
