"""The helper that every distributed test stands on."""

import os
import time

import pytest
import torch
import torch.distributed as dist

from ranks import RanksFailed, RanksTimedOut, run_ranks


class OddError(Exception):
    """Not picklable: its constructor takes two arguments and passes one on."""

    def __init__(self, a: int, b: int) -> None:
        super().__init__(a)


def sum_over_ranks(scale: float, *, offset: float = 0.0) -> tuple[int, int, float]:
    print("hello from a rank")
    value = torch.ones(1) * scale * (dist.get_rank() + 1) + offset
    dist.all_reduce(value)
    assert os.environ["RANK"] == str(dist.get_rank())
    assert torch.get_num_threads() == 1
    return dist.get_rank(), int(os.environ["WORLD_SIZE"]), value.item()


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_results_come_back_in_rank_order(world_size, capfd):
    total = 2.0 * sum(range(1, world_size + 1)) + world_size
    expected = [(rank, world_size, total) for rank in range(world_size)]
    assert run_ranks(sum_over_ranks, world_size, 2.0, offset=1.0) == expected
    assert f"[rank {world_size - 1}] hello from a rank" in capfd.readouterr().out


def change_argument(tensor: torch.Tensor) -> torch.Tensor:
    before = tensor.clone()
    tensor += 1 + dist.get_rank()
    dist.barrier()
    return torch.stack([before, tensor])


def test_ranks_get_their_own_copy_of_tensor_arguments_and_send_tensors_back():
    mine = torch.zeros(3)
    got = run_ranks(change_argument, 2, mine)
    assert mine.tolist() == [0, 0, 0]
    assert [g[0].tolist() for g in got] == [[0, 0, 0]] * 2
    assert [g[1].tolist() for g in got] == [[1, 1, 1], [2, 2, 2]]


def fail_on_rank_1(kind: str) -> None:
    if dist.get_rank() == 1:
        print("about to fail")
        if kind == "raise":
            raise ValueError("bad value 17")
        if kind == "unpicklable":
            raise OddError(1, 2)
        os._exit(7)
    dist.all_reduce(torch.ones(1))


def test_the_first_error_is_raised_here_with_its_rank_traceback_and_output():
    with pytest.raises(ValueError, match="bad value 17") as caught:
        run_ranks(fail_on_rank_1, 3, "raise")
    notes = "\n".join(caught.value.__notes__)
    assert "raised on rank 1 of 3" in notes
    assert "about to fail" in notes
    assert "in fail_on_rank_1" in str(caught.value.__cause__)


def test_an_error_that_cannot_be_pickled_still_shows_its_traceback():
    with pytest.raises(RanksFailed, match="OddError") as caught:
        run_ranks(fail_on_rank_1, 2, "unpicklable")
    assert "in fail_on_rank_1" in str(caught.value)


def test_a_rank_that_exits_hard_is_named_with_its_exit_code():
    with pytest.raises(RanksFailed, match="rank 1 exited with 7"):
        run_ranks(fail_on_rank_1, 2, "exit")


def hang_on_rank_1() -> None:
    if dist.get_rank() == 1:
        this_is_where_it_hangs()


def this_is_where_it_hangs() -> None:
    time.sleep(600)


def test_a_hang_ends_in_time_and_shows_where_the_rank_stood():
    start = time.monotonic()
    with pytest.raises(RanksTimedOut, match=r"rank 1 of 2 did not finish in 4 s") as caught:
        run_ranks(hang_on_rank_1, 2, timeout=4)
    assert time.monotonic() - start < 30
    assert "this_is_where_it_hangs" in str(caught.value)


def poisoned() -> dict[str, bool]:
    zeros = torch.zeros(4)
    freed = torch.zeros(64)
    freed.untyped_storage().resize_(0)
    freed.untyped_storage().resize_(256)
    made = {
        "empty": torch.empty(1000),
        "empty_like": torch.empty_like(zeros),
        "new_empty": zeros.new_empty(9),
        "empty_strided": torch.empty_strided((2, 2), (2, 1)),
        "resize_": torch.zeros(0).resize_(8),
        "bfloat16": torch.empty(5, dtype=torch.bfloat16),
        "float16": torch.empty(5, dtype=torch.float16),
        "linear": torch.nn.utils.skip_init(torch.nn.Linear, 3, 3).weight,
        "storage": freed,
    }
    return {name: bool(tensor.isnan().all()) for name, tensor in made.items()}


def test_uninitialised_memory_is_nan():
    (got,) = run_ranks(poisoned, 1)
    assert got == dict.fromkeys(got, True)


def leave_a_mark() -> bool:
    seen = hasattr(torch, "mark_of_an_earlier_call")
    torch.mark_of_an_earlier_call = True
    return seen


def test_every_call_has_fresh_processes():
    assert run_ranks(leave_a_mark, 2) == [False, False]
    assert run_ranks(leave_a_mark, 2) == [False, False]
