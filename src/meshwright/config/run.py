"""From a loaded config to the values that describe the run, with every rule checked."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from meshwright.config.errors import DEFAULT, ConfigError, ConfigErrors, Origin
from meshwright.config.key_rules import key_violations
from meshwright.config.load import LoadedConfig
from meshwright.config.resolve_model import SIZES, base_origin, resolve_model, resolved_section, stand_in_model
from meshwright.config.schema import Config
from meshwright.config.text import config_text, log_lines, text_from_log
from meshwright.config.validate import origin_of
from meshwright.spec import rules, support
from meshwright.spec.batch import auto_data_parallel, solve_batch
from meshwright.spec.layout import Layout
from meshwright.spec.model import ModelSpec
from meshwright.spec.training import (
    Batch,
    Duration,
    OptimizerSpec,
    Precision,
    Recompute,
    ScheduleSpec,
    TrainSpec,
)
from meshwright.spec.value_rules import model_values, train_values
from meshwright.spec.violation import Violation

DEFAULT_STEPS = 1000
BATCH_KEYS = ("train.micro_batch_size", "parallel_config.micro_batch_num", "train.global_batch_size")
NEEDS_DATA_PARALLEL = (
    *BATCH_KEYS,
    "parallel_config.data_parallel",
    "parallel_config.expert_parallel",
    "parallel_config.zero_group_size",
)
DURATION_KEYS = ("train_steps", "train_tokens", "epochs")


@dataclass(frozen=True)
class Run:
    """Everything that describes one run.

    Attributes:
        config: the resolved config: every value named, nothing inherited or derived any more.
        origins: place of each value that is not a default, by dotted path.
    """

    model: ModelSpec
    layout: Layout
    train: TrainSpec
    config: Config
    origins: Mapping[str, Origin]

    def origin(self, key: str) -> Origin:
        """Place that one value came from."""
        return self.origins.get(key, DEFAULT)


def resolve(loaded: LoadedConfig, world_size: int, *, device: str = "cpu") -> Run:
    """The run that a config describes on ``world_size`` ranks.

    Raises:
        ConfigErrors: with every broken rule and unsupported request, each at its file and line.
    """
    config = loaded.config
    errors: list[ConfigError] = []
    broken = key_violations(config)
    model = resolve_model(loaded, errors)
    layout = _layout(config)
    ways = auto_data_parallel(world_size, layout) if config.parallel_config.data_parallel == "auto" else None
    if isinstance(ways, int):
        layout = replace(layout, data_parallel=ways)
    batch = _batch(config, layout)
    train = _train(config, batch if isinstance(batch, Batch) else _stand_in_batch(layout))
    found = rules.violations(model or stand_in_model(layout, train), layout, train, world_size)
    found += support.unsupported(model or stand_in_model(layout, train), layout, train, device=device)
    if isinstance(ways, Violation):
        # Without a number of data ranks only the rules that do not depend on it say something true.
        broken += [ways, *(violation for violation in found if violation.key_path not in NEEDS_DATA_PARALLEL)]
    else:
        broken += [*(batch if isinstance(batch, list) else ()), *found]
    errors += [_join(violation, loaded) for violation in dict.fromkeys(broken)]
    if errors or model is None:
        raise ConfigErrors(errors)
    return Run(model, layout, train, _resolved(config, model, layout, train), _origins(loaded, layout))


@dataclass(frozen=True)
class Asked:
    """What a config asks for, before its layout is held against the devices and the engine.

    Attributes:
        layout: as written; on `world_size` devices where data_parallel is auto.
        train: its batch is that of `layout`, or one sequence at a time where the layout does not fit the devices.
        problems: why the config's own layout cannot run on these devices; empty when it can.
    """

    model: ModelSpec
    layout: Layout
    train: TrainSpec
    problems: tuple[Violation, ...] = ()


def asked(loaded: LoadedConfig, world_size: int) -> Asked:
    """Model, training step and global batch of a config, for a planner that looks for another layout.

    Raises:
        ConfigErrors: the model is not known, three batch numbers contradict each other, or the global batch
            depends on a layout that these devices cannot hold.
    """
    config = loaded.config
    errors: list[ConfigError] = []
    model = resolve_model(loaded, errors)
    layout = _layout(config)
    ways = auto_data_parallel(world_size, layout) if config.parallel_config.data_parallel == "auto" else None
    if isinstance(ways, int):
        layout = replace(layout, data_parallel=ways)
    batch = [ways] if isinstance(ways, Violation) else _batch(config, layout)
    problems: list[Violation] = []
    if isinstance(batch, list):
        problems, whole = batch, config.train.global_batch_size
        given = (config.train.micro_batch_size, config.parallel_config.micro_batch_num, whole)
        if whole is None or None not in given or whole < 1:
            errors += [_join(violation, loaded) for violation in problems]
        batch = Batch(micro_batch_size=1, micro_batch_num=whole or 1, global_batch_size=whole or 1)
    train = _train(config, batch)
    if model is not None:
        errors += [_join(wrong, loaded) for wrong in (*model_values(model), *train_values(model, train))]
    if errors or model is None:
        raise ConfigErrors(errors)
    problems = problems or rules.violations(model, layout, train, world_size)
    return Asked(model, layout, train, tuple(dict.fromkeys(problems)))


def smallest_world_size(config: Config) -> int:
    """Ranks of the smallest run that a config allows, for checks that name no number of devices."""
    parallel, train = config.parallel_config, config.train
    others = parallel.model_parallel * parallel.pipeline_stage * parallel.context_parallel
    if parallel.data_parallel != "auto":
        return others * parallel.data_parallel
    size, num, whole = train.micro_batch_size, parallel.micro_batch_num, train.global_batch_size
    if size and num and whole and whole % (size * num) == 0:
        return others * (whole // (size * num))
    group = (parallel.zero_group_size or 1) // parallel.context_parallel
    return others * max(1, group)


def resolved_yaml(run: Run) -> str:
    """The resolved config as YAML; loading and resolving it gives the same run and the same text."""
    return config_text(run.config)


def config_hash(run: Run) -> str:
    """SHA-256, in hex, of the resolved config without ``output_dir``: equal exactly for equal runs."""
    return hashlib.sha256(config_text(run.config, without=("output_dir",)).encode()).hexdigest()


def _layout(config: Config) -> Layout:
    """The split as asked for, with one data rank where the number is ``auto``."""
    parallel = config.parallel_config
    return Layout(
        data_parallel=1 if parallel.data_parallel == "auto" else parallel.data_parallel,
        model_parallel=parallel.model_parallel,
        pipeline_stage=parallel.pipeline_stage,
        context_parallel=parallel.context_parallel,
        expert_parallel=parallel.expert_parallel,
        use_seq_parallel=parallel.use_seq_parallel,
        zero_stage=parallel.zero_stage,
        zero_group_size=parallel.zero_group_size,
        pipeline_schedule=parallel.pipeline_schedule,
        comm_fusion=parallel.comm_fusion,
        mesh_order=parallel.mesh_order,
        stage_layers=parallel.stage_layers,
    )


def _batch(config: Config, layout: Layout) -> Batch | list[Violation]:
    """The three numbers; with fewer than two given, micro_batch_size and then micro_batch_num are 1."""
    size = config.train.micro_batch_size
    num, whole = config.parallel_config.micro_batch_num, config.train.global_batch_size
    if size is None and (num is None or whole is None):
        size = 1
    if num is None and whole is None:
        num = 1
    return solve_batch(size, num, whole, layout.data_parallel, pipeline_stage=layout.pipeline_stage)


def _stand_in_batch(layout: Layout) -> Batch:
    """A batch that breaks no rule, so that the other rules are checked where the batch is wrong."""
    num = layout.pipeline_stage
    return Batch(micro_batch_size=1, micro_batch_num=num, global_batch_size=layout.data_parallel * num)


def _train(config: Config, batch: Batch) -> TrainSpec:
    train, recompute, amp = config.train, config.recompute_config, config.amp_config
    layers = recompute.recompute
    return TrainSpec(
        seq_length=train.seq_length,
        batch=batch,
        duration=_duration(config),
        seed=config.seed,
        loss_chunk_tokens=train.loss_chunk_tokens,
        grad_clip=train.grad_clip,
        compile=train.compile,
        isolate_documents=config.dataset.isolate_documents,
        recompute=Recompute(
            layers=layers if isinstance(layers, tuple) else "all" if layers else "none",
            select=recompute.select_recompute,
        ),
        precision=Precision(amp_level=amp.amp_level, dtype=amp.dtype, loss_scale=amp.loss_scale),
        optimizer=OptimizerSpec(**config.optimizer.model_dump()),
        schedule=ScheduleSpec(**config.lr_schedule.model_dump()),
    )


def _duration(config: Config) -> Duration:
    given = {key: getattr(config.train, key) for key in DURATION_KEYS}
    if all(value is None for value in given.values()):
        given["train_steps"] = DEFAULT_STEPS
    return Duration(**given)


def _resolved(config: Config, model: ModelSpec, layout: Layout, train: TrainSpec) -> Config:
    values: dict[str, Any] = config.model_dump()
    values["base_config"] = None
    values["model"] = resolved_section(config.model, model)
    values["parallel_config"]["data_parallel"] = layout.data_parallel
    values["parallel_config"]["micro_batch_num"] = train.batch.micro_batch_num
    values["train"]["micro_batch_size"] = train.batch.micro_batch_size
    values["train"]["global_batch_size"] = train.batch.global_batch_size
    values["train"] |= {key: getattr(train.duration, key) for key in DURATION_KEYS}
    return Config.model_validate(values)


def _origins(loaded: LoadedConfig, layout: Layout) -> dict[str, Origin]:
    config = loaded.config
    origins = dict(loaded.origins)
    if base := base_origin(config.model):
        origins = {f"model.{name}": base for name in SIZES} | origins
    if config.parallel_config.data_parallel == "auto":
        origins["parallel_config.data_parallel"] = Origin(f"auto, {layout.world_size} devices")
    values = (config.train.micro_batch_size, config.parallel_config.micro_batch_num, config.train.global_batch_size)
    for key, value in zip(BATCH_KEYS, values, strict=True):
        if value is None:
            origins[key] = Origin("derived from the batch equation")
    return origins


def joined(violations: Iterable[Violation], loaded: LoadedConfig) -> ConfigErrors:
    """Broken rules as mistakes at their file and line."""
    return ConfigErrors([_join(violation, loaded) for violation in violations])


def _join(violation: Violation, loaded: LoadedConfig) -> ConfigError:
    origin = origin_of(violation.key_path, loaded.origins)
    legal = f"legal: {', '.join(violation.legal)}" if violation.legal else ""
    if origin is None:
        origin = Origin(str(loaded.path))
    return ConfigError.at(origin, violation.message, violation.key_path, legal)


def config_log_lines(run: Run) -> list[str]:
    """Lines to put at the head of the log, from which `config_from_log` recovers the resolved config."""
    return log_lines(resolved_yaml(run))


def config_from_log(text: str) -> str:
    """Resolved YAML out of a run's log; timestamps and ``[rank 0]`` in front of the lines do no harm.

    Raises:
        ConfigErrors: no whole, unchanged config is in the log.
    """
    return text_from_log(text)
