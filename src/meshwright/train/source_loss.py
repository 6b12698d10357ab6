"""The loss of each source of a blend, beside the loss of the step."""

from collections.abc import Mapping

import torch
from torch import Tensor

from meshwright.data.blend import BlendedDataset
from meshwright.data.loader import Batch
from meshwright.data.steps import step_positions
from meshwright.model.loss import IGNORE_INDEX
from meshwright.train.inputs import TrainingData
from meshwright.train.step import TrainState, sum_over_world

PREFIX = "train/loss/"


class SourceLoss:
    """Token losses of a step, summed for each of R sources; R is 0, and nothing is done, where there is no blend.

    Costs one fp32 number for each token of a micro-batch, and one reduction of 2 R numbers in each step.

    Args:
        data: what the run trains on.
        global_batch_size: of the run.
    """

    def __init__(self, state: TrainState, data: TrainingData, global_batch_size: int) -> None:
        self._state, self._global_batch_size = state, global_batch_size
        self._blend = data.blend if isinstance(data, BlendedDataset) else None
        self.names = data.names if isinstance(data, BlendedDataset) else []
        self._sequences: list[Tensor] = []
        if self.names and state.model.gives_loss:
            state.model.loss.by_sequence = self._sequences

    def of_step(self, step: int, batch: Batch) -> Tensor:
        """Sums of the step (from 1) that was just made, fp32 [2 R] on the device, equal on all ranks.

        First the loss of each source, then its supervised tokens.
        """
        sums = torch.zeros(2, len(self.names), device=self._state.device)
        if self._blend is None:
            return sums.flatten()
        if self._state.model.gives_loss:
            mesh = self._state.mesh
            positions = step_positions(step - 1, self._global_batch_size, mesh.zero_rank, mesh.layout.zero_ranks)
            sources = torch.from_numpy(self._blend.draws(positions)[0]).to(self._state.device, non_blocking=True)
            supervised = (batch.labels != IGNORE_INDEX).sum(dim=1).float()
            sums.index_add_(1, sources, torch.stack((torch.cat(self._sequences), supervised)))
            self._sequences.clear()
        return sum_over_world(self._state, sums).flatten()

    def metrics(self, sums: list[float]) -> dict[str, float]:
        """``train/loss/NAME`` of the sources that the step had supervised tokens of, from the sums of `of_step`."""
        losses, tokens = sums[: len(self.names)], sums[len(self.names) :]
        return {
            f"{PREFIX}{name}": loss / count
            for name, loss, count in zip(self.names, losses, tokens, strict=True)
            if count
        }


def source_line(losses: Mapping[str, float]) -> str:
    """``loss by source: web 3.2140  code 2.8712``: the metrics of `SourceLoss` for the log."""
    return "loss by source: " + "  ".join(f"{name.removeprefix(PREFIX)} {loss:.4f}" for name, loss in losses.items())
