"""What a position can see, and when dropout acts."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from meshwright.model import attention
from meshwright.model.attention import takes_fewer_keys
from meshwright.model.decoder import Decoder
from meshwright.model.init import init_weights
from meshwright.model.mask import attention_bias, layer_biases
from meshwright.model.norm import rms_norm
from meshwright.spec.model import ModelSpec

LENGTH = 24
SPEC = ModelSpec(
    num_layers=2,
    hidden_size=32,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    intermediate_size=48,
    vocab_size=64,
    init_std=0.3,
)


def model(spec: ModelSpec = SPEC, dtype: torch.dtype = torch.float32) -> Decoder:
    decoder = Decoder(spec, seq_length=LENGTH)
    init_weights(decoder, spec, 0)
    return decoder.to(dtype).eval()


def seen(spec: ModelSpec, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Boolean [S, S]: whether the logits of position i change with the token at position j."""
    decoder = model(spec, dtype)
    tokens = torch.randint(0, 64, (1, LENGTH), generator=torch.Generator().manual_seed(1))
    changed = tokens.repeat(LENGTH, 1)
    changed.diagonal().copy_((tokens[0] + 1) % 64)
    with torch.no_grad():
        difference = decoder(changed) != decoder(tokens.repeat(LENGTH, 1))
    return difference.any(dim=-1).T


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_later_token_never_changes_an_earlier_logit(dtype: torch.dtype) -> None:
    assert torch.equal(seen(SPEC, dtype), torch.ones(LENGTH, LENGTH).tril().bool())


@pytest.mark.parametrize("window", [1, 2, 5, LENGTH - 1, LENGTH, LENGTH + 1])
def test_sliding_window_reaches_exactly_so_far(window: int) -> None:
    spec = replace(SPEC, num_layers=1, sliding_window=window)
    distance = torch.arange(LENGTH)[:, None] - torch.arange(LENGTH)
    assert torch.equal(seen(spec), (distance >= 0) & (distance < window))


def test_window_of_some_layers_only() -> None:
    spec = replace(SPEC, sliding_window=3, sliding_window_layers=(1,))
    assert torch.equal(seen(spec), torch.ones(LENGTH, LENGTH).tril().bool())
    reach = seen(replace(SPEC, sliding_window=3))
    distance = torch.arange(LENGTH)[:, None] - torch.arange(LENGTH)
    assert torch.equal(reach, (distance >= 0) & (distance < 5))


def test_bias_of_windows_and_documents() -> None:
    positions = torch.tensor([[0, 1, 2, 0, 1], [0, 1, 2, 3, 4]])

    def seen_by_bias(window: int | None, positions: torch.Tensor | None) -> list[list[list[int]]]:
        bias = attention_bias(5, window=window, positions_BS=positions, dtype=torch.float32, device=torch.device("cpu"))
        assert bias is not None
        assert set(bias.unique().tolist()) == {0.0, float("-inf")}
        # Memory-efficient attention on CUDA copies a bias whose rows do not start at multiples of 16.
        assert [stride % 16 for stride in bias.stride()] == [0, 0, 0, 1]
        return [[row.nonzero().flatten().tolist() for row in one[0] == 0] for one in bias]

    documents = [[[0], [0, 1], [0, 1, 2], [3], [3, 4]], [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3, 4]]]
    assert seen_by_bias(None, positions) == documents
    assert seen_by_bias(2, None) == [[[0], [0, 1], [1, 2], [2, 3], [3, 4]]]
    assert seen_by_bias(2, positions) == [[[0], [0, 1], [1, 2], [3], [3, 4]], [[0], [0, 1], [1, 2], [2, 3], [3, 4]]]


def test_layers_that_see_the_same_share_one_bias() -> None:
    first, second, third, fourth = layer_biases(
        [None, 3, 9, 3], 5, torch.zeros(2, 5, dtype=torch.int64), torch.float32, torch.device("cpu")
    )
    assert first is third is not second is fourth
    assert layer_biases([None, 5], 5, None, torch.float32, torch.device("cpu")) == [None, None]


@pytest.mark.parametrize("kind", ["attention_dropout", "hidden_dropout"])
def test_dropout_acts_in_training_only(kind: str) -> None:
    plain, dropping = model(), model(replace(SPEC, **{kind: 0.5}))
    tokens = torch.randint(0, 64, (2, LENGTH))
    with torch.no_grad():
        assert torch.equal(dropping(tokens), plain(tokens))
        dropping.train()
        torch.manual_seed(1)
        first, second = dropping(tokens), dropping(tokens)
        torch.manual_seed(1)
        assert torch.equal(dropping(tokens), first)
    assert not torch.equal(first, second)
    assert not torch.equal(first, plain(tokens))


def test_no_dropout_means_training_changes_nothing() -> None:
    decoder = model()
    tokens = torch.randint(0, 64, (2, LENGTH))
    with torch.no_grad():
        expected = decoder(tokens)
        assert torch.equal(decoder.train()(tokens), expected)


def test_norm_is_computed_in_fp32() -> None:
    x, weight = torch.randn(64, 32).bfloat16(), torch.rand(32)
    exact = x.double() * (x.double().square().mean(-1, keepdim=True) + 1e-5).rsqrt() * weight.double()
    fp32 = rms_norm(x.float(), weight, 1e-5)
    assert (fp32 - exact).abs().max() <= 2e-6
    assert torch.equal(rms_norm(x, weight, 1e-5), fp32.bfloat16())


def test_norm_under_autocast_gives_what_the_projection_would_round_to() -> None:
    x, weight, projection = torch.randn(4, 32), torch.rand(32), torch.randn(8, 32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        normed = rms_norm(x, weight, 1e-5)
        projected = F.linear(normed, projection)
        assert torch.equal(projected, F.linear(rms_norm(x, weight, 1e-5).float(), projection))
    assert normed.dtype == torch.bfloat16
    assert torch.equal(normed, rms_norm(x, weight, 1e-5).bfloat16())


@pytest.mark.parametrize("window", [None, 5])
def test_repeated_keys_and_values_change_nothing(monkeypatch: pytest.MonkeyPatch, window: int | None) -> None:
    """Kernels that want as many key as query heads get them, with the same output and gradients."""

    def run() -> list[torch.Tensor]:
        decoder = model(replace(SPEC, sliding_window=window))
        tokens = torch.randint(0, 64, (2, LENGTH), generator=torch.Generator().manual_seed(1))
        logits = decoder(tokens)
        logits.square().sum().backward()
        return [logits, *(parameter.grad for parameter in decoder.parameters() if parameter.grad is not None)]

    grouped = run()
    monkeypatch.setattr(attention, "takes_fewer_keys", lambda *_args, **_kwargs: False)
    for first, second in zip(grouped, run(), strict=True):
        torch.testing.assert_close(first, second, rtol=1e-4, atol=1e-5 * float(second.abs().max()))


def test_only_flash_attention_takes_fewer_keys() -> None:
    assert takes_fewer_keys("cpu", torch.float32, masked=True)
    assert takes_fewer_keys("cuda", torch.bfloat16, masked=False)
    assert not takes_fewer_keys("cuda", torch.bfloat16, masked=True)
    assert not takes_fewer_keys("cuda", torch.float32, masked=False)
