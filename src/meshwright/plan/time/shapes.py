"""Shape: what decides the time of one layer on one rank, as one hashable key; and parameters per layer."""

from dataclasses import dataclass

from meshwright.plan.job import Job
from meshwright.plan.network import Network
from meshwright.plan.time.traits import traits_of


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A micro-batch on one rank.

    Attributes:
        tokens: of the micro-batch on one context rank.
        sequences: of the micro-batch.
        tensor / context / expert: degrees of the split; ``expert_tensor`` is that of each expert.
        biased: attention adds a bias to its scores (`Job.biased_attention`).
        sequence_parallel: norms and residuals are sharded along the sequence inside the tensor group.
        recompute: ``none``, ``all`` or the kinds that are recomputed in every layer.
        fused_gradients: products of weight gradients add to their fp32 buffers themselves.
        plain: a Megatron run without the settings of a performance recipe, see `meshwright.plan.time.traits`.
        adapter_rank: rank of low-rank adapters on frozen weights; 0 trains the weights themselves.
    """

    tokens: int
    sequences: int
    seq_length: int
    tensor: int
    context: int
    expert: int
    expert_tensor: int
    sequence_parallel: bool
    flash: bool
    biased: bool
    float8: bool
    compiled: bool
    fused_loss: bool
    compiled_loss: bool
    fused_gradients: bool
    plain: bool
    adapter_rank: int
    modules: tuple[str, ...]

    @property
    def expert_tokens(self) -> float:
        """Tokens whose copies this rank's experts see: those of the ranks that share out each expert."""
        return self.tokens * min(self.expert_tensor, self.tensor) / self.tensor

    @property
    def residual_tokens(self) -> float:
        """Tokens whose residual stream this rank holds."""
        return self.tokens / self.tensor if self.sequence_parallel else float(self.tokens)


def shape_of(job: Job) -> Shape:
    """The shape of a job's micro-batch."""
    layout = job.layout
    return Shape(
        tokens=job.tokens,
        sequences=job.batch.micro_batch_size,
        seq_length=job.seq_length,
        tensor=layout.model_parallel,
        context=layout.context_parallel,
        expert=layout.expert_parallel,
        expert_tensor=job.expert_tensor_parallel or layout.model_parallel,
        sequence_parallel=layout.use_seq_parallel and layout.model_parallel > 1,
        flash=job.attention == "flash",
        biased=job.biased_attention,
        float8=job.float8 or job.float4,
        compiled=job.compile,
        fused_loss=job.fused_loss,
        compiled_loss=job.compiled_loss,
        fused_gradients=job.fused_weight_gradients and traits_of(job.engine.name).fused_accumulation,
        plain=job.engine.name == "megatron" and not job.overlap_gradients,
        adapter_rank=job.adapter.rank if job.adapter else 0,
        modules=job.recompute_modules,
    )


def attention_products(network: Network, tensor: int) -> tuple[tuple[int, int], ...]:
    """(inputs, outputs) of the linear layers around attention on one rank, in the order of the forward pass.

    Latent attention (arXiv:2405.04434) compresses on every rank and splits the expansions over heads.
    """
    hidden, latent = network.hidden_size, network.latent
    if latent is None:
        return (
            (hidden, (network.query_width + 2 * network.kv_width) // tensor),
            (network.query_width // tensor, hidden),
        )
    heads = max(1, network.num_heads // tensor)
    query = heads * (latent.nope_head_dim + latent.rope_head_dim)
    down = latent.key_value_rank + latent.rope_head_dim
    up = (latent.key_value_rank, heads * (latent.nope_head_dim + latent.value_head_dim))
    out = (heads * latent.value_head_dim, hidden)
    if latent.query_rank is None:
        return ((hidden, query), (hidden, down), up, out)
    return ((hidden, latent.query_rank), (latent.query_rank, query), (hidden, down), up, out)


def feed_forward_products(network: Network, width: int, tensor: int) -> tuple[tuple[int, int], ...]:
    """(inputs, outputs) of a feed-forward network of some width on one rank; gate and up are one product."""
    inner = max(1, width // tensor)
    return ((network.hidden_size, inner * (2 if network.gated else 1)), (inner, network.hidden_size))


@dataclass(frozen=True, kw_only=True)
class LayerWeights:
    """Parameters of one layer on one rank: those whose gradients travel over data x context, and those over
    data x context / expert ranks."""

    dense: float
    expert: float

    @property
    def total(self) -> float:
        """Parameters on the rank."""
        return self.dense + self.expert
