"""One pipeline stage of a job under FSDP: its weights by group, its layers, and the micro-batches in flight."""

from collections.abc import Container, Iterator
from dataclasses import dataclass, field, replace

from meshwright.plan.job import Job
from meshwright.plan.memory.block_backward import BlockMemory, block_memory
from meshwright.plan.memory.cut import stage_layers
from meshwright.plan.memory.decoder_block import Block
from meshwright.plan.memory.fsdp_flight import Flight, flights
from meshwright.plan.memory.fsdp_mask import shared_by_layers
from meshwright.plan.memory.fsdp_traits import LEVELS, TRAITS, Formats, Traits, block_of, keep_of, on_host
from meshwright.plan.memory.fsdp_weights import Weights, weights_of
from meshwright.plan.memory.workspace import cublas_workspaces


@dataclass(kw_only=True)
class Stage:
    """What the memory of one stage depends on. Weights count elements on one rank of the tensor group, sizes bytes.

    A search makes one for each layout: attributes are worked out once, when it is made.

    Attributes:
        number: position in the pipeline.
        layers: layer numbers.
        sizes: what one layer keeps and needs.
        first / last: whether it embeds tokens, and whether it ends in head and loss.
        pipelined: there are other stages.
        host: it runs on a CPU.
        wrapped: FSDP holds the weights; a run that neither shards nor casts has plain ones.
        shards: ways that sharded states are cut.
        fused_layers: layers of one group.
        embedding_here: it holds the embedding matrix, which a tied head shares.
        own_embedding: elements of the embedding where it is a group of its own.
        root: elements of the root group: final norm and head, and the embedding where it is not a group.
        head_elements: elements whose gradients the head makes.
        tied_elements: of them, those whose gradient waits for that of the embedding, which is the same weight.
        blocks / elements: elements of all blocks, and of all weights.
        boundary: hidden states between stages, one micro-batch.
        holds_inputs: the pipeline holds the received input of a micro-batch until its backward has ended.
        input_beside: bytes of a received input that the first layer does not account for: what the layer lets go
            and the pipeline holds; negative where the layer's input is one of `receive_bytes`.
        columns: vocabulary columns on one rank.
        chunk: tokens of a loss chunk, where the loss is cut into chunks.
        logits: those that exist at once, in the compute dtype.
        head_bytes: what final norm and head keep of one micro-batch, logits apart.
        micro_batch_bytes: what one micro-batch in flight keeps on this stage; ``shared_bytes`` of them are kept by all
            its layers together (`shared_by_layers`).
        stored_bytes / optimizer_bytes: this rank's shard of the weights, and its optimizer states, on the device. An
            offloaded optimizer takes the master weights along.
        input_bytes: token ids, labels, positions where documents are isolated, and rotary tables.
        receive_bytes: buffers of torch's pipeline stages for the whole run (`Traits.own_stages`).
        received_gradient: the one whose backward pass runs, where stages hold it no longer.
        workspaces: of matrix products.
    """

    job: Job
    number: int
    layers: range
    block: Block
    sizes: BlockMemory
    weights: Weights
    formats: Formats
    traits: Traits
    first: bool = field(init=False)
    last: bool = field(init=False)
    pipelined: bool = field(init=False)
    host: bool = field(init=False)
    micro_batches: int = field(init=False)
    zero: int = field(init=False)
    shards: int = field(init=False)
    wrapped: bool = field(init=False)
    fused_layers: int = field(init=False)
    all_alike: bool = field(init=False)
    embedding_here: bool = field(init=False)
    own_embedding: float = field(init=False)
    root: float = field(init=False)
    head_elements: float = field(init=False)
    tied_elements: float = field(init=False)
    blocks: float = field(init=False)
    elements: float = field(init=False)
    boundary: float = field(init=False)
    holds_inputs: bool = field(init=False)
    input_beside: float = field(init=False)
    columns: float = field(init=False)
    chunk: int | None = field(init=False)
    logits: float = field(init=False)
    head_bytes: float = field(init=False)
    shared_bytes: float = field(init=False)
    micro_batch_bytes: float = field(init=False)
    in_flight: tuple[Flight, ...] = field(init=False)
    stored_bytes: float = field(init=False)
    optimizer_bytes: float = field(init=False)
    input_bytes: float = field(init=False)
    receive_bytes: float = field(init=False)
    received_gradient: float = field(init=False)
    workspaces: float = field(init=False)

    def __post_init__(self) -> None:
        job, layout = self.job, self.job.layout
        self.first, self.last = self.number == 0, self.number == layout.pipeline_stage - 1
        self.pipelined, self.host = layout.pipeline_stage > 1, on_host(job)
        self.micro_batches, self.shards = job.batch.micro_batch_num, layout.zero_shards
        self.zero = layout.zero_stage
        if self.pipelined and not self.traits.own_stages:
            self.zero = min(self.zero, 1)
        self.wrapped = layout.zero_ranks > 1 or self.formats.casts
        fusion = layout.comm_fusion if self.traits.fuses_layers else 1
        self.fused_layers = max(1, min(fusion, len(self.layers)))
        self.all_alike = isinstance(job.recompute.layers, str)
        self._count_weights()
        self._size_activations()
        self._size_base()
        self.in_flight = flights(job, self.number, self.zero)

    def _count_weights(self) -> None:
        weights, tied = self.weights, self.job.network.tied
        self.embedding_here = self.first or (self.last and tied)
        grouped = tied or self.traits.root_embedding or not self.first
        self.own_embedding = 0.0 if grouped else weights.embedding
        self.root = weights.norm + weights.head if self.last else 0.0
        self.root += weights.embedding if self.embedding_here and not self.own_embedding else 0.0
        self.head_elements = weights.norm + (weights.head or weights.embedding) if self.last else 0.0
        self.tied_elements = weights.embedding if tied and self.first and self.last else 0.0
        self.blocks = len(self.layers) * weights.layer
        self.elements = self.root + self.own_embedding + self.blocks

    def _size_activations(self) -> None:
        block, chunk = self.block, self.job.loss_chunk_tokens
        self.boundary = block.R
        reads_input = self.layers and (self.whole(0) or block.residual == 4 or block.norm == "fused")
        self.holds_inputs = self.traits.own_stages and not self.first
        self.input_beside = 0.0
        if not self.first and self.holds_inputs != bool(reads_input):
            self.input_beside = self.boundary if self.holds_inputs else -self.boundary
        self.columns = self.weights.columns if self.last else 0.0
        self.chunk = chunk if chunk is not None and chunk < block.tokens else None
        self.logits = (self.chunk or block.tokens) * self.columns * block.compute
        self.head_bytes = self.sizes.head if self.last else 0.0
        self.shared_bytes = shared_by_layers(self.job, block, self.layers)
        self.micro_batch_bytes = self.below(len(self.layers) - 1)
        self.micro_batch_bytes += self.autocast_kept(len(self.layers))
        if self.last:
            self.micro_batch_bytes += self.head_bytes + (0.0 if self.chunk else self.autocast_head + self.logits)
        else:
            self.micro_batch_bytes += self.boundary

    def _size_base(self) -> None:
        block, count = self.block, self.micro_batches
        each = self.elements / self.shards
        offloaded = self.job.offload_optimizer
        self.stored_bytes = each * (self.formats.gathered if offloaded else self.formats.stored)
        self.optimizer_bytes = 0.0 if offloaded else 2 * self.stored_bytes
        tables = 8.0 * block.positions * block.head_dim if block.rope else 0.0
        self.input_bytes = (16.0 + 8 * block.own_positions) * block.tokens * count + tables
        own = self.traits.own_stages
        self.receive_bytes = 0.0 if own else ((not self.first) + (not self.last)) * count * self.boundary
        self.received_gradient = self.boundary if own and not self.last else 0.0
        self.workspaces = cublas_workspaces(self.job.cluster.device.family, deterministic=self.job.deterministic)

    def group_of(self, index: int) -> tuple[int, int]:
        """First and last index of the layers that travel with the layer at ``index`` of the stage."""
        if self.fused_layers == 1:
            return index, index
        first = index - index % self.fused_layers
        return first, min(first + self.fused_layers, len(self.layers)) - 1

    def whole(self, index: int) -> bool:
        """Whether the layer at ``index`` of the stage is recomputed whole."""
        return self.job.recompute.whole(self.layers[index])

    def layer_bytes(self, index: int) -> float:
        """What the layer at ``index`` keeps of one micro-batch until backward."""
        return self.sizes.kept_whole if self.whole(index) else self.sizes.kept

    def remade_bytes(self, index: int) -> float:
        """What the layer at ``index`` holds once backward has made again what was dropped."""
        return self.sizes.remade_whole if self.whole(index) else self.sizes.remade

    def autocast_kept(self, layers: int) -> float:
        """16-bit copies of the matrices of the lowest layers, which autocast makes for each micro-batch and autograd
        keeps where the cast is not recomputed."""
        if not self.block.autocast or "elementwise" in self.job.recompute.select:
            return 0.0
        return 2 * sum(not self.whole(index) for index in range(layers)) * self.weights.products

    def autocast_backward(self, index: int) -> float:
        """Copies at the backward pass of the layer at ``index``, whose own are there or have been made again."""
        return self.autocast_kept(index) + 2 * self.block.autocast * self.weights.products

    def autocast_forward(self, layers: int) -> float:
        """Copies of the lowest layers in their forward pass: autocast caches those of plain weights until it ends.

        A part of a distributed tensor is no leaf of the graph, and none but leaves are cached
        (aten/src/ATen/autocast_mode.cpp, ``cached_cast``).
        """
        cached = self.block.autocast and self.block.tensor == 1
        return 2 * layers * self.weights.products if cached else self.autocast_kept(layers)

    @property
    def autocast_head(self) -> float:
        """The copy of the head, which a chunked loss makes again for each chunk."""
        return 2 * self.block.autocast * self.last * (self.weights.head or self.weights.embedding)

    def below(self, index: int) -> float:
        """What the layers up to ``index`` keep of one micro-batch, and the pipeline of its input."""
        if index < 0:
            return self.boundary if self.holds_inputs else 0.0
        beside = self.input_beside + self.shared_bytes
        if self.all_alike:
            return (index + 1) * self.layer_bytes(0) + beside
        return sum(self.layer_bytes(at) for at in range(index + 1)) + beside


def stages_of(job: Job, numbers: Container[int] | None = None) -> Iterator[Stage]:
    """The stages of a job, first to last, or those in ``numbers``."""
    layout = job.layout
    block = block_of(job)
    if job.adapter is not None:
        block = replace(block, adapted=job.adapter.targets, weight_gradient=0)
    sizes = block_memory(block, keep_of(job))
    weights = weights_of(job.network, layout.model_parallel, layout.expert_parallel)
    formats, traits = LEVELS[job.precision.amp_level], TRAITS[job.engine.name]
    begin = 0
    # With fewer layers than stages no cut is legal; each stage then counts one.
    for number, count in enumerate(max(1, count) for count in stage_layers(job)):
        if numbers is None or number in numbers:
            yield Stage(
                job=job,
                number=number,
                layers=range(begin, begin + count),
                block=block,
                sizes=sizes,
                weights=weights,
                formats=formats,
                traits=traits,
            )
        begin += count
