"""The model of the caching allocator: its arithmetic by hand, its invariants under random use."""

import random
from itertools import pairwise

import pytest

from meshwright.dryrun.allocator import BLOCK, MIB, CachingAllocator, OutOfMemory, replay, rounded, segment_size
from meshwright.dryrun.tape import Event, Moment, Record, Tape

KINDS = pytest.mark.parametrize("expandable", [False, True], ids=["native", "expandable"])


@pytest.mark.parametrize(("size", "block"), [(1, 512), (512, 512), (513, 1024), (MIB + 1, MIB + 512)])
def test_requests_round_to_512_bytes(size, block):
    assert rounded(size) == block


@pytest.mark.parametrize(
    ("size", "segment"),
    [(512, 2), (MIB, 2), (MIB + 512, 20), (10 * MIB - 512, 20), (10 * MIB, 10), (10 * MIB + 512, 12), (31 * MIB, 32)],
)
def test_segments_follow_the_size_classes(size, segment):
    assert segment_size(size) == segment * MIB


def test_small_and_large_blocks_and_streams_never_share_segments():
    allocator = CachingAllocator()
    allocator.allocate(1, 512)
    allocator.allocate(2, 2 * MIB)
    assert allocator.reserved == 22 * MIB
    allocator.allocate(3, 512, stream=1)
    assert allocator.reserved == 24 * MIB
    allocator.free(2)
    allocator.allocate(4, 2 * MIB, stream=1)
    assert allocator.reserved == 44 * MIB


def test_a_large_block_with_less_than_a_mebibyte_left_is_not_split():
    allocator = CachingAllocator()
    allocator.allocate(1, 20 * MIB)
    allocator.free(1)
    allocator.allocate(2, 19 * MIB)
    assert allocator.allocated == 20 * MIB
    allocator.free(2)
    allocator.allocate(3, 19 * MIB - BLOCK)
    assert allocator.allocated == 19 * MIB - BLOCK


def test_neighbours_merge_and_serve_a_larger_request():
    allocator = CachingAllocator()
    for key in (1, 2, 3):
        allocator.allocate(key, 6 * MIB)
    for key in (1, 3, 2):
        allocator.free(key)
    allocator.allocate(4, 18 * MIB)
    assert allocator.reserved == 20 * MIB


def test_native_segments_fragment_where_expandable_ones_grow():
    native, expandable = CachingAllocator(), CachingAllocator(expandable=True)
    for allocator in (native, expandable):
        allocator.allocate(1, 30 * MIB)
        allocator.free(1)
        allocator.allocate(2, 40 * MIB)
    assert native.reserved == 70 * MIB
    assert expandable.reserved == 40 * MIB


def test_caches_are_emptied_before_memory_runs_out():
    allocator = CachingAllocator(capacity=64 * MIB)
    allocator.allocate(1, 40 * MIB)
    allocator.free(1)
    allocator.allocate(2, 50 * MIB)
    assert (allocator.retries, allocator.reserved) == (1, 50 * MIB)
    with pytest.raises(OutOfMemory) as failure:
        allocator.allocate(3, 20 * MIB)
    assert (failure.value.allocated, failure.value.reserved) == (50 * MIB, 50 * MIB)


def test_a_capacity_with_expandable_segments_is_refused():
    with pytest.raises(ValueError, match="native"):
        CachingAllocator(expandable=True, capacity=MIB)


@KINDS
@pytest.mark.parametrize("seed", range(4))
def test_random_use_keeps_the_books(expandable, seed):
    """Blocks in use and cached blocks add up to what is reserved, always; and all of it is free in the end."""
    draw = random.Random(seed)
    allocator = CachingAllocator(expandable=expandable)
    live: dict[int, int] = {}
    for key in range(3000):
        if live and draw.random() < 0.5:
            gone = draw.choice(list(live))
            del live[gone]
            allocator.free(gone)
        else:
            live[key] = int(2 ** draw.uniform(0, 27))
            allocator.allocate(key, live[key], stream=draw.choice((0, 0, 1)))
        asked = sum(rounded(size) for size in live.values())
        assert asked <= allocator.allocated <= asked + MIB * len(live)
        assert allocator.allocated + allocator.cached() == allocator.reserved <= allocator.peak_reserved
    for key in live:
        allocator.free(key)
    assert allocator.allocated == 0
    assert allocator.cached() == allocator.reserved
    # Nothing stays split: as many free blocks as there are segments, and one a pool where segments expand.
    pools = allocator._pools.values()
    assert all(block.before is None and block.after is None for pool in pools for block in pool.free)


@KINDS
@pytest.mark.parametrize("seed", range(2))
def test_blocks_in_use_never_overlap(expandable, seed):
    draw = random.Random(seed)
    allocator = CachingAllocator(expandable=expandable)
    live: list[int] = []
    for key in range(600):
        if live and draw.random() < 0.45:
            allocator.free(live.pop(draw.randrange(len(live))))
        else:
            allocator.allocate(key, int(2 ** draw.uniform(5, 26)))
            live.append(key)
        for small in (True, False):
            blocks = [block for block in allocator._live.values() if block.pool.small is small]
            spans = sorted((block.address, block.address + block.size) for block in blocks)
            assert all(end <= start for (_, end), (start, _) in pairwise(spans))


def moment(step: int) -> Moment:
    return Moment(step, "build" if step < 0 else "forward", -1, "", "", recomputing=False)


def test_replay_counts_of_the_build_only_what_stays():
    kept, drawn, later = (Record(number=number, stream=0, born=moment(-1)) for number in range(3))
    events = [
        Event(30 * MIB, drawn, moment(-1)),
        Event(12 * MIB, kept, moment(-1)),
        Event(-30 * MIB, drawn, moment(-1)),
        Event(14 * MIB, later, moment(0)),
        Event(-14 * MIB, later, moment(0)),
        Event(16 * MIB, later, moment(0)),
    ]
    allocator = replay(Tape(events=events, starts=[3]))
    assert (allocator.peak_allocated, allocator.peak_reserved) == (28 * MIB, 42 * MIB)
