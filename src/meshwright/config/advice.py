"""Advice on a legal config: what will work but probably not as well as it could, each with its reason."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from os.path import normpath

from meshwright.config.run import Run
from meshwright.config.schema import Config, DatasetConfig
from meshwright.spec.schedule import planned_steps, warmup_steps

GIB = 2**30
# Devices that share the fast links of one machine on the usual servers.
MACHINE = 8


@dataclass(frozen=True)
class Advice:
    """One hint; nothing is refused or changed."""

    key: str
    message: str

    def __str__(self) -> str:
        return f"{self.key}: {self.message}"


def advise(run: Run, asked: Config, *, cores: int | None = None) -> list[Advice]:
    """Every hint for a run.

    Args:
        run: the resolved run.
        asked: the config as written, before anything was derived.
        cores: processor cores of the machine that loads data; None where unknown.
    """
    return [*_pipeline(run), *_layout(run), *_batch(run, asked), *_steps(run), *_memory(run), *_data(run, cores)]


def _pipeline(run: Run) -> Iterator[Advice]:
    stages, num = run.layout.pipeline_stage, run.train.batch.micro_batch_num
    if stages > 1 and num < 2 * stages:
        idle = (stages - 1) / (num + stages - 1)
        yield Advice(
            "parallel_config.micro_batch_num",
            f"{num} micro-batches leave {stages} stages idle {idle:.0%} of the time; 2-4 x the stages"
            f" ({2 * stages}-{4 * stages}) brings it to {(stages - 1) / (3 * stages - 1):.0%} or less",
        )
    if stages > 1 and run.layout.stage_layers is None and run.model.num_layers % stages:
        yield Advice(
            "parallel_config.pipeline_stage",
            f"{run.model.num_layers} layers over {stages} stages are uneven: the fuller stages set the pace",
        )
    if stages > 1 and run.layout.zero_stage == 3:
        yield Advice(
            "parallel_config.zero_stage",
            "zero_stage 3 under a pipeline gathers every weight again for each micro-batch; 1 or 2 talks less",
        )


def _layout(run: Run) -> Iterator[Advice]:
    layout = run.layout
    if layout.model_parallel > MACHINE:
        yield Advice(
            "parallel_config.model_parallel",
            f"{layout.model_parallel} ranks exchange activations in every layer and rarely share one machine;"
            f" {MACHINE} or fewer with pipeline_stage keeps that traffic on fast links",
        )
    if layout.model_parallel > 1 and not layout.use_seq_parallel:
        yield Advice(
            "parallel_config.use_seq_parallel",
            "false keeps norms and the residual stream whole on every model rank; true shards them for the same"
            " traffic",
        )
    if layout.model_parallel > 1 and layout.mesh_order[-1] != "model":
        yield Advice(
            "parallel_config.mesh_order",
            "model is not the innermost dimension, so tensor-parallel messages take the slower links",
        )
    if layout.zero_ranks > 1 and layout.zero_stage == 0:
        yield Advice(
            "parallel_config.zero_stage",
            f"0 keeps the whole optimizer state on each of {layout.zero_ranks} ranks; 1 shards it for the same traffic",
        )


def _batch(run: Run, asked: Config) -> Iterator[Advice]:
    if asked.parallel_config.data_parallel == "auto" and asked.train.global_batch_size is None:
        yield Advice(
            "train.global_batch_size",
            "is not given, so it grows with the number of devices while the learning rate stays; name it, and leave"
            " micro_batch_num out, to train the same on any number",
        )
    if run.train.seq_length > run.model.max_position_embeddings:
        yield Advice(
            "train.seq_length",
            f"{run.train.seq_length} is longer than the model's max_position_embeddings"
            f" {run.model.max_position_embeddings}",
        )


def _steps(run: Run) -> Iterator[Advice]:
    train, checkpoint = run.train, run.config.checkpoint
    if train.duration.epochs is not None:
        return
    steps = planned_steps(train.duration, train.tokens_per_step, train.batch.global_batch_size)
    if checkpoint.save_checkpoint_steps > steps:
        yield Advice(
            "checkpoint.save_checkpoint_steps",
            f"{checkpoint.save_checkpoint_steps} is beyond the {steps} steps of the run: nothing is saved before"
            " the end, and a failure loses all of it",
        )
    elif steps >= 1000 and checkpoint.save_checkpoint_steps < steps // 200:
        yield Advice(
            "checkpoint.save_checkpoint_steps",
            f"{checkpoint.save_checkpoint_steps} means {steps // checkpoint.save_checkpoint_steps} checkpoints in"
            f" {steps} steps; saving may take longer than training between them",
        )
    if (warm := warmup_steps(train.schedule, steps)) >= steps:
        yield Advice("lr_schedule.warmup_steps", f"{warm} steps of warm-up: the {steps} steps end before the peak")


def _memory(run: Run) -> Iterator[Advice]:
    train, precision = run.train, run.train.precision
    if precision.amp_level == "O0":
        yield Advice(
            "amp_config.amp_level",
            "O0 computes in fp32; on a GPU or NPU O2 is several times faster and keeps fp32 master weights",
        )
    elif precision.dtype == "float16" and precision.loss_scale is None:
        yield Advice("amp_config.loss_scale", "null lets small float16 gradients vanish; dynamic scales them up")
    if train.recompute.layers == "all" and train.recompute.select:
        yield Advice("recompute_config.select_recompute", "has no effect: recompute true covers every layer")
    elif train.recompute.select and "elementwise" not in train.recompute.select:
        yield Advice(
            "recompute_config.select_recompute",
            "without elementwise takes more memory than recomputing nothing: every elementwise result is then kept;"
            " elementwise alone frees most for least time",
        )
    bits = 32 if precision.amp_level == "O0" else 16
    logits = train.batch.micro_batch_size * train.seq_length * run.model.padded_vocab_size * bits // 8
    logits //= run.layout.model_parallel * run.layout.context_parallel
    if train.loss_chunk_tokens is None and logits >= 2 * GIB:
        yield Advice(
            "train.loss_chunk_tokens",
            f"the logits of one micro-batch take {logits / GIB:.1f} GiB in {bits} bits per rank; chunks of 1024"
            " tokens need a fraction of it",
        )


def _data(run: Run, cores: int | None) -> Iterator[Advice]:
    dataset = run.config.dataset
    if not dataset.paths:
        yield Advice("dataset.paths", "names no data yet; train will ask for it")
    if run.config.train.eval_steps and not dataset.eval_paths:
        yield Advice("train.eval_steps", "has no effect without dataset.eval_paths")
    yield from repeated_paths(dataset)
    if told := loader_notice(run, min(run.layout.world_size, MACHINE), cores):
        yield Advice("dataset.num_parallel_workers", told)


def repeated_paths(dataset: DatasetConfig) -> Iterator[Advice]:
    """Hints on corpora that are read more than once, or both trained on and held out."""
    trained, held_out = (
        Counter(normpath(entry.path.removesuffix(".bin").removesuffix(".idx")) for entry in entries)
        for entries in (dataset.paths, dataset.eval_paths)
    )
    for key, found in (("dataset.paths", trained), ("dataset.eval_paths", held_out)):
        if repeated := [path for path, times in found.items() if times > 1]:
            yield Advice(key, f"{', '.join(repeated)}: named more than once, so read more than once in an epoch")
    if both := [path for path in held_out if path in trained]:
        yield Advice(
            "dataset.eval_paths",
            f"{', '.join(both)}: also in dataset.paths, so the validation loss is of data that was trained on;"
            " data prepare holds some out as PREFIX.eval",
        )


def loader_notice(run: Run, ranks: int, cores: int | None) -> str | None:
    """What to tell where the ranks of one machine have more loader processes than it has cores; None otherwise."""
    workers = run.config.dataset.num_parallel_workers
    if cores is None or workers * ranks <= cores:
        return None
    return f"{workers} for each of {ranks} ranks on one machine are more processes than the {cores} cores here"
