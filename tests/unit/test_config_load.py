"""Files, inheritance and overrides: what wins, where it came from, and what is refused."""

from pathlib import Path

import pytest

from meshwright.config.errors import ConfigErrors
from meshwright.config.load import LoadedConfig, load_config


def write(folder: Path, **files: str) -> Path:
    """Write NAME.yaml files and return the path of ``main``."""
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(text)
    return folder / "main.yaml"


def load(folder: Path, text: str, *overrides: str) -> LoadedConfig:
    return load_config(write(folder, main=text), overrides)


def mistakes(folder: Path, text: str, *overrides: str) -> list[str]:
    with pytest.raises(ConfigErrors) as caught:
        load(folder, text, *overrides)
    return [str(error).removeprefix(f"{folder}/") for error in caught.value.errors]


def test_later_base_wins_and_the_file_wins_over_all(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        one="seed: 1\ntrain: {seq_length: 128, grad_clip: 0.5}\noptimizer: {learning_rate: 1e-3}\n",
        two="train: {seq_length: 256}\noptimizer: {weight_decay: 0.0}\n",
        main="base_config: [one.yaml, two.yaml]\ntrain:\n  train_steps: 7\noptimizer: {weight_decay: 0.2}\n",
    )
    loaded = load_config(path)
    assert (loaded.config.seed, loaded.config.train.seq_length, loaded.config.train.grad_clip) == (1, 256, 0.5)
    assert (loaded.config.train.train_steps, loaded.config.optimizer.learning_rate) == (7, 1e-3)
    assert loaded.config.optimizer.weight_decay == 0.2
    assert str(loaded.origin("train.seq_length")) == f"{tmp_path}/two.yaml:1:9"
    assert str(loaded.origin("train.train_steps")) == f"{path}:3:3"
    assert str(loaded.origin("train.compile")) == f"{path}:2:1", "the section's place where the key has none"
    assert str(loaded.origin("monitor.log_steps")) == "default"


def test_bases_are_relative_to_the_file_that_names_them(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "deep.yaml").write_text("seed: 5\n")
    (tmp_path / "base" / "llama.yaml").write_text("base_config: deep.yaml\n")
    assert load(tmp_path, "base_config: base/llama.yaml\n").config.seed == 5


def test_one_base_may_be_reached_twice(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        root="seed: 3\n",
        left="base_config: root.yaml\n",
        right="base_config: root.yaml\nseed: 4\n",
        main="base_config: [right.yaml, left.yaml]\n",
    )
    assert load_config(path).config.seed == 3


def test_a_cycle_is_refused_with_its_chain(tmp_path: Path) -> None:
    path = write(
        tmp_path, a="\nbase_config: b.yaml\n", b="base_config: a.yaml\n", main="base_config: a.yaml\nseed: 2\n"
    )
    with pytest.raises(ConfigErrors) as caught:
        load_config(path)
    (error,) = caught.value.errors
    assert (error.file, error.line, error.key) == (f"{tmp_path}/b.yaml", 1, "base_config")
    chain = [part.rpartition("/")[2] for part in error.message.split(": ")[1].split(" -> ")]
    assert chain == ["a.yaml", "b.yaml", "a.yaml"]


def test_a_missing_base_is_told_where_it_was_asked_for(tmp_path: Path) -> None:
    (tmp_path / "llama.yaml").write_text("seed: 1\n")
    (error,) = mistakes(tmp_path, "seed: 1\nbase_config: lama.yaml\n")
    assert error.startswith("main.yaml:2:1: base_config: ")
    assert "no such file; did you mean llama.yaml?" in error


@pytest.mark.parametrize("base", ['""', "5", r'"a\0b"'])
def test_a_base_that_no_file_can_have_is_refused(tmp_path: Path, base: str) -> None:
    (tmp_path / "base.yaml").write_text("seed: 1\n")
    (error,) = mistakes(tmp_path, f"seed: 1\nbase_config: {base}\n")
    assert error.startswith("main.yaml:2:1: base_config: must be a file name or a list of them")


def test_null_clears_what_is_inherited(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        base="train: {micro_batch_size: 4, grad_clip: 2.0, seq_length: 64}\ncheckpoint: {keep_checkpoint_max: 9}\n",
        main="base_config: base.yaml\ntrain: {micro_batch_size: null, grad_clip: null, seq_length: ~}\ncheckpoint:\n",
    )
    config = load_config(path).config
    assert config.train.micro_batch_size is None
    assert config.train.grad_clip is None, "null is a value here: no clipping"
    assert config.train.seq_length == 2048, "null is no length: the default again"
    assert config.checkpoint.keep_checkpoint_max == 3


