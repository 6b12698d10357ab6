"""Checkpoints of MindSpore and MindFormers, read without MindSpore, against what MindSpore itself gave."""

import hashlib
import json
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest
import yaml

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from huggingface_models import MODELS, SIZES, save_model  # noqa: E402

from meshwright.checkpoint.errors import CheckpointError, CheckpointMismatch  # noqa: E402
from meshwright.checkpoint.huggingface import HuggingFaceWeights  # noqa: E402
from meshwright.checkpoint.mindspore_ckpt import CkptFile  # noqa: E402
from meshwright.checkpoint.mindspore_convert import convert, match_names  # noqa: E402
from meshwright.checkpoint.mindspore_folder import open_mindspore  # noqa: E402
from meshwright.checkpoint.safetensors_file import Entry, SafetensorsFile, write_safetensors  # noqa: E402
from meshwright.cli import main  # noqa: E402
from meshwright.model.decoder import Decoder  # noqa: E402
from meshwright.model.init import fill_weights, init_weights  # noqa: E402
from meshwright.spec.huggingface import read_model_spec  # noqa: E402
from meshwright.spec.model import ModelSpec  # noqa: E402

DATA = Path(__file__).parents[1] / "data" / "mindspore"
RUN = DATA / "llama_tiny"
EXPECTED: dict[str, Any] = json.loads((DATA / "expected_checkpoints.json").read_text())
Tensors = "dict[str, torch.Tensor]"


def opened(name: str) -> CkptFile | SafetensorsFile:
    path = DATA / name
    return CkptFile.open(path) if path.suffix == ".ckpt" else SafetensorsFile.open(path)


def digest(tensor: "torch.Tensor") -> str:
    return hashlib.sha256(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()).hexdigest()


