"""What data parallelism says over the wire, counted: messages and bytes of one step."""

from collections import Counter

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from meshwright.spec.layout import Layout
from meshwright.spec.parameters import total
from parity import TINY, local_batch, make_state, train_spec
from ranks import run_ranks

MICRO_BATCHES = 4
LAYERS = TINY.num_layers
WHOLE = total(TINY, padded=True) * 4
ROOT = (TINY.padded_vocab_size + 1) * TINY.hidden_size * 4
KINDS = {
    "all_gather": ("_allgather_base_", "all_gather_into_tensor", "all_gather_single"),
    "reduce_scatter": ("_reduce_scatter_base_", "reduce_scatter_tensor", "reduce_scatter_single"),
    "all_reduce": ("allreduce_", "all_reduce"),
}


class Traffic(TorchDispatchMode):
    """Counts collectives, and the bytes of their larger side: the gathered or the not yet scattered tensor."""

    def __init__(self):
        super().__init__()
        self.messages, self.bytes = Counter(), Counter()

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        name = operator._schema.name.split("::")[1]
        for kind, names in KINDS.items():
            if operator.namespace in ("c10d", "_c10d_functional") and name in names:
                self.messages[kind] += 1
                self.bytes[kind] += max(map(size, tensors(args)))
        return operator(*args, **(kwargs or {}))


def tensors(value):
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for part in value for t in tensors(part)] if isinstance(value, list | tuple) else []


def size(tensor):
    return tensor.numel() * tensor.element_size()


def one_step(layout):
    """Traffic of the second step's micro-batches: the first one sets up lazily."""
    state = make_state(TINY, layout, train_spec(layout, micro_batch_num=MICRO_BATCHES))
    batch = local_batch(state, 0)
    weight = torch.ones(())
    for _ in range(2):
        with Traffic() as traffic:
            state.executor.forward_backward(batch.tokens, batch.labels, weight)
        state.optimizer.zero_grad()
    return dict(traffic.messages), dict(traffic.bytes)


def expected(stage, layer_groups, root_groups=1, micro_batches=MICRO_BATCHES):
    """Messages of one step: groups of layers and of the embedding, and the root that holds head and final norm.

    At stage 3 a group is gathered for forward and again for backward; the root, between the two, only once.
    """
    groups = layer_groups + root_groups
    if stage == 0:
        return {"all_reduce": groups}
    gathers = groups if stage < 3 else micro_batches * (2 * layer_groups + root_groups)
    return {"all_gather": gathers, "reduce_scatter": groups * (micro_batches if stage >= 2 else 1)}


def expected_bytes(stage, micro_batches=MICRO_BATCHES):
    """Bytes of one step over all stages of a pipeline; every weight is one fp32 number."""
    if stage == 0:
        return {"all_reduce": WHOLE}
    gathered = WHOLE if stage < 3 else micro_batches * (2 * WHOLE - ROOT)
    return {"all_gather": gathered, "reduce_scatter": WHOLE * (micro_batches if stage >= 2 else 1)}


@pytest.mark.parametrize("fusion", [1, 2])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_messages_of_a_step(stage, fusion):
    """Fusing layers makes fewer messages of the same bytes."""
    layout = Layout(data_parallel=2, zero_stage=stage, comm_fusion=fusion)
    for messages, sizes in run_ranks(one_step, 2, layout):
        assert messages == expected(stage, LAYERS // fusion + 1)
        assert sizes == expected_bytes(stage)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_messages_of_a_step_under_a_pipeline(stage):
    """Gradients are scattered after every micro-batch there too, so that ZeRO-2 never holds them whole."""
    layout = Layout(data_parallel=2, pipeline_stage=2, zero_stage=stage)
    results = run_ranks(one_step, 4, layout)
    on_stages = [
        expected(stage, LAYERS // 2 + 1, root_groups=0),
        expected(stage, LAYERS // 2, root_groups=1),
    ]
    assert [messages for messages, _ in results] == [on_stages[layout.coordinates(r).pipeline] for r in range(4)]
    pipeline = [sizes for rank, (_, sizes) in enumerate(results) if layout.coordinates(rank).data == 0]
    for kind, whole in expected_bytes(stage).items():
        assert sum(sizes[kind] for sizes in pipeline) == whole


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_groups_of_shards_are_added_up_once_per_step(stage):
    layout = Layout(data_parallel=4, zero_stage=stage, zero_group_size=2)
    for messages, sizes in run_ranks(one_step, 4, layout):
        assert messages == expected(stage, LAYERS + 1, micro_batches=2) | {"all_reduce": LAYERS + 2}
        assert sizes == expected_bytes(stage, micro_batches=2) | {"all_reduce": WHOLE // 2}
