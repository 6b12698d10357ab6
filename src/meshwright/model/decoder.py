"""The decoder: one readable definition of the Llama family.

B micro-batch, S sequence, D hidden, V padded vocabulary, H head_dim. The model knows nothing of ranks; a pipeline
stage is this model with parts taken away.
"""

from collections.abc import Iterable

import torch.nn.functional as F
from torch import Tensor, nn

from meshwright.model.attention import Attention
from meshwright.model.loss import TokenLoss
from meshwright.model.mask import layer_biases
from meshwright.model.mlp import MLP
from meshwright.model.norm import RMSNorm, compute_dtype
from meshwright.model.rope import RotaryTables, at_positions
from meshwright.spec.model import ModelSpec


class Block(nn.Module):
    """One transformer layer: attention and feed-forward, each around a residual."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(spec.hidden_size, spec.norm_eps)
        self.attention = Attention(spec)
        self.mlp_norm = RMSNorm(spec.hidden_size, spec.norm_eps)
        self.mlp = MLP(spec)
        self.dropout = nn.Dropout(spec.hidden_dropout)

    def forward(self, x_BSD: Tensor, cos_SH: Tensor, sin_SH: Tensor, bias: Tensor | None = None) -> Tensor:
        """[B, S, D] to [B, S, D]; the others as `Attention` takes them."""
        h_BSD = x_BSD + self.dropout(self.attention(self.attention_norm(x_BSD), cos_SH, sin_SH, bias))
        return h_BSD + self.dropout(self.mlp(self.mlp_norm(h_BSD)))


class Decoder(nn.Module):
    """A decoder-only language model, whole or one pipeline stage of it.

    Args:
        spec: sizes of the network.
        seq_length: tokens per sample.
        loss_chunk_tokens: see `TokenLoss`.

    A tied model has no ``head``: the embedding serves as both.

    Attributes:
        takes_tokens: the stage embeds token ids; otherwise its input are hidden states.
        gives_loss: the stage ends in the final norm and the head; otherwise it returns hidden states.
    """

    def __init__(self, spec: ModelSpec, *, seq_length: int, loss_chunk_tokens: int | None = None) -> None:
        super().__init__()
        self.spec = spec
        self.seq_length = seq_length
        self.takes_tokens = True
        self.gives_loss = True
        rows, width = spec.padded_vocab_size, spec.hidden_size
        self.embedding: nn.Embedding | None = nn.Embedding(rows, width)
        self.layers = nn.ModuleDict({str(i): Block(spec) for i in range(spec.num_layers)})
        self.norm: RMSNorm | None = RMSNorm(width, spec.norm_eps)
        self.head: nn.Linear | None = None if spec.tie_word_embeddings else nn.Linear(width, rows, bias=False)
        self.loss = TokenLoss(spec.vocab_size, loss_chunk_tokens)
        self.rope = RotaryTables(spec)

    def keep_stage(self, layers: Iterable[int], *, first: bool, last: bool) -> None:
        """Take away everything that is not on one pipeline stage. Parameter names stay those of the whole model."""
        kept = {str(layer) for layer in layers}
        for name in [name for name in self.layers if name not in kept]:
            del self.layers[name]
        self.takes_tokens, self.gives_loss = first, last
        if not first and not (last and self.spec.tie_word_embeddings):
            self.embedding = None
        if not last:
            self.norm = self.head = None

    @property
    def output_weight(self) -> Tensor:
        """Weight of the head, [V, D]."""
        output = self.head if self.head is not None else self.embedding
        assert output is not None
        return output.weight

    def forward(self, x: Tensor, labels_BS: Tensor | None = None, positions_BS: Tensor | None = None) -> Tensor:
        """Run the stage.

        Args:
            x: token ids, int64 [B, S], or hidden states [B, S, D]; see `takes_tokens`.
            labels_BS: next-token ids, `IGNORE_INDEX` where unsupervised; only the last stage uses them.
            positions_BS: of each token inside its document, int64 from 0: attention then stays in the document, and
                rotary positions count from its first token. None: a sequence is one document.

        Returns:
            The 0-d fp32 sum of token losses on the last stage, or logits [B, S, vocab_size] where no labels are
            given; hidden states [B, S, D] on the stages before.
        """
        length = x.shape[1] if self.takes_tokens else self.seq_length
        if self.takes_tokens:
            assert self.embedding is not None
            x = self.embedding(x)
        cos_SH, sin_SH = self.rope(length, x.device)
        dtype = compute_dtype(x)
        if positions_BS is not None:
            cos_SH, sin_SH = (at_positions(table, positions_BS, dtype) for table in (cos_SH, sin_SH))
        # Made once and shared: a layer that is kept for backward, or recomputed, holds none of its own.
        windows = [self.spec.window_of_layer(int(name)) for name in self.layers]
        biases = layer_biases(windows, length, positions_BS, dtype, x.device)
        for layer, bias in zip(self.layers.values(), biases, strict=True):
            x = layer(x, cos_SH, sin_SH, bias)
        if not self.gives_loss:
            return x
        assert self.norm is not None
        x = self.norm(x)
        if labels_BS is None:
            return F.linear(x, self.output_weight)[..., : self.spec.vocab_size]
        return self.loss(x, self.output_weight, labels_BS)