def require_expected(file: CkptFile | SafetensorsFile, expected: dict[str, Any]) -> None:
    """Shape, dtype, every bit and the recorded values of each parameter."""
    for name, wanted in expected.items():
        found = file.read(name)
        assert list(found.shape) == wanted["shape"], name
        assert str(found.dtype) == f"torch.{wanted['dtype']}", name
        assert digest(found) == wanted["sha256"], name
        assert found.flatten()[:8].double().tolist() == wanted["first8"], name
        assert found.double().sum().item() == pytest.approx(wanted["sum"], rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("name", ["tiny_lm.ckpt", "tiny_lm_crc.ckpt", "tiny_lm.safetensors", "tiny_lm_full.ckpt"])
def test_every_parameter_is_what_mindspore_saved(name: str) -> None:
    file = opened(name)
    require_expected(file, EXPECTED["params"])
    if "full" not in name:
        assert file.entries.keys() == EXPECTED["params"].keys()


def test_optimizer_states_and_appended_values() -> None:
    file = CkptFile.open(DATA / "tiny_lm_full.ckpt")
    appended = EXPECTED["append_dict"]
    # An appended value takes the place of a parameter of its name.
    require_expected(file, {n: v for n, v in EXPECTED["optimizer_params"].items() if n not in appended})
    numbers = {name: value for name, value in appended.items() if not isinstance(value, str)}
    assert {name: file.read(name).item() for name in numbers} == numbers
    assert all(file.entries[name].shape == () for name in numbers)
    assert file.texts == {"note": appended["note"]}
    names = EXPECTED["params"].keys() | EXPECTED["optimizer_params"].keys() | numbers.keys()
    assert file.entries.keys() == names


@pytest.mark.parametrize("name", ["dtype_zoo.ckpt", "dtype_zoo.safetensors"])
def test_every_type(name: str) -> None:
    file = opened(name)
    assert file.entries.keys() == EXPECTED["dtype_zoo"].keys()
    for key, wanted in EXPECTED["dtype_zoo"].items():
        found = file.read(key)
        assert list(found.shape) == wanted["shape"], key
        assert found.flatten().tolist() == wanted["values"], key


def varint(value: int) -> bytes:
    parts = []
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


def field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def value(name: str, shape: tuple[int, ...], kind: str, content: bytes) -> bytes:
    """One message of a .ckpt, as checkpoint.proto describes it."""
    dims = b"".join(b"\x08" + varint(size) for size in shape)
    return field(1, field(1, name.encode()) + field(2, dims + field(2, kind.encode()) + field(3, content)))


def written(tmp_path: Path, *values: bytes) -> Path:
    (tmp_path / "a.ckpt").write_bytes(b"".join(values))
    return tmp_path / "a.ckpt"


def test_slices_of_one_tensor_are_joined(tmp_path: Path) -> None:
    """Above 512 MB MindSpore cuts a tensor into values of the same name, each with the shape of the whole."""
    whole = torch.randn(7, 3)
    content = whole.numpy().tobytes()
    slices = [value("w", (7, 3), "Float32", content[start : start + 30]) for start in range(0, len(content), 30)]
    assert len(slices) == 3
    file = CkptFile.open(written(tmp_path, value("a", (), "Int64", bytes(8)), *slices, value("b", (1,), "Bool", b"\1")))
    assert torch.equal(file.read("w"), whole)
    assert file.read("b").tolist() == [True]
    with pytest.raises(CheckpointError, match=r"w \[7, 3\] Float32 needs 84 bytes, the file has 60"):
        CkptFile.open(written(tmp_path, *slices[:2], value("b", (1,), "Bool", b"\1")))


def test_a_number_of_shape_0_is_0_d_and_an_empty_tensor_stays_empty(tmp_path: Path) -> None:
    number, empty = value("n", (0,), "Int32", struct.pack("<i", 5)), value("e", (0,), "Int32", b"")
    file = CkptFile.open(written(tmp_path, number, empty))
    assert (file.read("n").shape, file.read("n").item()) == ((), 5)
    assert file.read("e").shape == (0,)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (struct.pack("<I", 0x7F3A5ED8) + bytes(100), r"is encrypted \(AES-GCM\)"),
        (struct.pack("<I", 0x7F3A5ED9) + bytes(100), r"is encrypted \(AES-CBC\)"),
        (struct.pack("<I", 0x7F3A5EDA) + bytes(100), r"is encrypted \(SM4-CBC\)"),
        (b"PK\x03\x04" + bytes(100), "not a MindSpore checkpoint"),
        (b"", "cannot be read"),
        (value("w", (2,), "Float32", bytes(8))[:-3], "torn or not a MindSpore checkpoint"),
        (value("w", (2,), "Int4", bytes(1)), "w is of type Int4; legal: Float64"),
        (field(1, field(1, b"table") + field(3, b"")), "table is a MapParameter"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(tmp_path: Path, content: bytes, said: str) -> None:
    with pytest.raises(CheckpointError, match=rf"a\.ckpt: .*{said}"):
        CkptFile.open(written(tmp_path, content))


def test_a_wrong_checksum_is_damage(tmp_path: Path) -> None:
    content = bytearray((DATA / "tiny_lm_crc.ckpt").read_bytes())
    assert zlib.crc32(content[:-17]) == int.from_bytes(content[-10:], "big")
    content[5000] ^= 1
    with pytest.raises(CheckpointError, match=r"its checksum is .* it is damaged"):
        CkptFile.open(written(tmp_path, bytes(content)))


@pytest.mark.parametrize("source", ["final.safetensors", "legacy_ckpt", "new_format", "new_format/iteration_00000012"])
def test_a_mindformers_run_converts_bit_for_bit(
    source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "hf"
    assert main(["checkpoint", "convert", str(RUN / source), str(out), "--config", str(RUN / "config.yaml")]) == 0
    printed = capsys.readouterr().out
    assert printed.count("equal") == 7
    assert "DIFFERENT" not in printed
    original = SafetensorsFile.open(RUN / "final.safetensors")
    model, info = transformers.AutoModelForCausalLM.from_pretrained(out, output_loading_info=True, dtype=torch.float32)
    assert not any(info.values()), info
    names = {"model.embed_tokens": "model.tok_embeddings.embedding_weight", "model.norm": "model.norm_out.weight"}
    names |= {"mlp.gate_proj": "feed_forward.w1", "mlp.down_proj": "feed_forward.w2", "mlp.up_proj": "feed_forward.w3"}
    names |= {f"self_attn.{part}_proj": f"attention.w{part}" for part in "qkvo"}
    names |= {"input_layernorm": "attention_norm", "post_attention_layernorm": "ffn_norm"}
    for name, parameter in model.named_parameters():
        theirs = name
        for here, there in names.items():
            if here in theirs:
                theirs = there if here.startswith("model.") else theirs.replace(here, there)
        assert torch.equal(parameter, original.read(theirs)), name
    assert (model.config.intermediate_size, model.config.num_key_value_heads) == (96, 4)


def test_names_that_are_not_known_are_listed_and_a_table_adds_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = {**yaml.safe_load((RUN / "config.yaml").read_text())}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(values))
    held = tensors(RUN / "init_step0.safetensors")
    odd = {name.replace("feed_forward.w1", "ffn.gate").replace("model.layers", "blocks"): t for name, t in held.items()}
    store(tmp_path / "odd.safetensors", odd)
    command = ["checkpoint", "convert", str(tmp_path / "odd.safetensors"), str(tmp_path / "hf")]
    command += ["--config", str(tmp_path / "config.yaml")]
    assert main(command) == 2
    said = capsys.readouterr().err
    unknown = [name for name in odd if name.startswith("blocks.")]
    assert f"names that no table knows ({len(unknown)})" in said
    assert all(f"\n    {name}" in said for name in unknown)
    pairs = {f"blocks.{{}}.attention.w{part}": f"layers.{{}}.attention.{part}_proj" for part in "qkvo"}
    pairs |= {"blocks.{}.ffn.gate": "layers.{}.mlp.gate_proj", "blocks.{}.feed_forward.w3": "layers.{}.mlp.up_proj"}
    pairs |= {"blocks.{}.feed_forward.w2": "layers.{}.mlp.down_proj", "blocks.{}.ffn_norm": "layers.{}.mlp_norm"}
    pairs |= {"blocks.{}.attention_norm": "layers.{}.attention_norm"}
    (tmp_path / "map.yaml").write_text(yaml.safe_dump(pairs))
    assert main([*command, "--map", str(tmp_path / "map.yaml")]) == 0
    (tmp_path / "map.yaml").write_text(yaml.safe_dump({"a": {"parts": ["x"], "layout": "woven"}}))
    assert main([*command, "--map", str(tmp_path / "map.yaml")]) == 2
    assert "legal: a name, or {parts: [names], layout: stacked|interleaved|grouped}" in capsys.readouterr().err


def tensors(path: Path) -> Tensors:
    file = SafetensorsFile.open(path)
    return {name: file.read(name) for name in file.entries}


def store(path: Path, held: Tensors) -> None:
    entries = {name: Entry(tensor.dtype, tuple(tensor.shape)) for name, tensor in held.items()}
    write_safetensors(path, entries, held.__getitem__, metadata={"format": "ms"})


QWEN3 = ModelSpec(**{**SIZES, "qk_norm": True})
QWEN2 = ModelSpec(**{**SIZES, "attention_bias": True})


def random_model(spec: ModelSpec) -> Decoder:
    model = Decoder(spec, seq_length=64)
    init_weights(model, spec, 3)
    for _, parameter in model.named_parameters():
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter)
    return model


def as_mcore(model: Decoder) -> Tensors:
    """The parameters as MindFormers' mcore models hold them: fused as its converters do (w, h by group; gate, up)."""
    spec, held = model.spec, {name: p.detach() for name, p in model.named_parameters()}
    found = {
        "embedding.word_embeddings.weight": held["embedding.weight"],
        "decoder.final_layernorm.weight": held["norm.weight"],
        "output_layer.weight": held["head.weight"],
    }
    queries = spec.num_heads // spec.num_kv_heads
    for layer in range(spec.num_layers):
        ours, theirs = f"layers.{layer}.", f"decoder.layers.{layer}."
        for kind in ("weight", "bias"):
            if f"{ours}attention.q_proj.{kind}" not in held:
                continue
            rows = []
            for group in range(spec.num_kv_heads):
                for part, heads in (("q", queries), ("k", 1), ("v", 1)):
                    tensor, size = held[f"{ours}attention.{part}_proj.{kind}"], heads * spec.head_dim
                    rows.append(tensor[group * size : (group + 1) * size])
            found[f"{theirs}self_attention.linear_qkv.{kind}"] = torch.cat(rows)
        gate, up = held[f"{ours}mlp.gate_proj.weight"], held[f"{ours}mlp.up_proj.weight"]
        pairs = [row for both in zip(gate, up, strict=True) for row in both]
        found[f"{theirs}mlp.linear_fc1.weight"] = torch.stack(pairs)
        simple = {"self_attention.linear_proj": "attention.o_proj", "mlp.linear_fc2": "mlp.down_proj"}
        simple |= {"input_layernorm": "attention_norm", "pre_mlp_layernorm": "mlp_norm"}
        simple |= {f"self_attention.{part}_layernorm": f"attention.{part}_norm" for part in "qk"}
        for there, here in simple.items():
            if f"{ours}{here}.weight" in held:
                found[f"{theirs}{there}.weight"] = held[f"{ours}{here}.weight"]
    return found


def require_same(out: Path, model: Decoder) -> None:
    again = Decoder(model.spec, seq_length=64)
    fill_weights(again, HuggingFaceWeights.open(out).initial)
    wanted = dict(model.named_parameters())
    for name, parameter in again.named_parameters():
        assert torch.equal(parameter, wanted[name]), name


@pytest.mark.parametrize("spec", [QWEN3, QWEN2], ids=["qwen3", "qwen2"])
def test_fused_mcore_parameters_come_apart(spec: ModelSpec, tmp_path: Path) -> None:
    model = random_model(spec)
    store(tmp_path / "a.safetensors", as_mcore(model))
    source = open_mindspore(tmp_path / "a.safetensors")
    done = convert(source, match_names(source), tmp_path / "hf", spec)
    assert all(one.equal for one in done.compared)
    assert read_model_spec(tmp_path / "hf").num_kv_heads == spec.num_kv_heads
    require_same(tmp_path / "hf", model)


def shard_by_metadata(folder: Path, held: Tensors, cuts: dict[str, tuple[int, ...]], ranks: int = 4) -> None:
    """A folder as MindFormers 2.1 saves it on several ranks: each block once, metadata.json with block numbers."""
    files: list[Tensors] = [{} for _ in range(ranks)]
    described, places = {}, {}
    for index, (name, tensor) in enumerate(held.items()):
        cut = cuts.get(name, (1,) * tensor.dim())
        local = tuple(size // count for size, count in zip(tensor.shape, cut, strict=True))
        chunks = []
        grids = torch.cartesian_prod(*(torch.arange(c) for c in cut)).reshape(-1, tensor.dim()).tolist()
        for number, at in enumerate(grids):
            block = tensor
            for dim, (place, length) in enumerate(zip(at, local, strict=True)):
                block = block.narrow(dim, place * length, length)
            rank = (index + number) % ranks
            files[rank][name] = block.contiguous()
            key = str((name, (number,)))
            gone = {"file_name": f"x-model-{ranks:07d}-{ranks:07d}.safetensors", "storage_rank": 9}
            places[key] = [gone, {"file_name": f"x-model-{rank:07d}-{ranks:07d}.safetensors", "storage_rank": rank}]
            chunks.append({"global_offset": [number], "local_shape": list(local)})
        described[name] = {
            "properties": {"dtype": "Float32", "replica_id": [0], "allow_shape_mismatch": False, "allow_to_save": True},
            "global_shape": list(tensor.shape),
            "axis_fragmentations": list(cut),
            "layout": {},
            "chunk": chunks,
        }
    folder.mkdir(parents=True)
    for rank, content in enumerate(files):
        store(folder / f"x-model-{rank:07d}-{ranks:07d}.safetensors", content)
    (folder / "metadata.json").write_text(json.dumps({"state_dict_metadata": described, "storage_data": places}))


def test_an_iteration_of_four_ranks_is_merged_by_its_metadata(tmp_path: Path) -> None:
    model = random_model(QWEN3)
    held = as_mcore(model)
    cuts = {name: (2, 2) for name, tensor in held.items() if tensor.dim() == 2}
    cuts |= {"decoder.final_layernorm.weight": (4,), "output_layer.weight": (1, 4)}
    shard_by_metadata(tmp_path / "out" / "iteration_00000005", held, cuts)
    (tmp_path / "out" / "latest_checkpointed_iteration.txt").write_text("5")
    source = open_mindspore(tmp_path / "out")
    assert source.path.name == "iteration_00000005"
    for name, tensor in held.items():
        assert torch.equal(source.read(name), tensor), name
    convert(source, match_names(source), tmp_path / "hf", QWEN3)
    require_same(tmp_path / "hf", model)


def test_blocks_that_do_not_make_a_whole_are_refused(tmp_path: Path) -> None:
    held = as_mcore(random_model(QWEN3))
    name = "output_layer.weight"
    shard_by_metadata(tmp_path / "a", held, {name: (4, 1)})
    metadata = json.loads((tmp_path / "a" / "metadata.json").read_text())
    metadata["state_dict_metadata"][name]["chunk"].pop()
    (tmp_path / "a" / "metadata.json").write_text(json.dumps(metadata))
    with pytest.raises(CheckpointError, match=r"the 3 blocks of output_layer\.weight .* do not make \[512, 96\]"):
        open_mindspore(tmp_path / "a")
    (tmp_path / "a" / "metadata.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"metadata\.json: not MindFormers' metadata"):
        open_mindspore(tmp_path / "a")


def test_rank_folders_of_data_parallel_and_pipeline_ranks_make_a_whole(tmp_path: Path) -> None:
    held = tensors(RUN / "init_step0.safetensors")
    stages = [
        {n: t for n, t in held.items() if ("layers.1." in n or "norm_out" in n) == bool(stage)} for stage in (0, 1)
    ]
    for rank in range(4):
        (tmp_path / f"rank_{rank}").mkdir()
        store(tmp_path / f"rank_{rank}" / f"x_rank_{rank}-1_2.safetensors", stages[rank // 2])
        (tmp_path / f"rank_{rank}" / f"x_rank_{rank}-1_1.safetensors").write_bytes(b"older")
    source = open_mindspore(tmp_path)
    assert source.entries.keys() == held.keys()
    assert all(torch.equal(source.read(name), tensor) for name, tensor in held.items())
    with pytest.raises(CheckpointError, match="no-such-folder: no such folder"):
        open_mindspore(tmp_path, strategy=tmp_path / "no-such-folder")
    stages[1]["lm_head.weight"] = held["lm_head.weight"] + 1
    (tmp_path / "rank_3" / "x_rank_3-1_2.safetensors").unlink()
    store(tmp_path / "rank_3" / "x_rank_3-1_2.safetensors", stages[1])
    with pytest.raises(
        CheckpointError, match=r"lm_head\.weight differs between rank 0 and rank 3: it was split; name the folder"
    ):
        open_mindspore(tmp_path)


def test_a_model_that_the_checkpoint_does_not_fit_is_refused(tmp_path: Path) -> None:
    source = open_mindspore(RUN / "final.safetensors")
    spec = ModelSpec(**{**SIZES, "num_layers": 1})
    with pytest.raises(CheckpointMismatch, match=r"in the checkpoint but not in the model \(9\): layers\.1"):
        convert(source, match_names(source), tmp_path / "hf", spec)
    assert not (tmp_path / "hf").exists()


@pytest.mark.parametrize("case", ["llama 6/2", "qwen2 32/4 tied", "qwen3 6/2", "qwen3 32/4 tied"])
def test_an_export_for_mindformers_comes_back_bit_for_bit(case: str, tmp_path: Path) -> None:
    checkpoint, model = save_model(tmp_path / "run", MODELS[case][1])
    command = ["checkpoint", "export", str(checkpoint), str(tmp_path / "ms"), "--format", "mindformers"]
    assert main([*command, "--shard-size", "150KB"]) == 0
    files = sorted((tmp_path / "ms").glob("*.safetensors"))
    assert all(SafetensorsFile.open(file).metadata == {"format": "ms"} for file in files)
    places = json.loads((tmp_path / "ms" / "param_name_map.json").read_text())
    assert set(places.values()) == {file.name for file in files}
    source = open_mindspore(tmp_path / "ms")
    assert source.entries.keys() == places.keys()
    convert(source, match_names(source), tmp_path / "hf", model.spec)
    require_same(tmp_path / "hf", model)


def test_the_names_of_an_export_are_those_of_mindformers(tmp_path: Path) -> None:
    sizes = {"num_layers": 2, "hidden_size": 32, "num_heads": 4, "num_kv_heads": 4, "head_dim": 8}
    changes = {**sizes, "intermediate_size": 96, "vocab_size": 64}
    checkpoint, _ = save_model(tmp_path / "run", changes)
    assert main(["checkpoint", "export", str(checkpoint), str(tmp_path / "ms"), "--format", "mindformers"]) == 0
    theirs = tensors(next((RUN / "new_format" / "iteration_00000012").glob("*-model-*.safetensors")))
    ours = tensors(tmp_path / "ms" / "model.safetensors")
    assert {n: (t.shape, t.dtype) for n, t in ours.items()} == {n: (t.shape, t.dtype) for n, t in theirs.items()}


def layout_item(name: str, devices: list[int], tensor_map: list[int], step: int, size: int) -> bytes:
    """One ParallelLayoutItem as node_strategy.proto describes it; negative numbers are 64-bit varints."""
    grid = b"".join(b"\x08" + varint(count) for count in devices)
    mapped = b"".join(b"\x08" + varint(at % 2**64) for at in tensor_map)
    numbers = b"\x28\x00" + b"\x30" + varint(step) + b"\x38" + varint(size % 2**64)
    return field(3, field(1, name.encode()) + field(2, field(1, grid) + field(2, mapped) + numbers))


@pytest.mark.parametrize("kind", ["ckpt", "json"])
def test_rank_folders_are_merged_by_their_strategy_files(kind: str, tmp_path: Path) -> None:
    """Two stages of eight ranks, data 4 x model 2; the parallel optimizer cuts some weights over data as well."""
    held = tensors(RUN / "init_step0.safetensors")
    (tmp_path / "strategy").mkdir()
    for rank in range(16):
        stage, place = divmod(rank, 8)
        data, model = divmod(place, 2)
        mine = {n: t for n, t in held.items() if ("layers.1." in n or "norm_out" in n or "lm_head" in n) == bool(stage)}
        items: dict[str, tuple[list[int], list[int], int, int]] = {}
        parts: Tensors = {}
        for name, tensor in mine.items():
            if "wo.weight" in name or "w2.weight" in name:
                parts[name], items[name] = tensor.chunk(2, 1)[model], ([4, 2], [-1, 0], 0, 0)
            elif tensor.dim() == 2 and "w3" in name:
                # Cut by rows over the model ranks, then each block over two of the four data ranks.
                parts[name], items[name] = tensor.chunk(2)[model].chunk(2)[data % 2], ([4, 2], [0, -1], 2, 2)
            elif tensor.dim() == 2 and "wv" in name:
                parts[name], items[name] = tensor.chunk(8)[place], ([4, 2], [-1, -1], 1, -1)
            elif tensor.dim() == 2:
                parts[name], items[name] = tensor.chunk(2)[model], ([4, 2], [0, -1], 0, 0)
            else:
                parts[name], items[name] = tensor, ([4, 2], [-1] * tensor.dim(), 0, 0)
        (tmp_path / "checkpoint" / f"rank_{rank}").mkdir(parents=True)
        parts = {name: part.contiguous() for name, part in parts.items()}
        store(tmp_path / "checkpoint" / f"rank_{rank}" / f"x_rank_{rank}-2_6.safetensors", parts)
        file = tmp_path / "strategy" / f"ckpt_strategy_rank_{rank}.{kind}"
        if kind == "ckpt":
            file.write_bytes(b"\x08\x00" + b"".join(layout_item(n, *item) for n, item in items.items()))
        else:
            keys = ("dev_matrix", "tensor_map", "opt_weight_shard_step", "opt_weight_shard_size")
            table = {name: dict(zip(keys, item, strict=True)) for name, item in items.items()}
            file.write_text(json.dumps({"parallel_layout_item": table}))
    source = open_mindspore(tmp_path / "checkpoint")
    assert source.entries.keys() == held.keys()
    for name, tensor in held.items():
        assert torch.equal(source.read(name), tensor), name
    (tmp_path / "strategy" / f"ckpt_strategy_rank_3.{kind}").write_bytes(b"\xff\xff")
    with pytest.raises(CheckpointError, match=rf"ckpt_strategy_rank_3\.{kind}: not a strategy file"):
        open_mindspore(tmp_path / "checkpoint")
