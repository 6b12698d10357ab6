"""From a row of published measurements to the job that the planner predicts."""

import re

from benchmarks.published.clusters import cluster_of
from benchmarks.published.megatron_ci import (
    expert_tensor_parallel,
    flag,
    fuses_permutation,
    gathers_tokens,
    optimizer_instances,
    stage_layers,
)
from benchmarks.published.networks import network_of
from benchmarks.published.rows import Row, Skip

from meshwright.plan.engines import Engine, EngineName, engine
from meshwright.plan.job import Adapter, Job
from meshwright.spec.layout import Layout
from meshwright.spec.training import Batch, Precision, Recompute

ENGINE_NAMES: tuple[tuple[str, EngineName], ...] = (
    ("nanotron", "nanotron"),
    ("megatron-deepspeed", "megatron-deepspeed"),
    ("composer", "composer"),
    ("foundry", "composer"),
    ("torchtitan", "torchtitan"),
    ("torchtune", "litgpt"),
    ("fms-fsdp", "torchtitan"),
    ("mindspeed", "mindspeed"),
    ("modellink", "mindspeed"),
    ("mindformers", "mindformers"),
    ("litgpt", "litgpt"),
    ("axolotl", "litgpt"),
    ("peft", "litgpt"),
    ("deepspeed", "deepspeed"),
)


def engine_of(row: Row) -> Engine:
    """The engine profile of a row's framework; Megatron's, whose layout most frameworks share, where unknown."""
    framework = row.text("framework").lower()
    return engine(next((name for part, name in ENGINE_NAMES if part in framework), "megatron"))


def job_of(row: Row) -> Job:
    """The job of a row. Raises Skip, with a reason that can be counted, where the row does not describe one."""
    cluster, network, profile = cluster_of(row), network_of(row), engine_of(row)
    if row.text("kind").startswith(("microbenchmark", "memory (analytic")):
        raise Skip("not a training step")
    layout = _layout(row)
    batch = _batch(row, layout)
    notes, framework = row.text("notes").lower(), row.text("framework").lower()
    return Job(
        network=network,
        layout=layout,
        engine=profile,
        cluster=cluster,
        seq_length=row.whole("seq_len"),
        batch=batch,
        virtual_stages=row.whole("vpp", 1),
        recompute=_recompute("" if _keeps_activations(row) else _recompute_text(row, profile), network.num_layers),
        recompute_modules=_recompute_modules(row.text("recompute")),
        precision=_precision(row),
        float8="fp8" in row.text("precision").lower() or "float8" in row.text("precision").lower(),
        float4="fp4" in row.text("precision").lower(),
        attention="materialised" if _materialised(row) else "flash",
        fused_loss="ce fusion on" in notes,
        compile="compile" in framework,
        overlap_gradients=_overlaps(row, "overlap-grad-reduce"),
        overlap_weights=_overlaps(row, "overlap-param-gather"),
        adapter=_adapter(row),
        offload_optimizer="offload" in row.text("kind").lower() or "cpu offload" in row.text("shard").lower(),
        compiled_loss=flag(row, "cross-entropy-loss-fusion") is not None,
        fused_weight_gradients=flag(row, "no-gradient-accumulation-fusion") is None,
        deterministic=flag(row, "deterministic-mode") is not None,
        expert_tensor_parallel=expert_tensor_parallel(row),
        expert_dispatch="allgather" if gathers_tokens(row) else "alltoall",
        fused_permutation=fuses_permutation(row),
        blocking_pipeline="before nanotron pp fix" in notes,
    )


def _layout(row: Row) -> Layout:
    ranks, tensor = row.whole("n_gpus"), row.whole("tp", 1)
    pipeline, context = row.whole("pp", 1), row.whole("cp", 1)
    others = tensor * pipeline * context
    if row.whole("layers") < pipeline:
        raise Skip("fewer layers than stages")
    if ranks % others:
        raise Skip("devices are no multiple of tp x pp x cp")
    data = ranks // others
    return Layout(
        data_parallel=data,
        model_parallel=tensor,
        pipeline_stage=pipeline,
        context_parallel=context,
        expert_parallel=row.whole("ep", 1),
        use_seq_parallel=row.text("sp") == "yes" and tensor > 1,
        zero_stage=_zero_stage(row.text("shard")),
        zero_group_size=_group(row, data * context),
        pipeline_schedule="interleaved_1f1b" if row.whole("vpp", 1) > 1 else "1f1b",
        # Megatron and its kin place tensor ranks next to each other, then context, data and pipeline.
        mesh_order=("pipeline", "data", "context", "model"),
        stage_layers=stage_layers(row),
    )


