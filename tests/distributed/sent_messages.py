"""Which messages one real training step sends: every collective and send of this rank, with its group and bytes."""

from collections import Counter
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from meshwright.parallel.mesh import Mesh
from meshwright.spec.layout import Layout
from meshwright.spec.model import ModelSpec
from meshwright.spec.training import TrainSpec
from meshwright.train.step import train_step
from parity import local_batch, make_state

# Operator, what it is, and which argument holds the full tensor (a list's first tensor counts).
OPERATORS = {
    "_c10d_functional.all_gather_into_tensor": ("all_gather", "result"),
    "_c10d_functional.reduce_scatter_tensor": ("reduce_scatter", 0),
    "_c10d_functional.all_reduce": ("all_reduce", 0),
    "c10d._allgather_base_": ("all_gather", 0),
    "c10d._reduce_scatter_base_": ("reduce_scatter", 1),
    "c10d.allreduce_": ("all_reduce", 0),
    "c10d.send": ("send", 0),
}


class Message(NamedTuple):
    """One message: ``axis`` is the mesh dimension whose group sent it, ``size`` the bytes of the full tensor."""

    axis: str
    collective: str
    size: int


class _Recorder(TorchDispatchMode):
    def __init__(self, groups: dict[str, list[int]]) -> None:
        super().__init__()
        self.groups = groups
        self.messages: Counter[Message] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        known = OPERATORS.get(str(func._overloadpacket))
        if known is not None:
            collective, where = known
            tensor = result if where == "result" else args[where]
            tensor = tensor[0] if isinstance(tensor, list) else tensor
            assert isinstance(tensor, Tensor)
            size = tensor.numel() * tensor.element_size()
            self.messages[Message(self._axis(args), collective, size)] += 1
        return result

    def _axis(self, args: Any) -> str:
        groups = [ranks for arg in args if (ranks := _ranks(arg)) is not None]
        assert len(groups) == 1, args
        if len(groups[0]) == 1:
            return "self"
        return next((axis for axis, ranks in self.groups.items() if set(groups[0]) <= set(ranks)), "world")


def _ranks(argument: Any) -> list[int] | None:
    if isinstance(argument, str) and argument not in ("sum", "max"):
        return dist.get_process_group_ranks(torch._C._distributed_c10d._resolve_process_group(argument))
    if isinstance(argument, torch.ScriptObject) and "ProcessGroup" in str(argument._type()):
        return dist.get_process_group_ranks(dist.ProcessGroup.unbox(argument))
    return None


def sent_messages(spec: ModelSpec, layout: Layout, train: TrainSpec) -> Counter[Message]:
    """Messages of this rank in its second step; called on every rank."""
    state = make_state(spec, layout, train)
    train_step(state, local_batch(state, 0), 1e-3)
    with _Recorder(_groups(state.mesh)) as recorder:
        train_step(state, local_batch(state, 1), 1e-3)
    return recorder.messages


def _groups(mesh: Mesh) -> dict[str, list[int]]:
    found = {"tensor": mesh.model_group, "data": mesh.zero_group, "pipeline": mesh.pipeline_group}
    return {
        axis: dist.get_process_group_ranks(group) for axis, group in found.items() if dist.get_world_size(group) > 1
    }
