"""A checkpoint saved under one layout is read under any other, bit for bit (B-17, DESIGN 4.12)."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from meshwright.checkpoint import store
from ranks import run_ranks

# Name -> (shape, dim that tensor parallel splits; None: every rank of the model group has it all).
SHAPES = {"columns": ((8, 6), 0), "rows": ((6, 8), 1), "norm": ((6,), None), "odd": ((5, 3), None)}


class Weights(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(7)
        for name, (shape, _) in SHAPES.items():
            self.register_parameter(name, nn.Parameter(torch.randn(shape, generator=generator)))

    def forward(self) -> torch.Tensor:
        return sum((p.square().sum() for p in self.parameters()), torch.zeros(()))


def sharded_model(data: int, model: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Tensor parallel DTensors under FSDP2, as the trainer has them."""
    module = Weights()
    mesh = init_device_mesh("cpu", (data, model), mesh_dim_names=("data", "model"))
    if model > 1:
        for name, (_, dim) in SHAPES.items():
            placement = Replicate() if dim is None else Shard(dim)
            value = distribute_tensor(getattr(module, name).detach(), mesh["model"], [placement])
            setattr(module, name, nn.Parameter(value))
    fully_shard(module, mesh=mesh["data"])
    return module, torch.optim.AdamW(module.parameters(), lr=0.1)


