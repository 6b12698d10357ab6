"""Sample sources with a will of their own, in a module that a data worker imports quickly."""

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from meshwright.data.errors import DataError


@dataclass
class Failing:
    """A source that fails, or kills its own process, or hangs for some seconds, at one sample."""

    how: str
    num_samples: int = 100
    seconds: float = 3600.0

    def batch(self, samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        print("a stray line on stdout")
        if 5 in samples:
            if self.how == "raise":
                raise DataError("corpus.bin: token 9 is bad")
            if self.how == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(self.seconds)
        return samples[:, None], samples[:, None]


@dataclass
class Noting:
    """A source that makes a file for each batch it reads."""

    folder: Path
    num_samples: int = 100

    def batch(self, samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        (self.folder / str(samples[0])).touch()
        return samples[:, None], samples[:, None]


def wait_until_there(path: Path) -> str:
    """The name of a file once it is there, for 30 s at most."""
    deadline = time.monotonic() + 30
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    return path.name
