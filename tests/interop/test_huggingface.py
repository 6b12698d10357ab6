"""Checkpoints to Hugging Face folders and back: B-20 and B-04."""

import json
import weakref
from pathlib import Path

import pytest
import yaml

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors")

from huggingface_models import MODELS, save_model  # noqa: E402

from meshwright.checkpoint.errors import CheckpointError, CheckpointMismatch  # noqa: E402
from meshwright.checkpoint.huggingface import HuggingFaceWeights  # noqa: E402
from meshwright.checkpoint.huggingface_export import PaddedReader  # noqa: E402
from meshwright.checkpoint.safetensors_file import Entry, SafetensorsFile, shards, write_safetensors  # noqa: E402
from meshwright.cli import main  # noqa: E402
from meshwright.data.vocabulary.tokenizer import load_tokenizer, train_tokenizer  # noqa: E402
from meshwright.model.decoder import Decoder  # noqa: E402
from meshwright.model.families import FAMILIES  # noqa: E402
from meshwright.model.init import fill_weights  # noqa: E402
from meshwright.parallel.devices import KINDS  # noqa: E402
from meshwright.spec.huggingface import read_model_spec  # noqa: E402
from meshwright.train.export import export_model  # noqa: E402
from meshwright.train.inference import load_model  # noqa: E402
from sentencepiece_models import llama_2_model  # noqa: E402

TOLERANCE = 1e-4
CPU = torch.device("cpu")


def load_theirs(folder: Path) -> "torch.nn.Module":
    """What transformers makes of a folder; no key may be missing, left over or of another shape."""
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder, output_loading_info=True, dtype=torch.float32, attn_implementation="eager"
    )
    assert not any(info.values()), info
    return model.eval()


def tokens(vocab: int = 503) -> "torch.Tensor":
    return torch.randint(0, vocab, (2, 64), generator=torch.Generator().manual_seed(1))


