"""Error figures of predictions against measurements, all in per cent."""

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Pair:
    """A predicted and a measured value in the same unit."""

    predicted: float
    measured: float

    @property
    def error(self) -> float:
        """Relative error in per cent; positive is too high."""
        return 100 * (self.predicted - self.measured) / self.measured


@dataclass(frozen=True)
class FitCall:
    """Whether a run was predicted and found to run out of memory; ``near`` where the prediction is close."""

    predicted_oom: bool
    ran_out: bool
    near: bool


@dataclass(frozen=True)
class Candidate:
    """One measured layout of a group that differs in nothing but layout; seconds per step."""

    predicted: float
    measured: float


@dataclass
class Findings:
    """Everything that is compared within one source."""

    memory: list[Pair] = field(default_factory=list)
    time: list[Pair] = field(default_factory=list)
    slices: dict[str, list[Pair]] = field(default_factory=lambda: defaultdict(list))
    fits: list[FitCall] = field(default_factory=list)
    choices: dict[Hashable, list[Candidate]] = field(default_factory=lambda: defaultdict(list))
    skipped: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def report(self) -> dict[str, object]:
        """The figures by name; a figure without rows is left out."""
        figures: dict[str, object] = {}
        for name, pairs in (("memory", self.memory), ("time", self.time), *sorted(self.slices.items())):
            if pairs:
                figures[name] = errors(pairs)
        if any(call.ran_out for call in self.fits):
            figures["oom"] = oom(self.fits)
        if groups := [group for group in self.choices.values() if len(group) > 1]:
            figures["choice"] = regret(groups)
        figures["skipped"] = dict(sorted(self.skipped.items(), key=lambda item: -item[1]))
        return figures


def merged(findings: Iterable[Findings]) -> Findings:
    """All sources as one."""
    whole = Findings()
    for each in findings:
        whole.memory += each.memory
        whole.time += each.time
        whole.fits += each.fits if any(call.ran_out for call in each.fits) else []
        whole.choices |= each.choices
        for reason, count in each.skipped.items():
            whole.skipped[reason] += count
    return whole


def errors(pairs: Sequence[Pair]) -> dict[str, float]:
    """Mean absolute error, mean error, 90th percentile of the absolute error, and the number of rows."""
    absolute = sorted(abs(pair.error) for pair in pairs)
    return {
        "mape": round(sum(absolute) / len(absolute), 2),
        "bias": round(sum(pair.error for pair in pairs) / len(pairs), 2),
        "p90": round(absolute[math.ceil(0.9 * len(absolute)) - 1], 2),
        "n": len(pairs),
    }


def oom(calls: Sequence[FitCall]) -> dict[str, float]:
    """Accuracy, and precision and recall of the call "out of memory"; ``accuracy_near`` over close predictions."""
    hits = sum(call.predicted_oom and call.ran_out for call in calls)
    near = [call for call in calls if call.near]
    return {
        "accuracy": _share(sum(call.predicted_oom == call.ran_out for call in calls), len(calls)),
        "precision": _share(hits, sum(call.predicted_oom for call in calls)),
        "recall": _share(hits, sum(call.ran_out for call in calls)),
        "n": len(calls),
        "accuracy_near": _share(sum(call.predicted_oom == call.ran_out for call in near), len(near)),
        "n_near": len(near),
    }


def regret(groups: Sequence[Sequence[Candidate]]) -> dict[str, float]:
    """Speed lost by running the layout that the planner ranks first, against the fastest measured one."""
    lost = []
    for group in groups:
        chosen = min(group, key=lambda candidate: candidate.predicted)
        lost.append(100 * (1 - min(candidate.measured for candidate in group) / chosen.measured))
    return {"mean_regret": round(sum(lost) / len(lost), 2), "worst_regret": round(max(lost), 2), "n": len(lost)}


def _share(part: int, whole: int) -> float:
    return round(100 * part / whole, 2) if whole else 0.0


def flat(report: Mapping[str, object]) -> Iterable[tuple[str, Mapping[str, float]]]:
    """(name, figures) of every figure of a report but the skipped rows."""
    for name, figures in report.items():
        if name != "skipped" and isinstance(figures, Mapping):
            yield name, figures
