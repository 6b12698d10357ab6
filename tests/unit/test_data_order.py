"""The global order: a permutation for every size, without structure, keyed by seed and epoch."""

import tracemalloc

import numpy as np
import pytest

from meshwright.data.order import GlobalOrder, OneEpochInOrder


def epoch(order: GlobalOrder, number: int = 0) -> np.ndarray:
    start = number * order.num_samples
    return order.samples(np.arange(start, start + order.num_samples))


@pytest.mark.parametrize("size", [*range(1, 70), 100, 127, 128, 129, 1000, 1003, 4095, 4097, 65537, 200_003])
def test_every_epoch_is_a_permutation(size: int) -> None:
    for number in (0, 1, 7):
        assert np.array_equal(np.sort(epoch(GlobalOrder(size, seed=3), number)), np.arange(size))


def test_the_order_is_this_one_for_ever() -> None:
    # Pinned: a change would silently give resumed runs another stream.
    assert epoch(GlobalOrder(10, seed=1)).tolist() == [7, 3, 1, 2, 6, 4, 9, 5, 0, 8]
    assert GlobalOrder(10**9, seed=1).samples(np.arange(4)).tolist() == [295658165, 823854304, 808153876, 653006836]


def test_seed_and_epoch_change_the_order() -> None:
    first = epoch(GlobalOrder(1000, seed=1))
    for other in (epoch(GlobalOrder(1000, seed=2)), epoch(GlobalOrder(1000, seed=1), 1)):
        # Two random permutations agree in one place on average.
        assert int((first == other).sum()) < 10
    assert np.array_equal(first, epoch(GlobalOrder(1000, seed=1)))
    assert np.array_equal(epoch(GlobalOrder(1000, seed=-5)), epoch(GlobalOrder(1000, seed=-5)))


def chi_square(counts: np.ndarray, expected: float) -> float:
    return float(((counts - expected) ** 2 / expected).sum())


def test_places_and_samples_are_independent() -> None:
    size, cells = 100_000, 20
    for seed in range(5):
        samples = epoch(GlobalOrder(size, seed=seed))
        table = np.histogram2d(np.arange(size), samples, bins=cells)[0]
        # 361 degrees of freedom: mean 361, standard deviation 27.
        assert chi_square(table, size / cells**2) < 361 + 6 * 27


def test_neighbours_are_independent() -> None:
    size, cells = 100_000, 20
    samples = epoch(GlobalOrder(size, seed=11))
    gaps = (samples[1:] - samples[:-1]) % size
    assert chi_square(np.histogram(gaps, bins=cells)[0], (size - 1) / cells) < 19 + 6 * 6.2
    parity = np.bincount((samples[1:] ^ samples[:-1]) & 1, minlength=2)
    assert abs(int(parity[0]) - int(parity[1])) < 6 * size**0.5


def test_small_sets_start_anywhere_over_epochs() -> None:
    order = GlobalOrder(5, seed=2)
    first = np.bincount(order.samples(np.arange(2000) * 5), minlength=5)
    # 4 degrees of freedom: mean 4, standard deviation 2.8.
    assert chi_square(first, 400) < 4 + 6 * 2.8


@pytest.mark.parametrize("size", [10**9, 3 * 2**38 + 1])
def test_no_sample_comes_twice_in_an_epoch_of_a_billion(size: int) -> None:
    # Draws with replacement would meet 45 times among so many places of a billion.
    places = np.unique(np.random.default_rng(0).integers(0, 10**9, 300_000)) * (size // 10**9)
    samples = GlobalOrder(size, seed=1).samples(places + size)
    assert samples.min() >= 0
    assert samples.max() < size
    assert len(np.unique(samples)) == len(places) > 299_000


def test_a_billion_samples_are_shuffled_without_a_table() -> None:
    tracemalloc.start()
    try:
        GlobalOrder(10**9, seed=1).samples(np.arange(64) + 5 * 10**8)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 64 << 10


def test_positions_over_an_epoch_border_are_read_in_one_call() -> None:
    order = GlobalOrder(10, seed=1)
    both = order.samples(np.arange(20))
    assert both.tolist() == [*epoch(order, 0).tolist(), *epoch(order, 1).tolist()]


def test_one_epoch_in_order() -> None:
    assert OneEpochInOrder(3).samples(np.arange(5)).tolist() == [0, 1, 2, -1, -1]


def test_an_empty_set_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        GlobalOrder(0, seed=1)
