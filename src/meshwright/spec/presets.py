"""Sizes of public models, as their authors published them."""

import difflib
from dataclasses import replace

from meshwright.spec.model import ModelSpec, RopeScaling


def preset(name: str) -> ModelSpec:
    """The ModelSpec of a public model. Raises ValueError with near names when there is none of that name."""
    if name in PRESETS:
        return PRESETS[name]
    near = difflib.get_close_matches(name.lower().replace("_", "-"), PRESETS, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"known presets: {', '.join(PRESETS)}"
    raise ValueError(f"no model preset named {name!r}; {hint}")


def _llama(layers: int, hidden: int, heads: int, kv_heads: int, inner: int, **others: object) -> ModelSpec:
    spec = ModelSpec(
        num_layers=layers,
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=hidden // heads,
        intermediate_size=inner,
        vocab_size=32000,
    )
    return replace(spec, **others)  # type: ignore[arg-type]


def _llama3(layers: int, hidden: int, heads: int, inner: int) -> ModelSpec:
    return _llama(layers, hidden, heads, 8, inner, vocab_size=128256, rope_theta=500000.0, max_position_embeddings=8192)


def _llama31(spec: ModelSpec, factor: float = 8.0) -> ModelSpec:
    scaling = RopeScaling(type="llama3", factor=factor, original_max_position_embeddings=8192)
    return replace(spec, rope_scaling=scaling, max_position_embeddings=131072)


def _llama32(layers: int, hidden: int, heads: int) -> ModelSpec:
    return replace(_llama31(_llama3(layers, hidden, heads, 8192), factor=32.0), tie_word_embeddings=True)


def _qwen25(
    layers: int, hidden: int, heads: int, kv_heads: int, inner: int, *, context: int, norm_eps: float = 1e-6
) -> ModelSpec:
    small = hidden <= 2048
    return _llama(
        layers,
        hidden,
        heads,
        kv_heads,
        inner,
        vocab_size=151936 if small else 152064,
        tie_word_embeddings=small,
        attention_bias=True,
        rope_theta=1e6,
        norm_eps=norm_eps,
        max_position_embeddings=context,
    )


def _qwen3(layers: int, hidden: int, heads: int, inner: int, *, tied: bool) -> ModelSpec:
    return _llama(
        layers,
        hidden,
        heads,
        8,
        inner,
        head_dim=128,
        vocab_size=151936,
        tie_word_embeddings=tied,
        qk_norm=True,
        rope_theta=1e6,
        norm_eps=1e-6,
        max_position_embeddings=40960,
    )


_LLAMA3_8B = _llama3(32, 4096, 32, 14336)
_LLAMA3_70B = _llama3(80, 8192, 64, 28672)
_MISTRAL_7B = _llama(32, 4096, 32, 8, 14336, max_position_embeddings=32768)

PRESETS: dict[str, ModelSpec] = {
    "llama-2m": _llama(4, 192, 8, 4, 512, vocab_size=2048, max_position_embeddings=1024),
    "llama-124m": _llama(
        12, 768, 12, 12, 2048, vocab_size=50257, tie_word_embeddings=True, max_position_embeddings=1024
    ),
    "llama2-7b": _llama(32, 4096, 32, 32, 11008),
    "llama2-13b": _llama(40, 5120, 40, 40, 13824),
    "llama2-70b": _llama(80, 8192, 64, 8, 28672),
    "llama3-8b": _LLAMA3_8B,
    "llama3-70b": _LLAMA3_70B,
    "llama3.1-8b": _llama31(_LLAMA3_8B),
    "llama3.1-70b": _llama31(_LLAMA3_70B),
    "llama3.1-405b": _llama31(_llama3(126, 16384, 128, 53248)),
    "llama3.2-1b": _llama32(16, 2048, 32),
    "llama3.2-3b": _llama32(28, 3072, 24),
    "qwen2.5-0.5b": _qwen25(24, 896, 14, 2, 4864, context=32768),
    "qwen2.5-1.5b": _qwen25(28, 1536, 12, 2, 8960, context=131072),
    "qwen2.5-3b": _qwen25(36, 2048, 16, 2, 11008, context=32768),
    "qwen2.5-7b": _qwen25(28, 3584, 28, 4, 18944, context=131072),
    "qwen2.5-14b": _qwen25(48, 5120, 40, 8, 13824, context=131072, norm_eps=1e-5),
    "qwen2.5-32b": _qwen25(64, 5120, 40, 8, 27648, context=131072, norm_eps=1e-5),
    "qwen2.5-72b": _qwen25(80, 8192, 64, 8, 29568, context=131072, norm_eps=1e-5),
    "qwen3-0.6b": _qwen3(28, 1024, 16, 3072, tied=True),
    "qwen3-1.7b": _qwen3(28, 2048, 16, 6144, tied=True),
    "qwen3-4b": _qwen3(36, 2560, 32, 9728, tied=True),
    "qwen3-8b": _qwen3(36, 4096, 32, 12288, tied=False),
    "qwen3-14b": _qwen3(40, 5120, 40, 17408, tied=False),
    "qwen3-32b": _qwen3(64, 5120, 64, 25600, tied=False),
    "mistral-7b-v0.1": replace(_MISTRAL_7B, sliding_window=4096),
    "mistral-7b-v0.3": replace(_MISTRAL_7B, vocab_size=32768, rope_theta=1e6),
}