def tensors_of(folder: Path) -> "dict[str, torch.Tensor]":
    """Every tensor of a folder, read by the safetensors library."""
    found: dict[str, torch.Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        content = safetensors.torch.load_file(path)
        assert not found.keys() & content.keys()
        found |= content
    return found


@pytest.mark.parametrize("case", MODELS)
def test_b20_export_loads_in_transformers_with_equal_logits(case: str, tmp_path: Path) -> None:
    family, changes = MODELS[case]
    checkpoint, ours = save_model(tmp_path / "run", changes)
    out = tmp_path / "hf"
    export_model(checkpoint, out, shard_size=100_000)
    assert json.loads((out / "config.json").read_text())["model_type"] == family
    theirs = load_theirs(out)
    with torch.no_grad():
        expected, logits = theirs(tokens()).logits, ours(tokens())
    assert expected.std() > 0.5
    reached = (logits - expected).abs().max().item()
    print(f"{case}: largest logit difference {reached:.1e}")
    assert reached <= TOLERANCE


@pytest.mark.parametrize("case", MODELS)
def test_b20_import_of_the_export_is_bit_equal(case: str, tmp_path: Path) -> None:
    checkpoint, ours = save_model(tmp_path / "run", MODELS[case][1])
    out = tmp_path / "hf"
    export_model(checkpoint, out, shard_size=100_000)
    spec = read_model_spec(out)
    weights = HuggingFaceWeights.open(out)
    assert weights.problems(spec) == []
    again = Decoder(spec, seq_length=64)
    fill_weights(again, weights.initial)
    mine = dict(ours.named_parameters())
    assert mine.keys() == dict(again.named_parameters()).keys()
    for name, parameter in again.named_parameters():
        assert torch.equal(parameter.view(torch.int32), mine[name].view(torch.int32)), name


def test_b20_each_key_is_once_in_the_index_and_the_total_is_the_sum_of_bytes(tmp_path: Path) -> None:
    checkpoint, _ = save_model(tmp_path / "run", {})
    export_model(checkpoint, tmp_path / "hf", shard_size=100_000)
    index = json.loads((tmp_path / "hf" / "model.safetensors.index.json").read_text())
    held = tensors_of(tmp_path / "hf")
    assert sorted(index["weight_map"]) == sorted(held)
    assert index["metadata"]["total_size"] == sum(t.numel() * t.element_size() for t in held.values())
    files = sorted(path.name for path in (tmp_path / "hf").glob("*.safetensors"))
    assert files == sorted(set(index["weight_map"].values()))
    assert len(files) > 3
    assert files[0] == f"model-00001-of-{len(files):05d}.safetensors"


@pytest.mark.parametrize("case", ["llama 32/4 tied", "qwen2 32/4 tied", "qwen3 32/4 tied", "mistral 6/2 tied"])
def test_b20_tied_weights_are_one_tensor_and_a_flag(case: str, tmp_path: Path) -> None:
    checkpoint, _ = save_model(tmp_path / "run", MODELS[case][1])
    export_model(checkpoint, tmp_path / "hf")
    held = tensors_of(tmp_path / "hf")
    assert "lm_head.weight" not in held
    assert json.loads((tmp_path / "hf" / "config.json").read_text())["tie_word_embeddings"] is True
    theirs = load_theirs(tmp_path / "hf")
    assert theirs.lm_head.weight.data_ptr() == theirs.model.embed_tokens.weight.data_ptr()


@pytest.mark.parametrize("tied", [False, True])
def test_b04_vocabulary_padding_is_not_exported(tmp_path: Path, tied: bool) -> None:
    small = {"num_layers": 1, "hidden_size": 24, "num_heads": 6, "head_dim": 4, "intermediate_size": 16}
    checkpoint, ours = save_model(tmp_path / "run", {**small, "vocab_size": 50257, "tie_word_embeddings": tied})
    assert ours.output_weight.shape[0] == 50304
    export_model(checkpoint, tmp_path / "hf")
    held = tensors_of(tmp_path / "hf")
    vocabulary = {name: len(tensor) for name, tensor in held.items() if tensor.shape[0] > 50000}
    expected = {"model.embed_tokens.weight": 50257, "lm_head.weight": 50257}
    assert vocabulary == ({"model.embed_tokens.weight": 50257} if tied else expected)
    assert json.loads((tmp_path / "hf" / "config.json").read_text())["vocab_size"] == 50257
    with torch.no_grad():
        theirs, logits = load_theirs(tmp_path / "hf")(tokens(50257)).logits, ours(tokens(50257))
    assert theirs.shape == logits.shape == (2, 64, 50257)
    assert (theirs - logits).abs().max() <= TOLERANCE


def test_dtype_rounds_once_and_the_config_names_it(tmp_path: Path) -> None:
    checkpoint, ours = save_model(tmp_path / "run", {})
    export_model(checkpoint, tmp_path / "hf", dtype=torch.bfloat16)
    held = tensors_of(tmp_path / "hf")
    assert json.loads((tmp_path / "hf" / "config.json").read_text())["torch_dtype"] == "bfloat16"
    names = FAMILIES["llama"]
    for name, parameter in ours.named_parameters():
        theirs = held[names.theirs(name)]
        assert theirs.dtype == torch.bfloat16
        assert torch.equal(theirs, parameter[: len(theirs)].bfloat16())


def test_the_tokenizer_comes_along_and_transformers_uses_it(tmp_path: Path) -> None:
    tokenizer = train_tokenizer(["the number seven follows the number six"] * 50, 300)
    (tmp_path / "corpus.tokenizer.json").write_bytes(tokenizer.body)
    checkpoint, _ = save_model(tmp_path / "run", {}, tokenizer=tmp_path / "corpus.tokenizer.json")
    export_model(checkpoint, tmp_path / "hf")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    text = "the number six, and more"
    assert theirs(text, add_special_tokens=False)["input_ids"] == tokenizer.encode([text])[0]
    assert theirs.eos_token_id == tokenizer.eos_id == load_theirs(tmp_path / "hf").config.eos_token_id


def test_a_sentencepiece_model_comes_along_and_transformers_reads_it_alike(tmp_path: Path) -> None:
    model = llama_2_model(["the number seven follows the number six", "a b  c"] * 50, 310)
    (tmp_path / "corpus.tokenizer.model").write_bytes(model)
    checkpoint, _ = save_model(tmp_path / "run", {}, tokenizer=tmp_path / "corpus.tokenizer.model")
    export_model(checkpoint, tmp_path / "hf")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    ours = load_tokenizer(tmp_path / "hf")
    for text in ("the number six,  and more", "caf\u00e9 \U0001f600\n\n\t1234 "):
        assert theirs(text, add_special_tokens=False)["input_ids"] == ours.encode([text])[0]
    assert theirs.eos_token_id == ours.eos_id == load_theirs(tmp_path / "hf").config.eos_token_id


def test_a_model_of_transformers_is_read_as_it_is(tmp_path: Path) -> None:
    """What transformers saves, in bfloat16 and cut into files, gives its logits here."""
    torch.manual_seed(0)
    config = transformers.Qwen2Config(
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        intermediate_size=64,
        vocab_size=211,
        initializer_range=0.2,
        max_position_embeddings=128,
    )
    transformers.Qwen2ForCausalLM(config).bfloat16().save_pretrained(tmp_path / "hf", max_shard_size="40KB")
    assert (tmp_path / "hf" / "model.safetensors.index.json").exists()
    ours = load_model(tmp_path / "hf", kind=KINDS["cpu"], device=CPU)
    assert ours.model.head is not None
    assert ours.model.head.weight.dtype == torch.bfloat16
    with torch.no_grad():
        expected, logits = load_theirs(tmp_path / "hf")(tokens(211)).logits, ours.model.float()(tokens(211))
    assert (expected - logits).abs().max() <= TOLERANCE


def exported(tmp_path: Path, changes: dict | None = None) -> Path:
    checkpoint, _ = save_model(tmp_path / "run", changes or {})
    export_model(checkpoint, tmp_path / "hf")
    return tmp_path / "hf"


def rewrite(folder: Path, change) -> None:
    """Change the dict of tensors of a folder."""
    held = tensors_of(folder)
    change(held)
    safetensors.torch.save_file(held, folder / "model.safetensors", metadata={"format": "pt"})


def test_names_that_do_not_match_are_refused_by_name(tmp_path: Path) -> None:
    folder = exported(tmp_path)

    def change(held: dict) -> None:
        held["model.layers.1.mlp.gate_up_proj.weight"] = held.pop("model.layers.1.mlp.up_proj.weight")
        held["lm_head.weight"] = held["lm_head.weight"][:500].clone()
        held["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(8)

    rewrite(folder, change)
    lines = HuggingFaceWeights.open(folder).problems(read_model_spec(folder))
    assert lines == [
        "missing from the files (1): model.layers.1.mlp.up_proj.weight",
        "in the files but not in the model (1): model.layers.1.mlp.gate_up_proj.weight",
        "of another shape (1): lm_head.weight [500, 96], the model has [503, 96]",
    ]


def test_a_head_beside_a_tied_embedding_must_be_equal(tmp_path: Path) -> None:
    folder = exported(tmp_path, {"tie_word_embeddings": True})
    rewrite(folder, lambda held: held.update({"lm_head.weight": held["model.embed_tokens.weight"].clone()}))
    assert HuggingFaceWeights.open(folder).problems(read_model_spec(folder)) == []
    rewrite(folder, lambda held: held["lm_head.weight"][-1].add_(1))
    (line,) = HuggingFaceWeights.open(folder).problems(read_model_spec(folder))
    assert "model.tie_word_embeddings to false" in line


def test_folders_without_readable_weights_are_refused_with_the_file(tmp_path: Path) -> None:
    folder = exported(tmp_path)
    weights = folder / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-10])
    with pytest.raises(CheckpointError, match=r"model\.safetensors: .* ends 10 bytes past the file"):
        HuggingFaceWeights.open(folder)
    weights.write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(CheckpointError, match=r"model\.safetensors: not a safetensors file"):
        HuggingFaceWeights.open(folder)
    weights.rename(folder / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"no \.safetensors file; it holds pytorch_model\.bin"):
        HuggingFaceWeights.open(folder)