def named(module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = {}
    for name, parameter in module.named_parameters():
        tensors[f"model.{name}"] = parameter
        for key, value in optimizer.state[parameter].items():
            tensors[f"optimizer.{key}.{name}"] = value
    return tensors


def whole(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {n: (t.full_tensor() if isinstance(t, DTensor) else t).detach().clone() for n, t in tensors.items()}


def train_and_save(root, data, model):
    module, optimizer = sharded_model(data, model)
    for parameter in module.parameters():
        parameter.grad = parameter.detach() * 0.3 + 1
    optimizer.step()
    tensors = named(module, optimizer)
    rank = dist.get_rank()
    store.save(root, 1, tensors=tensors, state={"at": 1}, rank_state={"rank": rank}, run_id="r", keep=1)
    return whole(tensors)


def load_sharded(path, data, model):
    module, optimizer = sharded_model(data, model)
    for parameter in module.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    tensors = named(module, optimizer)
    with torch.no_grad():
        for tensor in tensors.values():
            tensor.fill_(-1)
    store.load_tensors(path, tensors)
    return whole(tensors), store.load_rank_state(path, dist.get_rank())


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    root = tmp_path_factory.mktemp("sharded")
    return root / "step-00000001", run_ranks(train_and_save, 4, root, 2, 2)[0]


def assert_same(loaded, reference):
    assert loaded.keys() == reference.keys()
    for name, tensor in reference.items():
        assert torch.equal(loaded[name], tensor), name


@pytest.mark.parametrize(("data", "model"), [(2, 2), (1, 4), (4, 1), (2, 1), (1, 2), (3, 1)])
def test_b17_saved_at_data2_model2_and_loaded_elsewhere(saved, data, model):
    path, reference = saved
    assert len(reference) == 4 * len(SHAPES)
    for rank, (loaded, rank_state) in enumerate(run_ranks(load_sharded, data * model, path, data, model)):
        assert_same(loaded, reference)
        assert rank_state == {"rank": rank}


def test_loaded_in_one_process_without_a_process_group(saved):
    path, reference = saved
    loaded = {name: torch.zeros_like(tensor) for name, tensor in reference.items()}
    store.load_tensors(path, loaded)
    assert_same(loaded, reference)
    assert store.read_state(path) == {"at": 1}
    assert store.load_rank_state(path, 4) is None
    assert store.verify(path) == []


def save_replicated(root):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    big = torch.arange(65536.0).reshape(256, 256)
    tensors = {
        "hybrid": distribute_tensor(big, mesh, [Replicate(), Shard(0)]),
        "replicated": distribute_tensor(big + 1, mesh, [Replicate(), Replicate()]),
        "plain": big + 2,
        "few_rows": distribute_tensor(big[:1], mesh, [Replicate(), Shard(0)]),
    }
    store.save(root, 1, tensors=tensors, state={}, rank_state={}, run_id="r")


def test_what_several_ranks_hold_is_written_once(tmp_path):
    run_ranks(save_replicated, 4, tmp_path)
    path = tmp_path / "step-00000001"
    shards = [p.stat().st_size for p in path.glob("tensors/*.distcp")]
    one_copy = 3 * 65536 * 4
    assert one_copy < sum(shards) < 1.1 * one_copy
    assert max(shards) < 0.5 * one_copy
    target = {n: torch.zeros(256, 256) for n in ("hybrid", "replicated", "plain")}
    target["few_rows"] = torch.zeros(1, 256)
    store.load_tensors(path, target)
    big = torch.arange(65536.0).reshape(256, 256)
    assert torch.equal(target["hybrid"], big)
    assert torch.equal(target["replicated"], big + 1)
    assert torch.equal(target["plain"], big + 2)
    assert torch.equal(target["few_rows"], big[:1])


def bytes_read():
    lines = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(lines["rchar"])


BASE = torch.arange(640_000.0).reshape(800, 800)
CUTS = {"rows": Shard(0), "columns": Shard(1), "replicated": Replicate()}


def load_and_count(path):
    """Of each way to cut: the bytes that this rank reads to load it, and whether it gets what was saved."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    found = {}
    for name, placement in CUTS.items():
        target = distribute_tensor(torch.zeros(800, 800), mesh, [placement])
        before = bytes_read()
        store.load_tensors(path, {name: target}, prefix=name)
        found[name] = bytes_read() - before, target.full_tensor().equal(BASE)
    return found


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="bytes read are counted by /proc")
def test_a_rank_reads_the_rows_of_a_block_that_it_wants_and_no_others(tmp_path):
    path = store.save(tmp_path, 1, tensors=dict.fromkeys(CUTS, BASE), state={}, rank_state={}, run_id="r")
    for found in run_ranks(load_and_count, 3, path):
        assert all(same for _, same in found.values())
        # Rows lie one after the other in a block; of columns every row has a part. The rest is names and sizes.
        shares = {name: (count - 30_000) / BASE.nbytes for name, (count, _) in found.items()}
        assert shares["rows"] < 1 / 3
        assert max(shares.values()) < 1


def stage_tensors(layers_of_stage, *, save):
    """Two stages on their own sub-meshes; the last one holds a copy of the tied embedding."""
    stages = len(layers_of_stage)
    mesh = init_device_mesh("cpu", (stages, dist.get_world_size() // stages), mesh_dim_names=("pipeline", "data"))
    stage = mesh.get_local_rank("pipeline")
    names = {f"layers.{i}.w": i + 1.0 for i in layers_of_stage[stage]}
    if stage == 0 or (stage == stages - 1 and not save):
        names["embedding.weight"] = 100.0
    base = torch.arange(30.0).reshape(6, 5)
    return {
        name: distribute_tensor(base * factor if save else torch.zeros(6, 5), mesh["data"], [Shard(0)])
        for name, factor in names.items()
    }


def save_stages(root, layers_of_stage):
    store.save(root, 1, tensors=stage_tensors(layers_of_stage, save=True), state={}, rank_state={}, run_id="r")


def load_stages(path, layers_of_stage):
    tensors = stage_tensors(layers_of_stage, save=False)
    store.load_tensors(path, tensors)
    return whole(tensors)


@pytest.mark.parametrize("layers_of_stage", [[[0, 1], [2]], [[0], [1, 2]], [[0, 1, 2]]])
def test_tied_weight_is_saved_by_one_stage_and_loaded_by_both(tmp_path, layers_of_stage):
    run_ranks(save_stages, 4, tmp_path, [[0], [1, 2]])
    path = tmp_path / "step-00000001"
    assert set(store.tensor_metadata(path)) == {"embedding.weight", *(f"layers.{i}.w" for i in range(3))}
    base = torch.arange(30.0).reshape(6, 5)
    expected = {f"layers.{i}.w": base * (i + 1) for i in range(3)} | {"embedding.weight": base * 100}
    world = 2 * len(layers_of_stage)
    results = run_ranks(load_stages, world, path, layers_of_stage)
    for result in results:
        assert_same(result, {name: expected[name] for name in result})
    assert all("embedding.weight" in results[rank] for rank in (0, world - 1))
    assert set().union(*results) == set(expected)


def load_fewer_layers(path):
    with pytest.raises(store.CheckpointMismatch) as error:
        load_stages(path, [[0], [1, 3]])
    return str(error.value)


def test_every_rank_hears_the_same_list_of_what_does_not_fit(tmp_path):
    run_ranks(save_stages, 4, tmp_path, [[0], [1, 2]])
    messages = run_ranks(load_fewer_layers, 4, tmp_path / "step-00000001")
    assert len(set(messages)) == 1
    assert "missing from the checkpoint (1): layers.3.w" in messages[0]
    assert "in the checkpoint but not here (1): layers.2.w" in messages[0]
