"""Held-out loss of a trained model, on one process."""

import math
from dataclasses import dataclass

import torch

from meshwright.data.dataset import TokenDataset
from meshwright.data.errors import DataError
from meshwright.data.loader import build_eval_loader
from meshwright.data.own_labels import OwnLabels
from meshwright.data.record import load_record
from meshwright.model.decoder import Decoder
from meshwright.model.loss import IGNORE_INDEX


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What a model makes of held-out data.

    Attributes:
        loss: mean over all predicted tokens, in nats.
        perplexity: exp(loss).
        bits_per_byte: of the UTF-8 text, comparable between tokenizers; None where its size is not recorded, where
            some of it was not predicted, such as the first tokens of isolated documents, or where labels are other ids.
        tokens: predicted tokens.
    """

    loss: float
    perplexity: float
    bits_per_byte: float | None
    tokens: int


@torch.no_grad()
def evaluate(model: Decoder, data: TokenDataset, *, batch_size: int, max_batches: int | None = None) -> Evaluation:
    """Run a model over every held-out token once, or over the first ``max_batches`` batches.

    Raises:
        DataError: none of them is supervised.
    """
    device = next(model.parameters()).device
    loss_sum, tokens = 0.0, 0
    with build_eval_loader(
        data, global_batch_size=batch_size, data_rank=0, data_parallel=1, max_batches=max_batches
    ) as loader:
        for batch in loader:
            loss_sum += float(model(*(tensor.to(device) for tensor in batch.tensors)))
            tokens += int((batch.labels != IGNORE_INDEX).sum())
    if not tokens:
        raise DataError(f"{data.files[0].prefix}: no token of the batches that were read is supervised")
    loss = loss_sum / tokens
    whole = tokens == data.num_tokens - 1 and not any(isinstance(mask, OwnLabels) for mask in data.masks)
    return Evaluation(
        loss=loss,
        perplexity=math.exp(min(loss, 700.0)),
        bits_per_byte=_bits_per_byte(loss_sum, data) if whole else None,
        tokens=tokens,
    )


def _bits_per_byte(loss_sum: float, data: TokenDataset) -> float | None:
    records = [(file.prefix, load_record(file.prefix)) for file in data.files]
    if any(record is None for _, record in records):
        return None
    held_out = [
        (record.eval if str(prefix).endswith(".eval") else record.train) for prefix, record in records if record
    ]
    text_bytes = sum(split.utf8_bytes for split in held_out)
    return loss_sum / math.log(2) / text_bytes if text_bytes else None
