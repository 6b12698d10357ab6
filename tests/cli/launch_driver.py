"""``python launch_driver.py BEHAVIOUR LOG_DIR NPROC [NNODES ENDPOINT]``: launch the test worker, as a command.

Environment: RESTARTS, how often ranks are started again; SILENT_SECONDS, after which a launcher counts as lost;
NEEDS_RANKS, the number of ranks that the layout fits.
"""

import os
import sys
from pathlib import Path

from meshwright.launch import neighbours
from meshwright.launch.nodes import LaunchError, Nodes, parse_nodes
from meshwright.launch.restart import Recovery
from meshwright.launch.run import launch


def fit(ranks: int) -> str | None:
    if ranks < int(os.environ.get("NEEDS_RANKS", "1")):
        raise LaunchError(f"the layout does not fit {ranks} ranks")
    return None


neighbours.SILENT_SECONDS = float(os.environ.get("SILENT_SECONDS", neighbours.SILENT_SECONDS))
behaviour, log_dir, nproc, *rest = sys.argv[1:]
try:
    report = launch(
        [behaviour],
        nproc_per_node=int(nproc),
        nodes=parse_nodes(rest[0]) if rest else Nodes(),
        rdzv_endpoint=rest[1] if len(rest) > 1 else None,
        log_dir=Path(log_dir),
        worker_module="launch_worker",
        last_checkpoint=lambda: Path("runs/x/step_00000002"),
        recovery=Recovery(
            max_restarts=int(os.environ.get("RESTARTS", "0")), fit=fit, command="meshwright train x.yaml"
        ),
    )
except LaunchError as exc:
    print(f"error: {exc}", file=sys.stderr)
    sys.exit(2)
sys.exit(report.code)
