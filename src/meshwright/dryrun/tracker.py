"""A dispatch mode that follows every storage from its allocation to its release.

It only writes down (see `tape`): a name lookup, one dictionary access for each result and a weak reference for each
new storage. What the bytes are is worked out after the run, in `analysis`.
"""

import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._guards import active_fake_mode
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import DTensor
from torch.nn import Parameter
from torch.utils._python_dispatch import TorchDispatchMode

from meshwright.dryrun.position import Position
from meshwright.dryrun.tape import Event, Record, Tag, Tape

_aten, _c10d = torch.ops.aten, torch.ops.c10d
_wait = torch.ops._c10d_functional.wait_tensor.default
_device = torch.ops.prim.device.default
_graph_task = torch._C._current_graph_task_id
_NO_GRAPH = -1

Workspace = Callable[[tuple[Any, ...], Any], int]
"""Bytes that a kernel allocates and frees inside, from its arguments and its result."""

WRAPPERS = (DTensor, AsyncCollectiveTensor)
"""Tensors around a plain one, which comes by itself once they have unwrapped it."""

Observer = Callable[[Any, tuple[Any, ...], dict[str, Any], Any], None]

MESSAGES: dict[Any, tuple[tuple[int, Tag], ...]] = {
    # Gathering: receive buffer and message. Reducing: the result holds this rank's gradients.
    _c10d._allgather_base_.default: ((0, "communication"), (1, "communication")),
    _c10d._reduce_scatter_base_.default: ((0, "gradients"), (1, "communication")),
    _c10d.recv_.default: ((0, "communication"),),
}
CAST = _aten._to_copy.default
CASTS: dict[Tag | None, Tag] = {
    "weights": "gathered weights",
    "gathered weights": "gathered weights",
    "gradients": "gradients",
}
"""Copies in another format: of a weight for matrix products, of a gradient for its sum over micro-batches."""
ACCUMULATES = frozenset({_aten.detach.default, _aten.add_.Tensor, _aten.add.Tensor, _aten.clone.default})
"""Operators that torch's gradient accumulation is made of."""


