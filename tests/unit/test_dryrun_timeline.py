"""The curve behind the chart: the same bytes as the tape's, at every event, and no peak lost where it is thinned."""

import numpy as np
import pytest

from meshwright.dryrun.analysis import curve
from meshwright.dryrun.run import DryRun, dry_run
from meshwright.dryrun.tape import Tape
from meshwright.dryrun.timeline import Timeline, timeline
from meshwright.spec.layout import Layout
from meshwright.spec.model import ModelSpec
from meshwright.spec.training import Batch, Precision, TrainSpec

MODEL = ModelSpec(
    num_layers=4, hidden_size=128, num_heads=4, num_kv_heads=2, head_dim=32, intermediate_size=256, vocab_size=500
)
MICRO_BATCHES = 4


@pytest.fixture(scope="module")
def result() -> DryRun:
    """The first stage of two under 1F1B."""
    layout = Layout(pipeline_stage=2, data_parallel=2, zero_stage=2)
    batch = Batch(micro_batch_size=2, micro_batch_num=MICRO_BATCHES, global_batch_size=2 * MICRO_BATCHES * 2)
    train = TrainSpec(seq_length=64, batch=batch, precision=Precision(amp_level="O2", dtype="bfloat16"))
    return dry_run((MODEL, layout, train), 0)


@pytest.fixture(scope="module")
def tape(result: DryRun) -> Tape:
    assert result.execution is not None
    return result.execution.tape


@pytest.fixture(scope="module")
def line(tape: Tape) -> Timeline:
    return timeline(tape, cached=True)


def test_categories_add_up_to_the_tape_at_every_event(tape: Tape, line: Timeline) -> None:
    assert line.totals.tolist() == curve(tape)[tape.starts[-1] :]


def test_its_peak_is_the_peak_of_the_step(result: DryRun, tape: Tape, line: Timeline) -> None:
    peak = result.memory.peak
    assert line.totals[line.peak] == result.allocated
    assert tape.starts[-1] + line.points[line.peak] == peak.event
    assert {name: sizes[line.peak] for name, sizes in line.categories.items() if sizes[line.peak]} == peak.categories


def test_another_step_than_the_last(tape: Tape) -> None:
    assert timeline(tape, 0).totals.tolist() == curve(tape)[tape.starts[0] : tape.starts[1]]


def test_reserved_ends_at_the_peak_of_the_replay(result: DryRun, line: Timeline) -> None:
    assert line.reserved is not None
    assert result.reserved is not None
    assert line.reserved[-1] == result.reserved.native
    assert (line.reserved >= line.totals).all()


def test_spans_cover_the_step_once_in_the_order_of_the_schedule(line: Timeline) -> None:
    assert [span.start for span in line.spans] == [0, *(span.end for span in line.spans[:-1])]
    assert line.spans[-1].end == line.length == len(line.totals)
    names = [(span.phase, span.micro_batch) for span in line.spans]
    forward = [number for phase, number in names if phase == "forward"]
    backward = [number for phase, number in names if phase == "backward"]
    assert forward == backward == list(range(MICRO_BATCHES))
    assert names[-2:] == [("gradients", -1), ("optimizer", -1)]


def test_thinned_keeps_the_highest_of_every_stretch(line: Timeline) -> None:
    most = 60
    few = line.thinned(most)
    assert most / 2 < len(few.points) <= most
    assert few.totals[few.peak] == line.totals.max()
    assert few.totals.tolist() == line.totals[few.points].tolist()
    for stretch in np.array_split(np.arange(line.length), most // 2):
        shown = np.isin(few.points, stretch)
        assert few.totals[shown].max() == line.totals[stretch].max()


def test_a_short_step_is_not_thinned(line: Timeline) -> None:
    assert line.thinned(line.length) is line
