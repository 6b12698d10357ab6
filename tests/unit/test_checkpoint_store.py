"""One process: what is saved comes back bit for bit, and what does not fit is refused by name."""

import math
import os
import pickle

import pytest
import torch

from meshwright.checkpoint import store
from meshwright.checkpoint.dcp_files import METADATA, Block, Reader


def save(root, step, tensors=None, *, state=None, rank_state=None, run_id="run-a", keep=None):
    tensors = {"w": torch.full((4,), float(step))} if tensors is None else tensors
    return store.save(
        root, step, tensors=tensors, state=state or {}, rank_state=rank_state or {}, run_id=run_id, keep=keep
    )


def every_dtype():
    generator = torch.Generator().manual_seed(1)
    floats = torch.randn(5, 3, generator=generator)
    return {
        "model.fp32": floats,
        "model.bf16": floats.bfloat16(),
        "model.fp16": floats.half(),
        "model.fp64": floats.double() / 3,
        "model.transposed": floats.t(),
        "model.parameter": torch.nn.Parameter(floats.clone()),
        "optimizer.step": torch.tensor(7.0),
        "optimizer.count": torch.tensor(2**53 + 1),
        "optimizer.mask": torch.tensor([True, False]),
        "optimizer.empty": torch.empty(0, 4),
        "model.nan": torch.tensor([float("nan"), -0.0, float("inf")]),
    }


def bits(tensor):
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def test_tensors_come_back_bit_for_bit(tmp_path):
    saved = every_dtype()
    path = save(tmp_path, 100, saved)
    assert path == tmp_path / "step-00000100"
    loaded = {name: torch.zeros_like(t) for name, t in saved.items()}
    store.load_tensors(path, loaded)
    for name, tensor in saved.items():
        assert loaded[name].dtype == tensor.dtype
        assert torch.equal(bits(loaded[name]), bits(tensor)), name


def test_metadata_gives_shapes_and_dtypes(tmp_path):
    path = save(tmp_path, 1, {"a": torch.zeros(2, 3, dtype=torch.bfloat16), "s": torch.tensor(1.0)})
    assert store.tensor_metadata(path) == {"a": ((2, 3), torch.bfloat16), "s": ((), torch.float32)}


def test_state_and_rank_state_come_back(tmp_path):
    state = {"step": 3, "loss": 0.1 + 0.2, "scale": math.inf, "nested": {"a": [1, None, True, "\u00e9"]}}
    torch.manual_seed(5)
    rank_state = {
        "torch": torch.get_rng_state(),
        "raw": bytes(range(256)),
        "python": [3, [1, 2], None],
        "bf16": torch.tensor(1.5, dtype=torch.bfloat16),
        "empty": torch.empty(0),
    }
    expected = torch.rand(8)
    path = save(tmp_path, 3, state=state, rank_state=rank_state)

    assert store.read_state(path) == state
    back = store.load_rank_state(path, 0)
    torch.set_rng_state(back["torch"])
    assert torch.equal(torch.rand(8), expected)
    assert back["raw"] == rank_state["raw"]
    assert back["python"] == rank_state["python"]
    assert back["bf16"].shape == ()
    assert back["bf16"] == rank_state["bf16"]
    assert back["empty"].shape == (0,)
    assert store.load_rank_state(path, 1) is None


def test_all_names_that_do_not_fit_are_listed_at_once(tmp_path):
    path = save(tmp_path, 1, {"same": torch.ones(2), "old": torch.ones(2), "shape": torch.ones(2, 3)})
    untouched = torch.zeros(2)
    wanted = {"same": untouched, "new": torch.ones(2), "shape": torch.ones(3, 2)}
    with pytest.raises(store.CheckpointMismatch) as error:
        store.load_tensors(path, wanted)
    lines = str(error.value).splitlines()
    assert "checkpoint of another model" in lines[0]
    assert [line.strip() for line in lines[1:]] == [
        "missing from the checkpoint (1): new",
        "in the checkpoint but not here (1): old",
        "of another shape (1): shape [2, 3], here [3, 2]",
    ]
    assert torch.equal(untouched, torch.zeros(2))


def test_precision_is_never_changed_unasked(tmp_path):
    value = torch.tensor([1 / 3])
    path = save(tmp_path, 1, {"w": value})
    target = {"w": torch.zeros(1, dtype=torch.bfloat16)}
    with pytest.raises(store.CheckpointMismatch, match=r"of another dtype \(1\): w torch.float32"):
        store.load_tensors(path, target)
    store.load_tensors(path, target, cast=True)
    assert torch.equal(target["w"], value.bfloat16())


def test_weights_alone_can_be_loaded(tmp_path):
    path = save(tmp_path, 1, {"model.w": torch.ones(2), "optimizer.m": torch.ones(2)})
    target = {"model.w": torch.zeros(2)}
    store.load_tensors(path, target, prefix="model.")
    assert torch.equal(target["model.w"], torch.ones(2))
    with pytest.raises(store.CheckpointMismatch, match=r"optimizer\.m"):
        store.load_tensors(path, target)


def test_state_that_json_cannot_say_is_refused_and_leaves_nothing(tmp_path):
    save(tmp_path, 1)
    with pytest.raises(store.CheckpointError, match="not JSON serializable") as error:
        save(tmp_path, 2, state={"when": object()})
    assert f"last complete checkpoint: {tmp_path / 'step-00000001'}" in str(error.value)
    assert [p.name for p in tmp_path.iterdir()] == ["step-00000001"]


def test_a_file_of_tensors_that_ends_early_is_told_by_name(tmp_path):
    path = save(tmp_path, 1, {"w": torch.ones(1000), "x": torch.ones(1000)})
    reader = Reader(path / "tensors")
    block = Block("x", torch.Size([0]))
    place = reader.place(block)
    shard = path / "tensors" / place.relative_path
    os.truncate(shard, shard.stat().st_size - 2000)
    with (
        reader.open(place.relative_path) as file,
        pytest.raises(store.CheckpointError, match=rf"{place.relative_path}: x: .*not a zip file"),
    ):
        reader.read_part(file, block, (0,), torch.zeros(1000))


def test_no_file_is_empty_and_nothing_else_is_left(tmp_path):
    path = save(tmp_path, 1, {})
    names = sorted(str(p.relative_to(path)) for p in path.rglob("*") if p.is_file())
    assert names == ["manifest.json", "ranks/00000.json", "state.json", f"tensors/{METADATA}"]
    assert all(p.stat().st_size for p in path.rglob("*") if p.is_file())


def test_verify_reads_every_byte(tmp_path):
    path = save(tmp_path, 1)
    assert store.verify(path) == []
    shard = path / "tensors" / "__0_0.distcp"
    damaged = bytearray(shard.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    shard.write_bytes(damaged)
    assert store.verify(path) == ["tensors/__0_0.distcp has the right size but a wrong checksum"]


class Evil:
    def __reduce__(self):
        return (print, ("code from a checkpoint ran",))


def test_metadata_cannot_run_code(tmp_path, capsys):
    path = save(tmp_path, 1)
    size = (path / "tensors" / METADATA).stat().st_size
    evil = pickle.dumps(Evil())
    (path / "tensors" / METADATA).write_bytes(evil.ljust(size, b"\0"))
    with pytest.raises(store.CheckpointError, match=r"refers to builtins\.print"):
        store.load_tensors(path, {"w": torch.zeros(4)})
    assert capsys.readouterr().out == ""
