"""FLOPs per token and the utilisation figures that follow, each with its convention in the name.

Convention (PaLM, arXiv:2204.02311 appendix B): 6 FLOPs per parameter and token for forward and backward, plus
12 x heads x head_dim x sequence per layer and token for the attention scores and their product with values.
"""

from meshwright.spec.model import ModelSpec
from meshwright.spec.parameters import layer_parameters, total
from meshwright.spec.training import Recompute


def flops_per_token(spec: ModelSpec, seq_length: int, *, embedding: bool, causal: bool = False) -> float:
    """Model FLOPs of forward and backward per token.

    Args:
        spec: the network.
        seq_length: tokens per sequence.
        embedding: count the input embedding as if it were a matrix product (nanoGPT, Megatron's 6N). Without
            it, a tied matrix still counts once: as the head it is one.
        causal: count only the keys before each token, half of them, as a causal kernel computes.
    """
    parameters = total(spec)
    if not embedding and not spec.tie_word_embeddings:
        parameters -= spec.vocab_size * spec.hidden_size
    attention = sum(
        attention_flops_per_token(spec, layer, seq_length, causal=causal) for layer in range(spec.num_layers)
    )
    return 6.0 * parameters + attention


def attention_flops_per_token(spec: ModelSpec, layer: int, seq_length: int, *, causal: bool = False) -> float:
    """FLOPs of forward and backward per token for scores and weighted values of one layer.

    A sliding window bounds the keys each token sees. KV heads do not matter: every query head has its own
    scores. Recomputation inside the attention kernel is not counted.
    """
    keys = float(min(seq_length, spec.window_of_layer(layer) or seq_length))
    if causal:
        # The first `keys` tokens see half the window on average, all later ones the whole of it.
        keys -= keys * keys / (2 * seq_length)
    return 12.0 * spec.num_heads * spec.head_dim * keys


def recompute_flops_per_token(spec: ModelSpec, seq_length: int, recompute: Recompute, *, causal: bool = False) -> float:
    """FLOPs per token of the second forward pass through layers that are recomputed whole.

    These are spent but are no model FLOPs: they count in `hardware_utilization`, never in `mfu`.
    Operators chosen by ``select`` are left out.
    """
    layers = [layer for layer in range(spec.num_layers) if recompute.whole(layer)]
    attention = sum(attention_flops_per_token(spec, layer, seq_length, causal=causal) for layer in layers)
    return 2.0 * layer_parameters(spec) * len(layers) + attention / 3


def mfu(tokens_per_second: float, flops_per_token: float, peak_flops_per_device: float, devices: int = 1) -> float:
    """Model FLOPs utilisation as a share of 1.

    Args:
        tokens_per_second: over all devices, every token that was read, supervised or not.
        flops_per_token: of `flops_per_token`, without recomputation.
        peak_flops_per_device: in FLOP/s, dense, at the compute dtype.
        devices: devices that take part.
    """
    return tokens_per_second * flops_per_token / (peak_flops_per_device * devices)


def hardware_utilization(
    tokens_per_second: float,
    flops_per_token: float,
    recompute_flops: float,
    peak_flops_per_device: float,
    devices: int = 1,
) -> float:
    """Hardware FLOPs utilisation as a share of 1: `mfu` with recomputed FLOPs counted as work."""
    return mfu(tokens_per_second, flops_per_token + recompute_flops, peak_flops_per_device, devices)


def utilization_warning(share: float) -> str | None:
    """What to say about an impossible utilisation; None up to 100 %."""
    if share <= 1:
        return None
    return (
        f"utilisation {share:.1%} is impossible: the peak FLOP/s, the device count, the tokens/s"
        f" or the FLOPs per token must be wrong"
    )


def describe_convention(*, embedding: bool, causal: bool) -> str:
    """The convention in words, for the log next to every figure."""
    parameters = "6 x parameters" if embedding else "6 x parameters without the input embedding"
    attention = "12 x layers x heads x head_dim x seq_length"
    half = " / 2 (causal)" if causal else " (not causal)"
    return f"FLOPs per token = {parameters} + {attention}{half}; recomputation not counted"
