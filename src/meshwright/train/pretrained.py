"""The weights that a run starts from where ``model.pretrained_model_dir`` names some."""

from pathlib import Path

from meshwright.checkpoint.errors import CheckpointError, CheckpointMismatch
from meshwright.checkpoint.huggingface import HuggingFaceWeights
from meshwright.config.run import Run


def pretrained_weights(run: Run) -> HuggingFaceWeights | None:
    """The weights to start from, held against the model of the run; None where the seed draws them.

    Raises:
        CheckpointError: they cannot be read.
        CheckpointMismatch: a name is missing, left over or of another shape; the message lists them.
    """
    folder = run.config.model.pretrained_model_dir
    if folder is None:
        return None
    try:
        weights = HuggingFaceWeights.open(Path(folder))
    except ValueError as error:
        raise CheckpointError(str(error)) from error
    if lines := weights.problems(run.model):
        raise CheckpointMismatch(f"{folder} holds the weights of another model:\n  " + "\n  ".join(lines))
    return weights