def test_overrides_in_every_form_beat_files(tmp_path: Path) -> None:
    text = "train: {seq_length: 64}\ndataset: {paths: [a, {path: b, weight: 2}]}\n"
    loaded = load(
        tmp_path,
        text,
        "train.seq_length=128",
        "--optimizer.learning_rate",
        "1e-4",
        "--optimizer.betas=[0.8, 0.9]",
        "dataset.paths.1.weight=0.5",
        "--seed",
        "9",
    )
    config = loaded.config
    assert (config.train.seq_length, config.optimizer.learning_rate, config.seed) == (128, 1e-4, 9)
    assert config.optimizer.betas == (0.8, 0.9)
    assert [(data.path, data.weight) for data in config.dataset.paths] == [("a", None), ("b", 0.5)]
    assert str(loaded.origin("train.seq_length")) == "command line"


@pytest.mark.parametrize(
    ("override", "told"),
    [
        (("train.seq_lenth=1",), "command line: train.seq_lenth: unknown key; did you mean train.seq_length?"),
        (("train.seq_length",), "command line: cannot read 'train.seq_length'"),
        (("--train.seq_length",), "command line: train.seq_length: the value is missing"),
        (("--train.seq_length", "--seed=1"), "command line: train.seq_length: the value is missing"),
        (("train.seq_length=",), "command line: train.seq_length: cannot read the value ''; write null"),
        (("train.seq_length=[1",), "command line: train.seq_length: cannot read the value '[1'"),
        (("train=5",), "command line: train: must be a section (a mapping of keys), not 5"),
        (("dataset.paths.3=x",), "command line: dataset.paths.3: the list has items 0 to 0, not '3'"),
        (("base_config=x.yaml",), "command line: base_config: base_config can only stand in a file"),
    ],
)
def test_wrong_overrides_are_told(tmp_path: Path, override: tuple[str, ...], told: str) -> None:
    assert mistakes(tmp_path, "dataset: {paths: [a]}\n", *override)[0].startswith(told)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "main.yaml: holds no keys"),
        (b"# only a comment\n", "main.yaml: holds no keys"),
        (b"- a\n- b\n", "main.yaml: must be a mapping of keys"),
        (b"\x7fELF\x02\x01\x00\xff\xfe", "main.yaml: not a text file: byte 7 is not UTF-8"),
        (b"seed: 1\x00\n", "main.yaml: not a text file: it holds NUL bytes"),
        (b"seed: 1\nname: \x07\n", "main.yaml:2: not YAML: character #x07 is not allowed"),
        (b"train:\n\tseq_length: 1\n", "main.yaml:2:1: not valid YAML: found character '\\t'"),
        (b"train: {seq_length: 1\nseed: 2\n", "main.yaml:2:5: not valid YAML: "),
        (b"seed: 1\n---\nseed: 2\n", "main.yaml:2:1: not valid YAML: more than one YAML document"),
        (b"train: &t {x: *t}\n", "main.yaml:1:12: train.x: aliases (*name) that contain themselves"),
        (b"seed: !!python/object:os.system ls\n", "main.yaml:1:7: seed: cannot take 'ls' as os.system"),
        (b"seed: " + b"9" * 5000, "main.yaml:1:7: seed: cannot take '99999999999999999999' as int"),
        (b"seed: " + b"[" * 50 + b"]" * 50, "main.yaml:1:26: seed.0.0"),
        (b"[1]: 2\n", "main.yaml:1:1: a key must be a plain word"),
    ],
)
def test_files_that_are_no_config_give_one_clear_message(tmp_path: Path, content: bytes, told: str) -> None:
    path = tmp_path / "main.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigErrors) as caught:
        load_config(path)
    assert str(caught.value.errors[0]).removeprefix(f"{tmp_path}/").startswith(told)


def test_missing_file_and_directory(tmp_path: Path) -> None:
    (tmp_path / "train.yaml").write_text("seed: 1\n")
    with pytest.raises(ConfigErrors, match=r"trian.yaml: no such file; did you mean train.yaml\?"):
        load_config(tmp_path / "trian.yaml")
    with pytest.raises(ConfigErrors, match="is a directory; name the YAML file inside it"):
        load_config(tmp_path)


def test_mistakes_of_every_file_are_collected(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        base="sead: 1\nseed: 1\nseed: 2\n",
        main="base_config: [base.yaml, gone.yaml]\ntrain: {seq_length: many}\n",
    )
    with pytest.raises(ConfigErrors) as caught:
        load_config(path, ["optimizer.learning_rate=-1"])
    found = {(Path(error.file or "").name, error.key) for error in caught.value.errors}
    assert found == {
        ("base.yaml", "sead"),
        ("base.yaml", "seed"),
        ("main.yaml", "base_config"),
        ("main.yaml", "train.seq_length"),
        ("command line", "optimizer.learning_rate"),
    }


def test_anchors_and_a_byte_order_mark_are_read(tmp_path: Path) -> None:
    path = tmp_path / "main.yaml"
    path.write_bytes(b"\xef\xbb\xbfdataset:\n  paths: &p [a]\n  eval_paths: *p\n")
    config = load_config(path).config
    assert config.dataset.paths == config.dataset.eval_paths
