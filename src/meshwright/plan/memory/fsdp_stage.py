"""One pipeline stage of a job under FSDP: its weights by group, its layers, and the micro-batches in flight."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from meshwright.plan.job import Job
from meshwright.plan.memory.decoder_block import Block, Keep, head_input, kept
from meshwright.plan.memory.fsdp_traits import LEVELS, TRAITS, Formats, Traits, block_of, keep_of, on_host
from meshwright.plan.memory.fsdp_weights import Weights, weights_of
from meshwright.spec.layers import layer_map


@dataclass(frozen=True)
class Stage:
    """What the memory of one stage depends on. Weights count elements on one rank of the tensor group.

    Attributes:
        layers: layer numbers.
        number: position in the pipeline.
    """

    job: Job
    number: int
    layers: tuple[int, ...]
    block: Block
    keep: Keep
    weights: Weights
    formats: Formats
    traits: Traits

    @property
    def first(self) -> bool:
        """Whether it embeds tokens."""
        return self.number == 0

    @property
    def last(self) -> bool:
        """Whether it ends in head and loss."""
        return self.number == self.job.layout.pipeline_stage - 1

    @property
    def micro_batches(self) -> int:
        """Micro-batches of a step."""
        return self.job.batch.micro_batch_num

    @property
    def pipelined(self) -> bool:
        """Whether there are other stages."""
        return self.job.layout.pipeline_stage > 1

    @cached_property
    def host(self) -> bool:
        """Whether it runs on a CPU."""
        return on_host(self.job)

    @cached_property
    def zero(self) -> int:
        """ZeRO stage."""
        return self.job.layout.zero_stage

    @cached_property
    def shards(self) -> int:
        """Ways that sharded states are cut."""
        return self.job.layout.zero_shards

    @cached_property
    def wrapped(self) -> bool:
        """Whether FSDP holds the weights; a run that neither shards nor casts has plain ones."""
        return self.job.layout.zero_ranks > 1 or self.formats.casts

    @cached_property
    def embedding_here(self) -> bool:
        """Whether the stage holds the embedding matrix, which a tied head shares."""
        return self.first or (self.last and self.job.network.tied)

    @cached_property
    def own_embedding(self) -> float:
        """Elements of the embedding where it is a group of its own."""
        grouped = self.job.network.tied or self.traits.root_embedding
        return 0.0 if grouped or not self.first else self.weights.embedding

    @cached_property
    def root(self) -> float:
        """Elements of the root group: final norm and head, and the embedding where it is not a group."""
        elements = (self.weights.norm + self.weights.head) if self.last else 0.0
        return elements + (self.weights.embedding if self.embedding_here and not self.own_embedding else 0.0)

    @cached_property
    def blocks(self) -> float:
        """Elements of all blocks."""
        return len(self.layers) * self.weights.layer

    @cached_property
    def elements(self) -> float:
        """Elements of all weights of the stage."""
        return self.root + self.own_embedding + self.blocks

    @cached_property
    def fused_layers(self) -> int:
        """Layers of one group."""
        return min(self.job.layout.comm_fusion, len(self.layers)) if self.job.engine.name == "meshwright" else 1

    def group_of(self, index: int) -> tuple[int, int]:
        """First and last index of the layers that travel with the layer at ``index`` of the stage."""
        first = index - index % self.fused_layers
        return first, min(first + self.fused_layers, len(self.layers)) - 1

    @cached_property
    def boundary(self) -> float:
        """Bytes of the hidden states between stages, one micro-batch."""
        return self.block.R

    @cached_property
    def whole(self) -> tuple[bool, ...]:
        """Whether each layer is recomputed whole."""
        return tuple(self.job.recompute.whole(layer) for layer in self.layers)

    @cached_property
    def all_alike(self) -> bool:
        """Whether the layers keep the same."""
        return all(self.whole) or not any(self.whole)

    def layer_bytes(self, index: int) -> float:
        """Bytes of one micro-batch that the layer at ``index`` keeps until backward."""
        return kept(self.block, self.keep_at(index))

    def keep_at(self, index: int) -> Keep:
        """What the layer at ``index`` keeps."""
        return "input" if self.whole[index] else self.keep

    def below(self, index: int) -> float:
        """Bytes of one micro-batch that the layers up to ``index`` keep, none at -1."""
        if index < 0:
            return 0.0
        if self.all_alike:
            total = (index + 1) * self.layer_bytes(0)
        else:
            total = sum(self.layer_bytes(at) for at in range(index + 1))
        return total - self.received_input

    @cached_property
    def received_input(self) -> float:
        """The first layer's input where it is a receive buffer and counted there."""
        input_kept = self.whole[0] or self.block.residual == 4 or self.block.norm == "fused"
        return self.boundary if not self.first and input_kept else 0.0

    @cached_property
    def columns(self) -> float:
        """Vocabulary columns on one rank."""
        return self.weights.columns if self.last else 0.0

    @cached_property
    def chunk(self) -> int | None:
        """Tokens of a loss chunk, where the loss is cut into chunks."""
        chunk = self.job.loss_chunk_tokens
        return chunk if chunk is not None and chunk < self.block.tokens else None

    @cached_property
    def logits(self) -> float:
        """Bytes of the logits that exist at once, in the compute dtype."""
        return (self.chunk or self.block.tokens) * self.columns * self.block.compute

    @cached_property
    def head_bytes(self) -> float:
        """Bytes of one micro-batch that final norm and head keep, logits apart."""
        return head_input(self.block) if self.last else 0.0

    @cached_property
    def micro_batch_bytes(self) -> float:
        """Bytes that one micro-batch in flight keeps on this stage."""
        held = self.below(len(self.layers) - 1)
        if not self.last:
            return held + self.boundary
        return held + self.head_bytes + (0.0 if self.chunk else self.logits)

    @cached_property
    def in_flight(self) -> tuple[tuple[int, bool], ...]:
        """Candidates for the fullest moment: micro-batches whose activations live, and whether gradients of an
        earlier one do.

        1F1B holds ``stages - stage`` of them (arXiv:2104.04473 section 2.2), GPipe all. Interleaved schedules hold
        the warm-up of every chunk; counted in whole micro-batches of the rank's layers.
        """
        count = self.micro_batches
        if not self.pipelined:
            return ((1, count > 1),)
        layout = self.job.layout
        depth = count if layout.pipeline_schedule == "gpipe" else layout.pipeline_stage - self.number
        live = min(count, depth)
        if count > live:
            return ((live, True),)
        return ((live, False), (live - 1, True)) if live > 1 else ((live, False),)


def stages_of(job: Job) -> Iterator[Stage]:
    """The stages of a job, first to last."""
    layout = job.layout
    block, keep = block_of(job), keep_of(job)
    if job.adapter is not None:
        block = replace(block, adapted=job.adapter.targets, weight_gradient=0)
    weights = weights_of(job.network, layout.model_parallel, layout.expert_parallel)
    formats, traits = LEVELS[job.precision.amp_level], TRAITS[job.engine.name]
    for number, layers in enumerate(layer_map(job.network.num_layers, layout)):
        yield Stage(job, number, layers, block, keep, weights, formats, traits)
