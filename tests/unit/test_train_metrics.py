"""Rates over steps, the line of a step, and durations."""

import json

import pytest

from meshwright.train.metrics import JsonlSink, SpeedMeter, StepTime, duration, step_line


def meter(**changes) -> SpeedMeter:
    return SpeedMeter(
        **{"tokens_per_step": 1000, "devices": 4, "flops_per_token": 2e9, "peak_flops": 1e13, "window": 2, **changes}
    )


def test_rates_of_one_step():
    one = meter()
    one.count(StepTime(seconds=0.5, waited=0.1, supervised=600))
    assert one.read(steps_left=10) == pytest.approx(
        {
            "speed/tokens_per_s": 2000,
            "speed/tokens_per_s_per_device": 500,
            "speed/supervised_tokens_per_s": 1200,
            "speed/step_ms": 500,
            "speed/data_wait_pct": 20,
            "speed/tflops_per_device": 1.0,
            "speed/eta_s": 5,
            "speed/mfu_pct": 10,
        }
    )


def test_rates_are_taken_over_the_window_and_step_ms_is_the_last_step():
    two = meter()
    for seconds, supervised in ((100.0, 1.0), (0.5, 600.0), (1.5, 400.0)):
        two.count(StepTime(seconds=seconds, waited=0.25, supervised=supervised))
    rates = two.read(steps_left=3)
    assert rates["speed/tokens_per_s"] == pytest.approx(1000)
    assert rates["speed/supervised_tokens_per_s"] == pytest.approx(500)
    assert rates["speed/step_ms"] == pytest.approx(1500)
    assert rates["speed/data_wait_pct"] == pytest.approx(25)
    assert rates["speed/eta_s"] == pytest.approx(3)


def test_b11_mfu_is_against_the_peak_of_one_device_and_absent_without_one():
    """2904 tokens/s on one 312 TFLOP/s device: 56.8 % counting all parameters, 53.9 % without the embedding."""
    for flops, share in ((6.107e10, 56.8), (5.791e10, 53.9)):
        one = meter(tokens_per_step=2904, devices=1, flops_per_token=flops, peak_flops=312e12)
        one.count(StepTime(seconds=1.0, waited=0.0, supervised=2904))
        assert one.read(0)["speed/mfu_pct"] == pytest.approx(share, abs=0.05)
    blind = meter(peak_flops=None)
    blind.count(StepTime(seconds=1.0, waited=0.0, supervised=1))
    assert "speed/mfu_pct" not in blind.read(0)


def test_b11_masking_labels_changes_supervised_tokens_only():
    rates = []
    for supervised in (1000, 10):
        one = meter()
        one.count(StepTime(seconds=0.5, waited=0.0, supervised=supervised))
        rates.append(one.read(0))
    assert rates[0].pop("speed/supervised_tokens_per_s") == 100 * rates[1].pop("speed/supervised_tokens_per_s")
    assert rates[0] == rates[1]


def test_step_line_shows_what_there_is_in_fixed_order():
    metrics = {
        "speed/tokens_per_s": 41234.5,
        "train/loss": 3.21449,
        "train/lr": 2.9e-4,
        "train/grad_norm": 0.8711,
        "memory/peak_gib": 61.4,
        "speed/mfu_pct": 41.33,
        "speed/eta_s": 4325.0,
        "train/loss_scale": 65536.0,
        "train/skipped_steps": 2,
    }
    line = step_line(120, 2000, metrics)
    assert line == (
        "step 120/2000  loss 3.2145  gnorm 0.871  lr 2.90e-04  tok/s 41,234  mfu 41.3%  mem 61.40 GiB  "
        "scale 65536  skipped 2  eta 1h12m"
    )
    assert step_line(3, 6, {"val/loss": 2.5, "val/ppl": 12.182}) == "step 3/6  val loss 2.5000  ppl 12.18"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (59.9, "59s"), (60, "1m00s"), (185, "3m05s"), (3599, "59m59s"), (3720, "1h02m"), (360000, "100h00m")],
)
def test_durations(seconds, text):
    assert duration(seconds) == text


def test_jsonl_lines_are_on_disk_at_once_and_added_to_what_was_there(tmp_path):
    path = tmp_path / "new" / "metrics.jsonl"
    for step in (1, 2):
        sink = JsonlSink(path)
        sink.write(step, {"train/loss": 0.1 + step})
        assert json.loads(path.read_text().splitlines()[-1]) == {"step": step, "train/loss": 0.1 + step}
        sink.close()
    assert len(path.read_text().splitlines()) == 2
