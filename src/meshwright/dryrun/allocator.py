"""The caching allocator of CUDA devices, as far as its bookkeeping goes.

A model of c10/cuda/CUDACachingAllocator.cpp: sizes round up to 512 bytes; up to 1 MiB come from a pool of 2 MiB
segments, larger ones from segments of 20 MiB or their own size; each stream has pools of its own; the best fit is
split, neighbours that are free merge. With ``expandable_segments`` each pool is one address range that grows by pages.

The memory of a freed block is never given back to the device unless an allocation would fail without it.

Not modelled: a block that another stream still works on (``Tensor.record_stream``) stays taken until that stream is
done with it; here it is free at once, as it is for code that lets streams wait for each other.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, field

from meshwright.dryrun.tape import Record, Tape

MIB = 2**20
BLOCK = 512
SMALL_SIZE, SMALL_SEGMENT = 1 * MIB, 2 * MIB
LARGE_SEGMENT, OWN_SEGMENT, OWN_ROUNDING = 20 * MIB, 10 * MIB, 2 * MIB


class OutOfMemory(MemoryError):
    """An allocation that does not fit the capacity, all caches emptied."""

    def __init__(self, size: int, allocated: int, reserved: int) -> None:
        super().__init__(f"{size} bytes asked for, {allocated} allocated, {reserved} reserved")
        self.size, self.allocated, self.reserved = size, allocated, reserved


@dataclass(slots=True, eq=False)
class Block:
    """A stretch of a segment; ``before`` and ``after`` are its neighbours there."""

    size: int
    address: int
    pool: "Pool"
    free: bool = False
    before: "Block | None" = None
    after: "Block | None" = None


def _order(block: Block) -> tuple[int, int]:
    return block.size, block.address


@dataclass(eq=False)
class Pool:
    """Free blocks of one stream and size class.

    Attributes:
        free: by size, then address.
        last: block at the end of the address range, where segments expand.
    """

    small: bool
    free: list[Block] = field(default_factory=list)
    last: Block | None = None

    def add(self, block: Block) -> None:
        """Put a block among the free ones."""
        block.free = True
        insort(self.free, block, key=_order)

    def remove(self, block: Block) -> None:
        """Take a block out again."""
        del self.free[bisect_left(self.free, _order(block), key=_order)]
        block.free = False

    def best(self, size: int) -> Block | None:
        """Smallest free block that is large enough, at the lowest address."""
        index = bisect_left(self.free, (size, -1), key=_order)
        return self.free[index] if index < len(self.free) else None

    def best_of_range(self, size: int) -> Block | None:
        """As `best`; the end of the range counts as large as it could grow."""
        block = self.best(size)
        if block is not None and block is self.last:
            index = bisect_left(self.free, _order(block), key=_order) + 1
            return self.free[index] if index < len(self.free) else block
        return block


def rounded(size: int) -> int:
    """Bytes of the block that serves a request."""
    return max(-(-size // BLOCK), 1) * BLOCK


def segment_size(size: int) -> int:
    """Bytes asked of the device for a block that no segment has room for."""
    if size <= SMALL_SIZE:
        return SMALL_SEGMENT
    if size < OWN_SEGMENT:
        return LARGE_SEGMENT
    return -(-size // OWN_ROUNDING) * OWN_ROUNDING


class CachingAllocator:
    """Serves allocations by key.

    Args:
        expandable: ``PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True``.
        capacity: bytes of the device; None is without end. Not for expandable segments, which give single pages back.

    Attributes:
        allocated / reserved: bytes now in blocks in use, and in segments.
        peak_allocated / peak_reserved: the most so far.
        retries: times that caches were emptied to make room.
    """

    def __init__(self, *, expandable: bool = False, capacity: int | None = None) -> None:
        if expandable and capacity is not None:
            raise ValueError("a capacity is modelled for native segments only")
        self._expandable, self._capacity = expandable, capacity
        self._pools: dict[tuple[int, bool], Pool] = {}
        self._live: dict[int, Block] = {}
        self._next_address = 0
        self.allocated = self.reserved = self.peak_allocated = self.peak_reserved = self.retries = 0

    def allocate(self, key: int, size: int, stream: int = 0) -> Block:
        """Serve a request. Raises `OutOfMemory`."""
        size = rounded(size)
        small = size <= SMALL_SIZE
        pool = self._pools.setdefault((stream, small), Pool(small))
        block = pool.best_of_range(size) if self._expandable else pool.best(size)
        if block is not None:
            pool.remove(block)
        else:
            block = self._expanded(pool, size) if self._expandable else self._segment(pool, size)
        self._split(block, size)
        self._live[key] = block
        self.allocated += block.size
        self.peak_allocated = max(self.peak_allocated, self.allocated)
        return block

    def free(self, key: int) -> None:
        """Give a block back to its pool."""
        block = self._live.pop(key)
        self.allocated -= block.size
        if block.before is not None and block.before.free:
            block.pool.remove(block.before)
            block = self._joined(block.before, block)
        if block.after is not None and block.after.free:
            block.pool.remove(block.after)
            block = self._joined(block, block.after)
        block.pool.add(block)

    def cached(self) -> int:
        """Bytes in free blocks."""
        return sum(block.size for pool in self._pools.values() for block in pool.free)

    def _split(self, block: Block, size: int) -> None:
        rest = block.size - size
        if rest < (BLOCK if block.pool.small or self._expandable else SMALL_SIZE + 1):
            return
        remainder = Block(rest, block.address + size, block.pool, before=block, after=block.after)
        if block.after is not None:
            block.after.before = remainder
        if block.pool.last is block:
            block.pool.last = remainder
        block.after, block.size = remainder, size
        block.pool.add(remainder)

    @staticmethod
    def _joined(first: Block, second: Block) -> Block:
        first.size += second.size
        first.after = second.after
        if second.after is not None:
            second.after.before = first
        if first.pool.last is second:
            first.pool.last = first
        return first

    def _segment(self, pool: Pool, size: int) -> Block:
        bytes_ = segment_size(size)
        self._reserve(bytes_, size)
        block = Block(bytes_, self._next_address, pool)
        # Segments never touch.
        self._next_address += bytes_ + BLOCK
        return block

    def _expanded(self, pool: Pool, size: int) -> Block:
        page = SMALL_SEGMENT if pool.small else LARGE_SEGMENT
        last = pool.last if pool.last is not None and pool.last.free else None
        have = last.size if last is not None else 0
        growth = -(-(size - have) // page) * page
        self._reserve(growth, size)
        if last is not None:
            pool.remove(last)
            last.size += growth
            return last
        end = pool.last
        address = end.address + end.size if end is not None else 0
        block = Block(growth, address, pool, before=end)
        if end is not None:
            end.after = block
        pool.last = block
        return block

    def _reserve(self, size: int, asked: int) -> None:
        if self._capacity is not None and self.reserved + size > self._capacity:
            self.retries += 1
            self._empty_caches()
            if self.reserved + size > self._capacity:
                raise OutOfMemory(asked, self.allocated, self.reserved)
        self.reserved += size
        self.peak_reserved = max(self.peak_reserved, self.reserved)

    def _empty_caches(self) -> None:
        """Give back segments that are free as a whole."""
        for pool in self._pools.values():
            for block in [block for block in pool.free if block.before is None and block.after is None]:
                pool.remove(block)
                self.reserved -= block.size


def replay(tape: Tape, *, expandable: bool = False, capacity: int | None = None) -> CachingAllocator:
    """An allocator after all steps of a tape. Raises `OutOfMemory`."""
    allocator = CachingAllocator(expandable=expandable, capacity=capacity)
    for _, record, size in requests(tape):
        if size:
            allocator.allocate(record.number, size, record.stream)
        else:
            allocator.free(record.number)
    return allocator


def requests(tape: Tape) -> Iterator[tuple[int, Record, int]]:
    """What a tape asks of an allocator: index of the event, storage, and bytes to allocate or 0 to free it.

    Of what happened before the first step only what is still there counts: weights are drawn on the host.
    """
    start = tape.starts[0]
    sizes: dict[int, int] = {}
    held: dict[int, Record] = {}
    for change, record, _ in tape.events[:start]:
        sizes[record.number] = sizes.get(record.number, 0) + change
        held[record.number] = record
    yield from ((start - 1, record, sizes[number]) for number, record in held.items() if sizes[number])
    for index in range(start, len(tape.events)):
        change, record, _ = tape.events[index]
        before = sizes.get(record.number, 0)
        if before:
            yield index, record, 0
        sizes[record.number] = before + change
        if sizes[record.number]:
            yield index, record, sizes[record.number]
