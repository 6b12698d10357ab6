"""Everything that ``meshwright dryrun`` found out about a run, for whatever shows it."""

from dataclasses import dataclass

from meshwright.config.run import Run
from meshwright.dryrun.levers import Changes
from meshwright.dryrun.run import DryRun
from meshwright.dryrun.verdict import Verdict
from meshwright.plan.time.report import TimeReport
from meshwright.spec.cluster import Cluster


@dataclass(frozen=True, kw_only=True)
class RankFound:
    """One rank that was run."""

    result: DryRun
    verdict: Verdict


@dataclass(frozen=True, kw_only=True)
class Findings:
    """Attributes:
    ranks: those that were run, by stage.
    changes: what one change to the run would save.
    """

    run: Run
    cluster: Cluster
    ranks: tuple[RankFound, ...]
    changes: Changes

    @property
    def worst(self) -> RankFound:
        """The rank that needs most memory."""
        return max(self.ranks, key=lambda rank: rank.result.needed)

    @property
    def fits(self) -> bool:
        """Whether all of them fit the device."""
        return all(rank.verdict.fits for rank in self.ranks)

    @property
    def time(self) -> TimeReport:
        """The time of the whole step, in closed form."""
        report = self.changes.computed.time
        assert report is not None
        return report
