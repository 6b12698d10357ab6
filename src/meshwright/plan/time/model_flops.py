"""Useful FLOPs of a step, whatever the layout: the numerator of MFU."""

from functools import lru_cache

from meshwright.plan.job import Job
from meshwright.plan.network import Network
from meshwright.plan.time.shapes import attention_products, feed_forward_products


def model_flops(job: Job) -> float:
    """FLOPs of forward and backward over the global batch: 6 per matrix parameter and token, the input embedding left
    out and only the experts that a token visits counted, plus attention over the keys before each token (half of them:
    causal). Recomputation is not counted."""
    network = job.network
    per_token = 6.0 * matrix_parameters(network) + attention_flops(network, job.seq_length)
    return per_token * job.tokens_per_step


@lru_cache(maxsize=256)
def matrix_parameters(network: Network) -> float:
    """Parameters of the matrix products that one token goes through, head included."""
    attention = sum(i * o for i, o in attention_products(network, 1))
    dense = sum(i * o for i, o in feed_forward_products(network, network.intermediate_size, 1))
    total = float(network.vocab_size * network.hidden_size * (1 + network.mtp_layers))
    sparse = sum(network.is_sparse(layer) for layer in range(network.num_layers + network.mtp_layers))
    total += attention * (network.num_layers + network.mtp_layers)
    total += dense * (network.num_layers + network.mtp_layers - sparse)
    if network.experts is not None:
        experts = network.experts
        width = experts.intermediate_size * experts.experts_per_token + experts.shared_intermediate_size
        total += sparse * (
            sum(i * o for i, o in feed_forward_products(network, width, 1)) + experts.num_experts * network.hidden_size
        )
    return total


def attention_flops(network: Network, seq_length: int) -> float:
    """FLOPs per token of scores and weighted values over all layers, forward and backward, causal."""
    keys = float(min(seq_length, network.window or seq_length))
    keys -= keys * keys / (2 * seq_length)
    width = 2 * network.query_width
    if network.latent is not None:
        latent = network.latent
        width = network.num_heads * (latent.nope_head_dim + latent.rope_head_dim + latent.value_head_dim)
    return 6.0 * (network.num_layers + network.mtp_layers) * width * keys
