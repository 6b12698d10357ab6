"""Which layers each pipeline stage holds: every layer exactly once."""

from meshwright.spec.layout import Layout
from meshwright.spec.nearest import divisors, nearest
from meshwright.spec.violation import Violation

StageMap = tuple[tuple[int, ...], ...]

STAGES = "parallel_config.pipeline_stage"
STAGE_LAYERS = "parallel_config.stage_layers"


def layer_map(num_layers: int, layout: Layout) -> StageMap:
    """Layer numbers of each stage, in order.

    An even cut, unless ``stage_layers`` says otherwise. Layers that are left over go one each to the last
    stages but the very last: that one has the head and the loss to compute, and early stages hold the
    activations of more micro-batches at once.

    Raises:
        ValueError: a stage would be empty, or ``stage_layers`` does not fit.
    """
    if faults := layer_violations(num_layers, layout):
        raise ValueError(str(faults[0]))
    return _consecutive(layout.stage_layers or even_cut(num_layers, layout.pipeline_stage))


def even_cut(num_layers: int, stages: int) -> tuple[int, ...]:
    """Number of layers of each stage by the rule of `layer_map`."""
    each, left = divmod(num_layers, stages)
    takers = [stages - 2 - index for index in range(left)]
    return tuple(each + (stage in takers) for stage in range(stages))


def layer_violations(num_layers: int, layout: Layout) -> list[Violation]:
    """Why a layer map is impossible; empty when it is possible."""
    stages, by_hand = layout.pipeline_stage, layout.stage_layers
    if num_layers < stages:
        message = f"{num_layers} layers cannot fill {stages} stages with at least one layer each"
        return [Violation(key_path=STAGES, message=message, legal=nearest(range(1, num_layers + 1), stages)[:3])]
    if by_hand is None:
        return []
    even = (str(list(even_cut(num_layers, stages))),)
    if len(by_hand) != stages:
        message = f"{list(by_hand)} has {len(by_hand)} entries for pipeline_stage {stages}"
    elif min(by_hand) < 1:
        message = f"{list(by_hand)} leaves a stage without layers"
    elif sum(by_hand) != num_layers:
        message = f"{list(by_hand)} places {sum(by_hand)} layers, the model has {num_layers}"
    else:
        return []
    return [Violation(key_path=STAGE_LAYERS, message=message, legal=even)]


def virtual_stage_map(num_layers: int, pipeline_stage: int, layers_per_virtual_stage: int) -> StageMap:
    """Layers of each rank when it holds several virtual stages (interleaved schedules).

    Virtual stage v lies on rank ``v % pipeline_stage``, as in Megatron-LM (arXiv:2104.04473).

    Raises:
        ValueError: some layers would be left out; the message offers the sizes that place all of them.
    """
    per_round = pipeline_stage * layers_per_virtual_stage
    if num_layers % per_round:
        legal = [size for size in divisors(num_layers) if num_layers % (size * pipeline_stage) == 0]
        offer = ", ".join(nearest(legal, layers_per_virtual_stage))
        raise ValueError(
            f"{num_layers} layers do not fill whole rounds of pipeline_stage {pipeline_stage}"
            f" x {layers_per_virtual_stage} layers per virtual stage = {per_round}; layers per virtual stage"
            f" that place every layer: {offer or f'none with pipeline_stage {pipeline_stage}'}"
        )
    return tuple(
        tuple(layer for layer in range(num_layers) if layer // layers_per_virtual_stage % pipeline_stage == rank)
        for rank in range(pipeline_stage)
    )


def describe_layer_map(stages: StageMap) -> str:
    """The map in one line: ``stage 0: layers 0-13 | stage 1: layers 14-26``."""
    return " | ".join(f"stage {stage}: layers {_ranges(layers)}" for stage, layers in enumerate(stages))


def _consecutive(sizes: tuple[int, ...]) -> StageMap:
    stages, first = [], 0
    for size in sizes:
        stages.append(tuple(range(first, first + size)))
        first += size
    return tuple(stages)


def _ranges(layers: tuple[int, ...]) -> str:
    spans: list[list[int]] = []
    for layer in layers:
        if spans and layer == spans[-1][1] + 1:
            spans[-1][1] = layer
        else:
            spans.append([layer, layer])
    return ", ".join(f"{low}-{high}" if low != high else f"{low}" for low, high in spans)
