"""A sample of published step times, held to limits that a wrong term would break.

``benchmarks/published/sample_time.csv`` holds every SimuMax configuration and an even draw of vTrain's, llm-foundry's
and nanotron's runs; each row names its source. The limits are the errors of the fit to all rows and a little more.
"""

from pathlib import Path

import pytest

pytest.importorskip("numpy")
published = pytest.importorskip("benchmarks.published.evaluate")
rows = pytest.importorskip("benchmarks.published.rows")
SAMPLE = Path(__file__).parents[2] / "benchmarks" / "published" / "sample_time.csv"


@pytest.fixture(scope="module")
def findings():
    return published.evaluate(rows.read_rows(SAMPLE), ("time",))


def error(pairs) -> float:
    return sum(abs(pair.predicted / pair.measured - 1) for pair in pairs) / len(pairs) * 100


def middle(pairs) -> float:
    """Median error: a few runs of the nanotron sweep took ten times what their neighbours did."""
    return sorted(abs(pair.predicted / pair.measured - 1) for pair in pairs)[len(pairs) // 2] * 100


@pytest.mark.parametrize(("source", "limit"), [("vtrain_a100", 9.0), ("mosaic_llmfoundry", 6.0), ("simumax_b200", 6.0)])
def test_mean_error_of_the_step_time(findings, source: str, limit: float) -> None:
    assert len(findings[source].time) >= 25
    assert error(findings[source].time) < limit


@pytest.mark.parametrize(("group", "limit"), [("time_single_node", 9.0), ("time_multi_node", 12.0)])
def test_one_node_and_several(findings, group: str, limit: float) -> None:
    assert error(findings["vtrain_a100"].slices[group]) < limit


def test_nanotron_sweep(findings) -> None:
    pairs = findings["nanotron_ultrascale"].time
    assert len(pairs) >= 50
    assert error(pairs) < 16
    assert middle(pairs) < 9
