"""The ``model`` section. Size names are those of `meshwright.spec.model.ModelSpec`."""

from typing import Literal

from meshwright.config.fields import BelowOne, Count, Natural, Positive, Section, Word, entry


class RopeScalingConfig(Section):
    """Stretching of the rotary frequencies past the trained length; null is none."""

    type: Literal["llama3", "yarn", "linear"] = entry(..., "Method: Llama 3.1 bands, YaRN, or plain division.")
    factor: Positive = entry(..., "How many times longer than the original length.")
    original_max_position_embeddings: Count = entry(..., "Length in tokens the model was first trained on.")
    low_freq_factor: Positive = entry(1.0, "llama3: wavelengths above original length / this are stretched.")
    high_freq_factor: Positive = entry(4.0, "llama3: wavelengths below original length / this are kept.")
    beta_fast: Positive = entry(32.0, "yarn: rotations over the original length above which nothing changes.")
    beta_slow: Positive = entry(1.0, "yarn: rotations below which the frequency is fully stretched.")
    attention_factor: Positive | None = entry(None, "yarn: factor on cos and sin; null derives it from factor.")


class MoeConfig(Section):
    """Mixture of experts; null is a dense model. Not supported yet."""

    num_experts: Count = entry(..., "Experts in each mixture layer.")
    experts_per_token: Count = entry(..., "Experts each token is sent to.")


class ModelConfig(Section):
    """The network: a preset, a Hugging Face `config.json`, or the sizes themselves.

    A size given next to `preset` or `pretrained_model_dir` overrides it.
    """

    preset: Word | None = entry(None, "Name of a public model whose sizes are built in.")
    pretrained_model_dir: Word | None = entry(
        None,
        "Hugging Face directory: its config.json gives the sizes; where it has weights (.safetensors), training starts"
        " from them.",
    )
    num_layers: Count | None = entry(None, "Transformer layers.")
    hidden_size: Count | None = entry(None, "Width of the residual stream.")
    num_heads: Count | None = entry(None, "Query heads.")
    num_kv_heads: Count | None = entry(None, "Key/value heads; null is num_heads.")
    head_dim: Count | None = entry(None, "Width of one head; null is hidden_size / num_heads.")
    intermediate_size: Count | None = entry(None, "Width inside the gated MLP.")
    vocab_size: Count | None = entry(None, "Tokens in the vocabulary, before padding.")
    max_position_embeddings: Count | None = entry(None, "Longest sequence the model is meant for.")
    rope_theta: Positive | None = entry(None, "Base of the rotary frequencies.")
    rope_scaling: RopeScalingConfig | None = entry(None, "Stretching of the rotary frequencies; null is none.")
    norm_eps: Positive | None = entry(None, "Epsilon of every RMSNorm.")
    tie_word_embeddings: bool | None = entry(None, "Whether the head is the embedding.")
    qk_norm: bool | None = entry(None, "RMSNorm on queries and keys before RoPE (Qwen3).")
    attention_bias: bool | None = entry(None, "Bias on the query, key and value projections (Qwen2).")
    attention_output_bias: bool | None = entry(None, "Bias on the attention output projection.")
    mlp_bias: bool | None = entry(None, "Bias on the MLP projections.")
    sliding_window: Count | None = entry(None, "Tokens each position may look back on; null is all.")
    sliding_window_layers: tuple[Natural, ...] | None = entry(
        None, "Layers (from 0) that the window holds for; null is all of them."
    )
    attention_dropout: BelowOne | None = entry(None, "Dropout on the attention weights.")
    hidden_dropout: BelowOne | None = entry(None, "Dropout on each block's output.")
    vocab_pad_multiple: Count | None = entry(
        None, "Embedding and head have vocab_size rounded up to this many rows, whatever the layout."
    )
    init_std: Positive | None = entry(None, "Standard deviation of the initial weights.")
    moe: MoeConfig | None = entry(None, "Mixture of experts; null is a dense model.")
