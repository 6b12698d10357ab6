"""TrainSpec: batch, duration, precision, recomputation, optimizer and schedule of a run."""

from dataclasses import dataclass, field
from typing import Literal

AmpLevel = Literal["O0", "O1", "O2", "O3"]
ComputeDtype = Literal["float32", "bfloat16", "float16"]
RecomputeKind = Literal["elementwise", "attention", "matmul", "communication"]
ScheduleType = Literal["constant", "linear", "cosine", "wsd"]


@dataclass(frozen=True, kw_only=True)
class Batch:
    """``global_batch_size = micro_batch_size * data_parallel * micro_batch_num``, all in sequences."""

    micro_batch_size: int
    micro_batch_num: int
    global_batch_size: int


@dataclass(frozen=True, kw_only=True)
class Duration:
    """How long the run is: exactly one field is set. Tokens count global_batch_size x seq_length per step."""

    train_steps: int | None = None
    train_tokens: int | None = None
    epochs: float | None = None


@dataclass(frozen=True, kw_only=True)
class Recompute:
    """Which activations are computed again in backward instead of kept.

    Attributes:
        layers: ``"none"``, ``"all"`` or the layer numbers that are recomputed whole.
        select: kinds of operators recomputed in the layers that are not recomputed whole; all other results
            are kept.
    """

    layers: Literal["none", "all"] | tuple[int, ...] = "none"
    select: tuple[RecomputeKind, ...] = ()

    def whole(self, layer: int) -> bool:
        """Whether a layer keeps nothing but its input."""
        return self.layers == "all" or (isinstance(self.layers, tuple) and layer in self.layers)


@dataclass(frozen=True, kw_only=True)
class Precision:
    """Numeric formats of a run.

    Attributes:
        amp_level: O0 fp32; O1 autocast over fp32 weights; O2 16-bit compute with fp32 master weights and
            reductions; O3 16-bit weights and optimizer states, no master.
        dtype: 16-bit format of O1 to O3; ``"auto"`` is bf16 where the device has it, else fp16.
        loss_scale: ``"dynamic"``, a fixed factor, or None for 1. Only fp16 needs one.
    """

    amp_level: AmpLevel = "O0"
    dtype: ComputeDtype | Literal["auto"] = "auto"
    loss_scale: Literal["dynamic"] | float | None = "dynamic"


@dataclass(frozen=True, kw_only=True)
class OptimizerSpec:
    """AdamW (arXiv:1711.05101). Norm weights and biases are not decayed."""

    type: Literal["adamw"] = "adamw"
    learning_rate: float = 3e-4
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.1


@dataclass(frozen=True, kw_only=True)
class ScheduleSpec:
    """Learning rate over steps.

    Attributes:
        warmup_steps / warmup_ratio: length of the linear warm-up, in steps or as a share of the run; at most
            one is set.
        min_lr_ratio: final learning rate as a share of the peak.
        decay_ratio: share of the run that ``wsd`` spends on its final decay.
    """

    type: ScheduleType = "cosine"
    warmup_steps: int | None = None
    warmup_ratio: float | None = None
    min_lr_ratio: float = 0.1
    decay_ratio: float = 0.2


@dataclass(frozen=True, kw_only=True)
class TrainSpec:
    """Everything about the training step that is neither model nor layout.

    Attributes:
        loss_chunk_tokens: compute logits and loss in chunks of this many tokens per rank; None is all at once.
        grad_clip: largest global gradient norm; None leaves gradients alone.
        isolate_documents: attention stays inside the documents of a sample.
    """

    seq_length: int
    batch: Batch
    duration: Duration = field(default_factory=lambda: Duration(train_steps=1000))
    seed: int = 1
    loss_chunk_tokens: int | None = None
    grad_clip: float | None = 1.0
    compile: bool = False
    isolate_documents: bool = False
    recompute: Recompute = field(default_factory=Recompute)
    precision: Precision = field(default_factory=Precision)
    optimizer: OptimizerSpec = field(default_factory=OptimizerSpec)
    schedule: ScheduleSpec = field(default_factory=ScheduleSpec)

    @property
    def tokens_per_step(self) -> int:
        """Tokens that one optimizer step reads: global_batch_size x seq_length."""
        return self.batch.global_batch_size * self.seq_length
