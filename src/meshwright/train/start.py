"""What a run says about itself before the first step: each choice with its reason."""

import os

from meshwright.config.advice import loader_notice, repeated_paths
from meshwright.config.run import Run
from meshwright.data.blend import BlendedDataset
from meshwright.launch.cores import usable_cores
from meshwright.parallel.devices import DeviceKind
from meshwright.parallel.precision import Formats
from meshwright.spec.batch import equation
from meshwright.spec.flops import describe_convention, flops_per_token
from meshwright.spec.layers import describe_layer_map, layer_map
from meshwright.spec.parameters import total
from meshwright.spec.schedule import describe_duration, warmup_notice, warmup_steps
from meshwright.train.inputs import TrainingData


def start_lines(run: Run, chosen: Formats, kind: DeviceKind, data: TrainingData, total_steps: int) -> list[str]:
    """Lines for the log."""
    model, layout, train = run.model, run.layout, run.train
    flops = flops_per_token(model, train.seq_length, embedding=False)
    duration = describe_duration(train.duration, train.tokens_per_step, train.batch.global_batch_size, data.num_samples)
    lines = [
        f"model: {total(model):,} parameters, {flops:.4g} FLOPs per token",
        describe_convention(embedding=False, causal=False),
        f"layout: {layout.short()} on {layout.world_size} x {kind.name} ({kind.backend}), "
        f"mesh order {' > '.join(layout.mesh_order)}",
        f"layers: {describe_layer_map(layer_map(model.num_layers, layout))}",
        f"batch: {equation(train.batch, layout.data_parallel, train.seq_length)}",
        f"precision: {chosen.reason}",
        f"duration: {total_steps} steps ({duration}), warm-up {warmup_steps(train.schedule, total_steps)} steps",
        *data_lines(run, data, total_steps),
    ]
    if notice := warmup_notice(train.schedule, total_steps):
        lines.append(notice)
    lines += [f"warning: {advice}" for advice in repeated_paths(run.config.dataset)]
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", layout.world_size))
    if notice := loader_notice(run, ranks, usable_cores()):
        lines.append(f"warning: dataset.num_parallel_workers: {notice}")
    return lines


def data_lines(run: Run, data: TrainingData, total_steps: int) -> list[str]:
    """What a run reads: samples, and of a blend the share and the epochs of each source."""
    line = f"data: {data.num_samples:,} samples of {run.train.seq_length} tokens"
    if isinstance(data, BlendedDataset):
        return [line, *data.describe(total_steps * run.train.batch.global_batch_size)]
    return [line + data.note()]
