"""legal(layout): every divisibility rule, with the values that would satisfy it. Arithmetic only."""

import math

from meshwright.spec.batch import MICRO_BATCH_NUM, solve_batch
from meshwright.spec.layers import layer_violations
from meshwright.spec.layout import DEFAULT_MESH_ORDER, Layout
from meshwright.spec.model import ModelSpec
from meshwright.spec.nearest import divisors, nearest, nearest_multiples
from meshwright.spec.training import TrainSpec
from meshwright.spec.value_rules import layout_values, model_values, train_values
from meshwright.spec.violation import Violation

MODEL_PARALLEL = "parallel_config.model_parallel"


def violations(model: ModelSpec, layout: Layout, train: TrainSpec, world_size: int | None = None) -> list[Violation]:
    """Every broken rule, all at once.

    Values that are wrong by themselves (a degree of 0) come alone: no arithmetic is possible with them.

    Args:
        model: the network.
        layout: the split; ``data_parallel`` already a number.
        train: the training step; its batch already complete.
        world_size: ranks that will run, where known.
    """
    if wrong := [*model_values(model), *layout_values(layout), *train_values(model, train)]:
        return wrong
    return [
        *_world(layout, world_size),
        *_mesh_order(layout),
        *_heads_against_tensor(model, layout),
        *_widths_against_tensor(model, layout),
        *_vocabulary_against_tensor(model, layout),
        *_sequence(layout, train),
        *layer_violations(model.num_layers, layout),
        *_micro_batches(layout, train),
        *_batch(layout, train),
        *_expert(layout),
        *_zero_groups(layout),
    ]


def legal_model_parallel(model: ModelSpec) -> tuple[int, ...]:
    """Tensor-parallel degrees that divide everything of this model that is cut, ascending."""
    return divisors(math.gcd(model.num_heads, model.num_kv_heads, model.intermediate_size, model.padded_vocab_size))


def sequence_multiple(layout: Layout, *, balanced: bool = False) -> int:
    """What ``seq_length`` must be a multiple of.

    Each context rank holds an equal part of the sequence; with ``use_seq_parallel`` each model rank an equal
    part of that. ``balanced`` context parallelism gives every rank two chunks, one from either end.
    """
    multiple = layout.context_parallel
    if layout.use_seq_parallel:
        multiple *= layout.model_parallel
    return math.lcm(multiple, 2 * layout.context_parallel) if balanced else multiple


