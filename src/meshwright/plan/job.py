"""Job: one training step as the planner sees it: network, split, batch, engine and cluster."""

from dataclasses import dataclass, field
from typing import Literal

from meshwright.plan.engines import Engine
from meshwright.plan.network import Network
from meshwright.spec.attention_bias import binding_window
from meshwright.spec.cluster import Cluster
from meshwright.spec.layout import Layout
from meshwright.spec.training import Batch, Precision, Recompute

AttentionKernel = Literal["flash", "materialised"]


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """Low-rank adapters on frozen weights (arXiv:2106.09685).

    Attributes:
        targets: projections that get one, as ``attention`` (q, k, v, o), ``qv`` or ``all`` linear layers.
        base_bits: bits per frozen weight: 16, 8 or 4 (arXiv:2305.14314).
    """

    rank: int
    targets: Literal["all", "attention", "qv"] = "all"
    base_bits: float = 16


@dataclass(frozen=True, kw_only=True)
class Job:
    """Everything that decides memory and time of one optimizer step.

    Attributes:
        virtual_stages: model chunks per pipeline rank (interleaved schedules).
        recompute_modules: modules that Megatron-LM recomputes by name, such as ``layernorm`` or ``moe_act``.
        float8: linear layers run in 8-bit formats; ``float4`` in 4-bit ones (NVFP4).
        attention: kernel; ``materialised`` keeps [heads, seq, seq] scores.
        isolate_documents: Meshwright's attention stays inside the documents of a sample.
        fused_loss: cross entropy over 16-bit logits in one kernel, without fp32 copies.
        overlap_gradients / overlap_weights: data-parallel messages travel behind compute.
        offload_optimizer: optimizer states and step live on the host.
        compiled_loss: cross entropy built from kernels that torch.compile fuses, which update fp32 logits out of place.
        fused_weight_gradients: matrix products add weight gradients to their buffers (Megatron's gradient accumulation
            fusion); otherwise each is a temporary first.
        deterministic: deterministic kernels, with cuBLAS workspaces to match.
        expert_tensor_parallel: ways each expert is split; None is ``model_parallel``.
        expert_dispatch: how tokens reach the ranks of their experts.
        blocking_pipeline: the host waits for every message between stages, so that it never runs ahead of the device.
        fused_permutation: tokens are brought into the order of the experts, and back, by one kernel each.
    """

    network: Network
    layout: Layout
    engine: Engine
    cluster: Cluster
    seq_length: int
    batch: Batch
    virtual_stages: int = 1
    recompute: Recompute = field(default_factory=Recompute)
    recompute_modules: tuple[str, ...] = ()
    precision: Precision = field(default_factory=lambda: Precision(amp_level="O2", dtype="bfloat16"))
    float8: bool = False
    float4: bool = False
    attention: AttentionKernel = "flash"
    isolate_documents: bool = False
    fused_loss: bool = False
    loss_chunk_tokens: int | None = None
    grad_clip: bool = True
    compile: bool = False
    overlap_gradients: bool = True
    overlap_weights: bool = True
    adapter: Adapter | None = None
    offload_optimizer: bool = False
    compiled_loss: bool = False
    fused_weight_gradients: bool = True
    deterministic: bool = False
    expert_tensor_parallel: int | None = None
    expert_dispatch: Literal["alltoall", "allgather"] = "alltoall"
    fused_permutation: bool = True
    blocking_pipeline: bool = False

    @property
    def tokens(self) -> int:
        """Tokens of one micro-batch on one context rank."""
        return self.batch.micro_batch_size * self.seq_length // self.layout.context_parallel

    @property
    def biased_attention(self) -> bool:
        """Whether Meshwright's attention adds a bias to its scores, for windows and documents."""
        binding = binding_window(self.network.window, self.seq_length) is not None
        return self.engine.name == "meshwright" and (binding or self.isolate_documents)

    @property
    def padded_vocabulary(self) -> int:
        """Rows of the embedding on all tensor ranks together."""
        network, tensor = self.network, self.layout.model_parallel
        unit = max(1, network.vocab_pad_multiple)
        if self.engine.pads_vocabulary_by_tensor_degree and not (tensor == 1 and self.engine.odd_vocabulary):
            unit = (unit if unit > 1 else 128) * tensor
        return -(-network.vocab_size // unit) * unit

    @property
    def tokens_per_step(self) -> int:
        """Tokens of the global batch."""
        return self.batch.global_batch_size * self.seq_length
