"""Documents of a sample that do not see each other: each comes out as if it were alone (B-23)."""

from dataclasses import replace

import pytest
import torch

from meshwright.model import attention
from meshwright.model.decoder import Decoder
from meshwright.model.init import init_weights
from meshwright.spec.model import ModelSpec, RopeScaling

SPEC = ModelSpec(
    num_layers=2,
    hidden_size=32,
    num_heads=4,
    num_kv_heads=4,
    head_dim=8,
    intermediate_size=48,
    vocab_size=64,
    init_std=0.3,
)
MODELS = {
    "plain": SPEC,
    "grouped queries": replace(SPEC, num_kv_heads=2),
    "sliding window": replace(SPEC, sliding_window=7),
    "window of one layer": replace(SPEC, sliding_window=40, sliding_window_layers=(1,)),
    "QK norm": replace(SPEC, qk_norm=True),
    "YaRN": replace(SPEC, rope_scaling=RopeScaling(type="yarn", factor=4.0, original_max_position_embeddings=128)),
}
LENGTHS = (530, 9, 101)
"""The kernel on a CPU works through blocks of 512 keys: the border of the first document is in the second block."""


def model(spec: ModelSpec) -> Decoder:
    decoder = Decoder(spec, seq_length=sum(LENGTHS))
    init_weights(decoder, spec, 0)
    return decoder


def packed() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Tokens, labels and positions of documents in one row, int64 [1, S]."""
    ids = torch.randint(0, 64, (1, sum(LENGTHS)), generator=torch.Generator().manual_seed(1))
    labels = ids.roll(-1, dims=1)
    labels[0, torch.tensor(LENGTHS).cumsum(0) - 1] = -100
    return ids, labels, torch.cat([torch.arange(length) for length in LENGTHS])[None]


@pytest.fixture(params=[False, True], ids=["own keys", "repeated keys"])
def repeated_keys(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways that grouped queries get their keys; kernels with masks on accelerators take the second."""
    if request.param:
        monkeypatch.setattr(attention, "takes_fewer_keys", lambda *_args, **_kwargs: False)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.usefixtures("repeated_keys")
def test_b23_changing_document_1_leaves_document_2_unchanged(name: str) -> None:
    decoder = model(MODELS[name]).eval()
    tokens, _, positions = packed()
    changed = tokens.clone()
    changed[0, : LENGTHS[0]] = (changed[0, : LENGTHS[0]] + 1) % 64
    with torch.no_grad():
        before, after = (decoder(ids, positions_BS=positions)[0] for ids in (tokens, changed))
        mixed = decoder(changed)[0]
        first = 0
        for length in LENGTHS:
            here = slice(first, first + length)
            alone = decoder(tokens[:, here])[0]
            assert (before[here] - alone).abs().max() <= 1e-5 * alone.abs().max()
            first += length
    rest = slice(LENGTHS[0], None)
    assert (before[rest] - after[rest]).abs().max() <= 1e-6
    assert (before[: LENGTHS[0]] - after[: LENGTHS[0]]).abs().max() > 1e-2
    # Without isolation the same change reaches document 2.
    assert (before[rest] - mixed[rest]).abs().max() > 1e-2


@pytest.mark.parametrize("name", ["plain", "sliding window"])
def test_the_loss_of_packed_documents_is_that_of_each_alone(name: str) -> None:
    """Loss and gradients, weighted by tokens: packing changes nothing but the number of rows."""
    decoder = model(MODELS[name])
    tokens, labels, positions = packed()
    parameters = [parameter for _, parameter in decoder.named_parameters()]
    together = decoder(tokens, labels, positions)
    gradients = torch.autograd.grad(together, parameters)
    parts = zip(tokens.split(LENGTHS, dim=1), labels.split(LENGTHS, dim=1), strict=True)
    alone = torch.stack([decoder(*part) for part in parts]).sum()
    supervised = sum(LENGTHS) - len(LENGTHS)
    assert together.item() / supervised == pytest.approx(alone.item() / supervised, abs=1e-5)
    for packed_gradient, gradient in zip(gradients, torch.autograd.grad(alone, parameters), strict=True):
        assert (packed_gradient - gradient).abs().max() <= 1e-5 * gradient.abs().max()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_isolation_holds_in_16_bits(dtype: torch.dtype) -> None:
    decoder = model(MODELS["grouped queries"]).eval().to(dtype)
    tokens, _, positions = packed()
    changed = tokens.clone()
    changed[0, : LENGTHS[0]] = (changed[0, : LENGTHS[0]] + 1) % 64
    with torch.no_grad():
        before, after = (decoder(ids, positions_BS=positions)[0, LENGTHS[0] :] for ids in (tokens, changed))
    assert before.dtype == dtype
    assert torch.equal(before, after)
