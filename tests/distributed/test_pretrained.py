"""Training from the weights of a Hugging Face folder, and exporting them again, under several layouts."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshwright.config.load import load_config
from meshwright.config.run import resolve
from meshwright.data.order import GlobalOrder
from meshwright.parallel.devices import KINDS
from meshwright.train.export import export_model
from meshwright.train.inference import load_model
from meshwright.train.inputs import train_dataset
from ranks import run_ranks
from trainer_runs import GLOBAL_BATCH, VOCAB, by_step, ranks_of, train, write_config

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TOLERANCE = 1e-4
SIZES = {
    "num_hidden_layers": 4,
    "hidden_size": 48,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "vocab_size": VOCAB,
    "initializer_range": 0.2,
    "max_position_embeddings": 64,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {"tie_word_embeddings": True},
    "qwen3": {"head_dim": 16},
    "mistral": {"sliding_window": 5, "head_dim": 8},
}
# Names and shapes are a family's, cuts a layout's: one family goes through all layouts, the others through two.
TWO = ["tp2", "dp2pp2_zero1"]
LAYOUTS = {"llama": ["one", "dp2_zero3", *TWO], "qwen2": TWO, "qwen3": TWO, "mistral": TWO}


def their_model(family: str, folder: Path) -> "torch.nn.Module":
    """A random model of transformers, saved in several files."""
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(family, **SIZES, **FAMILIES[family])
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter, mean=1.0 if "norm" in name else 0.0, std=0.3)
    model.save_pretrained(folder, max_shard_size="60KB")
    return model.eval()


def their_first_loss(model: "torch.nn.Module", config: Path) -> float:
    """Loss of transformers on the first global batch of the run."""
    run = resolve(load_config(config, ("parallel_config={}",)), 1)
    data = train_dataset(run)
    order = GlobalOrder(data.num_samples, run.train.seed)
    tokens, labels = data.batch(order.samples(np.arange(GLOBAL_BATCH)))
    with torch.no_grad():
        logits = model(torch.as_tensor(tokens)).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.as_tensor(labels).flatten()).item()


def config_of(folder: Path, layout: str, weights: Path) -> Path:
    model = dict.fromkeys(("num_layers", "hidden_size", "num_heads", "num_kv_heads", "intermediate_size"))
    return write_config(
        folder,
        layout,
        output_dir=str(folder / layout),
        run_mode="finetune",
        model=model | {"vocab_size": None, "pretrained_model_dir": str(weights)},
        train={"train_steps": 3},
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_every_layout_starts_with_the_loss_of_transformers(family: str, tmp_path: Path) -> None:
    model = their_model(family, tmp_path / "hf")
    losses: dict[str, list[float]] = {}
    for layout in LAYOUTS[family]:
        config = config_of(tmp_path, layout, tmp_path / "hf")
        run_ranks(train, ranks_of(layout), config)
        losses[layout] = [loss for (loss,) in by_step(tmp_path / layout, "train/loss").values()]
    expected = their_first_loss(model, config)
    assert abs(expected - math.log(VOCAB)) > 0.05, "random weights would not be told from these"
    for layout, found in losses.items():
        print(f"{family} {layout}: first loss {found[0]:.6f}, transformers {expected:.6f}")
        assert abs(found[0] - expected) <= TOLERANCE
        assert found == pytest.approx(losses[LAYOUTS[family][0]], abs=TOLERANCE)
        exported_logits_agree(tmp_path / layout, tmp_path / f"{layout}-hf")


def exported_logits_agree(run: Path, out: Path) -> None:
    """The checkpoint of any layout, exported, gives transformers the logits that it gives here."""
    export_model(run, out)
    model, info = transformers.AutoModelForCausalLM.from_pretrained(out, output_loading_info=True, dtype=torch.float32)
    assert not any(info.values()), info
    ours = load_model(run, kind=KINDS["cpu"], device=torch.device("cpu")).model
    tokens = torch.randint(0, VOCAB, (2, 64), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        assert (model(tokens).logits - ours(tokens)).abs().max() <= TOLERANCE


def test_a_resumed_run_needs_its_first_weights_no_more(tmp_path: Path) -> None:
    their_model("llama", tmp_path / "hf")
    config = config_of(tmp_path, "one", tmp_path / "hf")
    run_ranks(train, 1, config)
    (tmp_path / "hf" / "model.safetensors.index.json").write_text("{}")
    run_ranks(train, 1, config, ("train.train_steps=4",))
    assert list(by_step(tmp_path / "one", "train/loss")) == [1, 2, 3, 4]
    export_model(tmp_path / "one", tmp_path / "again")
