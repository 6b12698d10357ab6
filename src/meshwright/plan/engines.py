"""Engine profiles: what each training framework keeps in memory and how it moves it, as small tables."""

import difflib
from dataclasses import dataclass
from typing import Literal, get_args

from meshwright.spec.layout import DEFAULT_MESH_ORDER, MeshDim
from meshwright.spec.training import RecomputeKind

EngineName = Literal[
    "meshwright",
    "torchtitan",
    "composer",
    "litgpt",
    "megatron",
    "megatron-deepspeed",
    "nanotron",
    "deepspeed",
    "mindformers",
    "mindspeed",
]


@dataclass(frozen=True, kw_only=True)
class Engine:
    """How a framework holds the states of mixed-precision training.

    Attributes:
        family: ``fsdp`` shards by module and gathers around use; ``megatron`` keeps whole weights and gradient
            buffers on every rank and shards the optimizer.
        weight_bytes / gradient_bytes / optimizer_bytes: per parameter: the 16-bit weights that compute uses, the
            gradient accumulators, and master weights with both Adam moments.
        pads_vocabulary_by_tensor_degree: rows are padded to ``vocab_pad_multiple`` x tensor degree.
        odd_vocabulary: without tensor parallelism the vocabulary is not padded: vTrain's Megatron runs spend three
            times as long on logits of 50257 columns at tensor degree 1 as their share at 2, 4 and 8.
        zero_stages: sharding of data-parallel states that the framework offers, in the terms of ZeRO.
        most_zero_with_pipeline: highest of them that it combines with pipeline stages.
        select_recompute: what its selective recomputation computes again.
        mesh_order: how it places ranks, outermost first.
    """

    name: EngineName
    title: str
    family: Literal["fsdp", "megatron"]
    weight_bytes: float
    gradient_bytes: float
    optimizer_bytes: float
    pads_vocabulary_by_tensor_degree: bool = False
    odd_vocabulary: bool = False
    zero_stages: tuple[int, ...] = (0, 1, 2, 3)
    most_zero_with_pipeline: int = 3
    select_recompute: tuple[RecomputeKind, ...] = ("elementwise",)
    mesh_order: tuple[MeshDim, ...] = DEFAULT_MESH_ORDER
    source: str = ""


MEGATRON_ORDER: tuple[MeshDim, ...] = ("pipeline", "data", "context", "model")


ENGINES: tuple[Engine, ...] = (
    Engine(
        name="meshwright",
        title="Meshwright",
        family="fsdp",
        weight_bytes=2,
        gradient_bytes=4,
        optimizer_bytes=12,
        source="meshwright.parallel.zero: fp32 shard, 16-bit gathered weights, fp32 reduction",
    ),
    Engine(
        name="torchtitan",
        title="torchtitan (FSDP2)",
        family="fsdp",
        weight_bytes=2,
        gradient_bytes=4,
        optimizer_bytes=12,
        zero_stages=(0, 2, 3),
        source="torchtitan: fully_shard with param_dtype bf16, reduce_dtype fp32",
    ),
    Engine(
        name="composer",
        title="LLM Foundry (Composer, FSDP1)",
        family="fsdp",
        weight_bytes=2,
        gradient_bytes=4,
        optimizer_bytes=12,
        zero_stages=(0, 2, 3),
        source="llm-foundry: FullyShardedDataParallel, mixed_precision DEFAULT",
    ),
    Engine(
        name="litgpt",
        title="LitGPT (bf16-true)",
        family="fsdp",
        weight_bytes=2,
        gradient_bytes=2,
        optimizer_bytes=4,
        zero_stages=(0, 2, 3),
        source="litgpt: Fabric precision bf16-true, AdamW states in the dtype of the weights",
    ),
    Engine(
        name="megatron",
        title="Megatron-LM (Megatron Core)",
        family="megatron",
        weight_bytes=2,
        gradient_bytes=4,
        optimizer_bytes=12,
        pads_vocabulary_by_tensor_degree=True,
        zero_stages=(0, 1),
        select_recompute=("attention",),
        mesh_order=MEGATRON_ORDER,
        source="Megatron-LM: DistributedDataParallel with fp32 gradient accumulation, Float16Optimizer",
    ),
    Engine(
        name="megatron-deepspeed",
        title="Megatron-DeepSpeed",
        family="megatron",
        weight_bytes=2,
        gradient_bytes=4,
        optimizer_bytes=12,
        pads_vocabulary_by_tensor_degree=True,
        odd_vocabulary=True,
        zero_stages=(0, 1),
        select_recompute=("attention",),
        mesh_order=MEGATRON_ORDER,
        source="Megatron-DeepSpeed: Megatron v2.x layers under a DeepSpeed or Megatron optimizer",
    ),
    Engine(
        name="nanotron",
        title="nanotron",
        family="megatron",
        weight_bytes=2,
        gradient_bytes=4,
        optimizer_bytes=12,
        zero_stages=(0, 1),
        select_recompute=("attention",),
        mesh_order=MEGATRON_ORDER,
        source="nanotron: FP32GradientAccumulator, ZeroDistributedOptimizer",
    ),
    Engine(
        name="deepspeed",
        title="DeepSpeed",
        family="megatron",
        weight_bytes=2,
        gradient_bytes=2,
        optimizer_bytes=12,
        most_zero_with_pipeline=1,
        select_recompute=("attention",),
        mesh_order=MEGATRON_ORDER,
        source="arXiv:1910.02054 section 3: 2 + 2 + 12 bytes per parameter",
    ),
    Engine(
        name="mindformers",
        title="MindSpore Transformers",
        family="megatron",
        weight_bytes=2,
        gradient_bytes=2,
        optimizer_bytes=12,
        zero_stages=(0, 1),
        select_recompute=("attention",),
        mesh_order=MEGATRON_ORDER,
        source="MindFormers: FP32StateAdamWeightDecay under the optimizer parallel",
    ),
    Engine(
        name="mindspeed",
        title="MindSpeed-LLM (Megatron on Ascend)",
        family="megatron",
        weight_bytes=2,
        gradient_bytes=4,
        optimizer_bytes=12,
        pads_vocabulary_by_tensor_degree=True,
        zero_stages=(0, 1),
        select_recompute=("attention",),
        mesh_order=MEGATRON_ORDER,
        source="MindSpeed-LLM: Megatron Core on torch_npu",
    ),
)


def engine(name: str) -> Engine:
    """The profile of an engine.

    Raises:
        ValueError: no such engine; the message names the closest.
    """
    for profile in ENGINES:
        if profile.name == name:
            return profile
    names = get_args(EngineName)
    near = difflib.get_close_matches(name.lower(), names, 1)
    raise ValueError(
        f"no engine {name!r}; " + (f"did you mean {near[0]}?" if near else f"there are {', '.join(names)}")
    )
