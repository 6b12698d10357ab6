"""Training steps whose traced memory is held against the planner.

PYTHONPATH=tests:tests/distributed python tests/distributed/memory_rows.py      # every row, with its error
"""

from dataclasses import dataclass, field, replace
from typing import Any

from memory_trace import StepMemory, step_memory
from meshwright.plan.engines import engine
from meshwright.plan.job import Job
from meshwright.plan.memory import predict_memory
from meshwright.plan.network import Network
from meshwright.spec.cluster import Cluster, Device, Link
from meshwright.spec.layout import Layout
from meshwright.spec.model import ModelSpec
from meshwright.spec.training import Batch, Precision, Recompute, TrainSpec
from ranks import run_ranks

MIB = 2**20
BALANCED = ModelSpec(
    num_layers=4,
    hidden_size=256,
    num_heads=8,
    num_kv_heads=4,
    head_dim=32,
    intermediate_size=704,
    vocab_size=4096,
)
"""Logits, activations and weights of one size."""
DEEP = replace(BALANCED, num_layers=6, vocab_size=512)
"""Activations of the blocks dominate."""
WIDE = replace(BALANCED, hidden_size=512, num_kv_heads=8, head_dim=64, intermediate_size=1408)
"""Weights dominate, with one short sequence."""
TIED = replace(BALANCED, tie_word_embeddings=True)
O1, O2, O3 = (Precision(amp_level=level, dtype="bfloat16") for level in ("O1", "O2", "O3"))


@dataclass(frozen=True)
class MemoryRow:
    """One layout and batch. ``changes`` are fields of TrainSpec."""

    name: str
    layout: Layout
    spec: ModelSpec = BALANCED
    micro_batch_size: int = 2
    micro_batch_num: int = 1
    seq_length: int = 256
    changes: dict[str, Any] = field(default_factory=dict)

    @property
    def train(self) -> TrainSpec:
        """The step."""
        sequences = self.micro_batch_size * self.micro_batch_num * self.layout.data_parallel
        batch = Batch(
            micro_batch_size=self.micro_batch_size,
            micro_batch_num=self.micro_batch_num,
            global_batch_size=sequences,
        )
        return TrainSpec(seq_length=self.seq_length, batch=batch, **self.changes)

    @property
    def job(self) -> Job:
        """The same for the planner."""
        train = self.train
        host = Device(
            name="host", title="host", family="cpu", memory_bytes=2**34, bandwidth=1e10, flops={"float32": 1e11}
        )
        link = Link(name="memory", bandwidth=1e9, latency=1e-5)
        world = self.layout.world_size
        return Job(
            network=Network.from_spec(self.spec),
            layout=self.layout,
            engine=engine("meshwright"),
            cluster=Cluster(device=host, num_devices=world, devices_per_node=world, intra=link, inter=link),
            seq_length=self.seq_length,
            batch=train.batch,
            recompute=train.recompute,
            precision=train.precision,
            loss_chunk_tokens=train.loss_chunk_tokens,
            isolate_documents=train.isolate_documents,
        )


def row(name: str, spec: ModelSpec = BALANCED, **given: Any) -> MemoryRow:
    """A row; fields of the layout and of the step are told apart by name."""
    layout = {key: given.pop(key) for key in list(given) if key in Layout.__dataclass_fields__}
    short = {"micro_batch_size", "micro_batch_num", "seq_length"} & set(given)
    batch = {key: given.pop(key) for key in short}
    if spec is WIDE:
        batch = {"micro_batch_size": 1, "seq_length": 128} | batch
    return MemoryRow(name, Layout(**layout), spec, changes=given, **batch)


ALL, SELECTED = Recompute(layers="all"), Recompute(select=("elementwise", "attention"))
COMMUNICATION = Recompute(select=("communication", "elementwise"))

