"""Rules on values that are wrong by themselves, whatever the rest of the request is."""

from collections.abc import Iterable, Iterator

from meshwright.spec.layout import Layout
from meshwright.spec.model import ModelSpec
from meshwright.spec.nearest import divisors, nearest, nearest_multiples
from meshwright.spec.training import TrainSpec
from meshwright.spec.violation import Violation

MODEL_SIZES = (
    "num_layers",
    "hidden_size",
    "num_heads",
    "num_kv_heads",
    "head_dim",
    "intermediate_size",
    "vocab_size",
    "max_position_embeddings",
    "vocab_pad_multiple",
)
DEGREES = (
    "data_parallel",
    "model_parallel",
    "pipeline_stage",
    "context_parallel",
    "expert_parallel",
    "zero_group_size",
    "comm_fusion",
)


def model_values(model: ModelSpec) -> Iterator[Violation]:
    """Sizes below 1, KV heads that do not divide the heads, odd head_dim, windows and dropout out of range."""
    wrong = list(_positive(model, "model", (*MODEL_SIZES, "sliding_window")))
    yield from wrong
    if wrong:
        return
    if model.num_heads % model.num_kv_heads:
        message = f"{model.num_kv_heads} must divide num_heads {model.num_heads}"
        legal = nearest(divisors(model.num_heads), model.num_kv_heads)
        yield Violation(key_path="model.num_kv_heads", message=message, legal=legal)
    if model.head_dim % 2:
        message = f"{model.head_dim} is odd, and rotary embedding turns pairs of numbers"
        yield Violation(key_path="model.head_dim", message=message, legal=nearest_multiples(model.head_dim, 2))
    for key in ("attention_dropout", "hidden_dropout"):
        if not 0 <= getattr(model, key) < 1:
            message = f"{getattr(model, key)} is not a probability below 1"
            yield Violation(key_path=f"model.{key}", message=message, legal=("0.0 to 0.99",))
    yield from _layer_numbers("model.sliding_window_layers", model.sliding_window_layers or (), model)


def layout_values(layout: Layout) -> Iterator[Violation]:
    """Degrees below 1 and ZeRO stages that do not exist."""
    yield from _positive(layout, "parallel_config", DEGREES)
    if layout.zero_stage not in range(4):
        message = f"{layout.zero_stage} is not a ZeRO stage"
        legal = nearest(range(4), layout.zero_stage)
        yield Violation(key_path="parallel_config.zero_stage", message=message, legal=legal)


def train_values(model: ModelSpec, train: TrainSpec) -> Iterator[Violation]:
    """Lengths below 1, recomputed layers that do not exist, schedules out of range."""
    yield from _positive(train, "train", ("seq_length", "loss_chunk_tokens"))
    yield from _positive(train.batch, "train", ("micro_batch_size", "global_batch_size"))
    yield from _positive(train.batch, "parallel_config", ("micro_batch_num",))
    yield from _positive(train.duration, "train", ("train_steps", "train_tokens", "epochs"))
    if isinstance(train.recompute.layers, tuple):
        yield from _layer_numbers("recompute_config.recompute", train.recompute.layers, model)
    yield from _duration(train)
    yield from _schedule(train)


def _duration(train: TrainSpec) -> Iterator[Violation]:
    keys = ("train_steps", "train_tokens", "epochs")
    given = [key for key in keys if getattr(train.duration, key) is not None]
    if len(given) != 1:
        message = f"exactly one of {', '.join(keys)} says how long the run is; given: {', '.join(given) or 'none'}"
        yield Violation(key_path=f"train.{given[-1] if given else keys[0]}", message=message)


def _schedule(train: TrainSpec) -> Iterator[Violation]:
    schedule = train.schedule
    if schedule.warmup_steps is not None and schedule.warmup_ratio is not None:
        message = f"warmup_steps {schedule.warmup_steps} is given as well; keep one of the two"
        yield Violation(key_path="lr_schedule.warmup_ratio", message=message, legal=("null",))
    if schedule.warmup_steps is not None and schedule.warmup_steps < 0:
        message = f"{schedule.warmup_steps} is negative"
        yield Violation(key_path="lr_schedule.warmup_steps", message=message, legal=("0 or more",))
    for key in ("warmup_ratio", "min_lr_ratio", "decay_ratio"):
        value = getattr(schedule, key)
        if value is not None and not 0 <= value <= 1:
            message = f"{value} is not a share of the run or of the peak"
            yield Violation(key_path=f"lr_schedule.{key}", message=message, legal=("0.0 to 1.0",))


def _positive(values: object, section: str, keys: Iterable[str]) -> Iterator[Violation]:
    for key in keys:
        value = getattr(values, key)
        if value is not None and value <= 0:
            yield Violation(
                key_path=f"{section}.{key}", message=f"{value} is not a positive number", legal=("1 or more",)
            )


def _layer_numbers(key_path: str, numbers: tuple[int, ...], model: ModelSpec) -> Iterator[Violation]:
    unknown = [number for number in numbers if not 0 <= number < model.num_layers]
    if unknown:
        message = f"layers {', '.join(map(str, unknown))} do not exist: the model has {model.num_layers} layers"
        yield Violation(key_path=key_path, message=message, legal=(f"0 to {model.num_layers - 1}",))