class MemoryTracker(TorchDispatchMode):
    """Writes a `Tape`.

    Args:
        position: tells where in the run an operator stands.
        rounding: allocations are multiples of this many bytes.
        workspaces: what kernels allocate inside, by operator.
        observer: is shown every operator after it ran: it, its arguments, its result.
    """

    def __init__(
        self,
        position: Position,
        *,
        rounding: int = 1,
        workspaces: Mapping[Any, Workspace] | None = None,
        observer: Observer | None = None,
    ) -> None:
        super().__init__()
        self.position, self.tape = position, Tape()
        self._rounding, self._workspaces = rounding, workspaces or {}
        self._observer = observer
        self._fake = active_fake_mode() is not None
        self._records: dict[int, tuple[Record, weakref.ref]] = {}
        self._streams: dict[int, int] = {id(torch.cpu._default_cpu_stream): 0}
        self._kept_streams: list[Any] = []
        self._count = 0
        self._closed = False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Nothing is compiled under a tracker: no need to keep the compiler out of every single operator.
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _device and isinstance(args[0], FakeTensor):
            # Asked for as often as all operators together.
            return args[0].fake_device
        if any(issubclass(kind, WRAPPERS) for kind in types):
            return NotImplemented
        # A fake wait makes a new tensor; a real one returns its argument.
        result = args[0] if func is _wait and self._fake else func(*args, **(kwargs or {}))
        self._note(func, args, result)
        if self._observer is not None:
            self._observer(func, args, kwargs or {}, result)
        return result

    def tag(self, tensors: Any, tag: Tag, owner: str = "") -> None:
        """Say what the storages of tensors are; what was not seen yet counts from now on."""
        for tensor in _tensors(tensors):
            record = self._see(tensor, "")
            if record is not None:
                record.tag, record.owner = tag, owner or record.owner

    def hold(self, size: int, operator: str, stream: int = 0) -> None:
        """Add bytes that stay for the rest of the run."""
        record = self._new_record(operator, stream, "workspace")
        self._resize(record, size, operator)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Track everything inside."""
        original = torch.UntypedStorage.resize_
        tracker = self

        def resize_(storage: torch.UntypedStorage, size: int) -> Any:
            result = original(storage, size)
            tracker._resized(storage)
            return result

        torch.UntypedStorage.resize_ = resize_  # type: ignore[method-assign,assignment]
        try:
            with self.position.hooked(), self:
                yield
        finally:
            torch.UntypedStorage.resize_ = original  # type: ignore[method-assign]
            self._closed = True

    def _note(self, func: Any, args: tuple[Any, ...], result: Any) -> None:
        name = func._schema.name
        for tensor in _tensors(result):
            self._see(tensor, name)
        if func in self._workspaces:
            self._use(self._workspaces[func](args, result), name)
        if func in MESSAGES:
            for index, tag in MESSAGES[func]:
                self.tag(args[index], tag)
        elif func is CAST:
            self._cast(args[0], result)
        elif func in ACCUMULATES and _graph_task() != _NO_GRAPH and _accumulates_weight():
            self.tag(args[:2], "gradients")

    def _cast(self, source: Tensor, result: Tensor) -> None:
        known = self._records.get(source.untyped_storage()._cdata)
        copies = CASTS.get(known[0].tag) if known is not None else None
        if copies is not None and result is not source:
            self.tag(result, copies)

    def _see(self, tensor: Tensor, operator: str) -> Record | None:
        storage = tensor.untyped_storage()
        known = self._records.get(storage._cdata)
        if known is not None:
            record = known[0]
        elif isinstance(tensor, FakeTensor) is not self._fake or _device_type(tensor) != "cpu":
            # At home in a mode of torch's own that works out shapes, or on the meta device.
            return None
        else:
            record = self._new_record(operator, self._stream())
            self._follow(storage, record)
        self._resize(record, storage.nbytes(), operator)
        return record

    def _new_record(self, operator: str, stream: int, tag: Tag | None = None) -> Record:
        self._count += 1
        return Record(number=self._count, stream=stream, born=self.position.now(operator), tag=tag)

    def _follow(self, storage: torch.UntypedStorage, record: Record) -> None:
        key = storage._cdata

        def released(_reference: Any) -> None:
            del self._records[key]
            if not self._closed:
                self._resize(record, 0, "")

        self._records[key] = (record, weakref.ref(storage, released))

    def _resized(self, storage: torch.UntypedStorage) -> None:
        known = self._records.get(storage._cdata)
        if known is not None:
            # Only ZeRO frees and refills a storage in place: weights as they are gathered.
            record = known[0]
            record.tag = record.tag or "gathered weights"
            self._resize(record, storage.nbytes(), "resize_")

    def _resize(self, record: Record, size: int, operator: str) -> None:
        size = -(-size // self._rounding) * self._rounding
        if size == record.size:
            return
        moment = self.position.now(operator)
        self.tape.events.append(Event(size - record.size, record, moment))
        record.size = size
        record.died = moment if size == 0 else None

    def _use(self, size: int, operator: str) -> None:
        record = self._new_record(operator, self._stream(), "workspace")
        self._resize(record, size, operator)
        self._resize(record, 0, operator)

    def _stream(self) -> int:
        current = torch.cpu._current_stream
        number = self._streams.get(id(current))
        if number is None:
            number = self._streams[id(current)] = len(self._streams)
            self._kept_streams.append(current)
        return number


def _device_type(tensor: Tensor) -> str:
    return tensor.fake_device.type if isinstance(tensor, FakeTensor) else tensor.device.type


def _accumulates_weight() -> bool:
    node = torch._C._current_autograd_node()
    return (
        node is not None and "AccumulateGrad" in node.name() and isinstance(getattr(node, "variable", None), Parameter)
    )


def _tensors(value: Any) -> Iterator[Tensor]:
    """Plain tensors in an operator's arguments or result; of a DTensor its local part."""
    if isinstance(value, DTensor):
        yield from _tensors(value._local_tensor)
    elif isinstance(value, AsyncCollectiveTensor):
        yield value.elem
    elif isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _tensors(item)
