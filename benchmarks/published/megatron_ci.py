"""What the arguments of a Megatron-LM functional test say beside the table's columns.

Remarks of a row list the arguments that differ from the defaults of Megatron-LM ``training/arguments.py``. What they
leave out is in ``megatron_ci_args.json``, copied from ``tests/functional_tests/test_cases/*/*/model_config.yaml``.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from benchmarks.published.rows import Row

from meshwright.plan.network import Experts, LatentAttention, Network


@lru_cache
def _table() -> dict[str, dict[str, float]]:
    stored = json.loads(Path(__file__).with_name("megatron_ci_args.json").read_text())
    return stored["tests"]  # type: ignore[no-any-return]


def extra_arguments(row: Row) -> Mapping[str, float]:
    """Arguments of the test that the table lacks; empty where there are none."""
    test = row.text("model").split(":")[-1].removesuffix("_1node")
    return next((found for name, found in _table().items() if test.startswith(name)), {})


def flag(row: Row, name: str) -> str | None:
    """Value of an argument in the remarks; empty when it has none, None when it is not there."""
    found = re.search(rf"(?:^|\s){re.escape(name)}(?:=(\S+))?(?=\s|$)", row.text("notes"))
    return None if found is None else found[1] or ""


def tested_network(row: Row, network: Network) -> Network:
    """The network with Megatron-LM's defaults and the arguments of the test."""
    gated, extra = flag(row, "swiglu") is not None, extra_arguments(row)
    inner = network.intermediate_size
    if gated and inner == 4 * network.hidden_size and flag(row, "multi-latent-attention") is None:
        # Two thirds of four times the hidden size, in whole blocks of 64 (arguments.py), where no width is given.
        inner = int(4 * network.hidden_size * 2 / 3 / 64) * 64
    rope = (flag(row, "position-embedding-type") or "learned") != "learned"
    latent = _latent(row, extra)
    return replace(
        network,
        gated=gated,
        intermediate_size=inner,
        norm="rmsnorm" if flag(row, "normalization") == "RMSNorm" else "layernorm",
        bias=flag(row, "disable-bias-linear") is None,
        position="rope" if rope or latent else "learned",
        max_position_embeddings=row.whole("seq_len"),
        dropout=0.0 if row.whole("cp", 1) > 1 else extra.get("hidden-dropout", 0.1),
        qk_norm="qk_layernorm" in row.text("model"),
        vocab_pad_multiple=int(extra.get("make-vocab-size-divisible-by", 128)),
        latent=latent,
        experts=_experts(row, network.experts, inner),
        mtp_layers=int(flag(row, "mtp-num-layers") or flag(row, "mtp-num-layers") is not None),
        head_dim=int(extra.get("kv-channels", network.head_dim)),
    )


def expert_tensor_parallel(row: Row) -> int | None:
    """Ways each expert is split: the value of the argument, which is 1 where the remarks leave it out."""
    value = flag(row, "expert-tensor-parallel-size")
    return None if value is None else int(value or 1)


def gathers_tokens(row: Row) -> bool:
    """Whether tokens are gathered from all expert ranks, Megatron-LM's default dispatcher."""
    kind = flag(row, "moe-token-dispatcher-type") or "allgather"
    return row.source == "megatron_ci_memory" and kind == "allgather"


def fuses_permutation(row: Row) -> bool:
    """Whether the permutation of tokens is fused, which is off by default."""
    return row.source != "megatron_ci_memory" or bool(extra_arguments(row).get("moe-permute-fusion"))


def optimizer_instances(row: Row) -> int:
    """Copies of the sharded optimizer among the data ranks."""
    return int(extra_arguments(row).get("num-distributed-optimizer-instances", 1))


def stage_layers(row: Row) -> tuple[int, ...] | None:
    """Layers of each stage where the first and last are set by hand."""
    extra, layers, stages = extra_arguments(row), row.whole("layers"), row.whole("pp", 1)
    first, last = extra.get("decoder-first-pipeline-num-layers"), extra.get("decoder-last-pipeline-num-layers")
    if first is None or last is None or stages < 3:
        return None
    between = (layers - int(first) - int(last)) // (stages - 2)
    return (int(first), *([between] * (stages - 2)), int(last))


def _latent(row: Row, extra: Mapping[str, float]) -> LatentAttention | None:
    if flag(row, "multi-latent-attention") is None:
        return None
    rank = flag(row, "q-lora-rank")
    return LatentAttention(
        query_rank=int(rank) if rank else None,
        key_value_rank=int(flag(row, "kv-lora-rank") or 512),
        nope_head_dim=int(extra.get("qk-head-dim", 128)),
        rope_head_dim=int(extra.get("qk-pos-emb-head-dim", 64)),
        value_head_dim=int(extra.get("v-head-dim", 128)),
    )


def _experts(row: Row, experts: Experts | None, inner: int) -> Experts | None:
    if experts is None:
        return None
    dense = re.search(r"moe-layer-freq=\(\[0\]\*(\d+)", row.text("notes"))
    return replace(
        experts,
        intermediate_size=int(flag(row, "moe-ffn-hidden-size") or inner),
        shared_intermediate_size=int(flag(row, "moe-shared-expert-intermediate-size") or 0),
        dense_layers=int(dense[1]) if dense else 0,
    )
