"""Where a run keeps its files, under ``output_dir``."""

from pathlib import Path

from meshwright.config.schema import Config


class RunFolder:
    """Paths of one run directory."""

    def __init__(self, output_dir: str | Path) -> None:
        self.root = Path(output_dir)
        self.config = self.root / "config.yaml"
        self.record = self.root / "run.json"
        self.metrics = self.root / "metrics.jsonl"
        self.checkpoints = self.root / "checkpoints"
        self.stop = self.root / "STOP"
        self.logs = self.root / "logs"
        self.tensorboard = self.root / "tensorboard"
        self.profile = self.root / "profile"


def run_folder(config: Config) -> RunFolder:
    """The directory that a config names."""
    return RunFolder(config.output_dir)
