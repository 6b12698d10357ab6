"""What the tracker writes down of a few operators, and that it leaves nothing behind."""

import inspect

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining.schedules import _PipelineSchedule
from torch.nn.modules import module as torch_modules
from torch.utils.checkpoint import checkpoint

from meshwright.dryrun import cuda_kernels as kernels
from meshwright.dryrun.analysis import category, curve, step_memory
from meshwright.dryrun.execute import execute
from meshwright.dryrun.position import Position
from meshwright.dryrun.target import target
from meshwright.dryrun.tracker import MemoryTracker
from meshwright.dryrun.world import ON_REAL_RANKS, fake_world
from meshwright.spec.layout import Layout
from meshwright.spec.model import ModelSpec
from meshwright.spec.training import Batch, Precision, Recompute, TrainSpec

FLOAT = 4


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 32, bias=False)
        self.second = nn.Linear(32, 16, bias=False)

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))


def track(step, model=None, **options):
    """The tape of ``step(model)`` as one optimizer step on fake tensors."""
    with FakeTensorMode():
        model = model() if model else None
        position = Position()
        tracker = MemoryTracker(position, **options)
        with tracker.watching():
            if model is not None:
                position.follow(model)
                tracker.tag(list(model.parameters()), "weights")
            tracker.tape.starts.append(len(tracker.tape.events))
            position.begin_step()
            step(model)
    return tracker.tape


def records(tape):
    return list(dict.fromkeys(event.record for event in tape.events))


def test_bytes_live_from_allocation_to_release_and_views_are_free():
    def step(_):
        first = torch.empty(100)
        view = first.view(10, 10)[2:]
        del first
        second = torch.empty(50)
        del view
        del second

    assert curve(track(step)) == [400, 600, 200, 0]


def test_rounding_is_that_of_the_device():
    def step(_):
        kept = torch.empty(100)
        del kept

    assert curve(track(step, rounding=512)) == [512, 0]


def test_workspaces_come_and_go_inside_an_operator():
    def step(_):
        x = torch.empty(8, 8)
        x.logsumexp(dim=1)

    tape = track(step, workspaces={torch.ops.aten.logsumexp.default: lambda args, _: 1000})
    assert max(curve(tape)) == 8 * 8 * FLOAT + 8 * FLOAT + 1000
    assert [record.tag for record in records(tape)].count("workspace") == 1


def test_a_storage_that_is_emptied_and_refilled_is_a_gathered_weight():
    def step(_):
        x = torch.empty(100)
        x.untyped_storage().resize_(0)
        x.untyped_storage().resize_(400)

    tape = track(step)
    assert curve(tape)[:3] == [400, 0, 400]
    assert records(tape)[0].tag == "gathered weights"


def test_streams_are_told_apart():
    def step(_):
        kept = [torch.empty(1)]
        with torch.cpu.stream(torch.cpu.Stream()):
            kept.append(torch.empty(2))
        kept.append(torch.empty(3))

    assert [record.stream for record in records(track(step))] == [0, 1, 0]


def test_forward_and_backward_are_attributed_to_modules_and_categories():
    def step(model):
        model(torch.empty(8, 16)).sum().backward()

    tape = track(step, Net)
    forward = [record for record in records(tape) if record.born.phase == "forward"]
    what = {(record.born.module, record.born.operator): category(record, 0) for record in forward}
    # tanh saves its result; that of the first product is not needed any more.
    assert what["", "aten::tanh"] == "saved activations"
    assert what["first", "aten::mm"] == "temporaries"
    gradients = [record for record in records(tape) if record.tag == "gradients"]
    assert [(record.born.module, record.born.phase) for record in gradients] == [
        ("second", "backward"),
        ("first", "backward"),
    ]
    weights = step_memory(tape).peak.categories["weights"]
    assert weights == 2 * 16 * 32 * FLOAT


