"""What attention inside windows and documents keeps of a micro-batch, once for all layers of a stage."""

from collections.abc import Iterable

from meshwright.plan.job import Job
from meshwright.plan.memory.decoder_block import Block
from meshwright.spec.attention_bias import binding_window, row_elements


def shared_by_layers(job: Job, block: Block, layers: Iterable[int]) -> float:
    """Bytes of attention biases and of rotary tables by position (`meshwright.model.mask`, `meshwright.model.rope`).

    A bias is [S, S] in the compute dtype, one for each sequence where documents are isolated, and for each window.
    What it takes beside that while it is made, up to 1 KiB for each token, is less than hidden states take later.
    """
    if not job.biased_attention:
        return 0.0
    length = block.positions
    binding = {binding_window(job.network.window_of_layer(layer), length) for layer in layers}
    row = row_elements(length)
    if not job.isolate_documents:
        return float(len(binding - {None}) * length * row * block.compute)
    tables = 2 * block.tokens * block.head_dim if block.rope else 0
    return float(len(binding) * block.tokens * row + tables) * block.compute
