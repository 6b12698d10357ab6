"""A dry run as JSON. Keys are stable and listed in docs/dryrun.md; memory is in bytes, time in seconds."""

from typing import Any

from meshwright.dryrun.analysis import Peak
from meshwright.dryrun.findings import Findings, RankFound
from meshwright.dryrun.levers import Change, Changes
from meshwright.dryrun.tables import group
from meshwright.dryrun.text import headline
from meshwright.dryrun.traffic import Message
from meshwright.dryrun.verdict import ENGINE
from meshwright.plan.accuracy import expected_error
from meshwright.plan.engines import engine
from meshwright.plan.override import keys_of


def findings_json(findings: Findings) -> dict[str, Any]:
    """Everything."""
    cluster, worst = findings.cluster, findings.worst
    return {
        "verdict": headline(findings),
        "fits": findings.fits,
        "worst": {"rank": worst.result.rank, "stage": worst.result.at.pipeline},
        "hardware": {
            "name": cluster.device.name,
            "devices": cluster.num_devices,
            "devices_per_node": cluster.devices_per_node,
            "usable_memory": int(cluster.device.memory_bytes),
        },
        "keys": keys_of(findings.changes.computed.job),
        "ranks": [rank_json(rank, findings) for rank in findings.ranks],
        "changes": _changes(findings.changes),
        "step_time": _time(findings),
    }


def rank_json(found: RankFound, findings: Findings) -> dict[str, Any]:
    """One rank."""
    result, verdict = found.result, found.verdict
    reserved = result.reserved
    return {
        "rank": result.rank,
        "stage": result.at.pipeline,
        "layers": list(result.layers),
        "target": result.target,
        "estimated": result.estimated,
        "allocated": result.allocated,
        "reserved": None if reserved is None else {"native": reserved.native, "expandable": reserved.expandable},
        "outside_allocator": verdict.outside,
        "fits": verdict.fits,
        "spare": verdict.spare,
        "verdict": verdict.text,
        "before": result.memory.before,
        "peak": _peak(result.memory.peak),
        "phases": {phase: _peak(peak) for phase, peak in result.memory.phases.items()},
        "flops": result.traffic.flops,
        "collectives": [_message(message, found, findings) for message in result.traffic.messages],
        "seconds": result.seconds,
    }


def _peak(peak: Peak) -> dict[str, Any]:
    return {
        "bytes": peak.bytes,
        "moment": peak.moment._asdict(),
        "categories": dict(peak.categories),
        "modules": dict(peak.modules),
    }


def _message(message: Message, found: RankFound, findings: Findings) -> dict[str, Any]:
    rank = found.result.rank
    return {
        "kind": message.kind,
        "group": group(message.members(rank), findings.run.layout),
        "ranks": list(message.ranks),
        "nodes": message.nodes(rank, findings.cluster.devices_per_node),
        "count": message.count,
        "bytes": message.bytes,
    }


def _changes(changes: Changes) -> dict[str, Any]:
    return {
        "computed_needed": changes.computed.needed,
        "dry_run_needed": None if changes.trial is None else changes.trial.needed,
        "changes": [_change(changes, change) for change in changes.rows],
    }


def _change(changes: Changes, change: Change) -> dict[str, Any]:
    lever, trial = change.computed, change.trial
    tried = None
    if trial is not None:
        tried = {"saves": changes.saved(change), "needed": trial.needed, "fits": trial.verdict.fits}
    return {
        "change": lever.change,
        "computed": {"saves": lever.saves, "needed": lever.candidate.needed, "fit": lever.candidate.fit},
        "dry_run": tried,
        "step_seconds": lever.costs,
    }


def _time(findings: Findings) -> dict[str, Any]:
    report = findings.time
    error = expected_error(engine(ENGINE), findings.cluster.device.family, "time")
    return {
        "seconds": report.seconds,
        "terms": {str(term): value for term, value in report.terms.items()},
        "tokens_per_second": report.tokens_per_second,
        "model_flops": report.model_flops,
        "mfu": report.mfu,
        "expected_error": vars(error) if error else None,
    }
