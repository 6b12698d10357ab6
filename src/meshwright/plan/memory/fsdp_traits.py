"""What distinguishes the engines of the FSDP family, and the number formats of their precision levels."""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from meshwright.plan.engines import EngineName
from meshwright.plan.job import Job
from meshwright.plan.memory.decoder_block import Block, Keep, NormKernel
from meshwright.spec.attention_bias import binding_window
from meshwright.spec.training import AmpLevel

LossKind = Literal["in place", "fp32 copies", "fused"]


@dataclass(frozen=True, kw_only=True)
class Traits:
    """How an engine of the family trains.

    Attributes:
        norm: kernel on accelerators; torch takes norms apart on a CPU.
        loss: ``in place``: logits become their own gradient (`meshwright.model.loss`); ``fp32 copies``: logits, log
            probabilities and both gradients in fp32 (``cross_entropy(logits.float())``); ``fused``: a kernel that
            keeps 16-bit logits and their gradient.
        root_embedding: the embedding is gathered with the head, at the start of the step.
        last_layer_stays: the last block is not freed between forward and backward.
        foreach_optimizer: the update goes through one temporary as large as the weights.
        expand_keys: keys and values are repeated before attention.
        operator_policy: selective recomputation keeps every second matrix product.
        own_stages: pipeline stages reduce as ZeRO-2 and 3 do in each micro-batch, and hold received tensors only in
            flight (`meshwright.parallel.pipeline`); torch's reduce once a step, keep weights gathered, and own a
            buffer for each micro-batch and direction (torch/distributed/pipelining/stage.py).
        fuses_layers: ``comm_fusion`` layers travel as one message.
    """

    norm: NormKernel
    loss: LossKind
    root_embedding: bool = False
    last_layer_stays: bool = False
    foreach_optimizer: bool = False
    expand_keys: bool = False
    operator_policy: bool = False
    own_stages: bool = False
    fuses_layers: bool = False


TRAITS: dict[EngineName, Traits] = {
    "meshwright": Traits(norm="cast", loss="in place", own_stages=True, fuses_layers=True),
    # torchtitan at 9dec370 (2024-12): parallelize_llama.py, models/llama/model.py, optimizer.py.
    "torchtitan": Traits(
        norm="upcast",
        loss="fp32 copies",
        root_embedding=True,
        last_layer_stays=True,
        foreach_optimizer=True,
        expand_keys=True,
        operator_policy=True,
    ),
    # llm-foundry: models/mpt (fused cross entropy of flash-attn), optim/decoupled_weight_decay.py (tensor by tensor).
    "composer": Traits(norm="fused", loss="fused", root_embedding=True),
    # litgpt: utils.py chunked_cross_entropy (fp32 loss over 16-bit logits), model.py RMSNorm (x.float()).
    "litgpt": Traits(norm="upcast", loss="fp32 copies", root_embedding=True, foreach_optimizer=True, expand_keys=True),
}


@dataclass(frozen=True, kw_only=True)
class Formats:
    """Bytes of an element.

    Attributes:
        stored: weights that the optimizer updates, and each of its two states.
        gathered: weights as compute uses them.
        gradient: weight gradients as backward leaves them.
        reduced: gradients in reductions.
        compute / residual: activations in matrix products and on the residual stream.
        casts: gathered weights differ from stored ones (so a single rank is wrapped, too).
    """

    stored: int
    gathered: int
    gradient: int
    reduced: int
    compute: int
    residual: int
    casts: bool


LEVELS: dict[AmpLevel, Formats] = {
    "O0": Formats(stored=4, gathered=4, gradient=4, reduced=4, compute=4, residual=4, casts=False),
    "O1": Formats(stored=4, gathered=4, gradient=4, reduced=4, compute=2, residual=4, casts=False),
    "O2": Formats(stored=4, gathered=2, gradient=2, reduced=4, compute=2, residual=2, casts=True),
    "O3": Formats(stored=2, gathered=2, gradient=2, reduced=2, compute=2, residual=2, casts=False),
}
"""`meshwright.parallel.precision`; other engines mean O2 by mixed precision and O3 by pure 16 bits."""


def on_host(job: Job) -> bool:
    """Whether the job runs on a CPU, where torch takes norms apart and gloo copies messages."""
    return job.cluster.device.family == "cpu"


def keep_of(job: Job) -> Keep:
    """What a layer that is not recomputed whole keeps."""
    if not job.recompute.select:
        return "autograd"
    return "every second matmul" if TRAITS[job.engine.name].operator_policy else job.recompute.select


def block_of(job: Job) -> Block:
    """The block of a job on one rank."""
    ways = job.layout.model_parallel
    return _block(
        job.network,
        job.engine.name,
        job.precision.amp_level,
        job.tokens,
        job.seq_length // job.layout.context_parallel,
        ways,
        ways if job.layout.use_seq_parallel else 1,
        (job.attention == "materialised", job.compile, on_host(job), job.isolate_documents and job.biased_attention),
    )


@lru_cache(maxsize=4096)
def _block(
    network: object, engine: EngineName, level: AmpLevel, tokens: int, positions: int, ways: int, sequence: int,
    flags: tuple[bool, bool, bool, bool],
) -> Block:  # fmt: skip
    from meshwright.plan.network import Network

    assert isinstance(network, Network)
    traits, formats, (materialised, compiled, host, isolated) = TRAITS[engine], LEVELS[level], flags
    # Kernels other than flash take as many key as query heads (`meshwright.model.attention.takes_fewer_keys`).
    masked = isolated or binding_window(network.window, positions) is not None
    flash = host or (formats.compute == 2 and not masked)
    norm: NormKernel = "decomposed" if host else "fused" if compiled or network.norm == "layernorm" else traits.norm
    block = Block(
        tokens=tokens,
        positions=positions,
        hidden=network.hidden_size,
        query=network.query_width / ways,
        key_value=max(network.kv_width / ways, network.head_dim) if network.num_kv_heads else 0,
        inner=network.intermediate_size / ways,
        heads=network.num_heads / ways,
        head_dim=network.head_dim,
        tensor=ways,
        sequence=sequence,
        compute=formats.compute,
        residual=formats.residual,
        weight_gradient=formats.gradient,
        norm=norm,
        gated=network.gated,
        rope=network.position == "rope",
        own_positions=isolated,
        qk_norm=network.qk_norm,
        expand_keys=(traits.expand_keys or not flash) and network.num_kv_heads < network.num_heads,
        materialised=materialised,
        dropout=network.dropout > 0,
        autocast=level == "O1",
        gloo=host,
        fused_elementwise=compiled,
    )
    if network.experts is None:
        return block
    # Each token visits several experts: their activations lie side by side.
    experts = network.experts
    inner = experts.experts_per_token * experts.intermediate_size + experts.shared_intermediate_size
    return replace(block, inner=inner / ways)
