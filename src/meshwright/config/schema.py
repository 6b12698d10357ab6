"""Every key of a run's YAML file, with its type, default and meaning.

The reference page docs/configuration.md is generated from here (`meshwright.config.reference`).
"""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from meshwright.config.fields import (
    BelowOne,
    BigCount,
    Count,
    Natural,
    NonNegative,
    Positive,
    Seconds,
    Section,
    Share,
    Word,
    ZeroStage,
    entry,
)
from meshwright.config.schema_model import ModelConfig
from meshwright.spec.layout import DEFAULT_MESH_ORDER, MeshDim
from meshwright.spec.training import AmpLevel, ComputeDtype, RecomputeKind, ScheduleType


class ParallelConfig(Section):
    """How the run is split. data x model x pipeline x context is the number of devices."""

    data_parallel: Literal["auto"] | Count = entry(
        "auto", "Ways the batch is split; auto is devices / (model x pipeline x context)."
    )
    model_parallel: Count = entry(1, "Tensor-parallel degree: ways each matrix is split.")
    pipeline_stage: Count = entry(1, "Pipeline stages that the layers are cut into.")
    context_parallel: Count = entry(1, "Ways each sequence is split in attention.")
    expert_parallel: Count = entry(1, "Ways experts are spread, carved out of data x context.")
    micro_batch_num: Count | None = entry(
        None, "Micro-batches per optimizer step, with or without a pipeline; null derives it."
    )
    use_seq_parallel: bool = entry(
        False, "Shard norms and the residual stream along the sequence inside the tensor group."
    )
    zero_stage: ZeroStage = entry(
        0, "What data x context ranks shard: 1 optimizer states, 2 and gradients, 3 and weights."
    )
    zero_group_size: Count | None = entry(
        None, "Shard inside groups of this many ranks and replicate across them (HSDP); null is all ranks."
    )
    pipeline_schedule: Literal["gpipe", "1f1b", "interleaved_1f1b", "zero_bubble"] = entry(
        "1f1b", "Order of forward and backward micro-batches in a pipeline."
    )
    context_parallel_algo: Literal["ring", "ulysses", "allgather"] = entry(
        "ring", "How attention sees the other parts of a split sequence."
    )
    comm_fusion: Count = entry(1, "Transformer layers whose parameter and gradient messages travel as one.")
    mesh_order: tuple[MeshDim, ...] = entry(
        DEFAULT_MESH_ORDER, "Mesh dimensions from the outermost (slowest links) to the innermost."
    )
    stage_layers: tuple[Count, ...] | None = entry(
        None, "Layers of each pipeline stage by hand, such as [9, 11]; null cuts evenly."
    )
    shard: dict[str, str] = entry(
        {}, "Tensor sharding by hand: parameter pattern to columnwise or rowwise. Not supported yet."
    )


class TrainConfig(Section):
    """Batch, duration and the training step.

    Any two of micro_batch_size, parallel_config.micro_batch_num and global_batch_size give the third; with
    fewer, the missing ones are 1.
    """

    seq_length: Count = entry(2048, "Tokens in each training sequence.")
    micro_batch_size: Count | None = entry(None, "Sequences one data rank computes at a time; null derives it.")
    global_batch_size: Count | None = entry(
        None, "Sequences per optimizer step: micro_batch_size x data_parallel x micro_batch_num; null derives it."
    )
    train_steps: BigCount | None = entry(
        None, "Optimizer steps in all. At most one of train_steps, train_tokens, epochs; with none, 1000 steps."
    )
    train_tokens: BigCount | None = entry(None, "Tokens in all, counting global_batch_size x seq_length per step.")
    epochs: Positive | None = entry(None, "Passes over the training data.")
    loss_chunk_tokens: Count | None = entry(
        None, "Compute logits and loss in chunks of this many tokens per rank; null is all at once."
    )
    compile: bool = entry(False, "torch.compile each transformer block.")
    grad_clip: Positive | None = entry(1.0, "Largest global gradient norm; null leaves gradients alone.")
    eval_steps: Count | None = entry(
        None, "Evaluate on dataset.eval_paths every this many optimizer steps; null evaluates at the end only."
    )
    eval_batches: Count | None = entry(None, "Global batches in one evaluation; null is the whole held-out set.")


class RecomputeConfig(Section):
    """Activations computed again in the backward pass instead of kept."""

    recompute: bool | tuple[Natural, ...] = entry(
        False, "Recompute whole layers: all of them, none, or the listed layer numbers (from 0)."
    )
    select_recompute: tuple[RecomputeKind, ...] = entry(
        (), "Kinds of operators recomputed in layers that are not recomputed whole."
    )
    offload: bool = entry(False, "Keep activations in host memory instead. Not supported yet.")


class AmpConfig(Section):
    """Numeric formats."""

    amp_level: AmpLevel = entry(
        "O0",
        "O0 fp32; O1 autocast over fp32 weights; O2 16-bit compute with fp32 master weights; O3 16-bit throughout.",
    )
    dtype: Literal["auto"] | ComputeDtype = entry(
        "auto", "16-bit format of O1 to O3; auto is bfloat16 where the device has it, else float16."
    )
    loss_scale: Literal["dynamic"] | Positive | None = entry(
        "dynamic", "Loss scale of float16: dynamic, a fixed factor, or null for 1. Other formats need none."
    )


