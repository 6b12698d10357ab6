"""A world of any size in one process: a process group that moves nothing, and tensors that hold nothing.

torch 2.13 needs a few of its functions changed before a training step runs on fake tensors: some ask a tensor of ranks
for its values, which a fake tensor does not have, and pipelining takes a vote of all stages through the network.
`fake_world` changes them for its duration. `test_dryrun_tracker.py` fails where a release changes one of them.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch.distributed as dist
import torch.distributed.tensor._utils as tensor_utils
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining._utils import InferenceMode
from torch.distributed.pipelining.schedules import _PipelineSchedule
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import _disable_current_modes

from meshwright.dryrun.exchange import exchanged
from meshwright.dryrun.fake import QuickFakeMode

ON_REAL_RANKS: tuple[tuple[Any, str], ...] = (
    (DeviceMesh, "__init__"),
    (DeviceMesh, "_compute_coordinates_from_mesh"),
    (DeviceMesh, "_get_mesh_tensor_from_full_mesh"),
    (tensor_utils, "_compute_local_shape_and_global_offset"),
    (ShardingPropagator, "_propagate_tensor_meta_non_cached"),
)
"""Functions that read the values of tensors of ranks and offsets; the last runs operators on whole-sized fake tensors
of its own, which nobody allocates."""


@contextmanager
def fake_world(rank: int, world_size: int, *, real_tensors: bool = False) -> Iterator[None]:
    """Be rank ``rank`` of ``world_size`` whose collectives return at once and move nothing.

    Args:
        real_tensors: tensors have storage and values (wrong ones, where they came from other ranks); without, they
            have neither, and a model of any size fits.

    Raises:
        RuntimeError: this process is part of a real world.
    """
    if dist.is_initialized():
        raise RuntimeError("a dry run needs a process without a process group; this one has joined one")
    with ExitStack() as stack:
        dist.init_process_group("fake", rank=rank, world_size=world_size, store=FakeStore())
        stack.callback(dist.destroy_process_group)
        for owner, name in ON_REAL_RANKS:
            stack.enter_context(exchanged(owner, name, _with_real_tensors))
        stack.enter_context(exchanged(_PipelineSchedule, "_warmup_p2p", _agree_on_static_shapes))
        stack.enter_context(nullcontext() if real_tensors else QuickFakeMode(allow_non_fake_inputs=True))
        yield


def _with_real_tensors(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        with _disable_current_modes():
            return function(*args, **kwargs)

    return wrapped


def _agree_on_static_shapes(_vote: Callable[..., Any]) -> Callable[..., Any]:
    """What the vote of stages that all know their shapes comes to; the executor gives every stage its shapes."""

    def agreed(_schedule: Any, stages: Any, has_backward: bool, p2p_done: bool) -> None:
        for stage in stages:
            assert not InferenceMode.needs_dynamic(stage._user_meta, has_backward)
            stage._inference_mode = InferenceMode.STATIC

    return agreed