def test_recomputed_activations_are_told_from_saved_ones():
    def step(model):
        x = torch.empty(8, 16, requires_grad=True)
        checkpoint(model, x, use_reentrant=False).sum().backward()

    again = [record.born for record in records(track(step, Net)) if category(record, 0) == "recomputed"]
    assert {moment.phase for moment in again} == {"backward"}
    assert {"first", "second"} <= {moment.module for moment in again}


def test_micro_batches_are_counted_in_each_direction():
    def step(model):
        for _ in range(3):
            model(torch.empty(8, 16)).sum().backward()

    seen = {(record.born.phase, record.born.micro_batch) for record in records(track(step, Net)) if record.tag is None}
    assert seen == {(phase, number) for phase in ("forward", "backward") for number in range(3)}


def test_nothing_of_torch_stays_changed():
    functions = [vars(owner)[name] for owner, name in ON_REAL_RANKS]
    vote, resize, block = _PipelineSchedule._warmup_p2p, torch.UntypedStorage.resize_, kernels.loss.block_elements
    hooks = len(torch_modules._global_forward_hooks), len(torch_modules._global_forward_pre_hooks)
    with fake_world(3, 8), kernels.cuda_kernels(), MemoryTracker(Position()).watching():
        assert _PipelineSchedule._warmup_p2p is not vote
        x = torch.ones(4, 8, requires_grad=True)
        assert "FusedRmsNorm" in type(nn.functional.rms_norm(x, (8,), torch.ones(8)).grad_fn).__name__
    assert [vars(owner)[name] for owner, name in ON_REAL_RANKS] == functions
    assert (_PipelineSchedule._warmup_p2p, torch.UntypedStorage.resize_) == (vote, resize)
    assert kernels.loss.block_elements is block
    assert (len(torch_modules._global_forward_hooks), len(torch_modules._global_forward_pre_hooks)) == hooks
    assert not torch.distributed.is_initialized()
    x = torch.ones(4, 8, requires_grad=True)
    assert "FusedRmsNorm" not in type(nn.functional.rms_norm(x, (8,), torch.ones(8)).grad_fn).__name__


def test_what_is_remembered_of_operators_is_what_torch_works_out():
    """torch works out every result again that the fake mode remembers, and raises where they differ."""
    model = ModelSpec(
        num_layers=2, hidden_size=64, num_heads=4, num_kv_heads=2, head_dim=16, intermediate_size=96, vocab_size=100
    )
    layout = Layout(data_parallel=2, model_parallel=2, zero_stage=3, use_seq_parallel=True)
    train = TrainSpec(
        seq_length=32,
        batch=Batch(micro_batch_size=1, micro_batch_num=2, global_batch_size=4),
        recompute=Recompute(select=("elementwise",)),
        precision=Precision(amp_level="O2", dtype="bfloat16"),
    )
    hits = FakeTensorMode.cache_hits
    with torch._dynamo.config.patch(fake_tensor_cache_crosscheck_enabled=True):
        checked = execute(model, layout, train, 1, on=target("cuda"), steps=1)
    assert FakeTensorMode.cache_hits > hits + 500
    assert curve(checked.tape) == curve(execute(model, layout, train, 1, on=target("cuda"), steps=1).tape)


def test_a_process_of_a_real_world_is_refused():
    with fake_world(0, 2), pytest.raises(RuntimeError, match="process group"), fake_world(0, 2):
        pass


@pytest.mark.parametrize(
    ("function", "because"),
    [
        (DeviceMesh._compute_coordinates_from_mesh, "nonzero"),
        (DeviceMesh._get_mesh_tensor_from_full_mesh, "nonzero"),
        (DeviceMesh.__init__, "tolist"),
        (_PipelineSchedule._warmup_p2p, "_inference_mode"),
        (FakeTensorMode._cache_key, "_prep_args_for_hash"),
        (FakeTensorMode._make_cache_entry, "_validate_cache_key"),
        (FakeTensorMode._output_from_cache_entry, "_get_output_tensor_from_cache_entry"),
    ],
)
def test_this_torch_still_needs_what_is_exchanged(function, because):
    """A release that fails here has changed what `fake_world` exchanges or `QuickFakeMode` overrides: look again."""
    assert because in inspect.getsource(function)
