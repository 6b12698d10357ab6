"""Pipeline schedules against the published bubble formulas, and closed forms against the replay."""

import random
from itertools import pairwise

import pytest

from meshwright.plan.time.report import Span
from meshwright.plan.time.schedule import Pipeline, makespan, spans
from meshwright.spec.layers import even_cut


def pipeline(schedule: str, stages: int, micro_batches: int, *, rounds: int = 1, **times) -> Pipeline:
    chunks = stages * rounds
    return Pipeline(
        schedule=schedule,
        stages=stages,
        micro_batches=micro_batches,
        forward=times.get("forward", (1.0 / rounds,) * chunks),
        backward=times.get("backward", (2.0 / rounds,) * chunks),
        hop=times.get("hop", 0.0),
    )


def end(replayed: tuple[Span, ...]) -> float:
    return max(span.end for span in replayed)


@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 4), (4, 8), (8, 32), (4, 4), (4, 2)])
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_bubble_of_equal_stages(schedule: str, stages: int, micro_batches: int) -> None:
    """arXiv:2104.04473, section 2.2: (p - 1) / (m + p - 1) of the step for both."""
    total = makespan(pipeline(schedule, stages, micro_batches))
    assert 1 - 3 * micro_batches / total == pytest.approx((stages - 1) / (micro_batches + stages - 1))


@pytest.mark.parametrize("rounds", [2, 4])
def test_interleaving_divides_the_bubble(rounds: int) -> None:
    """arXiv:2104.04473, section 2.2.2: the bubble shrinks by the number of chunks per device."""
    stages, micro_batches = 4, 16
    plain = makespan(pipeline("1f1b", stages, micro_batches)) - 3 * micro_batches
    cut = pipeline("interleaved_1f1b", stages, micro_batches, rounds=rounds)
    assert makespan(cut) - 3 * micro_batches == pytest.approx(plain / rounds)
    assert end(spans(cut)) == pytest.approx(makespan(cut))


def test_zero_bubble_has_a_third_of_it() -> None:
    """arXiv:2401.10241, table 2: (p - 1)(F + B - 2W) against (p - 1)(F + B), here with B = 2, W = F = 1."""
    stages, micro_batches = 4, 12
    assert makespan(pipeline("zero_bubble", stages, micro_batches)) == pytest.approx(3 * micro_batches + stages - 1)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_uneven_stages_are_worse_than_even_ones(schedule: str) -> None:
    even = makespan(pipeline(schedule, 4, 16))
    uneven = pipeline(schedule, 4, 16, forward=(0.8, 1.0, 1.0, 1.2), backward=(1.6, 2.0, 2.0, 2.4))
    assert makespan(uneven) > even
    # The slowest stage alone takes 16 x 3.6.
    assert 16 * 3.6 < makespan(uneven) < 16 * 3.6 + 3 * 3.2


def uneven_pipelines(schedule: str, number: int):
    """Pipelines as jobs have them: equal stages in the middle, an embedding before, a head behind."""
    draw = random.Random(0)
    for _ in range(number):
        stages, micro_batches = draw.randint(2, 8), draw.randint(1, 24)
        forward, backward = [1.0] * stages, [draw.uniform(1.5, 3.2)] * stages
        head = draw.uniform(-0.5, 3)
        forward[-1] += head
        backward[-1] += 2 * head if head > 0 else head
        forward[0] += draw.uniform(0, 0.3)
        yield pipeline(schedule, stages, micro_batches, forward=tuple(forward), backward=tuple(backward))


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_closed_form_is_the_replay(schedule: str) -> None:
    for each in uneven_pipelines(schedule, 200):
        assert makespan(each) == pytest.approx(end(spans(each)))


