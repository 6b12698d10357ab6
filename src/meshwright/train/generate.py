"""Sampling text from a model."""

import torch
from torch import Tensor

from meshwright.model.decoder import Decoder


@torch.no_grad()
def generate(
    model: Decoder,
    prompt: list[int],
    *,
    max_tokens: int,
    eos_id: int,
    temperature: float = 0.8,
    top_k: int | None = 50,
    seed: int = 0,
) -> list[int]:
    """Continue a prompt token by token; the new ids, without the end-of-text token.

    Every token runs the whole context again: this is for looking at a model, not for serving it. The context is cut
    to the last ``seq_length`` tokens that the model was trained on.

    Args:
        temperature: 0 always takes the likeliest token.
        top_k: sample from the k likeliest tokens only.
    """
    generator = torch.Generator().manual_seed(seed)
    device = next(model.parameters()).device
    ids = list(prompt)
    for _ in range(max_tokens):
        context = torch.tensor([ids[-model.seq_length :]], device=device)
        token = sample(model(context)[0, -1].float().cpu(), temperature, top_k, generator)
        if token == eos_id:
            break
        ids.append(token)
    return ids[len(prompt) :]


def sample(logits_V: Tensor, temperature: float, top_k: int | None, generator: torch.Generator) -> int:
    """Draw one id from logits, fp32 [V]."""
    if temperature == 0:
        return int(logits_V.argmax())
    if top_k is not None and top_k < len(logits_V):
        smallest = logits_V.topk(top_k).values[-1]
        logits_V = logits_V.masked_fill(logits_V < smallest, -torch.inf)
    probabilities = torch.softmax(logits_V / temperature, dim=0)
    return int(torch.multinomial(probabilities, 1, generator=generator))
