"""The loader: order, resume, workers, and what happens when reading fails."""

import itertools
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import psutil
import pytest

from loader_sources import Failing, Noting, wait_until_there
from meshwright.data import pool, worker_process
from meshwright.data.dataset import TokenDataset
from meshwright.data.errors import DataError, DataWorkerError
from meshwright.data.indexed_writer import IndexedWriter
from meshwright.data.loader import Loader, build_eval_loader, build_loader
from meshwright.data.loss_mask import IGNORED
from meshwright.data.order import GlobalOrder, OneEpochInOrder
from meshwright.data.pool import OrderedMap
from meshwright.data.steps import StepReader

SEQ = 4


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Token number = token id, so that a row tells which sample it is."""
    prefix = tmp_path_factory.mktemp("data") / "corpus"
    with IndexedWriter(prefix, vocab_size=100_000) as writer:
        writer.add_document(np.arange(SEQ * 1003 + 1))
    return prefix


def truncated(prefix: Path, num_samples: int) -> TokenDataset:
    data = TokenDataset([prefix], SEQ)
    data.num_samples = num_samples
    return data


def load(data: TokenDataset, first: int, steps: int, gbs: int, rank: int = 0, ranks: int = 1, **kw: int) -> Loader:
    return build_loader(
        data,
        order=GlobalOrder(data.num_samples, seed=5),
        first_step=first,
        num_steps=steps,
        global_batch_size=gbs,
        data_rank=rank,
        data_parallel=ranks,
        num_parallel_workers=kw.get("workers", 0),
        prefetch_size=kw.get("prefetch", 2),
    )


def flat(lists: Iterable[list[int]]) -> list[int]:
    return list(itertools.chain.from_iterable(lists))


def ids(loader: Loader) -> list[list[int]]:
    """Sample numbers of each batch."""
    with loader:
        return [(batch.tokens[:, 0] // SEQ).tolist() for batch in loader]


@pytest.mark.parametrize("workers", [0, 2])
def test_b16_sampler_resumed_twice_goes_on_where_it_stood(prefix: Path, workers: int) -> None:
    data = truncated(prefix, 100)
    straight = ids(load(data, 0, 30, 8, workers=0))
    parts = [ids(load(data, first, 10, 8, workers=workers, prefetch=3)) for first in (0, 10, 20)]
    assert list(itertools.chain(*parts)) == straight
    stream = np.concatenate(straight)
    assert len(stream) == 240
    for start in (0, 100):
        assert sorted(stream[start : start + 100]) == list(range(100))
    assert stream[:100].tolist() != stream[100:200].tolist()


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_same_global_order_for_data_parallel_1_2_4(prefix: Path, ranks: int) -> None:
    data = truncated(prefix, 100)
    whole = ids(load(data, 3, 12, 8))
    shares = [ids(load(data, 3, 12, 8, rank, ranks)) for rank in range(ranks)]
    assert [flat(step) for step in zip(*shares, strict=True)] == whole


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_b07_sampler_two_epochs_are_fifty_steps(prefix: Path, ranks: int) -> None:
    """1000 samples, micro-batch 2 x data 4 x 5 micro-batches: 25 steps an epoch, every sample once in each."""
    data = truncated(prefix, 1000)
    shares = [ids(load(data, 0, 50, 40, rank, ranks)) for rank in range(ranks)]
    steps = [flat(step) for step in zip(*shares, strict=True)]
    assert len(steps) == 50
    assert sorted(flat(steps[:25])) == sorted(flat(steps[25:])) == list(range(1000))


def test_b07_sampler_1003_samples_go_on_into_the_next_epoch(prefix: Path) -> None:
    data = truncated(prefix, 1003)
    loader = load(data, 0, 51, 40)
    assert len(loader) == 51
    stream = flat(ids(loader))
    assert len(stream) == 2040
    assert sorted(stream[:1003]) == sorted(stream[1003:2006]) == list(range(1003))


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_batches_are_shifted_and_the_position_is_the_step(prefix: Path, workers: int) -> None:
    with load(TokenDataset([prefix], SEQ), 7, 5, 6, workers=workers, prefetch=1) as loader:
        for step, batch in enumerate(loader, 7):
            assert loader.step == step + 1
            assert batch.tokens.shape == batch.labels.shape == (6, SEQ)
            assert (batch.labels - batch.tokens == 1).all()
            assert batch.tokens.is_contiguous()
        assert loader.step == 12


def wait_for(count: Callable[[], int], expected: int) -> None:
    """Until there are so many, and a little longer: time for more to come than should."""
    deadline = time.monotonic() + 10
    while count() < expected and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.05)


def test_prefetch_reads_ahead_and_no_further(prefix: Path) -> None:
    seen: list[int] = []
    calls = OrderedMap(lambda task: seen.append(task), range(100), workers=0, ahead=4, name=str, finish=lambda x: x)
    with calls:
        for expected in (4, 5):
            wait_for(lambda: len(seen), expected)
            assert seen == list(range(expected))
            next(calls)


def test_results_in_any_order_do_not_wait_for_a_slow_one(tmp_path: Path) -> None:
    slow, *others = (tmp_path / name for name in ("slow", "a", "b", "c", "d", "e", "f"))
    for path in others:
        path.touch()
    calls = OrderedMap(wait_until_there, [slow, *others], workers=2, ahead=3, name=str, finish=lambda name: name)
    with calls:
        results = calls.completed()
        assert sorted(next(results) for _ in others) == [path.name for path in others]
        slow.touch()
        assert list(results) == ["slow"]


@pytest.mark.parametrize(("workers", "ahead"), [(0, 3), (2, 6)])
def test_each_worker_reads_as_many_batches_ahead_as_asked(tmp_path: Path, workers: int, ahead: int) -> None:
    with in_order(Noting(tmp_path), workers, batch=1, prefetch=3) as loader:
        for taken in range(2):
            wait_for(lambda: len(list(tmp_path.iterdir())), ahead + taken)
            assert len(list(tmp_path.iterdir())) == ahead + taken
            next(loader)


def test_every_rank_gets_the_same_number_of_held_out_batches_and_every_token_counts_once(prefix: Path) -> None:
    data = TokenDataset([prefix], 6, pad_last=True)
    supervised: list[list[int]] = []
    for rank in range(3):
        with build_eval_loader(data, global_batch_size=12, data_rank=rank, data_parallel=3) as loader:
            batches = list(loader)
        assert len(batches) == -(-data.num_samples // 12)
        supervised += [batch.labels[batch.labels != IGNORED].tolist() for batch in batches]
    assert sorted(flat(supervised)) == list(range(1, data.num_tokens))
    with build_eval_loader(data, global_batch_size=3, data_rank=0, data_parallel=1, max_batches=2) as loader:
        assert [int(batch.tokens[0, 0]) for batch in loader] == [0, 18]


def in_order(source: Failing | Noting, workers: int, *, batch: int = 2, prefetch: int = 4) -> Loader:
    return build_loader(
        source,
        order=OneEpochInOrder(100),
        first_step=0,
        num_steps=50,
        global_batch_size=batch,
        data_rank=0,
        data_parallel=1,
        num_parallel_workers=workers,
        prefetch_size=prefetch,
        timeout_s=60,
    )


@pytest.mark.parametrize(("workers", "who"), [(0, "data thread"), (2, r"data worker [01] \(pid \d+\)")])
def test_a_failure_comes_in_its_turn_with_name_and_cause(workers: int, who: str) -> None:
    with in_order(Failing("raise"), workers) as loader:
        assert [next(loader).tokens.tolist() for _ in range(2)] == [[[0], [1]], [[2], [3]]]
        with pytest.raises(DataWorkerError, match=f"^{who} failed at step 3: DataError: corpus") as caught:
            next(loader)
        assert isinstance(caught.value.__cause__, DataError)
        if workers:
            assert "in batch" in caught.value.__cause__.__notes__[0]
        # Going on would skip a step in silence.
        assert list(loader) == []
        assert loader.step == 2


def test_a_dead_worker_is_reported() -> None:
    with in_order(Failing("die"), 2) as loader:
        next(loader), next(loader)
        with pytest.raises(DataWorkerError, match=r"data worker \d \(pid \d+\) ended by signal SIGKILL.* at step 3"):
            next(loader)


@pytest.mark.parametrize(("workers", "who"), [(0, "data thread"), (2, r"data worker [01] \(pid \d+\)")])
def test_a_hung_worker_is_reported_by_name_with_its_stack(workers: int, who: str) -> None:
    with in_order(Failing("hang", seconds=3), workers) as loader:
        next(loader), next(loader)
        # Only now, so that a slow start of the workers is no part of it.
        loader._batches._limit = 1
        message = rf"(?s)^{who} hangs at step 3: nothing came in 1 s, the limit of dataset\.timeout_s\n.*in batch"
        start = time.monotonic()
        with pytest.raises(DataWorkerError, match=message):
            next(loader)
        assert time.monotonic() - start < 10
        assert children() == []
        assert list(loader) == []


def test_a_worker_that_cannot_answer_is_told_with_its_state(prefix: Path) -> None:
    with load(TokenDataset([prefix], SEQ), 0, 9, 2, workers=1) as loader:
        next(loader)
        worker = loader._batches._workers[0]
        worker.process.send_signal(signal.SIGSTOP)
        assert worker.stack() == "it does not tell where it is; state of the process: T (stopped)"


def children() -> list[psutil.Process]:
    return [p for p in psutil.Process().children() if "meshwright.data.worker" in " ".join(p.cmdline())]


def test_a_worker_has_no_torch_in_memory(prefix: Path) -> None:
    with load(TokenDataset([prefix], SEQ), 0, 9, 2, workers=1) as loader:
        next(loader)
        (worker,) = children()
        mapped = [Path(part.path).name for part in worker.memory_maps()]
        assert any("numpy" in part.path or "multiarray" in part.path for part in worker.memory_maps())
        assert not [name for name in mapped if "torch" in name]


def test_close_ends_workers_that_hang() -> None:
    loader = in_order(Failing("hang"), 2)
    next(loader)
    workers = children()
    assert len(workers) == 2
    start = time.monotonic()
    loader.close()
    loader.close()
    assert time.monotonic() - start < 3
    assert not any(worker.is_running() for worker in workers)
    assert not [t for t in threading.enumerate() if t.name.startswith("meshwright-data")]


def test_a_worker_that_cannot_be_ended_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one in a read that never returns: SIGKILL waits until it does."""
    loader = in_order(Failing("hang"), 2)
    next(loader), next(loader)
    # Only now, so that a slow start of the workers is no part of it.
    loader._batches._limit = 0.5
    workers = children()
    with monkeypatch.context() as patch:
        patch.setattr(subprocess.Popen, "kill", lambda process: None)
        for module in (pool, worker_process):
            patch.setattr(module, "END_SECONDS", 2.0)
        start = time.monotonic()
        with pytest.raises(DataWorkerError, match="hangs at step 3"):
            next(loader)
        # Once for all workers and threads: one after another they would take 6 s.
        assert time.monotonic() - start < 5
    for worker in workers:
        worker.kill()
    gone, alive = psutil.wait_procs(workers, timeout=10)
    assert (len(gone), alive) == (2, [])