class OptimizerConfig(Section):
    """AdamW. Norm weights and biases are not decayed."""

    type: Literal["adamw"] = entry("adamw", "Optimizer.")
    learning_rate: Positive = entry(3e-4, "Peak learning rate.")
    betas: tuple[BelowOne, BelowOne] = entry((0.9, 0.95), "Decay rates of the first and second moment.")
    eps: Positive = entry(1e-8, "Added to the root of the second moment.")
    weight_decay: NonNegative = entry(0.1, "Decoupled weight decay.")


class LrScheduleConfig(Section):
    """Learning rate over the run."""

    type: ScheduleType = entry("cosine", "Shape after the warm-up; wsd is warm-up, stable, decay.")
    warmup_steps: Natural | None = entry(None, "Optimizer steps of linear warm-up.")
    warmup_ratio: Share | None = entry(None, "The same as a share of the run; give one of the two.")
    min_lr_ratio: Share = entry(0.1, "Final learning rate as a share of the peak.")
    decay_ratio: Share = entry(0.2, "wsd: share of the run spent on the final decay.")


class DataPath(Section):
    """One part of a blend."""

    path: Word = entry(..., "Prefix of an indexed dataset: PATH.bin and PATH.idx.")
    weight: Positive | None = entry(
        None, "Share of the samples read, relative to the other weights; null for all reads each corpus once an epoch."
    )


def _bare_path(value: Any) -> Any:
    return {"path": value} if isinstance(value, str) else value


DataEntry = Annotated[DataPath, BeforeValidator(_bare_path)]


class DatasetConfig(Section):
    """Training and held-out data. Paths are relative to the working directory."""

    paths: tuple[DataEntry, ...] = entry((), "Training data: prefixes of indexed datasets, plain or as {path, weight}.")
    eval_paths: tuple[DataEntry, ...] = entry((), "Held-out data, each read once, without weights.")
    isolate_documents: bool = entry(
        False, "Keep attention inside documents, start positions anew in each, and predict no document's first token."
    )
    align_documents: bool = entry(
        False, "Cut no document that fits into a sample; the rest of each sample is unsupervised padding."
    )
    tokenizer: Word | None = entry(
        None, "The tokenizer.json or sentencepiece model that made the data; used by generate and eval."
    )
    num_parallel_workers: Natural = entry(0, "Loader processes of each rank; 0 loads in the training process.")
    prefetch_size: Count = entry(2, "Batches that each loader process prepares ahead.")
    timeout_s: Seconds = entry(300.0, "Seconds that a step waits for data before the run fails and tells who hangs.")


class PetConfig(Section):
    """Parameter-efficient tuning; null trains every weight. Not supported yet."""

    pet_type: Literal["lora"] = entry("lora", "Method.")
    rank: Count = entry(16, "Rank of the update.")
    alpha: Positive = entry(32.0, "Scale of the update, divided by rank.")
    target_modules: tuple[Word, ...] = entry(("q_proj", "v_proj"), "Modules that get an update.")


class CheckpointConfig(Section):
    """When checkpoints are written under output_dir, and what a start picks up."""

    save_checkpoint_steps: Count = entry(1000, "Optimizer steps between checkpoints; the last step saves too.")
    keep_checkpoint_max: Count = entry(3, "Complete checkpoints kept; the oldest go first.")
    async_save: bool = entry(
        False, "Copy to host memory and write beside training, which stands still for the copy only."
    )
    resume: Word = entry(
        "auto",
        "auto: the newest complete checkpoint in output_dir, if any; never: start anew; or the path of a checkpoint.",
    )


class MonitorConfig(Section):
    """What is reported while the run goes on."""

    log_steps: Count = entry(10, "Optimizer steps between lines in the log.")
    tensorboard: bool = entry(True, "Write TensorBoard events under output_dir.")
    profile_steps: tuple[Count, Count] | None = entry(
        None, "First and last optimizer step traced by the profiler; null traces nothing."
    )
    track_memory: bool = entry(
        False, "On a CPU, follow every tensor and compare the peak with the plan; accelerators always do. Costs time."
    )
    memory_limit_gib: Positive | None = entry(
        None, "With track_memory: GiB of live tensors per rank above which the run is out of memory; null is no limit."
    )


class Config(Section):
    """One training run."""

    base_config: tuple[str, ...] | str | None = entry(
        None, "Config files to start from, relative to this one; later wins, this file wins over all."
    )
    seed: Natural = entry(1, "Seed of weights, sample order and dropout.")
    output_dir: Word = entry("output", "Directory of the run's logs and checkpoints.")
    run_mode: Literal["pretrain", "finetune"] = entry(
        "pretrain", "What kind of training this is; finetune insists on weights in model.pretrained_model_dir."
    )
    model: ModelConfig = Field(default_factory=ModelConfig)
    parallel_config: ParallelConfig = Field(default_factory=ParallelConfig)
    train: TrainConfig = Field(default_factory=TrainConfig)
    recompute_config: RecomputeConfig = Field(default_factory=RecomputeConfig)
    amp_config: AmpConfig = Field(default_factory=AmpConfig)
    optimizer: OptimizerConfig = Field(default_factory=OptimizerConfig)
    lr_schedule: LrScheduleConfig = Field(default_factory=LrScheduleConfig)
    dataset: DatasetConfig = Field(default_factory=DatasetConfig)
    pet_config: PetConfig | None = entry(None, "Parameter-efficient tuning; null trains every weight.")
    checkpoint: CheckpointConfig = Field(default_factory=CheckpointConfig)
    monitor: MonitorConfig = Field(default_factory=MonitorConfig)
