"""What one change to a run would save: every change in closed form, the best few also by dry runs of the changed run.

Savings are differences within one method: closed form from closed form, dry run from dry run.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from meshwright.config.run import Asked, Run
from meshwright.dryrun.run import DryRun, dry_run, stage_ranks
from meshwright.dryrun.target import TargetName
from meshwright.dryrun.verdict import ENGINE, Verdict, verdict
from meshwright.plan.engines import engine
from meshwright.plan.from_run import job_of_run, question_of
from meshwright.plan.job import Job
from meshwright.plan.levers import Lever, levers
from meshwright.plan.question import Question
from meshwright.plan.search import Candidate, predict
from meshwright.spec.cluster import Cluster
from meshwright.spec.layout import Layout
from meshwright.spec.training import TrainSpec

MOST_DRY_RUNS = 3


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A dry run, in fast mode, of the stage that the closed form calls the worst."""

    result: DryRun
    verdict: Verdict

    @property
    def needed(self) -> int:
        """Bytes of the device."""
        return self.result.needed + self.verdict.outside


@dataclass(frozen=True, kw_only=True)
class Change:
    """One change.

    Attributes:
        computed: in closed form.
        trial: dry run of the changed run; None where none was made.
    """

    computed: Lever
    trial: Trial | None = None


@dataclass(frozen=True, kw_only=True)
class Changes:
    """Single changes to a run, and the run itself by the same methods.

    Attributes:
        computed: the run in closed form.
        trial: dry run that the trials of changes are compared with; None where no change was dry-run.
        rows: changes after which it fits first, of those the ones that save most.
    """

    computed: Candidate
    rows: tuple[Change, ...]
    trial: Trial | None = None

    def saved(self, change: Change) -> int | None:
        """Bytes that a change saves by dry runs."""
        return None if self.trial is None or change.trial is None else self.trial.needed - change.trial.needed


def computed_changes(run: Run, cluster: Cluster) -> Changes:
    """Every single change that saves memory and that Meshwright trains, predicted in closed form."""
    question = _question(run, cluster)
    base = predict(question, job_of_run(run, cluster))
    found = [lever for lever in levers(question, base) if lever.supported]
    ranked = sorted(found, key=lambda lever: (lever.candidate.fit == "over", -lever.saves))
    return Changes(computed=base, rows=tuple(Change(computed=lever) for lever in ranked))


def with_dry_runs(
    changes: Changes, run: Run, cluster: Cluster, target_name: TargetName, known: Mapping[int, DryRun]
) -> Changes:
    """The same, the first `MOST_DRY_RUNS` of them dry-run as well.

    Args:
        known: fast dry runs of the run as it is that were made before, by rank.
    """
    chosen, others = changes.rows[:MOST_DRY_RUNS], changes.rows[MOST_DRY_RUNS:]
    if not chosen:
        return changes
    tried = tuple(
        replace(change, trial=_trial(change.computed.candidate, run, cluster, target_name)) for change in chosen
    )
    return replace(changes, rows=tried + others, trial=_trial(changes.computed, run, cluster, target_name, known))


def _question(run: Run, cluster: Cluster) -> Question:
    return question_of(Asked(run.model, run.layout, run.train), cluster, engine(ENGINE))


def _trial(
    candidate: Candidate, run: Run, cluster: Cluster, target_name: TargetName, known: Mapping[int, DryRun] | None = None
) -> Trial:
    layout, train = _changed(candidate.job, run)
    rank = stage_ranks(layout)[candidate.memory.worst.stage]
    result = (known or {}).get(rank) or dry_run(
        (run.model, layout, train), rank, target_name=target_name, family=cluster.device.family, fast=True
    )
    return Trial(result=result, verdict=verdict(result, cluster.device))


def _changed(job: Job, run: Run) -> tuple[Layout, TrainSpec]:
    train = replace(run.train, batch=job.batch, recompute=job.recompute, loss_chunk_tokens=job.loss_chunk_tokens)
    return job.layout, train
