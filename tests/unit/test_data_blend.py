"""Blends: shares at every prefix, any position on its own, epochs of each source, one order for every layout."""

import itertools
from pathlib import Path

import numpy as np
import pytest

from meshwright.data.blend import UNITS, BlendedDataset, BlendedOrder, blend
from meshwright.data.dataset import TokenDataset
from meshwright.data.errors import DataError
from meshwright.data.indexed_writer import IndexedWriter
from meshwright.data.loader import build_loader
from meshwright.data.loss_mask import IGNORED

SEQ = 4
WEIGHTS = {
    "two": [0.7, 0.3],
    "next to nothing": [0.999, 0.001],
    "thirds": [1.0, 1.0, 1.0],
    "five": [0.5, 0.25, 0.125, 0.1, 0.025],
    "one large and many small": [1.0] + [0.0007] * 40,
    "twenty": [float(number) for number in range(1, 21)],
}


@pytest.mark.parametrize("weights", WEIGHTS.values(), ids=WEIGHTS)
def test_shares_hold_at_every_prefix(weights: list[float]) -> None:
    length, sources = 150_000, len(weights)
    chosen, draws = blend(weights).draws(np.arange(length))
    taken = np.zeros((length, sources), np.int64)
    taken[np.arange(length), chosen] = 1
    assert (draws == (taken.cumsum(axis=0) - taken)[np.arange(length), chosen]).all(), "each source in turn"
    prefixes = np.arange(1, length + 1)[:, None]
    off = np.abs(taken.cumsum(axis=0) - prefixes * np.array(weights) / sum(weights))
    assert off.max() < sources / 2 + 2
    assert (off / prefixes)[100_000:].max() < 0.001
    for prefix in (0, 1, 2, 7, 99_999, length):
        assert blend(weights).drawn(prefix).tolist() == taken[:prefix].sum(axis=0).tolist()


@pytest.mark.parametrize("weights", [[1] * 1000, [1 / rank for rank in range(1, 301)]], ids=["thousand", "zipf"])
def test_shares_of_many_sources_hold_within_a_thousandth(weights: list[float]) -> None:
    shares = np.array(weights) / sum(weights)
    for start in (100_000, 10**9, UNITS - 100):
        taken = blend(weights).drawn(start).astype(float)
        for prefix, source in enumerate(blend(weights).draws(np.arange(start, start + 200))[0].tolist(), start + 1):
            taken[source] += 1
            assert (np.abs(taken / prefix - shares) < 0.001).all()


