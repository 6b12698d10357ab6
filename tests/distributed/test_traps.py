"""Ten ways in which torch gives wrong answers without an error, each held off by a guard and a test.

The first sentence of each test says what torch does when it is left alone.
"""

import ast
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch.distributed._functional_collectives import AsyncCollectiveTensor

import meshwright
from meshwright.data.loader import Batch
from meshwright.model.decoder import Decoder
from meshwright.model.init import init_weights
from meshwright.model.loss import IGNORE_INDEX
from meshwright.parallel import collectives
from meshwright.parallel.pipeline import SCHEDULES
from meshwright.parallel.tensor import local
from meshwright.spec.layout import Layout
from meshwright.spec.parameters import parameter_counts
from meshwright.spec.support import PIPELINE_SCHEDULES, unsupported
from meshwright.spec.training import Precision
from meshwright.train.gradients import complete_gradients, global_norm
from parity import (
    SEQ_LENGTH,
    TINY,
    errors,
    first_gradients,
    global_batch,
    largest_difference,
    layout_run,
    local_batch,
    make_state,
    plain_run,
    train_spec,
    whole,
)
from ranks import run_ranks

TIED = replace(TINY, tie_word_embeddings=True)


@pytest.fixture(scope="module")
def plain():
    return run_ranks(plain_run, 1, TINY, steps=2, train=train_spec(Layout()))[0]


@pytest.mark.parametrize("schedule", ["zero_bubble", "interleaved_1f1b"])
def test_trap_a1_zero_bubble_schedules_are_refused(schedule):
    """Zero-bubble schedules with freed weights drop weight gradients. No such schedule can be reached."""
    layout = Layout(pipeline_stage=2, data_parallel=2, zero_stage=3, pipeline_schedule=schedule)
    (found,) = unsupported(TINY, layout, train_spec(layout))
    assert found.key_path == "parallel_config.pipeline_schedule"
    assert found.legal == PIPELINE_SCHEDULES
    assert set(SCHEDULES) == set(PIPELINE_SCHEDULES) == {"gpipe", "1f1b"}


def collective_results():
    group = torch.distributed.group.WORLD
    x = torch.ones(2, 4, 3, requires_grad=True)
    functions = [
        collectives.GatherSequence,
        collectives.ScatterSequence,
        collectives.CopyToModel,
        collectives.ReduceFromModel,
    ]
    found = [collectives.all_reduce(x.detach(), group), collectives.all_gather(x.detach(), 1, group)]
    for function in functions:
        out = function.apply(x, group)
        (gradient,) = torch.autograd.grad(out.sum(), x)
        found += [out, gradient]
    return [type(tensor).__name__ for tensor in found if isinstance(tensor, AsyncCollectiveTensor)], len(found)


def test_trap_a2_no_asynchronous_tensor_leaves_a_collective():
    """An AsyncCollectiveTensor that enters a compiled block loses its producer's gradient."""
    assert run_ranks(collective_results, 2) == [([], 10)] * 2


def compiled_run(spec, layout, train):
    # Inductor would spend its time on kernels; what is compiled and differentiated is the same.
    torch.compile = partial(torch.compile, backend="aot_eager")
    trace = layout_run(spec, layout, train, 2)
    return trace, torch._dynamo.utils.counters["stats"]["unique_graphs"]


def test_trap_a2_compiled_blocks_keep_every_gradient():
    layout = Layout(model_parallel=2, data_parallel=2, zero_stage=3, use_seq_parallel=True)
    spec = replace(TINY, num_layers=2)
    expected = run_ranks(plain_run, 1, spec, steps=2, train=train_spec(layout))[0]
    train = train_spec(layout, micro_batch_num=2, compile=True)
    results = run_ranks(compiled_run, 4, spec, layout, train, timeout=500)
    assert all(graphs > 0 for _, graphs in results)
    found = errors([trace for trace, _ in results], expected)
    assert found["gradient"] <= 1e-6
    assert found["loss"] <= 1e-5


def initial_weights(layout):
    state = make_state(TINY, layout, train_spec(layout))
    embedding = local(state.optimizer.parameters["embedding.weight"]).detach().clone()
    return {name: whole(p) for name, p in state.optimizer.parameters.items()}, embedding


