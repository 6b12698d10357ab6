"""The parity table: which runs are held against one process, and how close they must be.

python benchmarks/parity_table.py      # runs every row and writes docs/parity.md
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import product

from meshwright.spec.layout import DEFAULT_MESH_ORDER, Layout, MeshDim
from meshwright.spec.model import ModelSpec
from meshwright.spec.training import AmpLevel, ComputeDtype, Precision, Recompute, TrainSpec
from pairwise import Row, cover
from parity import TINY, Trace, cosine, errors, layout_run, plain_run, train_spec
from ranks import run_ranks

STEPS = 20

LAYOUTS: dict[str, dict[str, int]] = {
    "one": {},
    "dp2": {"data_parallel": 2},
    "dp4": {"data_parallel": 4},
    "tp2": {"model_parallel": 2},
    "tp4": {"model_parallel": 4},
    "pp2": {"pipeline_stage": 2},
    "pp4": {"pipeline_stage": 4},
    "dp2tp2": {"data_parallel": 2, "model_parallel": 2},
    "dp2pp2": {"data_parallel": 2, "pipeline_stage": 2},
    "tp2pp2": {"model_parallel": 2, "pipeline_stage": 2},
    "dp2tp2pp2": {"data_parallel": 2, "model_parallel": 2, "pipeline_stage": 2},
}
RECOMPUTE = {
    "keep": Recompute(),
    "all": Recompute(layers="all"),
    "layers_0_3": Recompute(layers=(0, 3)),
    "elementwise_attention": Recompute(select=("elementwise", "attention")),
    "matmul_communication": Recompute(select=("matmul", "communication")),
}
MODELS: dict[str, ModelSpec] = {
    "untied": TINY,
    "tied": replace(TINY, tie_word_embeddings=True),
    # 8 query heads over 4 KV heads: a mix-up of num_kv_heads and heads per KV head shows.
    "gqa": replace(TINY, num_kv_heads=4),
    "qk_norm_biases_window": replace(
        TINY,
        num_kv_heads=4,
        qk_norm=True,
        attention_bias=True,
        attention_output_bias=True,
        mlp_bias=True,
        sliding_window=8,
        sliding_window_layers=(1,),
    ),
}
ORDERS: dict[str, tuple[MeshDim, ...]] = {
    "data_outside": DEFAULT_MESH_ORDER,
    "model_outside": ("model", "pipeline", "context", "data"),
}
FORMATS: dict[str, tuple[AmpLevel, ComputeDtype]] = {
    "bf16_O1": ("O1", "bfloat16"),
    "bf16_O2": ("O2", "bfloat16"),
    "bf16_O3": ("O3", "bfloat16"),
    "fp16_O1": ("O1", "float16"),
    "fp16_O2": ("O2", "float16"),
}
SIXTEEN_BIT_LAYOUTS = ("pp2", "dp2tp2", "dp2pp2", "tp2pp2")

_SHARED = {
    "zero": ("zero0", "zero1", "zero2", "zero3"),
    "schedule": ("no_pipeline", "gpipe", "1f1b"),
    "sequence": ("whole", "split"),
    "model": tuple(MODELS),
    "fusion": ("fuse1", "fuse2"),
    "shards": ("over_all", "in_groups"),
    "loss": ("plain", "chunked"),
    "documents": ("joined", "isolated"),
}
FP32_FACTORS = {
    "layout": tuple(LAYOUTS),
    "recompute": tuple(RECOMPUTE),
    "order": tuple(ORDERS),
    **_SHARED,
}
SIXTEEN_BIT_FACTORS = {
    "format": tuple(FORMATS),
    "layout": SIXTEEN_BIT_LAYOUTS,
    "recompute": ("keep", "all", "elementwise_attention", "matmul_communication"),
    **_SHARED,
    "model": ("untied", "tied", "qk_norm_biases_window"),
}

FP32_LIMITS = {"loss_0": 1e-5, "loss": 1e-4, "norm": 1e-5, "gradient": 1e-6, "weight": 1e-5}
SIXTEEN_BIT_LIMITS = {"loss": 5e-3, "angle": 1e-3}
"""Largest error allowed: see `parity.errors`; ``angle`` is 1 - cosine of the first gradients."""


def meaningful(row: Mapping[str, str]) -> bool:
    """Whether the filled values of a row say something: no schedule without a pipeline, and the like."""
    ways = LAYOUTS[row["layout"]] if "layout" in row else None
    if ways is not None:
        if "schedule" in row and ("pipeline_stage" in ways) == (row["schedule"] == "no_pipeline"):
            return False
        if row.get("sequence") == "split" and "model_parallel" not in ways:
            return False
        if row.get("shards") == "in_groups" and "data_parallel" not in ways:
            return False
    return not (row.get("shards") == "in_groups" and row.get("zero") == "zero0")


def sixteen_bit_cells() -> list[Row]:
    """Precision x ZeRO x pipeline, where pairs are not enough: casts, masters and reductions all meet there."""
    cells = product(FORMATS, ("dp2tp2", "dp2pp2"), _SHARED["zero"])
    return [{"format": name, "layout": layout, "zero": zero} for name, layout, zero in cells]


@cache
def fp32_rows() -> tuple[Row, ...]:
    """Rows compared with a plain fp32 loop."""
    return tuple(cover(FP32_FACTORS, meaningful))


@cache
def sixteen_bit_rows() -> tuple[Row, ...]:
    """Rows compared with one process at the same precision level."""
    return tuple(cover(SIXTEEN_BIT_FACTORS, meaningful, seeds=sixteen_bit_cells()))


def name_of(row: Row) -> str:
    """The row in one word, leaving out what is the default."""
    usual = {"keep", "data_outside", "no_pipeline", "whole", "fuse1", "over_all", "plain", "joined"}
    return "-".join(value for value in row.values() if value not in usual)


def layout_of(row: Row) -> Layout:
    """The layout that a row describes."""
    ways = LAYOUTS[row["layout"]]
    schedule = row["schedule"]
    return Layout(
        **ways,
        zero_stage=int(row["zero"][-1]),
        zero_group_size=ways["data_parallel"] // 2 if row["shards"] == "in_groups" else None,
        pipeline_schedule=schedule if schedule in ("gpipe", "1f1b") else "1f1b",  # type: ignore[arg-type]
        use_seq_parallel=row["sequence"] == "split",
        comm_fusion=int(row["fusion"][-1]),
        mesh_order=ORDERS[row.get("order", "data_outside")],
    )


def model_of(row: Row) -> ModelSpec:
    """The model that a row describes; in 16 bits two layers are enough for every layout there."""
    model = MODELS[row["model"]]
    return replace(model, num_layers=2) if "format" in row else model


def precision_of(row: Row) -> Precision:
    """The numeric formats that a row describes."""
    if "format" not in row:
        return Precision()
    level, dtype = FORMATS[row["format"]]
    return Precision(amp_level=level, dtype=dtype)


def train_of(row: Row, layout: Layout) -> TrainSpec:
    """The training step that a row describes."""
    return train_spec(
        layout,
        # More micro-batches than stages, so that 1f1b has a steady state; two are enough to accumulate.
        micro_batch_num=4 if layout.pipeline_stage > 1 and "format" not in row else 2,
        precision=precision_of(row),
        recompute=RECOMPUTE[row["recompute"]],
        loss_chunk_tokens=12 if row["loss"] == "chunked" else None,
        isolate_documents=row["documents"] == "isolated",
    )


def short_train_of(row: Row, layout: Layout) -> TrainSpec:
    """That step with no more micro-batches than accumulate gradients and fill the pipeline."""
    batch = train_spec(layout, micro_batch_num=max(2, layout.pipeline_stage)).batch
    return replace(train_of(row, layout), batch=batch)


@cache
def reference(spec: ModelSpec, precision: Precision, isolated: bool) -> Trace:
    """One process: a plain loop in fp32, over documents one by one where isolated; our own step in 16 bits."""
    train = train_spec(Layout(), micro_batch_num=2, precision=precision, isolate_documents=isolated)
    if precision.amp_level == "O0":
        return run_ranks(plain_run, 1, spec, steps=STEPS, train=train)[0]
    return run_ranks(layout_run, 1, spec, Layout(), train, STEPS)[0]


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a row came to: its largest errors, skipped steps of it and of the reference, and how long it took."""

    row: Row
    errors: dict[str, float]
    skipped: tuple[float, float]
    seconds: float


