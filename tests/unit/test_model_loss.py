"""The summed cross entropy against F.cross_entropy: values, gradients, masks, vocabulary padding, 16 bits."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from meshwright.model import loss as loss_module
from meshwright.model.loss import IGNORE_INDEX, TokenLoss

BATCH, LENGTH, WIDTH = 2, 13, 16
VOCAB, PADDED = 503, 512
TOKENS = BATCH * LENGTH
CHUNKS = [None, 1, 7, 25, 26, 1000]


def inputs(seed: int = 0, *, rows: int = PADDED, scale: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states, head weight and labels; every fifth label is not supervised."""
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(BATCH, LENGTH, WIDTH, generator=generator) * scale
    weight = torch.randn(rows, WIDTH, generator=generator)
    labels = torch.randint(0, VOCAB, (BATCH, LENGTH), generator=generator)
    labels[0, 0], labels[0, 1] = VOCAB - 1, 0
    labels.view(-1)[4::5] = IGNORE_INDEX
    return hidden, weight, labels


def run(hidden: Tensor, weight: Tensor, labels: Tensor, chunk: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Loss sum and its gradients by hidden states and weight."""
    hidden, weight = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
    total = TokenLoss(VOCAB, chunk)(hidden, weight, labels)
    total.backward()
    return total.detach(), hidden.grad, weight.grad


def reference(hidden: Tensor, weight: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The same by F.cross_entropy in fp64 over the real vocabulary."""
    hidden, weight = hidden.double().requires_grad_(), weight.double().requires_grad_()
    logits = F.linear(hidden, weight)[..., :VOCAB].flatten(0, 1)
    total = F.cross_entropy(logits, labels.flatten(), reduction="sum", ignore_index=IGNORE_INDEX)
    total.backward()
    return total.detach(), hidden.grad, weight.grad


def assert_close(actual: tuple[Tensor, ...], expected: tuple[Tensor, ...], relative: float) -> None:
    for got, want in zip(actual, expected, strict=True):
        assert got.isfinite().all()
        assert (got.double() - want).norm() <= relative * want.norm()


@pytest.mark.parametrize("chunk", CHUNKS)
def test_value_and_gradients(chunk: int | None) -> None:
    hidden, weight, labels = inputs()
    assert_close(run(hidden, weight, labels, chunk), reference(hidden, weight, labels), 5e-7)


@pytest.mark.parametrize("chunk", CHUNKS)
def test_the_loss_of_each_sequence_is_noted_once_and_changes_nothing(chunk: int | None) -> None:
    hidden, weight, labels = inputs()
    expected = run(hidden, weight, labels, chunk)
    whole = [reference(hidden[row, None], weight, labels[row, None])[0].item() for row in range(BATCH)]
    loss, noted = TokenLoss(VOCAB, chunk), []
    loss.by_sequence = noted
    total = loss(hidden.requires_grad_(), weight.requires_grad_(), labels)
    total.backward()
    for got, want in zip((total, hidden.grad, weight.grad), expected, strict=True):
        assert torch.equal(got, want)
    (sequences,) = noted
    assert not sequences.requires_grad
    assert sequences.tolist() == pytest.approx(whole, rel=1e-6)
    loss.eval()(hidden, weight, labels)
    assert len(noted) == 1


@pytest.mark.parametrize("chunk", [None, 7])
def test_every_size_of_row_block_gives_the_same(chunk: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    hidden, weight, labels = inputs()
    whole = run(hidden, weight, labels, chunk)
    three = lambda logits: [slice(first, first + 3) for first in range(0, len(logits), 3)]  # noqa: E731
    assert len(loss_module._row_blocks(torch.empty(TOKENS, PADDED))) == 1
    monkeypatch.setattr(loss_module, "_row_blocks", three)
    for a, b in zip(run(hidden, weight, labels, chunk), whole, strict=True):
        assert torch.equal(a, b)


def test_row_blocks_cover_every_row_once() -> None:
    logits = torch.empty(1000, 50257, device="meta")
    blocks = loss_module._row_blocks(logits)
    assert [row for rows in blocks for row in range(1000)[rows]] == list(range(1000))


@pytest.mark.parametrize("chunk", [None, 7])
def test_large_logits_neither_overflow_nor_vanish(chunk: int | None) -> None:
    hidden, weight, labels = inputs(scale=1e3)
    actual, expected = run(hidden, weight, labels, chunk), reference(hidden, weight, labels)
    assert expected[0] > 1e4
    assert_close(actual, expected, 1e-5)


@pytest.mark.parametrize("padding", [0.0, 1e4, -1e4, 3e37])
@pytest.mark.parametrize("chunk", [None, 7])
def test_b04_padded_logits_never_enter_the_softmax(padding: float, chunk: int | None) -> None:
    hidden, weight, labels = inputs()
    weight[VOCAB:] = padding
    total, hidden_grad, weight_grad = run(hidden, weight, labels, chunk)
    assert_close((total, hidden_grad, weight_grad), reference(hidden, weight, labels), 5e-7)
    assert weight_grad[VOCAB:].eq(0).all()


def test_b04_padding_changes_neither_value_nor_gradient() -> None:
    hidden, weight, labels = inputs()
    padded, bare = run(hidden, weight, labels), run(hidden, weight[:VOCAB], labels)
    assert_close(padded[:2], tuple(t.double() for t in bare[:2]), 1e-6)
    assert_close((padded[2][:VOCAB],), (bare[2].double(),), 1e-6)


@pytest.mark.parametrize("chunk", [None, 7])
def test_b15_no_supervised_token(chunk: int | None) -> None:
    hidden, weight, labels = inputs()
    total, *gradients = run(hidden, weight, torch.full_like(labels, IGNORE_INDEX), chunk)
    assert total == 0
    assert all(gradient.eq(0).all() for gradient in gradients)


@pytest.mark.parametrize("chunk", [None, 7])
def test_b15_masked_micro_batch_adds_nothing(chunk: int | None) -> None:
    hidden, weight, labels = inputs()
    masked, _, _ = inputs(seed=1)
    weight.requires_grad_()
    loss = TokenLoss(VOCAB, chunk)
    for states, targets in ((masked, torch.full_like(labels, IGNORE_INDEX)), (hidden, labels)):
        loss(states, weight, targets).backward()
    _, _, alone = run(hidden, weight.detach(), labels, chunk)
    assert torch.equal(weight.grad, alone)


@pytest.mark.parametrize("chunk", [None, 5])
def test_b06_sum_does_not_depend_on_the_split(chunk: int | None) -> None:
    """100 supervised tokens in one batch, or 10 and 90 of them in two."""
    generator = torch.Generator().manual_seed(3)
    hidden = torch.randn(2, 90, WIDTH, generator=generator)
    labels = torch.randint(0, VOCAB, (2, 90), generator=generator)
    labels[0, 10:] = IGNORE_INDEX
    weight = torch.randn(PADDED, WIDTH, generator=generator)
    whole, _, gradient = run(hidden, weight, labels, chunk)
    parts = [run(hidden[i : i + 1], weight, labels[i : i + 1], chunk) for i in range(2)]
    assert (sum(part[0] for part in parts) / 100).item() == pytest.approx(whole.item() / 100, rel=1e-6)
    assert (sum(part[2] for part in parts) - gradient).abs().max() / 100 <= 1e-6
    of_means = sum(part[0] / count for part, count in zip(parts, (10, 90), strict=True)) / 2
    assert abs(of_means - whole / 100) > 1e-3


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("chunk", [None, 7])
def test_16_bit_logits_are_summed_in_fp32(dtype: torch.dtype, chunk: int | None) -> None:
    """The logits are the only rounding: the value is that of an fp32 softmax over the rounded logits."""
    hidden, weight, labels = inputs()
    hidden, weight = hidden.to(dtype), weight.to(dtype)
    logits = F.linear(hidden, weight)[..., :VOCAB].flatten(0, 1).double()
    expected = F.cross_entropy(logits, labels.flatten(), reduction="sum", ignore_index=IGNORE_INDEX)
    total, *gradients = run(hidden, weight, labels, chunk)
    assert total.dtype == torch.float32
    assert total.item() == pytest.approx(expected.item(), rel=1e-6)
    assert all(gradient.dtype == dtype for gradient in gradients)
    assert_close(tuple(gradients), reference(hidden, weight, labels)[1:], 2e-2)


def test_fp16_gradients_are_scaled_before_they_are_rounded() -> None:
    """A probability of 1e-8 is below the smallest fp16: with a loss scale its gradient must survive."""
    logits = torch.zeros(1, 1, PADDED, dtype=torch.float16)
    logits[..., 0] = 18.0
    weight = torch.eye(PADDED, dtype=torch.float16).requires_grad_()
    hidden = logits.clone().requires_grad_()
    (TokenLoss(VOCAB)(hidden, weight, torch.zeros(1, 1, dtype=torch.int64)) * 65536.0).backward()
    expected = 65536.0 * torch.exp(torch.tensor(-18.0))
    assert hidden.grad[0, 0, 1].item() == pytest.approx(expected.item(), rel=1e-2)


def test_gradient_by_finite_differences() -> None:
    hidden, weight, labels = inputs()
    direction = torch.randn(hidden.shape, generator=torch.Generator().manual_seed(5))
    _, gradient, _ = run(hidden, weight, labels)
    step = 1e-2
    ahead, behind = (TokenLoss(VOCAB)(hidden + sign * step * direction, weight, labels) for sign in (1, -1))
    slope = (ahead - behind) / (2 * step)
    assert slope.item() == pytest.approx((gradient * direction).sum().item(), rel=1e-3)


def test_second_backward_is_refused() -> None:
    hidden, weight, labels = inputs()
    total = TokenLoss(VOCAB)(hidden.requires_grad_(), weight, labels)
    total.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        total.backward()