@pytest.mark.parametrize(
    "layout",
    [Layout(data_parallel=4, zero_stage=3), Layout(model_parallel=4), Layout(data_parallel=2, model_parallel=2)],
    ids=["fsdp4", "tp4", "dp2_tp2"],
)
def test_trap_a3_shards_do_not_draw_the_same_numbers(layout):
    """Drawing on a sharded DTensor on the CPU gives every shard the same numbers."""
    model = Decoder(TINY, seq_length=SEQ_LENGTH)
    init_weights(model, TINY, train_spec(layout).seed)
    results = run_ranks(initial_weights, 4, layout)
    for found, _ in results:
        assert all(torch.equal(found[name], parameter) for name, parameter in model.named_parameters())
    first, last = results[0][1], results[-1][1]
    assert not torch.equal(first, last)


def state_names(layout):
    return sorted(make_state(TINY, layout, train_spec(layout)).optimizer.state_tensors())


def test_trap_a4_optimizer_states_of_stages_do_not_share_names():
    """States numbered within a stage overwrite each other in a checkpoint of all stages."""
    first, last = run_ranks(state_names, 2, Layout(pipeline_stage=2))
    assert set(first) & set(last) == {"updates"}
    moments = {f"{moment}.{name}" for moment in ("exp_avg", "exp_avg_sq") for name in parameter_counts(TINY)}
    assert set(first) | set(last) == moments | {"updates"}


def gradients_of_two_calls(layout):
    """Gradients after one batch, and after the same batch twice without an update between."""
    state = make_state(TINY, layout, train_spec(layout))
    once = first_gradients(state)
    batch = local_batch(state, 0)
    tokens = (global_batch(0, TINY.vocab_size)[1] != IGNORE_INDEX).sum().float()
    for _ in range(2):
        state.executor.forward_backward(batch.tokens, batch.labels, 1.0 / tokens)
    complete_gradients(state.optimizer.parameters, state.mesh, tied=False)
    return once, {name: whole(p.grad) / 2 for name, p in state.optimizer.parameters.items()}


@pytest.mark.parametrize(
    "layout",
    [Layout(pipeline_stage=2), Layout(pipeline_stage=2, data_parallel=2, zero_stage=2)],
    ids=["pp2", "pp2_fsdp2"],
)
def test_trap_a5_a_second_call_does_not_divide_the_first_ones_gradients(layout):
    """A pipeline schedule with scale_grads divides gradients of earlier calls again."""
    for once, twice in run_ranks(gradients_of_two_calls, layout.world_size, layout):
        assert largest_difference(once, twice) <= 1e-7


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_trap_a6_groups_of_one_shard_do_not_divide_twice(stage, plain):
    """A divide factor with forced sums divides twice on a mesh dimension of size 1; ours is 1.0 everywhere."""
    layout = Layout(data_parallel=2, zero_stage=stage, zero_group_size=1)
    found = errors(run_ranks(layout_run, 2, TINY, layout, train_spec(layout), 2), plain)
    assert found["gradient"] <= 1e-6
    assert found["norm"] <= 1e-5


@pytest.mark.parametrize("stage", [0, 1, 3])
def test_trap_a6_one_process_alone_does_not_divide_twice(stage, plain):
    """bf16 on one process is wrapped for its casts alone: its norm is that of fp32 but for rounding."""
    layout = Layout(zero_stage=stage)
    train = train_spec(layout, precision=Precision(amp_level="O2", dtype="bfloat16"))
    (trace,) = run_ranks(layout_run, 1, TINY, layout, train, 2)
    assert trace.norms == pytest.approx(plain.norms, rel=0.02)


def norms_of_a_rank(layout):
    """The global norm, and what a rank would find by itself before gradients are complete."""
    state = make_state(TINY, layout, train_spec(layout))
    batch = local_batch(state, 0)
    tokens = (global_batch(0, TINY.vocab_size)[1] != IGNORE_INDEX).sum().float()
    state.executor.forward_backward(batch.tokens, batch.labels, 1.0 / tokens)
    parameters = state.optimizer.parameters
    alone = torch.nn.utils.get_total_norm([local(p.grad) for p in parameters.values()])
    complete_gradients(parameters, state.mesh, tied=False)
    return global_norm(parameters, state.mesh, tied=False, device=state.device).item(), alone.item()