def test_a_worker_that_cannot_be_started_ends_those_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[worker_process.WorkerProcess] = []

    def start(number: int, body: bytes) -> worker_process.WorkerProcess:
        if started:
            raise BlockingIOError("no more processes")
        started.append(worker_process.WorkerProcess(number, body))
        return started[0]

    monkeypatch.setattr(pool, "WorkerProcess", start)
    unraisable: list[object] = []
    monkeypatch.setattr("sys.unraisablehook", unraisable.append)
    with pytest.raises(BlockingIOError):
        in_order(Failing("hang"), 2)
    assert started[0].process.wait(timeout=10) != 0
    assert started[0].process.stdin is not None
    assert started[0].process.stdin.closed
    assert unraisable == []


def test_a_forgotten_loader_leaves_nothing_behind(prefix: Path) -> None:
    loader = load(TokenDataset([prefix], SEQ), 0, 5, 2, workers=2)
    assert len(ids(loader)) == 5
    loader = load(TokenDataset([prefix], SEQ), 0, 3, 2, workers=1)
    list(loader)
    del loader
    deadline = time.monotonic() + 10
    while children() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert children() == []


def test_wrong_requests_are_refused(prefix: Path) -> None:
    data = TokenDataset([prefix], SEQ)
    with pytest.raises(ValueError, match="global_batch_size 6 is no multiple of data_parallel 4"):
        load(data, 0, 1, 6, 0, 4)
    with pytest.raises(ValueError, match="data_rank 2 with data_parallel 2"):
        load(data, 0, 1, 6, 2, 2)
    with pytest.raises(ValueError, match="order over 9 samples, data set of 10"):
        StepReader(
            dataset=truncated(prefix, 10),
            order=OneEpochInOrder(9),
            global_batch_size=1,
            data_rank=0,
            data_parallel=1,
        )