def test_training_refuses_weights_of_another_model_before_it_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = exported(tmp_path)
    values = {"model": {"pretrained_model_dir": str(folder), "num_layers": 2}, "output_dir": str(tmp_path / "out")}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(values | {"dataset": {"paths": [str(corpus(tmp_path))]}}))
    assert main(["train", str(tmp_path / "config.yaml"), "train.seq_length=16"]) == 2
    told = capsys.readouterr().err
    assert "in the files but not in the model (9): model.layers.2.input_layernorm.weight" in told
    assert not (tmp_path / "out").exists()


def corpus(folder: Path) -> Path:
    from meshwright.data.indexed_writer import IndexedWriter

    with IndexedWriter(folder / "corpus", vocab_size=503) as writer:
        writer.add_document(torch.arange(2000).numpy() % 503)
    return folder / "corpus"


def test_export_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_model(tmp_path / "run", {})
    out = tmp_path / "hf"
    command = ["checkpoint", "export", str(tmp_path / "run"), str(out), "--dtype", "bfloat16", "--shard-size", "60KB"]
    assert main([*command, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    held = tensors_of(out)
    assert (result["step"], result["tensors"]) == (7, len(held))
    assert result["bytes"] == sum(t.numel() * 2 for t in held.values())
    assert main(command) == 2
    assert f"{out} exists already" in capsys.readouterr().err
    assert main(["checkpoint", "export", str(tmp_path / "nowhere"), str(tmp_path / "b")]) == 2
    assert "nowhere: no such run directory" in capsys.readouterr().err
    assert main([*command[:-1], "0"]) == 2
    assert "'0' is no size" in capsys.readouterr().err


def test_features_of_no_family_are_refused(tmp_path: Path) -> None:
    checkpoint, _ = save_model(tmp_path / "run", {"attention_output_bias": True})
    with pytest.raises(CheckpointMismatch, match="no Hugging Face family has"):
        export_model(checkpoint, tmp_path / "hf")
    assert not (tmp_path / "hf").exists()


def test_an_export_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint, _ = save_model(tmp_path / "run", {})
    monkeypatch.setattr("meshwright.checkpoint.huggingface_export.free_bytes", lambda path: 1000)
    with pytest.raises(OSError, match=r"the weights need 1\.\d MiB, 1000 B are free"):
        export_model(checkpoint, tmp_path / "hf")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


def test_a_file_is_cut_only_between_tensors() -> None:
    entries = {name: Entry(torch.float32, (size,)) for name, size in (("a", 3), ("b", 1), ("c", 9), ("d", 1))}
    assert [list(part) for part in shards(entries, 16)] == [["a", "b"], ["c"], ["d"]]


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16", "int64", "uint8", "bool", "float8_e4m3fn"])
def test_files_are_those_of_the_library(tmp_path: Path, dtype: str) -> None:
    """The same tensors as the library's writer has them, and the library's files read back, rows too."""
    kind = getattr(torch, dtype)
    held = {"a": (torch.randn(5, 3) * 3).to(kind), "b": torch.ones(()).to(kind), "c": torch.empty(0, 3, dtype=kind)}
    entries = {name: Entry(tensor.dtype, tuple(tensor.shape)) for name, tensor in held.items()}
    write_safetensors(tmp_path / "ours", entries, held.__getitem__, metadata={"format": "pt"})
    safetensors.torch.save_file(held, tmp_path / "theirs", metadata={"format": "pt"})
    read_back = safetensors.torch.load_file(tmp_path / "ours")
    opened = SafetensorsFile.open(tmp_path / "theirs")
    assert opened.metadata == {"format": "pt"}
    for name, tensor in held.items():
        for found in (read_back[name], opened.read(name)):
            assert found.dtype == tensor.dtype
            assert torch.equal(bits(found), bits(tensor))
    assert torch.equal(bits(opened.rows("a", 1, 4)), bits(held["a"][1:4]))
    assert opened.rows("a", 2, 2).shape == (0, 3)


def bits(tensor: "torch.Tensor") -> "torch.Tensor":
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def test_the_export_holds_one_tensor_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint, ours = save_model(tmp_path / "run", {})
    read, seen, alive = PaddedReader.read, [], []

    def watched(self: PaddedReader, name: str) -> torch.Tensor:
        alive.append(sum(reference() is not None for reference in seen))
        tensor = read(self, name)
        seen.append(weakref.ref(tensor))
        return tensor

    monkeypatch.setattr(PaddedReader, "read", watched)
    export_model(checkpoint, tmp_path / "hf")
    assert len(alive) == len(list(ours.parameters()))
    # The one just written may still have a name in the loop that writes.
    assert max(alive) <= 1
