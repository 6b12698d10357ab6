"""Where the agent puts each rank's log and error file: named by global rank, in one folder."""

import os
from pathlib import Path

from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from meshwright.launch import position
from meshwright.launch.endpoint import Endpoint
from meshwright.launch.environment import RANK_LOG_LEVEL
from meshwright.launch.failure import read_failure
from meshwright.launch.logs import Follower
from meshwright.launch.outcome import RankEnd


class RankFiles(LogsSpecs):
    """``rank<N>.log``, ``.error.json`` and ``.position`` for each rank of this node; the follower gets the logs."""

    def __init__(self, folder: Path, follower: Follower, endpoint: Endpoint, attempt: int = 0) -> None:
        super().__init__(str(folder))
        self._endpoint = endpoint
        self._attempt = attempt
        self._folder = folder
        self._follower = follower

    @property
    def root_log_dir(self) -> str:
        return str(self._folder)

    def log(self, rank: int) -> Path:
        return self._folder / f"rank{rank}.log"

    def error_file(self, rank: int) -> Path:
        return self._folder / f"rank{rank}.error.json"

    def position_file(self, rank: int) -> Path:
        return self._folder / f"rank{rank}.position"

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Paths by local rank, for the agent. stderr joins stdout inside the rank (see `entry`)."""
        ranks = {local: int(env["RANK"]) for local, env in envs.items()}
        if self._endpoint.port:
            # The agent would open a second store on a random port for the ranks, which a firewall may refuse.
            for env in envs.values():
                env.update(MASTER_ADDR=self._endpoint.host, MASTER_PORT=str(self._endpoint.port))
                # Ranks put their keys under this number: those of an earlier attempt are still in the store.
                env.update(TORCHELASTIC_RESTART_COUNT=str(self._attempt))
        for local, rank in ranks.items():
            envs[local]["TORCH_CPP_LOG_LEVEL"] = os.environ.get(RANK_LOG_LEVEL, "WARNING")
            self.error_file(rank).unlink(missing_ok=True)
            envs[local]["TORCHELASTIC_ERROR_FILE"] = str(self.error_file(rank))
            envs[local][position.FILE_VARIABLE] = str(position.create(self.position_file(rank)))
            self.log(rank).touch()
            self._follower.add(rank, self.log(rank))
        return LogsDest(
            stdouts={local: str(self.log(rank)) for local, rank in ranks.items()},
            stderrs=dict.fromkeys(ranks, ""),
            error_files={local: str(self.error_file(rank)) for local, rank in ranks.items()},
            filtered_stdout=os.devnull,
            filtered_stderr=os.devnull,
        )

    def close(self) -> None:
        """Remove what only the launcher reads, once it has."""
        for path in self._folder.glob("rank*.position"):
            path.unlink(missing_ok=True)

    def end(self, rank: int, seen: ProcessFailure) -> RankEnd:
        """How a rank ended, from what the agent saw and what the rank wrote down."""
        failure = read_failure(self.error_file(rank))
        step, phase = position.read(self.position_file(rank))
        return RankEnd(
            rank=rank,
            exit_code=seen.exitcode,
            time=failure.time if failure else float(seen.timestamp),
            log=self.log(rank),
            failure=failure,
            step=step,
            phase=phase,
        )
