"""What the launcher starts on each rank: ``python -m meshwright.cli.rank CONFIG [key.path=value ...]``."""

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str]) -> None:
    """Train this rank's part of a run, its memory watched; a failure leaves as the exception that it is."""
    from meshwright.diagnose.run_memory import watched_memory
    from meshwright.train import worker

    worker.main(arguments, watched_memory)


if __name__ == "__main__":
    main(sys.argv[1:])
