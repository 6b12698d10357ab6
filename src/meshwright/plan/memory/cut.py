"""Which layers each pipeline stage of the Megatron family holds, by each framework's own rule."""

from functools import lru_cache
from itertools import accumulate

from meshwright.plan.engines import EngineName
from meshwright.plan.job import Job
from meshwright.plan.network import Network
from meshwright.spec.layers import even_cut


@lru_cache(maxsize=4096)
def layers_of_stages(
    network: Network, stages: int, by_hand: tuple[int, ...] | None, name: EngineName
) -> tuple[int, ...]:
    """Number of layers of each stage."""
    if by_hand is not None and len(by_hand) == stages:
        return by_hand
    if name == "nanotron":
        return _by_cost(network, stages)
    return even_cut(network.num_layers, stages)


def stage_layers(job: Job) -> tuple[int, ...]:
    """Number of layers of each stage of a job."""
    return layers_of_stages(job.network, job.layout.pipeline_stage, job.layout.stage_layers, job.engine.name)


def layer_cost(network: Network) -> int:
    """What nanotron takes a decoder layer to cost: 4 x heads x head_dim x hidden + 3 x intermediate x hidden.

    Source: nanotron, ``models/llama.py``, ``get_block_compute_costs``.
    """
    return (4 * network.query_width + 3 * network.intermediate_size) * network.hidden_size


def _by_cost(network: Network, stages: int) -> tuple[int, ...]:
    """nanotron's ``build_model``: blocks go to a stage until it has its share of the cost, head included."""
    layer, head = layer_cost(network), network.vocab_size * network.hidden_size
    costs = [0, *([layer] * network.num_layers), 0, head]
    total, counts, stage = sum(costs), [0] * stages, 0
    for block, reached in enumerate(accumulate(costs)):
        counts[stage] += 1 <= block <= network.num_layers
        if reached >= total * (stage + 1) / stages and stage < stages - 1:
            stage += 1
    return tuple(counts)
