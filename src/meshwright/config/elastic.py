"""The run that a config describes when fewer nodes than it was meant for take part."""

from dataclasses import replace

from meshwright.config.load import LoadedConfig
from meshwright.config.run import Run, resolve
from meshwright.spec.batch import equation


def resolve_elastic(loaded: LoadedConfig, full: int, world_size: int, *, device: str = "cpu") -> Run:
    """The run of ``full`` ranks, on ``world_size`` of them: the same global batch, cut for fewer data ranks.

    ``data_parallel`` shrinks, every other degree and micro_batch_size stay, and micro_batch_num grows so that
    global_batch_size, and with it the loss curve and the order of the samples, stay what they were.

    Raises:
        ConfigErrors: the layout does not fit that many ranks, or the global batch does not split over its data ranks.
    """
    whole = resolve(loaded, full, device=device)
    if world_size == full:
        return whole
    batch, config = whole.train.batch, whole.config
    values = {
        "parallel_config": {"data_parallel": "auto", "micro_batch_num": None},
        "train": {"micro_batch_size": batch.micro_batch_size, "global_batch_size": batch.global_batch_size},
    }
    sections = {name: getattr(config, name).model_copy(update=given) for name, given in values.items()}
    shrunk = replace(loaded, config=config.model_copy(update=sections), origins=whole.origins)
    return resolve(shrunk, world_size, device=device)


def describe_change(whole: Run, run: Run) -> str:
    """What is other than with all nodes, for the log."""
    ranks = f"{run.layout.world_size} of {whole.layout.world_size} ranks"
    batch, before, ways = run.train.batch, whole.train.batch, run.layout.data_parallel
    return (
        f"elastic: {ranks}, data_parallel {whole.layout.data_parallel} -> {ways}, "
        f"micro_batch_num {before.micro_batch_num} -> {batch.micro_batch_num}; {equation(batch, ways)}"
    )
