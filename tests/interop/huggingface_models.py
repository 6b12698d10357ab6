"""Checkpoints of small random models of every family, as a run would have saved them."""

from pathlib import Path
from typing import Any

import torch
import yaml

from meshwright.checkpoint.store import save
from meshwright.config.load import load_config
from meshwright.config.run import resolve, resolved_yaml
from meshwright.model.decoder import Decoder
from meshwright.model.init import init_weights

SIZES: dict[str, Any] = {
    "num_layers": 3,
    "hidden_size": 96,
    "num_heads": 6,
    "num_kv_heads": 2,
    "head_dim": 16,
    "intermediate_size": 112,
    "vocab_size": 503,
    "max_position_embeddings": 128,
    "init_std": 0.15,
}
WIDE = {"hidden_size": 128, "num_heads": 32, "num_kv_heads": 4, "head_dim": 4}
LLAMA3 = {"type": "llama3", "factor": 8.0, "original_max_position_embeddings": 64}
QWEN2 = {"attention_bias": True, "norm_eps": 1e-6, "rope_theta": 1e6}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama 6/2": ("llama", {}),
    "llama 32/4 tied": ("llama", {**WIDE, "tie_word_embeddings": True}),
    "llama 3.1": ("llama", {**WIDE, "rope_scaling": LLAMA3}),
    "llama biases": ("llama", {"attention_bias": True, "attention_output_bias": True, "mlp_bias": True}),
    "mistral 32/4": ("mistral", {**WIDE, "sliding_window": 13}),
    "mistral 6/2 tied": ("mistral", {"sliding_window": 13, "tie_word_embeddings": True}),
    "qwen2 6/2": ("qwen2", QWEN2),
    "qwen2 32/4 tied": ("qwen2", {**QWEN2, **WIDE, "tie_word_embeddings": True}),
    "qwen2 windows": ("qwen2", {**QWEN2, "sliding_window": 11, "sliding_window_layers": [1, 2]}),
    "qwen3 6/2": ("qwen3", {"qk_norm": True, "head_dim": 24, "norm_eps": 1e-6}),
    "qwen3 32/4 tied": ("qwen3", {**WIDE, "qk_norm": True, "tie_word_embeddings": True}),
}


def save_model(folder: Path, changes: dict[str, Any], *, tokenizer: Path | None = None) -> tuple[Path, Decoder]:
    """A checkpoint of a random model and the model itself; norms and biases are random too."""
    values: dict[str, Any] = {"model": SIZES | changes, "output_dir": str(folder), "train": {"seq_length": 64}}
    if tokenizer is not None:
        values["dataset"] = {"tokenizer": str(tokenizer)}
    config = folder / "config.yaml"
    folder.mkdir(parents=True, exist_ok=True)
    config.write_text(yaml.safe_dump(values))
    run = resolve(load_config(config), 1)
    model = Decoder(run.model, seq_length=64)
    init_weights(model, run.model, 5)
    generator = torch.Generator().manual_seed(1)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            mean = 1.0 if "norm" in name else 0.0
            torch.nn.init.normal_(parameter, mean=mean, std=0.3, generator=generator)
    path = save(
        folder / "checkpoints",
        7,
        tensors={f"model.{name}": parameter.detach() for name, parameter in model.named_parameters()},
        state={"config": resolved_yaml(run), "counters": {"step": 7}},
        rank_state={},
        run_id="test",
    )
    return path, model.eval()
