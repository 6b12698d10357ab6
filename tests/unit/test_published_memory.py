"""A sample of published measurements, held to limits that a wrong term would break.

``benchmarks/published/sample_memory.csv`` holds every SimuMax configuration, the realistic and every fifth other
Megatron-LM functional test, and an even draw of nanotron's and BigScience's runs; each row names its source.
"""

from pathlib import Path

import pytest

pytest.importorskip("numpy")
published = pytest.importorskip("benchmarks.published.evaluate")
rows = pytest.importorskip("benchmarks.published.rows")
SAMPLE = Path(__file__).parents[2] / "benchmarks" / "published" / "sample_memory.csv"


@pytest.fixture(scope="module")
def findings():
    return published.evaluate(rows.read_rows(SAMPLE), ("memory", "oom"))


def error(pairs) -> float:
    return sum(abs(pair.predicted / pair.measured - 1) for pair in pairs) / len(pairs) * 100


@pytest.mark.parametrize(
    ("source", "rows", "limit"),
    [
        ("simumax_b200", 15, 0.6),
        ("megatron_ci_memory", 33, 5.0),
        ("nanotron_ultrascale", 61, 7.0),
        ("bigscience_a100", 9, 6.5),
    ],
)
def test_mean_error_of_the_peak(findings, source: str, rows: int, limit: float) -> None:
    assert len(findings[source].memory) == rows
    assert error(findings[source].memory) < limit


def test_realistic_functional_tests(findings) -> None:
    pairs = findings["megatron_ci_memory"].slices["memory_realistic"]
    assert max(abs(pair.predicted / pair.measured - 1) for pair in pairs) < 0.03


def test_which_nanotron_runs_fit(findings) -> None:
    calls = findings["nanotron_ultrascale"].fits
    assert sum(call.ran_out for call in calls) == 50
    assert sum(call.predicted_oom == call.ran_out for call in calls) / len(calls) > 0.96
