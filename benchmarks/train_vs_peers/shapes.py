"""The models that every tool trains, and their arithmetic."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """A Llama: RMSNorm, RoPE, SwiGLU, as many key/value heads as query heads, no biases."""

    num_layers: int
    hidden_size: int
    num_heads: int
    intermediate_size: int
    vocab_size: int
    tie_word_embeddings: bool
    seq_length: int = 512

    def parameters(self) -> int:
        width, layers = self.hidden_size, self.num_layers
        embeddings = self.vocab_size * width * (1 if self.tie_word_embeddings else 2)
        return embeddings + width + layers * (2 * width + self._matrices_of_layer())

    def flops_per_token(self) -> float:
        """Forward and backward matrix products: 6 per weight (the head counts, the embedding look-up does not),
        and attention over the full square (PaLM appendix B), which causal kernels do half of."""
        weights = self.num_layers * self._matrices_of_layer() + self.vocab_size * self.hidden_size
        return 6.0 * weights + 12.0 * self.num_layers * self.hidden_size * self.seq_length

    def _matrices_of_layer(self) -> int:
        return 4 * self.hidden_size**2 + 3 * self.hidden_size * self.intermediate_size


SHAPES = {
    "4-layer": Shape(4, 640, 10, 1792, 32000, tie_word_embeddings=False),
    "12-layer": Shape(12, 768, 12, 2048, 32000, tie_word_embeddings=True),
}
