"""How each framework runs a step: which kernels it fuses, and which messages it hides. Facts of its source."""

from dataclasses import dataclass, replace

from meshwright.plan.engines import EngineName


@dataclass(frozen=True, kw_only=True)
class Traits:
    """Time-related habits of an engine.

    Attributes:
        fused_elementwise: bias, activation, dropout and residual additions run in joint kernels; otherwise each
            operator is a kernel of its own.
        fused_rope: rotary embedding is one kernel; otherwise about ten elementwise ones on queries and keys.
        fused_loss: cross entropy reads 16-bit logits once in each direction.
        fused_accumulation: products of weight gradients add to an fp32 buffer themselves.
        accumulate_bytes: bytes moved per parameter and micro-batch to add a gradient to its accumulator, where
            products do not.
        tensor_overlap: tensor-parallel messages of a backward pass travel behind the products that do not need them.
        weights_ahead: gathered weights of ZeRO-1 travel behind the next forward pass.
        blocking_pipeline: a stage waits for its own sends and receives (Megatron's 1F1B without interleaving).
        scatters_boundaries: each tensor rank sends its share of a stage boundary and the receivers gather it
            (scatter_gather_tensors_in_pipeline, arXiv:2104.04473, section 4.1).
        optimizer_bytes: bytes moved per parameter by update, clipping, unscaling and copies.
        optimizer_kernels: kernels per parameter tensor that the update launches: near 0 with multi-tensor kernels.
        default_dropout: dropout of the framework's default arguments where the network does not say.
        reduced_bytes: bytes per gradient on the wire with bf16 compute; ``reduced_bytes_fp16`` with fp16.
        tensors_per_layer: gradients and weights travel tensor by tensor, so many to a layer; 0 is in buckets.
        bucket_parameters: parameters whose gradients travel as one message.
        reduces_every_micro_batch: gradients are reduced after every micro-batch at any ZeRO stage.
    """

    fused_elementwise: bool = False
    fused_rope: bool = False
    fused_loss: bool = False
    fused_accumulation: bool = False
    accumulate_bytes: float = 10.0
    tensor_overlap: bool = False
    weights_ahead: bool = False
    blocking_pipeline: bool = True
    scatters_boundaries: bool = False
    optimizer_bytes: float = 44.0
    optimizer_kernels: float = 0.2
    default_dropout: bool = False
    reduced_bytes: float = 4.0
    reduced_bytes_fp16: float = 4.0
    tensors_per_layer: int = 0
    bucket_parameters: float = 40e6
    reduces_every_micro_batch: bool = False


# fp32 Adam in one pass reads gradient, weight and two moments and writes three (28 bytes), then writes the 16-bit
# weights (2); the norm reads gradients (4), clipping reads and writes them (8), zeroing writes them (4).
_ADAM = 28.0 + 2 + 4 + 8 + 4

TRAITS: dict[EngineName, Traits] = {
    # meshwright.train.optimizer: foreach AdamW on fp32 shards makes about three passes more than a fused one.
    "meshwright": Traits(accumulate_bytes=10, optimizer_bytes=_ADAM + 36, blocking_pipeline=True),
    # torchtitan: torch.compile per block, fused AdamW since 2025.
    "torchtitan": Traits(accumulate_bytes=10, optimizer_bytes=_ADAM, blocking_pipeline=True),
    # llm-foundry: flash attention, fused_crossentropy of flash-attn, DecoupledAdamW (foreach).
    # Its FSDP reduces in 16 bits (mixed_precision DEFAULT and PURE), after every micro-batch.
    "composer": Traits(
        fused_loss=True,
        accumulate_bytes=10,
        optimizer_bytes=_ADAM + 36,
        reduced_bytes=2,
        reduced_bytes_fp16=2,
        reduces_every_micro_batch=True,
    ),
    "litgpt": Traits(accumulate_bytes=6, optimizer_bytes=16),
    # megatron/core: bias_gelu, bias_swiglu and bias_dropout_add fusions, apex/TE gradient accumulation fusion,
    # multi-tensor Adam, async all-reduce or reduce-scatter beside weight-gradient products.
    "megatron": Traits(
        fused_elementwise=True,
        fused_rope=True,
        fused_accumulation=True,
        tensor_overlap=True,
        weights_ahead=True,
        optimizer_bytes=_ADAM,
        optimizer_kernels=0.05,
    ),
    # Megatron-LM 2.x: fused softmax, bias-gelu and bias-dropout-add; Adam and the copies between fp16 and fp32.
    "megatron-deepspeed": Traits(
        fused_elementwise=True,
        accumulate_bytes=8,
        optimizer_bytes=28 + 6,
        optimizer_kernels=0.05,
        default_dropout=True,
        scatters_boundaries=True,
        reduced_bytes_fp16=2,
        bucket_parameters=1e12,
    ),
    # nanotron: the sweep's tensor-parallel messages show no overlap in spite of tp_linear_async_communication.
    # FP32GradientAccumulator, torch fused
    # AdamW, RMSNorm and RoPE kernels of flash-attn, cross entropy in fp32 over sharded logits; gradients and weights in
    # one coalesced call per bucket or step, which NCCL runs as a ring per tensor (fused qkv, o, fused gate and up, down
    # and two norms).
    "nanotron": Traits(fused_rope=True, accumulate_bytes=10, optimizer_bytes=_ADAM, tensors_per_layer=6),
    "deepspeed": Traits(accumulate_bytes=8, optimizer_bytes=_ADAM + 6),
    # MindFormers: whole graph compiled, operators fused by the Ascend graph engine.
    "mindformers": Traits(fused_elementwise=True, fused_rope=True, accumulate_bytes=8, optimizer_bytes=_ADAM),
    "mindspeed": Traits(
        fused_elementwise=True, fused_rope=True, tensor_overlap=True, weights_ahead=True, optimizer_bytes=_ADAM
    ),
}


PLAIN_MEGATRON = replace(TRAITS["megatron"], fused_elementwise=False, fused_rope=False, tensor_overlap=False)
"""Megatron without --overlap-grad-reduce: runs that leave out that setting of the performance recipes leave out the
others as well (SimuMax's B200 runs take the time of unfused kernels, those of Megatron-Bridge of fused ones)."""


def traits_of(engine: EngineName, *, plain: bool = False) -> Traits:
    """Traits of an engine."""
    return PLAIN_MEGATRON if plain and engine == "megatron" else TRAITS[engine]
