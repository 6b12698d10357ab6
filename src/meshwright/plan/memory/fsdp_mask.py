"""What attention inside windows and documents keeps of a micro-batch, once for all layers of a stage."""

from collections.abc import Iterable

from meshwright.plan.job import Job
from meshwright.plan.memory.decoder_block import Block

ALIGNMENT = 16
"""Elements that rows of a bias are filled up to (`meshwright.model.mask`)."""


def shared_by_layers(job: Job, block: Block, layers: Iterable[int]) -> float:
    """Bytes of attention biases and of rotary tables by position (`meshwright.model.mask`, `meshwright.model.rope`).

    A bias is [S, S] in the compute dtype, one for each sequence where documents are isolated, and for each window.
    """
    if not job.biased_attention:
        return 0.0
    length = block.positions
    windows = {job.network.window_of_layer(layer) for layer in layers}
    binding = {window if window is not None and window < length else None for window in windows}
    row = -(-length // ALIGNMENT) * ALIGNMENT
    if not job.isolate_documents:
        return float(len(binding - {None}) * length * row * block.compute)
    tables = 2 * block.tokens * block.head_dim if block.rope else 0
    return float(len(binding) * block.tokens * row + tables) * block.compute
