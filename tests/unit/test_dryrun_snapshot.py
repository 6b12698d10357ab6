"""What PyTorch's memory viewer is given: a step that it can open, with the dry run's bytes."""

import pickle
import pickletools
from itertools import pairwise
from pathlib import Path

import pytest
import torch.cuda._memory_viz as viewer

from meshwright.dryrun.analysis import CATEGORIES, curve
from meshwright.dryrun.run import DryRun, dry_run
from meshwright.dryrun.snapshot import write_snapshot
from meshwright.dryrun.tape import Tape
from meshwright.spec.layout import Layout
from meshwright.spec.model import ModelSpec
from meshwright.spec.training import Batch, Precision, TrainSpec

MODEL = ModelSpec(
    num_layers=2, hidden_size=128, num_heads=4, num_kv_heads=2, head_dim=32, intermediate_size=256, vocab_size=500
)
# What the page of the viewer reads (MemoryViz.js of PyTorch 2.13).
OPCODES = {
    *("PROTO", "FRAME", "STOP", "MARK", "MEMOIZE", "BINPUT", "LONG_BINPUT", "BINGET", "LONG_BINGET"),
    *("NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"),
    *("SHORT_BINUNICODE", "BINUNICODE", "EMPTY_LIST", "APPEND", "APPENDS", "LIST"),
    *("EMPTY_DICT", "SETITEM", "SETITEMS", "DICT", "EMPTY_TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "TUPLE"),
}


@pytest.fixture(scope="module")
def result() -> DryRun:
    batch = Batch(micro_batch_size=2, micro_batch_num=2, global_batch_size=8)
    train = TrainSpec(seq_length=64, batch=batch, precision=Precision(amp_level="O2", dtype="bfloat16"))
    return dry_run((MODEL, Layout(data_parallel=2, zero_stage=3), train), 0)


@pytest.fixture(scope="module")
def tape(result: DryRun) -> Tape:
    assert result.execution is not None
    return result.execution.tape


@pytest.fixture(scope="module")
def file(tape: Tape, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("snapshot") / "step.pickle"
    write_snapshot(tape, path)
    return path


@pytest.fixture
def data(file: Path) -> dict:
    return pickle.loads(file.read_bytes())


def test_the_trace_has_the_curve_of_the_step_and_its_peak(result: DryRun, tape: Tape, data: dict) -> None:
    live, seen = 0, []
    for event in data["device_traces"][0]:
        live += {"alloc": event["size"], "free_completed": -event["size"]}.get(event["action"], 0)
        seen.append(live)
    assert max(seen) == result.allocated
    assert seen[-1] == curve(tape)[-1]


def test_blocks_at_the_end_are_what_lives_then(result: DryRun, tape: Tape, data: dict) -> None:
    blocks = [block for segment in data["segments"] for block in segment["blocks"]]
    assert sum(block["requested_size"] for block in blocks if block["state"] == "active_allocated") == curve(tape)[-1]
    assert result.reserved is not None
    assert sum(segment["total_size"] for segment in data["segments"]) == result.reserved.native


def test_blocks_fill_their_segments_which_do_not_overlap(data: dict) -> None:
    for segment in data["segments"]:
        ends = [segment["address"], *(block["address"] + block["size"] for block in segment["blocks"])]
        assert [block["address"] for block in segment["blocks"]] == ends[:-1]
        assert ends[-1] == segment["address"] + segment["total_size"]
    for first, second in pairwise(data["segments"]):
        assert first["address"] + first["total_size"] < second["address"]


def test_storages_of_the_trace_lie_in_segments_and_never_overlap(data: dict) -> None:
    live: dict[int, int] = {}
    segments: list[range] = []
    for event in data["device_traces"][0]:
        start, end = event["addr"], event["addr"] + event["size"]
        if event["action"] == "segment_alloc":
            segments.append(range(start, end))
        elif event["action"] == "alloc":
            assert any(segment.start <= start and end <= segment.stop for segment in segments)
            assert all(at + size <= start or end <= at for at, size in live.items())
            live[start] = event["size"]
        elif event["action"] == "free_completed":
            assert live.pop(start) == event["size"]


def test_frames_say_where_the_peak_was_made(result: DryRun, data: dict) -> None:
    peak = result.memory.peak
    made = [e for e in data["device_traces"][0] if e["action"] == "alloc" and e["time_us"] == peak.event]
    frames = {frame["filename"]: frame["name"] for frame in made[-1]["frames"]}
    assert frames.pop("category") in CATEGORIES
    assert frames == {
        "operator": peak.moment.operator,
        "module": peak.moment.module,
        "micro-batch": str(peak.moment.micro_batch),
        "phase": peak.moment.phase,
    }


def test_the_viewer_opens_it(file: Path, data: dict) -> None:
    operations = {operation.name for operation, _, _ in pickletools.genops(file.read_bytes())}
    assert operations <= OPCODES
    # Of a trace with categories its page wants this one too.
    assert {event["category"] for event in data["device_traces"][0]} >= {"unknown", "weights", "saved activations"}
    for plot in (viewer.trace_plot, viewer.segment_plot):
        assert "snapshot.pickle" in plot(data)
    assert "# free completed for" in viewer.trace(data)
    assert "total_reserved" in viewer.segsum(data)
    for flames in (viewer.memory, viewer.segments):
        assert "category:0:weights;phase:0:build" in flames(data, format_flamegraph=str)
