"""Fine-tuning with low-rank adapters: frozen weights have neither gradients nor optimizer states.

Loading is a moment of its own: weights that are quantised on the device pass over it whole before they are sharded.
"""

from meshwright.plan.job import Adapter
from meshwright.plan.memory.fsdp_loss import loss_temporaries
from meshwright.plan.memory.fsdp_stage import Stage
from meshwright.plan.memory.report import Moment
from meshwright.plan.network import Network

BLOCK_ELEMENTS = 64
"""Elements that share one fp32 scale in 4-bit NormalFloat (arXiv:2305.14314 section 3); 8-bit keeps one a row."""


def adapter_moments(stage: Stage, adapter: Adapter) -> tuple[Moment, ...]:
    """Loading, loss, and backward of the top layer."""
    trained = adapter_elements(stage.job.network, adapter) * len(stage.layers) / stage.block.tensor
    shards = stage.shards if stage.zero == 3 else 1
    whole = _base_bytes(stage, adapter)
    group = _layer_bytes(stage, adapter)
    gathered = 2 * group if shards > 1 else 0.0
    formats = stage.formats
    start = {
        "weights": whole / shards + gathered + formats.stored * trained / stage.shards,
        "gradients": formats.gradient * trained,
        "optimizer": 2 * formats.stored * trained / stage.shards,
    }
    top = len(stage.layers) - 1
    held = stage.in_flight[0][0] * stage.below(top)
    worst = stage.sizes.backward
    again = stage.remade_bytes(top) - stage.layer_bytes(top) - worst.freed
    moments = [
        Moment(
            name="loading", parts={"weights": _loading(stage, adapter, whole, shards), "temporaries": _widest(stage)}
        ),
        Moment(
            name=f"backward of layer {stage.layers[top]}",
            parts={**start, "activations": held + again, "temporaries": worst.temporaries + _restored(stage, adapter)},  # type: ignore[dict-item]
        ),
    ]
    if stage.last:
        forward, backward = loss_temporaries(stage)
        parts = {**start, "activations": held + stage.sizes.head, "logits": stage.logits}
        moments.insert(1, Moment(name="loss", parts={**parts, "temporaries": max(forward, backward)}))  # type: ignore[dict-item]
    return tuple(moments)


def adapter_elements(network: Network, adapter: Adapter) -> float:
    """Trained elements of one layer: rank x (inputs + outputs) of each projection (arXiv:2106.09685 section 4.1)."""
    hidden, query, key_value = network.hidden_size, network.query_width, network.kv_width
    widths = [hidden + query, hidden + key_value]
    if adapter.targets != "qv":
        widths += [hidden + key_value, query + hidden]
    if adapter.targets == "all":
        widths += (3 if network.gated else 2) * [hidden + network.intermediate_size]
    return float(adapter.rank * sum(widths))


def _bytes_per_weight(adapter: Adapter) -> float:
    scale = 4 / BLOCK_ELEMENTS if adapter.base_bits == 4 else 0.0
    return adapter.base_bits / 8 + scale


def _layer_bytes(stage: Stage, adapter: Adapter) -> float:
    products = stage.weights.products
    return products * _bytes_per_weight(adapter) + 2 * (stage.weights.layer - products)


def _base_bytes(stage: Stage, adapter: Adapter) -> float:
    """Frozen weights of the stage: quantised matrices of the blocks, all else in 16 bits."""
    return len(stage.layers) * _layer_bytes(stage, adapter) + 2 * (stage.elements - stage.blocks)


def _loading(stage: Stage, adapter: Adapter, whole: float, shards: int) -> float:
    """Weights on the device while they are loaded: all of them where they are quantised there, else the shard."""
    return whole if adapter.base_bits < 16 else whole / shards + _layer_bytes(stage, adapter)


def _widest(stage: Stage) -> float:
    """The widest matrix in 16 bits."""
    return 2 * max(stage.weights.down, stage.weights.embedding if stage.embedding_here else 0.0)


def _restored(stage: Stage, adapter: Adapter) -> float:
    """A quantised matrix in 16 bits for its product."""
    return 2 * stage.weights.down if adapter.base_bits < 16 else 0.0