@dataclass
class Results:
    """Results of this session, for the table at its end."""

    rows: list[Result] = field(default_factory=list)


RESULTS = Results()


def run_row(row: Row) -> Result:
    """Run one row on its ranks and compare."""
    expected = reference(model_of(row), precision_of(row), row["documents"] == "isolated")
    layout = layout_of(row)
    start = time.monotonic()
    traces = run_ranks(layout_run, layout.world_size, model_of(row), layout, train_of(row, layout), STEPS)
    found = errors(traces, expected)
    if "format" in row:
        found["angle"] = 1 - cosine(traces, expected)
    skipped = (sum(traces[0].skipped), sum(expected.skipped))
    result = Result(row=row, errors=found, skipped=skipped, seconds=time.monotonic() - start)
    RESULTS.rows.append(result)
    return result


def summary_lines(results: Sequence[Result]) -> list[str]:
    """The largest errors as a Markdown table: one line for each row."""
    columns = ("loss_0", "loss", "norm", "gradient", "weight", "angle")
    lines = [f"| row | {' | '.join(columns)} | s |", f"|---|{'---|' * (len(columns) + 1)}"]
    for result in results:
        cells = [f"{result.errors[c]:.1e}" if c in result.errors else "" for c in columns]
        lines.append(f"| {name_of(result.row)} | {' | '.join(cells)} | {result.seconds:.1f} |")
    for kind, group in (
        ("fp32", [r for r in results if "format" not in r.row]),
        *((f, [r for r in results if r.row.get("format") == f]) for f in FORMATS),
    ):
        if group:
            worst = [f"{max(r.errors[c] for r in group):.1e}" if c in group[0].errors else "" for c in columns]
            lines.append(f"| **largest, {kind}, {len(group)} rows** | {' | '.join(worst)} | |")
    return lines
