"""supported(engine, layout): what the training engine does today, as a table, and refusals by name from it.

Rules of arithmetic live in `rules`; here is what has been built and proved against one process.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

from meshwright.spec.layout import Layout
from meshwright.spec.model import ModelSpec
from meshwright.spec.training import TrainSpec
from meshwright.spec.violation import Violation

Axis = Literal[
    "data and ZeRO", "tensor", "pipeline", "context", "expert", "precision", "recompute", "loss", "compile", "model"
]
DEVICES = ("cpu", "cuda", "npu")
PIPELINE_SCHEDULES = ("1f1b", "gpipe")


@dataclass(frozen=True, kw_only=True)
class Request:
    """A run as asked for."""

    model: ModelSpec
    layout: Layout
    train: TrainSpec
    device: str


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """How a combination that is not supported is recognised and answered.

    Attributes:
        key_path: the config key to change.
        asked: what was asked for, in words, when the request asks for this combination; else None.
        nearest: supported values, nearest first.
    """

    key_path: str
    asked: Callable[[Request], str | None]
    nearest: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the support matrix.

    Attributes:
        combination: what is combined, by config names.
        note: with what it combines, or why it is not supported.
        refusal: None where it is supported.
    """

    axis: Axis
    combination: str
    note: str
    refusal: Refusal | None = None

    @property
    def supported(self) -> bool:
        """Whether the engine does this."""
        return self.refusal is None


def unsupported(model: ModelSpec, layout: Layout, train: TrainSpec, *, device: str = "cpu") -> list[Violation]:
    """Every combination that this engine refuses, with the reason and the nearest supported one.

    ``train.precision.dtype`` may still be ``"auto"``; check again once it is a dtype.
    """
    request = Request(model=model, layout=layout, train=train, device=device)
    found = []
    for row in MATRIX:
        if row.refusal and (asked := row.refusal.asked(request)):
            message = f"{asked} is not supported: {row.note}"
            found.append(Violation(key_path=row.refusal.key_path, message=message, legal=row.refusal.nearest))
    return found


def support_markdown() -> str:
    """The matrix as Markdown: one table per axis."""
    sections = []
    for axis in get_args(Axis):
        lines = [f"## {axis[0].upper()}{axis[1:]}", "", "| combination | supported | notes |", "|---|---|---|"]
        for row in (row for row in MATRIX if row.axis == axis):
            nearest = f" Nearest: {', '.join(row.refusal.nearest)}." if row.refusal else ""
            lines.append(f"| {row.combination} | {'yes' if row.supported else 'no'} | {row.note}.{nearest} |")
        sections.append("\n".join(lines))
    return "\n\n".join(sections) + "\n"


def _degree(field: str) -> Callable[[Request], str | None]:
    def asked(request: Request) -> str | None:
        degree = getattr(request.layout, field)
        return f"{field} {degree}" if degree > 1 else None

    return asked


def _schedule(request: Request) -> str | None:
    schedule = request.layout.pipeline_schedule
    return None if schedule in PIPELINE_SCHEDULES else f"pipeline_schedule {schedule}"


def _o3_with_fp16(request: Request) -> str | None:
    precision = request.train.precision
    wanted = precision.amp_level == "O3" and precision.dtype == "float16"
    return "amp_level O3 with dtype float16" if wanted else None


def _sixteen_bits_in_fp32(request: Request) -> str | None:
    precision = request.train.precision
    wanted = precision.amp_level != "O0" and precision.dtype == "float32"
    return f"amp_level {precision.amp_level} with dtype float32" if wanted else None


def _shared_attention_masks(request: Request) -> str | None:
    layout, dropout = request.layout, request.model.attention_dropout
    shared = dropout > 0 and layout.model_parallel > 1 and not layout.use_seq_parallel
    return f"attention_dropout {dropout} with model_parallel {layout.model_parallel}" if shared else None


def _device(request: Request) -> str | None:
    return None if request.device in DEVICES else f"device {request.device}"


