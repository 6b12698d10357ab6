"""From the values that describe a run to the state that a rank trains with."""

import torch

from meshwright.launch.group import join_group
from meshwright.model.init import Initial, derived_seed
from meshwright.parallel.apply import parallelize
from meshwright.parallel.devices import DeviceKind
from meshwright.parallel.mesh import build_mesh
from meshwright.parallel.precision import Formats, LossScale
from meshwright.spec.layout import Layout
from meshwright.spec.model import ModelSpec
from meshwright.spec.training import TrainSpec
from meshwright.train.optimizer import AdamW
from meshwright.train.step import TrainState


def build_state(
    spec: ModelSpec,
    layout: Layout,
    train: TrainSpec,
    *,
    kind: DeviceKind,
    device: torch.device,
    chosen: Formats,
    initial: Initial | None = None,
) -> TrainState:
    """Build this rank's model, optimizer and loss scale. The default process group must be up.

    Args:
        initial: where the weights come from; None draws them from the run's seed.
    """
    mesh = build_mesh(layout, kind.name)
    tied = spec.tie_word_embeddings
    if tied:
        # Created by all ranks at the same point, whether or not they are at an end.
        _ = mesh.ends_group
    seed_dropout(train.seed, mesh.zero_rank, mesh.at.pipeline, mesh.at.model if layout.use_seq_parallel else 0)
    parallel = parallelize(spec, layout, train, mesh=mesh, device=device, formats=chosen, initial=initial)
    parameters = dict(parallel.model.named_parameters())
    return TrainState(
        model=parallel.model,
        executor=parallel.executor,
        optimizer=AdamW(parameters, train.optimizer, fused=kind.fused_optimizer),
        loss_scale=LossScale(train.precision, chosen.compute, device),
        mesh=mesh,
        device=device,
        halted=torch.zeros((), device=device),
        grad_clip=train.grad_clip,
        tied=tied,
    )


def seed_dropout(seed: int, zero_rank: int, stage: int, model_rank: int) -> None:
    """Seed this rank's random numbers.

    Ranks that hold the same activations draw the same masks; ranks that hold different ones draw different masks.
    """
    torch.manual_seed(derived_seed(seed, f"dropout:{zero_rank}:{stage}:{model_rank}"))


def init_process_group(kind: DeviceKind) -> None:
    """Join the default process group that the environment describes."""
    join_group(kind.process_group_backend)