ROWS: tuple[MemoryRow, ...] = (
    row("one rank"),
    row("one rank, 3 micro-batches", micro_batch_num=3),
    row("one rank, O2", precision=O2),
    row("one rank, O1", precision=O1),
    row("one rank, weights dominate", WIDE),
    row("one rank, recompute all", DEEP, recompute=ALL),
    row("one rank, recompute layers 0-2", DEEP, recompute=Recompute(layers=(0, 1, 2))),
    row("one rank, recompute elementwise and attention", DEEP, recompute=SELECTED),
    row("one rank, recompute matmul", DEEP, recompute=Recompute(select=("matmul",))),
    row("one rank, chunked loss", loss_chunk_tokens=128),
    row("one rank, tied", TIED),
    row("one rank, QK norm", replace(DEEP, qk_norm=True)),
    row("dp2 zero0", data_parallel=2),
    row("dp2 zero0, 2 micro-batches", data_parallel=2, micro_batch_num=2),
    row("dp2 zero0 O2, weights dominate", WIDE, data_parallel=2, precision=O2),
    row("dp2 zero1, weights dominate", WIDE, data_parallel=2, zero_stage=1),
    row("dp2 zero1 O2, recompute all, 2 micro-batches", DEEP, data_parallel=2, zero_stage=1, micro_batch_num=2,
        precision=O2, recompute=ALL),
    row("dp2 zero2 O2, 2 micro-batches", data_parallel=2, zero_stage=2, micro_batch_num=2, precision=O2),
    row("dp2 zero2 O3", DEEP, data_parallel=2, zero_stage=2, precision=O3),
    row("dp4 zero2 O2, weights dominate, 2 micro-batches", WIDE, data_parallel=4, zero_stage=2, micro_batch_num=2,
        precision=O2),
    row("dp2 zero3", data_parallel=2, zero_stage=3),
    row("dp2 zero3 O2, recompute elementwise and attention", DEEP, data_parallel=2, zero_stage=3, precision=O2,
        recompute=SELECTED),
    row("dp4 zero3 comm_fusion 2, weights dominate", WIDE, data_parallel=4, zero_stage=3, comm_fusion=2),
    row("dp4 zero3 in groups of 2, O2", DEEP, data_parallel=4, zero_stage=3, zero_group_size=2, micro_batch_num=2,
        precision=O2),
    row("tp2", model_parallel=2),
    row("tp2 sequence parallel", model_parallel=2, use_seq_parallel=True),
    row("tp2 sequence parallel O2, chunked loss", model_parallel=2, use_seq_parallel=True, precision=O2,
        loss_chunk_tokens=128),
    row("dp2 tp2 zero3 O2, recompute communication and elementwise", DEEP, data_parallel=2, model_parallel=2,
        use_seq_parallel=True, zero_stage=3, precision=O2, recompute=COMMUNICATION),
    row("pp2 1f1b, 8 micro-batches", DEEP, pipeline_stage=2, micro_batch_size=1, micro_batch_num=8),
    row("pp2 gpipe, 4 micro-batches", DEEP, pipeline_stage=2, pipeline_schedule="gpipe", micro_batch_size=1,
        micro_batch_num=4),
    row("pp4 1f1b, 4 micro-batches", pipeline_stage=4, micro_batch_num=4),
    row("dp2 pp2 zero1 O2", DEEP, data_parallel=2, pipeline_stage=2, zero_stage=1, micro_batch_size=1,
        micro_batch_num=4, precision=O2),
    row("dp2 pp2 zero3 O2, weights dominate", WIDE, data_parallel=2, pipeline_stage=2, zero_stage=3,
        micro_batch_num=4, precision=O2),
    row("tp2 pp2 O2", model_parallel=2, pipeline_stage=2, use_seq_parallel=True, micro_batch_num=4, precision=O2),
    row("pp2 gpipe O1, weights dominate", WIDE, pipeline_stage=2, pipeline_schedule="gpipe", micro_batch_num=4,
        precision=O1),
    row("pp2 1f1b O1, weights dominate", WIDE, pipeline_stage=2, micro_batch_num=4, precision=O1),
    # Written after the model was done.
    row("one rank, dropout", replace(DEEP, hidden_dropout=0.1)),
    row("one rank, biases", replace(DEEP, attention_bias=True, attention_output_bias=True, mlp_bias=True)),
    row("one rank, window of 64", replace(DEEP, sliding_window=64)),
    row("one rank, 32000 words", replace(BALANCED, vocab_size=32000)),
    row("one rank, 1024 tokens", seq_length=1024, micro_batch_size=1),
    row("tp4, weights dominate", WIDE, model_parallel=4),
    row("dp2 pp2 gpipe zero3 comm_fusion 2", DEEP, data_parallel=2, pipeline_stage=2, zero_stage=3, comm_fusion=2,
        pipeline_schedule="gpipe", micro_batch_num=3, precision=O2),
    row("one rank, documents apart, 1024 tokens", seq_length=1024, micro_batch_size=1, isolate_documents=True),
    row("one rank, documents apart O2, recompute all, window of 64", replace(DEEP, sliding_window=64), precision=O2,
        seq_length=512, recompute=ALL, isolate_documents=True),
    row("tp2 sequence parallel O1, documents apart", model_parallel=2, use_seq_parallel=True, precision=O1,
        seq_length=512, isolate_documents=True),
    row("pp2 gpipe, 4 micro-batches, documents apart, windows", replace(DEEP, sliding_window=64,
        sliding_window_layers=(0, 4)), pipeline_stage=2, pipeline_schedule="gpipe", micro_batch_size=1,
        micro_batch_num=4, seq_length=512, isolate_documents=True),
    row("dp2 zero2 comm_fusion 4", DEEP, data_parallel=2, zero_stage=2, comm_fusion=4, micro_batch_num=2,
        grad_clip=None),
)  # fmt: skip


@dataclass(frozen=True)
class StageError:
    """A stage of a row: MiB measured and predicted, and the moment of the predicted peak."""

    stage: int
    measured: float
    predicted: float
    moment: str

    @property
    def error(self) -> float:
        """(predicted - measured) / measured, per cent."""
        return 100 * (self.predicted / self.measured - 1)


def stage_errors(one: MemoryRow) -> list[StageError]:
    """Run a row on real ranks and predict it."""
    layout = one.layout
    ranks: list[StepMemory] = run_ranks(step_memory, layout.world_size, one.spec, layout, one.train)
    found = []
    # Ranks of a stage allocate alike; where a thread of gloo drops a message last, unseen, a rank looks larger.
    for stage in predict_memory(one.job).stages:
        peaks = [memory.peak for rank, memory in enumerate(ranks) if layout.coordinates(rank).pipeline == stage.stage]
        found.append(StageError(stage.stage, min(peaks) / MIB, stage.allocated / MIB, stage.peak.name))
    return found


def main() -> None:
    """Print every row."""
    errors = []
    for one in ROWS:
        for stage in stage_errors(one):
            errors.append(abs(stage.error))
            print(
                f"{one.name:62s} stage {stage.stage}  measured {stage.measured:8.2f} MiB"
                f"  predicted {stage.predicted:8.2f}  {stage.error:+6.2f} %  {stage.moment}",
                flush=True,
            )
    print(f"{len(errors)} stages: mean {sum(errors) / len(errors):.2f} %, largest {max(errors):.2f} %")


if __name__ == "__main__":
    main()
