"""The planner's messages per step are those that the real step sends: as many, with as many bytes."""

from collections import Counter
from dataclasses import replace

import pytest

from meshwright.plan.engines import engine
from meshwright.plan.job import Job
from meshwright.plan.network import Network
from meshwright.plan.time import predict_time
from meshwright.plan.time.collectives import sent_bytes
from meshwright.spec.catalogue import device_cluster
from meshwright.spec.layout import Layout
from meshwright.spec.training import Precision, Recompute, TrainSpec
from parity import SEQ_LENGTH, TINY, train_spec
from ranks import run_ranks
from sent_messages import Message, sent_messages

BF16 = Precision(amp_level="O2", dtype="bfloat16")
ALL = Recompute(layers="all")
MESSAGES_AGAIN = Recompute(select=("communication",))

ROWS = [
    (Layout(model_parallel=2), {}),
    (Layout(model_parallel=2, use_seq_parallel=True), {}),
    (Layout(model_parallel=2), {"recompute": ALL}),
    (Layout(model_parallel=2, use_seq_parallel=True), {"recompute": ALL}),
    (Layout(model_parallel=2, use_seq_parallel=True), {"recompute": MESSAGES_AGAIN}),
    (Layout(data_parallel=2), {}),
    (Layout(data_parallel=2, zero_stage=1), {}),
    (Layout(data_parallel=2, zero_stage=2), {}),
    (Layout(data_parallel=2, zero_stage=3), {}),
    (Layout(data_parallel=2, zero_stage=3, comm_fusion=3), {}),
    (Layout(data_parallel=2, zero_stage=1), {"precision": Precision(amp_level="O0")}),
    (Layout(data_parallel=2, zero_stage=1), {"precision": Precision(amp_level="O3", dtype="bfloat16")}),
    (Layout(data_parallel=4, zero_stage=3, zero_group_size=2), {}),
    (Layout(pipeline_stage=2), {}),
    (Layout(pipeline_stage=2, data_parallel=2, zero_stage=1), {}),
    (Layout(pipeline_stage=2, model_parallel=2, use_seq_parallel=True), {}),
    (Layout(data_parallel=2, model_parallel=2, use_seq_parallel=True, zero_stage=3), {}),
]


def planned(layout: Layout, train: TrainSpec) -> dict[str, tuple[int, float]]:
    """(messages, bytes) by axis, as the planner has them for the busiest rank."""
    job = Job(
        network=Network.from_spec(TINY),
        layout=layout,
        engine=engine("meshwright"),
        cluster=device_cluster("cpu", layout.world_size),
        seq_length=SEQ_LENGTH,
        batch=train.batch,
        recompute=train.recompute,
        precision=train.precision,
    )
    totals: dict[str, tuple[int, float]] = {}
    for row in predict_time(job).traffic:
        messages, size = totals.get(row.axis, (0, 0.0))
        totals[row.axis] = (messages + row.messages, size + row.bytes)
    return totals


def real(layout: Layout, train: TrainSpec) -> dict[str, tuple[int, float]]:
    """The same of a real step."""
    ranks = run_ranks(sent_messages, layout.world_size, TINY, layout, train)
    totals = [_totals(messages, layout, train) for messages in ranks]
    return {axis: max(total[axis] for total in totals if axis in total) for axis in set().union(*totals)}


def _totals(messages: Counter[Message], layout: Layout, train: TrainSpec) -> dict[str, tuple[int, float]]:
    activation = 2 * train.batch.micro_batch_size * SEQ_LENGTH * TINY.hidden_size
    found: dict[str, tuple[int, float]] = {}
    for message, times in messages.items():
        # Numbers per token and single numbers (loss, norms, token counts) are not counted by the planner.
        small = message.size != activation if message.axis == "tensor" else message.size <= 8
        if message.axis in ("self", "world") or small:
            continue
        group = {"tensor": layout.model_parallel, "data": layout.zero_shards, "pipeline": 2}[message.axis]
        if message.axis == "data" and message.collective == "all_reduce":
            group = layout.zero_ranks // layout.zero_shards
        count, size = found.get(message.axis, (0, 0.0))
        found[message.axis] = (count + times, size + times * sent_bytes(message.collective, message.size, group))
    return found


@pytest.mark.parametrize(
    ("layout", "changes"),
    ROWS,
    ids=lambda value: f"{value.short()}-fusion{value.comm_fusion}" if isinstance(value, Layout) else "-".join(value),
)
def test_messages_and_bytes_of_a_step(layout, changes):
    train = train_spec(layout, **{"precision": BF16, **changes})
    sent, expected = real(layout, train), planned(layout, train)
    assert set(sent) == set(expected)
    for axis, (messages, size) in sent.items():
        assert expected[axis][0] == messages, axis
        # The planner leaves out the final norm: 64 of 172544 parameters.
        assert expected[axis][1] == pytest.approx(size, rel=1e-3), axis


def test_fusing_layers_sends_fewer_and_larger_messages():
    layout = Layout(data_parallel=2, zero_stage=3)
    one, four = (planned(fused, train_spec(fused))["data"] for fused in (layout, replace(layout, comm_fusion=4)))
    assert four[0] < one[0]
    assert four[1] == pytest.approx(one[1])