def test_closed_form_is_the_replay_where_the_layers_left_over_go_last() -> None:
    draw = random.Random(1)
    for layers, stages in ((80, 32), (40, 12), (62, 16), (30, 8)):
        for micro_batches in (stages + 1, 2 * stages, 3 * stages + 1):
            forward = [float(number) for number in even_cut(layers, stages)]
            forward[-1] += draw.uniform(0, 2)
            backward = [2 * seconds for seconds in forward]
            forward[0] += draw.uniform(0, 0.2)
            each = pipeline("1f1b", stages, micro_batches, forward=tuple(forward), backward=tuple(backward))
            assert makespan(each) == pytest.approx(end(spans(each)))


def test_any_stages_are_replayed() -> None:
    draw = random.Random(1)
    for _ in range(200):
        stages = draw.randint(2, 8)
        forward = tuple(draw.uniform(0.5, 2) for _ in range(stages))
        backward = tuple(draw.uniform(1, 4) for _ in range(stages))
        each = pipeline("1f1b", stages, draw.randint(1, 60), forward=forward, backward=backward)
        assert makespan(each) == pytest.approx(end(spans(each)), rel=0.01)


def test_interleaved_closed_form_is_close_with_a_head() -> None:
    forward = (*((0.25,) * 15), 0.4)
    backward = (*((0.5,) * 15), 0.8)
    each = pipeline("interleaved_1f1b", 4, 16, rounds=4, forward=forward, backward=backward, hop=0.01)
    assert makespan(each) == pytest.approx(end(spans(each)), rel=0.01)


def test_extrapolation_over_many_micro_batches_is_the_replay() -> None:
    each = pipeline("1f1b", 4, 64, forward=(1.0, 1.0, 1.0, 1.5), backward=(2.0, 2.0, 2.0, 3.0), hop=0.05)
    assert makespan(each) == pytest.approx(end(spans(each)))


def test_a_message_between_stages_delays_the_first_micro_batch_by_every_hop() -> None:
    with_hops = makespan(pipeline("gpipe", 4, 1, hop=0.5))
    assert with_hops == pytest.approx(4 * 3 + 2 * 3 * 0.5)


@pytest.mark.parametrize(
    ("schedule", "rounds"), [("1f1b", 1), ("gpipe", 1), ("interleaved_1f1b", 2), ("zero_bubble", 1)]
)
def test_passes_of_a_stage_never_overlap(schedule: str, rounds: int) -> None:
    replayed = spans(pipeline(schedule, 4, 8, rounds=rounds))
    for stage in range(4):
        own = sorted((span for span in replayed if span.stage == stage), key=lambda span: span.start)
        assert all(after.start >= before.end - 1e-12 for before, after in pairwise(own))
        assert sum(span.end - span.start for span in own) == pytest.approx(8 * 3)


def test_every_micro_batch_goes_forward_before_it_goes_back() -> None:
    replayed = spans(pipeline("1f1b", 4, 8))
    for micro_batch in range(8):
        own = [span for span in replayed if span.micro_batch == micro_batch]
        ahead = [span for span in own if span.kind == "forward"]
        behind = [span for span in own if span.kind == "backward"]
        assert [span.stage for span in sorted(ahead, key=lambda span: span.start)] == [0, 1, 2, 3]
        assert [span.stage for span in sorted(behind, key=lambda span: span.start)] == [3, 2, 1, 0]
        assert max(span.end for span in ahead) <= min(span.start for span in behind)


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved_1f1b", "zero_bubble"])
def test_schedules_too_long_to_replay_are_close(schedule: str) -> None:
    rounds = 3 if schedule == "interleaved_1f1b" else 1
    draw = random.Random(2)
    for micro_batches in (8, 16, 48):
        forward = tuple(draw.uniform(0.9, 1.1) for _ in range(16 * rounds))
        backward = tuple(2 * time for time in forward)
        each = pipeline(schedule, 16, micro_batches, rounds=rounds, forward=forward, backward=backward)
        if rounds == 1 or micro_batches >= 16:
            assert makespan(each) == pytest.approx(end(spans(each)), rel=0.06)