def _world(layout: Layout, world_size: int | None) -> list[Violation]:
    if world_size is None or world_size == layout.world_size:
        return []
    others = layout.world_size // layout.data_parallel
    message = (
        f"data_parallel {layout.data_parallel} x model_parallel {layout.model_parallel}"
        f" x pipeline_stage {layout.pipeline_stage} x context_parallel {layout.context_parallel}"
        f" = {layout.world_size}, but {world_size} ranks run"
    )
    fitting = world_size % others == 0
    if not fitting:
        message += f"; the other three take {others}, which does not divide {world_size}"
    legal = (str(world_size // others), "auto") if fitting else ()
    return [Violation(key_path="parallel_config.data_parallel", message=message, legal=legal)]


def _mesh_order(layout: Layout) -> list[Violation]:
    if sorted(layout.mesh_order) == sorted(DEFAULT_MESH_ORDER):
        return []
    return [
        Violation(
            key_path="parallel_config.mesh_order",
            message=f"[{', '.join(layout.mesh_order)}] must name each of data, pipeline, context, model once",
            legal=(f"[{', '.join(DEFAULT_MESH_ORDER)}] or any other order of these four",),
        )
    ]


def _heads_against_tensor(model: ModelSpec, layout: Layout) -> list[Violation]:
    degree = layout.model_parallel
    if model.num_heads % degree == 0 and model.num_kv_heads % degree == 0:
        return []
    legal = divisors(math.gcd(model.num_heads, model.num_kv_heads))
    message = (
        f"model_parallel {degree} must divide both num_heads {model.num_heads}"
        f" and num_kv_heads {model.num_kv_heads}: heads are never split or copied"
    )
    if (everything := legal_model_parallel(model)) != legal:
        message += f" (the other sizes of this model leave {', '.join(map(str, everything))})"
    return [Violation(key_path=MODEL_PARALLEL, message=message, legal=nearest(legal, degree))]


def _widths_against_tensor(model: ModelSpec, layout: Layout) -> list[Violation]:
    # hidden_size is never cut by the tensor group: norms, residual and projection outputs keep it whole.
    degree = layout.model_parallel
    if model.intermediate_size % degree == 0:
        return []
    legal = legal_model_parallel(model)
    near = " or ".join(nearest_multiples(model.intermediate_size, degree))
    message = f"model_parallel {degree} must divide intermediate_size {model.intermediate_size} ({near} would do)"
    return [Violation(key_path=MODEL_PARALLEL, message=message, legal=nearest(legal, degree))]


def _vocabulary_against_tensor(model: ModelSpec, layout: Layout) -> list[Violation]:
    degree, multiple = layout.model_parallel, model.vocab_pad_multiple
    if model.padded_vocab_size % degree == 0:
        return []
    legal = {math.lcm(multiple, degree), *map(int, nearest_multiples(multiple, degree))}
    message = (
        f"vocab_size {model.vocab_size} padded to a multiple of {multiple} is {model.padded_vocab_size} rows,"
        f" which model_parallel {degree} does not divide; change the multiple (every checkpoint of this"
        f" model then has that many rows) or the degree"
    )
    return [Violation(key_path="model.vocab_pad_multiple", message=message, legal=nearest(legal, multiple))]


def _sequence(layout: Layout, train: TrainSpec) -> list[Violation]:
    multiple = sequence_multiple(layout)
    if train.seq_length % multiple == 0:
        return []
    message = f"{train.seq_length} must be a multiple of {multiple} (context_parallel {layout.context_parallel}"
    if layout.use_seq_parallel:
        message += f" x model_parallel {layout.model_parallel}, because of use_seq_parallel"
    if train.seq_length % layout.context_parallel == 0 and layout.context_parallel > 1:
        message += f"; {train.seq_length // layout.context_parallel} tokens per context rank"
    legal = nearest_multiples(train.seq_length, multiple)
    return [Violation(key_path="train.seq_length", message=f"{message})", legal=legal)]


def _micro_batches(layout: Layout, train: TrainSpec) -> list[Violation]:
    num, stages = train.batch.micro_batch_num, layout.pipeline_stage
    if num < stages:
        lower = ", ".join(map(str, range(num, 0, -1)))
        message = (
            f"{num} micro-batches cannot fill {stages} pipeline stages: every schedule needs at least one per"
            f" stage (or pipeline_stage {lower})"
        )
        return [Violation(key_path=MICRO_BATCH_NUM, message=message, legal=(f"{stages} or more",))]
    if layout.pipeline_schedule == "interleaved_1f1b" and num % stages:
        message = f"interleaved_1f1b needs a multiple of pipeline_stage {stages}, not {num}"
        legal = nearest_multiples(num, stages, at_least=stages)
        return [Violation(key_path=MICRO_BATCH_NUM, message=message, legal=legal)]
    return []


def _batch(layout: Layout, train: TrainSpec) -> list[Violation]:
    batch = train.batch
    solved = solve_batch(batch.micro_batch_size, batch.micro_batch_num, batch.global_batch_size, layout.data_parallel)
    return solved if isinstance(solved, list) else []


def _expert(layout: Layout) -> list[Violation]:
    return _divides_zero_ranks(layout, "expert_parallel", layout.expert_parallel)


def _zero_groups(layout: Layout) -> list[Violation]:
    size = layout.zero_group_size
    if size is None:
        return []
    if layout.zero_stage == 0:
        message = f"{size} shards nothing at zero_stage 0; unset it or choose zero_stage 1, 2 or 3"
        return [Violation(key_path="parallel_config.zero_group_size", message=message, legal=("null",))]
    return _divides_zero_ranks(layout, "zero_group_size", size)


def _divides_zero_ranks(layout: Layout, key: str, value: int) -> list[Violation]:
    ranks = layout.zero_ranks
    if ranks % value == 0:
        return []
    message = (
        f"{value} must divide data_parallel {layout.data_parallel}"
        f" x context_parallel {layout.context_parallel} = {ranks}"
    )
    legal = nearest(divisors(ranks), value)
    return [Violation(key_path=f"parallel_config.{key}", message=message, legal=legal)]