MATRIX: tuple[Row, ...] = (
    Row(
        axis="data and ZeRO",
        combination="data_parallel, any number",
        note="combines with everything below; the loss does not depend on it",
    ),
    Row(
        axis="data and ZeRO",
        combination="zero_stage 0, 1, 2, 3",
        note="with tensor and pipeline parallel, every schedule and precision below",
    ),
    Row(
        axis="data and ZeRO",
        combination="zero_stage 2, 3 with pipeline_stage > 1",
        note="gradients are reduced and scattered after each micro-batch, as without a pipeline",
    ),
    Row(
        axis="data and ZeRO",
        combination="zero_group_size",
        note="zero_stage 1 to 3; a divisor of data_parallel x context_parallel",
    ),
    Row(axis="data and ZeRO", combination="comm_fusion, any number", note="every ZeRO stage"),
    Row(
        axis="data and ZeRO",
        combination="mesh_order, all 24 orders",
        note="changes which ranks talk over which link, never a result",
    ),
    Row(
        axis="data and ZeRO",
        combination="devices other than cpu, cuda, npu",
        note="collectives are known for gloo, NCCL and HCCL only",
        refusal=Refusal(key_path="device", asked=_device, nearest=DEVICES),
    ),
    Row(
        axis="tensor",
        combination="model_parallel > 1",
        note="must divide heads, KV heads, intermediate size and padded vocabulary",
    ),
    Row(
        axis="tensor",
        combination="use_seq_parallel",
        note="the sequence must divide by model_parallel; no effect at model_parallel 1",
    ),
    Row(
        axis="pipeline",
        combination="pipeline_schedule gpipe, 1f1b",
        note="any number of stages up to the layers, at least one micro-batch per stage, uneven and hand-made cuts",
    ),
    Row(
        axis="pipeline",
        combination="tie_word_embeddings with pipeline_stage > 1",
        note="the last stage keeps a copy of the embedding; the gradients are summed before clipping",
    ),
    Row(
        axis="pipeline",
        combination="pipeline_schedule interleaved_1f1b, zero_bubble",
        note="one stage per rank is all that the pipeline cut makes so far",
        refusal=Refusal(key_path="parallel_config.pipeline_schedule", asked=_schedule, nearest=PIPELINE_SCHEDULES),
    ),
    Row(
        axis="context",
        combination="context_parallel > 1",
        note="attention across sequence parts is not built yet; to fit long sequences use model_parallel with"
        " use_seq_parallel, or recompute",
        refusal=Refusal(key_path="parallel_config.context_parallel", asked=_degree("context_parallel"), nearest=("1",)),
    ),
    Row(
        axis="expert",
        combination="expert_parallel > 1",
        note="the decoder has no experts yet",
        refusal=Refusal(key_path="parallel_config.expert_parallel", asked=_degree("expert_parallel"), nearest=("1",)),
    ),
    Row(axis="precision", combination="amp_level O0 (fp32)", note="every layout"),
    Row(
        axis="precision",
        combination="amp_level O1, O2 with bfloat16, float16",
        note="every layout; float16 with fixed or dynamic loss scale, overflow agreed by all ranks",
    ),
    Row(axis="precision", combination="amp_level O3 with bfloat16", note="every layout"),
    Row(
        axis="precision",
        combination="amp_level O3 with float16",
        note="second moments of AdamW are squares of gradients and underflow to 0 in float16 states",
        refusal=Refusal(
            key_path="amp_config.amp_level",
            asked=_o3_with_fp16,
            nearest=("O2 with float16", "O3 with bfloat16"),
        ),
    ),
    Row(
        axis="precision",
        combination="amp_level O1, O2, O3 with float32",
        note="these levels are about a 16-bit format; fp32 throughout is O0",
        refusal=Refusal(
            key_path="amp_config.dtype", asked=_sixteen_bits_in_fp32, nearest=("auto", "bfloat16", "float16")
        ),
    ),
    Row(
        axis="recompute",
        combination="recompute true, or a list of layers",
        note="every layout, schedule and precision; dropout masks are the same in both passes",
    ),
    Row(
        axis="recompute",
        combination="select_recompute elementwise, attention, matmul, communication",
        note="in the layers that are not recomputed whole; every layout",
    ),
    Row(
        axis="loss",
        combination="plain, vocabulary-parallel (model_parallel > 1)",
        note="sum over tokens / supervised tokens of the global batch, the same on every layout",
    ),
    Row(axis="loss", combination="loss_chunk_tokens", note="every layout; bounds the memory of the logits"),
    Row(
        axis="compile",
        combination="compile",
        note="each block by itself; every layout, ZeRO stage and recompute setting",
    ),
    Row(
        axis="model",
        combination="grouped-query attention, tied embeddings, QK-norm, biases, sliding window, RoPE scaling",
        note="every layout",
    ),
    Row(
        axis="model",
        combination="weights from pretrained_model_dir: Llama, Mistral, Qwen2, Qwen3 (dense)",
        note="every layout and precision; each rank reads only the parameters that it holds a part of",
    ),
    Row(
        axis="model",
        combination="dataset.isolate_documents",
        note="every layout, precision, recompute setting and kind of attention above, in training and evaluation",
    ),
    Row(
        axis="model",
        combination="attention_dropout, hidden_dropout",
        note="every layout; masks differ between layouts, so losses agree on the same layout only",
    ),
    Row(
        axis="model",
        combination="attention_dropout with model_parallel > 1 and no use_seq_parallel",
        note="ranks that share the residual stream draw the same masks, so different heads would get equal ones",
        refusal=Refusal(
            key_path="parallel_config.use_seq_parallel",
            asked=_shared_attention_masks,
            nearest=("true", "attention_dropout 0"),
        ),
    ),
)
"""What the engine does, axis by axis."""
