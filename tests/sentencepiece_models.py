"""Small sentencepiece models, made when a test asks for them."""

import io
from collections.abc import Iterable

import sentencepiece


def llama_2_model(lines: Iterable[str], vocab_size: int) -> bytes:
    """A BPE made as Llama 2's: byte fallback, text left as it is."""
    body = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=body,
        model_type="bpe",
        byte_fallback=True,
        vocab_size=vocab_size,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        minloglevel=2,
        num_threads=1,
    )
    return body.getvalue()
