"""Logits and gradients of the decoder against transformers, with the same random weights."""

from pathlib import Path

import pytest

from meshwright.model.decoder import Decoder
from meshwright.spec.huggingface import read_model_spec

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

LENGTH = 64
LOGIT_TOLERANCE = 1e-4
GRADIENT_TOLERANCE = 1e-5
VOCAB = 503
SIZES = {
    "num_hidden_layers": 3,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "vocab_size": VOCAB,
    "max_position_embeddings": 128,
    "initializer_range": 0.15,
    "pad_token_id": None,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32}
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
ALTERNATING = {
    "use_sliding_window": True,
    "sliding_window": 11,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}
CASES = {
    "llama": ("llama", {}),
    "llama grouped": ("llama", {"num_key_value_heads": 2}),
    "llama one kv head": ("llama", {"num_key_value_heads": 1}),
    "llama tied": ("llama", {"num_key_value_heads": 2, "tie_word_embeddings": True}),
    "llama biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama3 rope": ("llama", {"num_key_value_heads": 2, "rope_parameters": LLAMA3}),
    "llama linear rope": ("llama", {"rope_parameters": LINEAR}),
    "llama yarn": ("llama", {"rope_parameters": YARN}),
    "llama yarn factor": ("llama", {"rope_parameters": YARN | {"attention_factor": 0.7, "beta_fast": 8.0}}),
    "mistral window": ("mistral", {"num_key_value_heads": 2, "sliding_window": 13}),
    "qwen2": ("qwen2", {"num_key_value_heads": 4}),
    "qwen2 windows": ("qwen2", {"num_key_value_heads": 4, **ALTERNATING}),
    "qwen2 yarn tied": ("qwen2", {"rope_parameters": YARN, "tie_word_embeddings": True}),
    "qwen3": ("qwen3", {"num_key_value_heads": 2, "head_dim": 16}),
    "qwen3 windows": ("qwen3", {"num_key_value_heads": 2, "head_dim": 24, **ALTERNATING}),
}
NAMES = {
    "embedding": "model.embed_tokens",
    "norm": "model.norm",
    "head": "lm_head",
    "attention_norm": "input_layernorm",
    "mlp_norm": "post_attention_layernorm",
    "attention": "self_attn",
    "layers": "model.layers",
}


def their_name(ours: str) -> str:
    """The parameter of transformers that ``ours`` is called there."""
    top, *rest = ours.split(".")
    return ".".join((NAMES[top], *(NAMES.get(part, part) for part in rest)))


def pair(family: str, changes: dict, directory: Path) -> "tuple[torch.nn.Module, Decoder]":
    """A random transformers model and the decoder that its saved config describes, with its weights."""
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(family, **{**SIZES, **changes})
    theirs = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
    theirs.eval()
    for name, parameter in theirs.named_parameters():
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter, mean=1.0 if "norm" in name else 0.0, std=0.3)
    theirs.config.save_pretrained(directory)
    spec = read_model_spec(directory / "config.json")
    ours = Decoder(spec, seq_length=LENGTH)
    copy_weights(theirs, ours)
    return theirs, ours.eval()


def copy_weights(theirs: "torch.nn.Module", ours: Decoder) -> None:
    """Copy every parameter by name; ours may have padding rows, which become large to show that they do not count."""
    weights = dict(theirs.named_parameters())
    with torch.no_grad():
        for name, parameter in ours.named_parameters():
            weight = weights.pop(their_name(name))
            parameter.fill_(30.0)
            parameter[: len(weight)] = weight
    assert not weights, f"not in the decoder: {sorted(weights)}"


def sample() -> "tuple[torch.Tensor, torch.Tensor]":
    """Tokens and next-token labels, some of them not supervised."""
    ids = torch.randint(0, VOCAB, (2, LENGTH + 1), generator=torch.Generator().manual_seed(1))
    labels = ids[:, 1:].clone()
    labels[0, 10:20] = -100
    return ids[:, :-1], labels


@pytest.mark.parametrize("case", CASES)
def test_logits(case: str, tmp_path: Path) -> None:
    theirs, ours = pair(*CASES[case], tmp_path)
    tokens, _ = sample()
    with torch.no_grad():
        expected, logits = theirs(tokens).logits, ours(tokens)
    assert logits.shape == (2, LENGTH, VOCAB)
    assert expected.std() > 0.5
    reached = (logits - expected).abs().max().item()
    print(f"{case}: largest logit difference {reached:.1e}")
    assert reached <= LOGIT_TOLERANCE


@pytest.mark.parametrize("case", CASES)
def test_loss_and_gradients(case: str, tmp_path: Path) -> None:
    theirs, ours = pair(*CASES[case], tmp_path)
    tokens, labels = sample()
    expected = torch.nn.functional.cross_entropy(theirs(tokens).logits.flatten(0, 1), labels.flatten())
    expected.backward()
    loss = ours(tokens, labels) / (labels != -100).sum()
    loss.backward()
    gradients = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    worst = 0.0
    for name, parameter in ours.named_parameters():
        gradient = gradients[their_name(name)]
        difference = (parameter.grad[: len(gradient)] - gradient).norm() / gradient.norm()
        worst = max(worst, difference.item())
        assert parameter.grad[len(gradient) :].eq(0).all(), f"{name}: gradient in the vocabulary padding"
    print(f"{case}: loss {loss.item() - expected.item():.1e}, largest relative gradient difference {worst:.1e}")
    assert loss.item() == pytest.approx(expected.item(), abs=1e-5)
    assert worst <= GRADIENT_TOLERANCE


def test_the_window_of_a_case_matters(tmp_path: Path) -> None:
    """The cases above could not pass with the window left out."""
    theirs, _ = pair(*CASES["mistral window"], tmp_path)
    _, without = pair("mistral", {"num_key_value_heads": 2, "sliding_window": None}, tmp_path)
    tokens, _ = sample()
    with torch.no_grad():
        difference = (theirs(tokens).logits - without(tokens)).abs()
    assert difference[:, :13].max() <= LOGIT_TOLERANCE
    assert difference[:, 13].max() > 100 * LOGIT_TOLERANCE