def _zero_stage(shard: str) -> int:
    text = shard.lower()
    if stage := re.search(r"zero-?([0-3])", text):
        return int(stage[1])
    if "fsdp" in text:
        return 3
    return 1 if "distributed optimizer" in text else 0


def _group(row: Row, ranks: int) -> int | None:
    group = re.search(r"group (\d+)", row.text("shard"))
    size = int(group[1]) if group else ranks // optimizer_instances(row)
    return size if 0 < size < ranks and ranks % size == 0 else None


def _batch(row: Row, layout: Layout) -> Batch:
    size, whole = row.whole("mbs", 0), row.whole("gbs_seqs", 0)
    steps = row.whole("grad_accum", 0)
    if not size and whole and steps:
        size = whole // (layout.data_parallel * steps)
    if not size:
        raise Skip("mbs is not stated")
    if not whole:
        whole = size * layout.data_parallel * (steps or layout.pipeline_stage)
    num = whole // (size * layout.data_parallel)
    if num < 1:
        raise Skip("global batch is smaller than one micro-batch per data rank")
    return Batch(micro_batch_size=size, micro_batch_num=num, global_batch_size=whole)


def _keeps_activations(row: Row) -> bool:
    """vTrain's single-node runs, listed as recomputing, do not: from 1024 to 2048 hidden units a layer's 1024 tokens
    take 1.0 ms more, which is 248 TFLOP/s of an A100 for the products of forward and backward but 359, above its peak,
    if forward ran twice. The runs on several nodes fit recomputation."""
    return row.source == "vtrain_a100" and row.whole("n_gpus") <= row.whole("gpus_per_node", 8)


def _recompute_text(row: Row, profile: Engine) -> str:
    """What the row says; where it says nothing, the framework's default.

    LitGPT's FSDP strategy and torchtune's recipes recompute every block (litgpt/finetune/lora.py,
    ``activation_checkpointing_policy``; torchtune recipes/configs, ``enable_activation_checkpointing``).
    """
    text = row.text("recompute")
    return "full" if profile.name == "litgpt" and text.startswith("not stated") else text


def _recompute(text: str, layers: int) -> Recompute:
    if block := re.match(r"full/block/(\d+)", text):
        return Recompute(layers=tuple(range(min(int(block[1]), layers))))
    if text.startswith("full"):
        return Recompute(layers="all")
    if "op-level" in text:
        return Recompute(select=("elementwise",))
    return Recompute(select=("attention",)) if "core_attn" in text else Recompute()


def _recompute_modules(text: str) -> tuple[str, ...]:
    known = ("layernorm", "moe_act", "mla_up_proj", "mlp", "moe")
    return tuple(name for name in known if re.search(rf"\b{name}\b", text)) if "selective" in text else ()


def _precision(row: Row) -> Precision:
    text = row.text("precision").lower()
    dtype = "float16" if ("fp16" in text and "bf16" not in text) or text.startswith("float16") else "bfloat16"
    pure = any(word in text for word in ("bf16-true", "pure", "bf16 master"))
    return Precision(amp_level="O3" if pure else "O2", dtype=dtype)


def _materialised(row: Row) -> bool:
    if flag(row, "transformer-impl") == "local":
        return True
    return any(word in row.text("attn").lower() for word in ("unfused", "not flash", "local"))


def _overlaps(row: Row, flag: str) -> bool:
    """Whether data-parallel messages hide behind compute: as the remarks say, else as the framework's default."""
    notes = row.text("notes").lower()
    if "no comm overlap" in notes or "not bucketed/overlapped" in notes:
        return False
    return flag in notes or row.source not in ("megatron_ci_memory", "bigscience_a100", "ascend_mindspeed")


def _adapter(row: Row) -> Adapter | None:
    kind = row.text("kind").lower()
    if "lora" not in kind and "adapter" not in kind:
        return None
    rank = re.search(r"lora_r=(\d+)", row.text("notes"))
    quantised = "nf4" in kind or "qlora" in kind or "4bit" in row.text("precision")
    return Adapter(rank=int(rank[1]) if rank else 8, targets="qv", base_bits=4 if quantised else 16)