@pytest.mark.parametrize(
    "layout",
    [
        Layout(pipeline_stage=2),
        Layout(model_parallel=2, use_seq_parallel=True),
        Layout(pipeline_stage=2, model_parallel=2, use_seq_parallel=True),
    ],
    ids=["pp2", "tp2_sequence", "pp2_tp2"],
)
def test_trap_a7_the_norm_is_not_that_of_a_stage_or_of_partial_gradients(layout, plain):
    """torch's clip_grad_norm_ sees one stage, and squares of partial sums."""
    for norm, alone in run_ranks(norms_of_a_rank, layout.world_size, layout):
        assert norm == pytest.approx(plain.norms[0], rel=1e-5)
        assert alone < 0.99 * norm


def tied_after_parallelisation(layout):
    state = make_state(TIED, layout, train_spec(layout))
    model = state.model
    names = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    return model.output_weight is model.embedding.weight, names, first_gradients(state)["embedding.weight"]


@pytest.mark.parametrize(
    "layout",
    [Layout(model_parallel=2), Layout(model_parallel=2, data_parallel=2, zero_stage=3, use_seq_parallel=True)],
    ids=["tp2", "tp2_fsdp2"],
)
def test_trap_a8_tensor_parallelism_does_not_untie(layout):
    """parallelize_module makes two parameters of a tied one. Here the model has one, used twice."""
    expected = run_ranks(plain_run, 1, TIED, steps=1, train=train_spec(layout))[0].gradients["embedding.weight"]
    for same, names, gradient in run_ranks(tied_after_parallelisation, layout.world_size, layout):
        assert same
        assert sorted(names) == sorted(parameter_counts(TIED))
        assert (gradient - expected).abs().max() <= 1e-6


def unsharded_writers(source):
    """Calls of torch's Hugging Face writer that do not ask for sharded files."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("HuggingFaceStorageWriter"):
            options = {word.arg: ast.unparse(word.value) for word in node.keywords}
            if options.get("save_distributed") != "True":
                yield ast.unparse(node)


def test_trap_a9_the_hugging_face_writer_is_never_used_unsharded():
    """HuggingFaceStorageWriter without save_distributed writes a corrupt file when given DTensors."""
    wrong, right = "dcp.HuggingFaceStorageWriter(path)", "HuggingFaceStorageWriter(path, save_distributed=True)"
    assert list(unsharded_writers(f"{wrong}\n{right}")) == [wrong]
    for file in Path(meshwright.__file__).parent.rglob("*.py"):
        assert list(unsharded_writers(file.read_text())) == [], file


def other_shapes(layout):
    """Messages for a batch of other sizes, and the loss of a right one after them."""
    state = make_state(TINY, layout, train_spec(layout))
    batch = local_batch(state, 0)
    messages = []
    for rows, length in ((4, SEQ_LENGTH), (8, SEQ_LENGTH // 2)):
        wrong = Batch(tokens=batch.tokens[:rows, :length], labels=batch.labels[:rows, :length])
        for run in (state.executor.evaluate, partial(state.executor.forward_backward, weight=torch.ones(()))):
            with pytest.raises(ValueError) as error:
                run(wrong.tokens, wrong.labels)
            messages.append(str(error.value))
    return messages, state.executor.evaluate(batch.tokens, batch.labels).isfinite().item()


def test_trap_a10_another_shape_is_refused_before_it_is_sent():
    """Receive buffers keep the shape of the first step; other sizes fail late, in the loss."""
    for messages, works in run_ranks(other_shapes, 2, Layout(pipeline_stage=2)):
        given = [message.partition(" given to ")[0] for message in messages]
        assert given == ["tokens of shape (4, 32)"] * 2 + ["tokens of shape (8, 16)"] * 2
        assert all("built for (8, 32)" in message for message in messages)
        assert works
