"""Numeric formats and the loss scale."""

import pytest
import torch

from meshwright.parallel import precision as module
from meshwright.parallel.devices import KINDS
from meshwright.parallel.precision import GROWTH_INTERVAL, INITIAL_SCALE, LossScale, formats
from meshwright.spec.training import Precision

CPU = torch.device("cpu")
FP32, BF16, FP16 = torch.float32, torch.bfloat16, torch.float16
OVERFLOW, GOOD = torch.tensor(1.0), torch.tensor(0.0)


def scale_of(compute=FP16, loss_scale="dynamic"):
    return LossScale(Precision(amp_level="O2", loss_scale=loss_scale), compute, CPU)


def test_overflow_halves_and_2000_good_steps_double():
    scale = scale_of()
    assert scale.scale == INITIAL_SCALE == 65536
    scale.update(OVERFLOW)
    scale.update(OVERFLOW)
    assert scale.scale == 16384
    for _ in range(GROWTH_INTERVAL - 1):
        scale.update(GOOD)
    assert (scale.scale, scale.good_steps) == (16384, 1999)
    scale.update(GOOD)
    assert (scale.scale, scale.good_steps) == (32768, 0)


def test_an_overflow_starts_the_count_of_good_steps_again():
    scale = scale_of()
    for _ in range(GROWTH_INTERVAL - 1):
        scale.update(GOOD)
    scale.update(OVERFLOW)
    scale.update(GOOD)
    assert (scale.scale, scale.good_steps) == (32768, 1)


@pytest.mark.parametrize("loss_scale", [1024.0, 1024])
def test_a_fixed_scale_stays(loss_scale):
    scale = scale_of(loss_scale=loss_scale)
    scale.update(OVERFLOW)
    assert scale.scale == 1024
    assert scale.scale.dtype == FP32
    assert not scale.dynamic


@pytest.mark.parametrize(
    ("compute", "loss_scale"), [(BF16, "dynamic"), (BF16, 1024.0), (FP32, "dynamic"), (FP16, None)]
)
def test_only_fp16_is_scaled(compute, loss_scale):
    scale = scale_of(compute, loss_scale)
    scale.update(OVERFLOW)
    assert scale.scale == 1
    assert not scale.dynamic


@pytest.mark.parametrize(
    ("level", "stored", "compute", "hidden", "autocast", "reduced"),
    [
        ("O0", FP32, FP32, FP32, False, None),
        ("O1", FP32, BF16, FP32, True, None),
        ("O2", FP32, BF16, BF16, False, FP32),
        ("O3", BF16, BF16, BF16, False, None),
    ],
)
def test_where_each_level_keeps_16_bits(level, stored, compute, hidden, autocast, reduced):
    chosen = formats(Precision(amp_level=level, dtype="bfloat16"), KINDS["cpu"])
    assert (chosen.stored, chosen.compute, chosen.hidden) == (stored, compute, hidden)
    assert chosen.autocast is autocast
    assert chosen.policy.reduce_dtype == reduced
    assert chosen.policy.param_dtype == (BF16 if level == "O2" else None)


@pytest.mark.parametrize(
    ("precision", "native", "reason"),
    [
        (Precision(), True, "float32 (amp_level O0)"),
        (Precision(amp_level="O2"), True, "bfloat16 (amp_level O2, dtype auto: cpu supports it)"),
        (Precision(amp_level="O1"), False, "float16 (amp_level O1, dtype auto: cpu has no bfloat16)"),
        (Precision(amp_level="O2", dtype="float16"), True, "float16 (amp_level O2, amp_config.dtype)"),
    ],
)
def test_the_choice_says_why(precision, native, reason, monkeypatch):
    monkeypatch.setattr(module, "supports_bfloat16", lambda kind: native)
    assert formats(precision, KINDS["cpu"]).reason == reason
