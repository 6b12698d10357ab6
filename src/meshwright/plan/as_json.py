"""A plan as JSON. Keys are stable and listed in docs/plan.md; memory is in bytes, time in seconds."""

from collections.abc import Mapping
from typing import Any

from meshwright.plan.accuracy import expected_error
from meshwright.plan.advice import advise
from meshwright.plan.misses import closest_misses
from meshwright.plan.override import keys_of
from meshwright.plan.question import Question
from meshwright.plan.search import Answer, Candidate, one_per_split
from meshwright.plan.text import assumptions, full_name, verdict, why
from meshwright.plan.words import recompute_choice


def plan_json(answer: Answer, *, top: int, override: list[str] | None) -> dict[str, Any]:
    """The whole answer."""
    rows = one_per_split(answer.fitting or answer.tight, top)
    return {
        "verdict": verdict(answer),
        "question": question_json(answer.question),
        "considered": answer.considered,
        "predicted": answer.predicted,
        "fitting": answer.fits,
        "tight": answer.just_fits,
        "seconds": answer.seconds,
        "layouts": [candidate_json(row) | {"why": why(row, rows[0])} for row in rows],
        "misses": [vars(miss) for miss in closest_misses(answer)],
        "override": override,
        "advice": advise(answer),
        "assumptions": assumptions(answer.question),
        "expected_error": _errors(answer.question),
    }


def question_json(question: Question) -> dict[str, Any]:
    """What was asked."""
    cluster = question.cluster
    return {
        "engine": question.engine.name,
        "hardware": cluster.device.name,
        "devices": cluster.num_devices,
        "devices_per_node": cluster.devices_per_node,
        "usable_memory": cluster.device.memory_bytes,
        "limit": question.limit,
        "global_batch_size": question.global_batch_size,
        "seq_length": question.train.seq_length,
        "objective": question.objective,
        "fixed": dict(question.fixed),
        "hypothetical": question.hypothetical,
    }


def candidate_json(candidate: Candidate) -> dict[str, Any]:
    """One layout with what is predicted for it."""
    job, report, worst = candidate.job, candidate.time, candidate.memory.worst
    values: dict[str, Any] = {
        "name": candidate.name,
        "layout": full_name(candidate),
        "keys": keys_of(job),
        "virtual_stages": job.virtual_stages,
        "recompute": recompute_choice(job.recompute),
        "fit": candidate.fit,
        "memory": {
            "device_total": candidate.needed,
            "reserved": worst.reserved,
            "allocated": worst.allocated,
            "headroom": candidate.limit - candidate.needed,
            "stage": worst.stage,
            "moment": worst.peak.name,
            "parts": _plain(worst.peak.parts),
        },
        "time": None,
    }
    if report is not None:
        values["time"] = {
            "seconds": report.seconds,
            "tokens_per_second": report.tokens_per_second,
            "mfu": report.mfu,
            "terms": _plain(report.terms),
            "traffic": [vars(item) for item in report.traffic],
        }
    return values


def explain_json(candidate: Candidate) -> dict[str, Any]:
    """One layout with every stage and moment."""
    stages = [
        {
            "stage": stage.stage,
            "slack": stage.slack,
            "device_constant": stage.device_constant,
            "device_total": stage.device_total,
            "moments": [{"name": moment.name, "parts": _plain(moment.parts)} for moment in stage.moments],
        }
        for stage in candidate.memory.stages
    ]
    return candidate_json(candidate) | {"stages": stages}


def _plain(figures: Mapping[Any, float]) -> dict[str, float]:
    return {str(name): figure for name, figure in figures.items()}


def _errors(question: Question) -> dict[str, Any]:
    family, adapters = question.cluster.device.family, question.adapter is not None
    found = {name: expected_error(question.engine, family, name, adapters=adapters) for name in ("memory", "time")}
    return {name: vars(error) if error else None for name, error in found.items()}
