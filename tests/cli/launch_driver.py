"""``python launch_driver.py BEHAVIOUR LOG_DIR NPROC [NNODES ENDPOINT]``: launch the test worker, as a command."""

import sys
from pathlib import Path

from meshwright.launch.endpoint import LaunchError
from meshwright.launch.run import launch

behaviour, log_dir, nproc, *rest = sys.argv[1:]
try:
    report = launch(
        [behaviour],
        nproc_per_node=int(nproc),
        nnodes=int(rest[0]) if rest else 1,
        rdzv_endpoint=rest[1] if len(rest) > 1 else None,
        log_dir=Path(log_dir),
        worker_module="launch_worker",
        last_checkpoint=lambda: Path("runs/x/step_00000002"),
    )
except LaunchError as exc:
    print(f"error: {exc}", file=sys.stderr)
    sys.exit(2)
sys.exit(report.code)