def test_any_position_is_found_from_its_number_alone() -> None:
    mix = blend([5, 3, 2])
    for start in (UNITS - 20, 10**12):
        chosen, draws = mix.draws(np.arange(start, start + 40))
        before = mix.drawn(start)
        for source in range(3):
            count = int((chosen == source).sum())
            assert draws[chosen == source].tolist() == list(range(before[source], before[source] + count))
        assert before.sum() == start
        assert np.abs(before - start * np.array([0.5, 0.3, 0.2])).max() < 3.5 * (start // UNITS + 1)


def test_the_blend_is_this_one_for_ever() -> None:
    # Pinned: a change would silently give resumed runs another stream.
    expected = [5, 0, 6, 3, 2, 9, 4, 1, 0, 7, 1, 5]
    order = BlendedOrder(blend([0.7, 0.3]), (6, 4), seed=1)
    assert blend([0.7, 0.3]).draws(np.arange(10))[0].tolist() == [0, 0, 1, 0, 0, 1, 0, 0, 0, 1]
    assert order.samples(np.arange(12)).tolist() == expected
    assert [order.samples(np.array([position])).item() for position in range(12)] == expected


def test_each_source_goes_through_epochs_of_its_own() -> None:
    sizes = (50, 50, 7)
    order = BlendedOrder(blend([2, 1, 1]), sizes, seed=3)
    samples = order.samples(np.arange(400))
    for start, size in zip((0, 50, 100), sizes, strict=True):
        mine = samples[(samples >= start) & (samples < start + size)]
        epochs = [mine[first : first + size].tolist() for first in range(0, len(mine) - size + 1, size)]
        assert len(epochs) >= 2
        assert all(sorted(epoch) == list(range(start, start + size)) for epoch in epochs)
        assert epochs[0] != epochs[1]
    first, second = samples[samples < 50][:50], samples[(samples >= 50) & (samples < 100)][:50] - 50
    assert first.tolist() != second.tolist(), "sources of one size in different orders"
    assert samples.tolist() != BlendedOrder(blend([2, 1, 1]), sizes, seed=4).samples(np.arange(400)).tolist()


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> list[TokenDataset]:
    """Two corpora in which a token tells its sample: 60 of ids below 1000, 20 above."""
    folder = tmp_path_factory.mktemp("data")
    for name, start, samples in (("web", 0, 60), ("code", 1000, 20)):
        with IndexedWriter(folder / name, vocab_size=2000) as writer:
            writer.add_document(np.arange(start, start + SEQ * samples + 1))
    return [TokenDataset([folder / name], SEQ) for name in ("web", "code")]


def test_samples_are_those_of_the_sources(sources: list[TokenDataset]) -> None:
    data = BlendedDataset(sources, [0.7, 0.3])
    assert data.num_samples == data.order(seed=1).num_samples == 80
    tokens, labels = data.batch(np.array([79, 0, -1, 60, 59]))
    assert tokens[:, 0].tolist() == [1000 + 19 * SEQ, 0, 0, 1000, 59 * SEQ]
    assert (labels[[0, 1, 3, 4]] == tokens[[0, 1, 3, 4]] + 1).all()
    assert labels[2].tolist() == [IGNORED] * SEQ


@pytest.mark.parametrize(("ranks", "workers"), [(1, 2), (2, 0), (4, 1)])
def test_same_global_order_for_every_number_of_ranks_and_workers(
    sources: list[TokenDataset], ranks: int, workers: int
) -> None:
    data = BlendedDataset(sources, [0.7, 0.3])

    def steps(first: int, rank: int, ranks: int, workers: int) -> list[list[int]]:
        with build_loader(
            data,
            order=data.order(seed=5),
            first_step=first,
            num_steps=12,
            global_batch_size=8,
            data_rank=rank,
            data_parallel=ranks,
            num_parallel_workers=workers,
            prefetch_size=2,
        ) as loader:
            return [batch.tokens[:, 0].tolist() for batch in loader]

    shares = [steps(3, rank, ranks, workers) for rank in range(ranks)]
    whole = steps(0, 0, 1, 0)[3:] + steps(12, 0, 1, 0)[:3]
    assert [list(itertools.chain(*step)) for step in zip(*shares, strict=True)] == whole
    assert [sum(token >= 1000 for token in step) for step in whole].count(0) == 0


def test_the_log_says_how_often_each_source_is_read(sources: list[TokenDataset]) -> None:
    web, code = BlendedDataset(sources, [3, 1]).describe(120)
    assert web.endswith("web: 75.00%, 90 samples of 60, 1.50 epochs")
    assert code.endswith("code: 25.00%, 30 samples of 20, 1.50 epochs")


def test_sources_go_by_the_last_part_of_their_path_where_that_tells_them_apart(
    sources: list[TokenDataset], tmp_path: Path
) -> None:
    assert BlendedDataset(sources, [1, 1]).names == ["web", "code"]
    with IndexedWriter(tmp_path / "web", vocab_size=2000) as writer:
        writer.add_document(np.arange(SEQ + 1))
    both = [sources[0], TokenDataset([tmp_path / "web"], SEQ)]
    assert BlendedDataset(both, [1, 1]).names == [str(sources[0].files[0].prefix), str(tmp_path / "web")]
    with pytest.raises(DataError, match=r"code comes twice in the blend: name it once, with both weights"):
        BlendedDataset([*sources, sources[1]], [1, 1, 1])


def test_shares_are_part_of_the_fingerprint(sources: list[TokenDataset]) -> None:
    prints = [BlendedDataset(sources, weights).fingerprint() for weights in ([0.7, 0.3], [7, 3], [0.6, 0.4])]
    assert prints[0] == prints[1] != prints[2]


def test_a_weight_that_is_next_to_nothing_is_refused() -> None:
    with pytest.raises(DataError, match=r"dataset\.paths: weight 1e-12 is less than 1 in 2147483648 of the blend"):
        blend([1.0, 1e-12])
