"""The networks of published measurements: sizes from the table, the rest from the model's family."""

import re

from benchmarks.published.megatron_ci import tested_network
from benchmarks.published.rows import Row, Skip

from meshwright.plan.network import Experts, LatentAttention, Network

# What the planner has no block for, by words of the model's name or the row's remarks.
UNKNOWN = re.compile(
    r"hybrid|mamba|bert|llava|multimodal|t5|mt0|vlm|retro|gemma-?4|qwen3.?next|falcon|deepseekv4", re.I
)
GPT = re.compile(r"^gpt(?!-oss)|mpt|bloom|^gpt3|megatron|opt-|pythia|stablelm|phi|gpt2|mt-nlg|turing", re.I)
LEARNED = re.compile(r"^gpt(?!-oss)|mpt|gpt2|gpt3|opt-", re.I)
SQUARED_RELU = re.compile(r"nemotron-?4|nemotron.*(15b|340b)", re.I)
"""Two matrices and squared ReLU, no biases (arXiv:2402.16819, arXiv:2406.11704)."""

DEEPSEEK = LatentAttention(query_rank=1536, key_value_rank=512, nope_head_dim=128, rope_head_dim=64, value_head_dim=128)
"""arXiv:2405.04434 and arXiv:2412.19437; Kimi K2 and Moonlight use the same attention."""
ROUTED = (  # family, width of one expert, width of the shared experts, leading dense layers
    ("deepseek-v2-lite", 1408, 2816, 1),
    ("deepseek-v2", 1536, 3072, 1),
    ("deepseek2", 1536, 3072, 1),
    ("deepseek-v3", 2048, 2048, 3),
    ("deepseekv3", 2048, 2048, 3),
    ("dsv3", 2048, 2048, 3),
    ("kimi-k2", 2048, 2048, 1),
    ("moonlight", 1408, 2816, 1),
)


def network_of(row: Row) -> Network:
    """The network of a row. Raises Skip where the planner has no block for it, or sizes are missing."""
    model = row.text("model")
    if UNKNOWN.search(model) or UNKNOWN.search(row.text("complete")):
        raise Skip("architecture not modelled")
    hidden, heads = row.whole("hidden"), row.whole("heads")
    experts, latent = _experts(row), None
    if re.search(r"deepseek-?v?[23]|dsv3|kimi|moonlight", model, re.I):
        latent = DEEPSEEK if "moonlight" not in model.lower() else LatentAttention(
            query_rank=None, key_value_rank=512, nope_head_dim=128, rope_head_dim=64, value_head_dim=128
        )  # fmt: skip
    plain = bool(GPT.search(model)) and "llama" not in model.lower()
    squared_relu = bool(SQUARED_RELU.search(model))
    network = Network(
        num_layers=row.whole("layers"),
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=row.whole("kv_heads", heads),
        head_dim=128 if re.search(r"qwen3|gpt-oss", model, re.I) else hidden // heads,
        intermediate_size=row.whole("ffn"),
        vocab_size=row.whole("vocab"),
        gated=not (plain or squared_relu),
        norm="layernorm" if plain or squared_relu else "rmsnorm",
        bias=plain and "mpt" not in model.lower(),
        qkv_bias=bool(re.search(r"qwen(1\.5|2|-)|chatglm|glm", model, re.I)),
        qk_norm="qwen3" in model.lower(),
        position="alibi" if "bloom" in model.lower() else "learned" if LEARNED.search(model) else "rope",
        tied=row.text("tied") == "yes",
        experts=experts,
        latent=latent,
    )
    return tested_network(row, network) if row.source == "megatron_ci_memory" else network


def _experts(row: Row) -> Experts | None:
    count = row.number("moe_experts")
    if not count:
        return None
    model = row.text("model").lower()
    width, shared, dense = next(
        ((width, shared, dense) for family, width, shared, dense in ROUTED if family in model), (row.whole("ffn"), 0, 0)
    )
    # SimuMax's models of 4 layers begin with one dense layer whatever the full model does.
    if re.search(r"dense_layers=1|1 dense", model) or row.source == "simumax_b200":
        dense = 1
    return Experts(
        num_experts=int(count),
        experts_per_token=row.whole("moe_topk"),
        intermediate_size=width,
        shared_intermediate_size=shared,
        dense_layers=dense,
    )
