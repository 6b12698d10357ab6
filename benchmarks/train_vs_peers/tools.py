"""One measurement by one tool in a process of its own: the peers' workers, and ``meshwright train``."""

import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from shapes import Shape

from meshwright.spec.model import ModelSpec
from meshwright.spec.parameters import total

HERE = Path(__file__).parent
SAME = {"learning_rate": 3e-4, "weight_decay": 0.1, "betas": [0.9, 0.95], "grad_clip": 1.0}
AMP = {"fp32": "O0", "bf16-autocast": "O1", "bf16-masters": "O2", "bf16-true": "O3"}


@dataclass(frozen=True)
class Variant:
    """A tool at a precision; variants of one class may be compared.

    Classes: fp32; bf16 with fp32 master weights (autocast, or Meshwright's O2); bf16 throughout.
    """

    tool: str
    precision: str

    @property
    def kind(self) -> str:
        kinds = {"fp32": "fp32", "bf16-true": "bf16, no fp32 masters"}
        return kinds.get(self.precision, "bf16, fp32 masters")

    @property
    def name(self) -> str:
        amp = f" ({AMP[self.precision]})" if self.tool == "meshwright" else ""
        return f"{self.tool} {self.precision}{amp}"


VARIANTS = [
    *(Variant(tool, "fp32") for tool in ("meshwright", "hf", "litgpt")),
    *(Variant("meshwright", p) for p in ("bf16-autocast", "bf16-masters")),
    *(Variant(tool, "bf16-autocast") for tool in ("hf", "litgpt")),
    *(Variant(tool, "bf16-true") for tool in ("meshwright", "hf", "litgpt")),
]


@dataclass(frozen=True)
class Setting:
    """What all tools share in one run. ``tokens`` is the prefix of a Megatron .bin/.idx pair of uint16 ids."""

    shape: Shape
    micro_batch_size: int
    steps: int
    compile: bool
    tokens: Path
    pythons: dict[str, Path]
    overrides: tuple[str, ...] = ()


class WorkerFailed(RuntimeError):
    """A worker that did not give a result; the message ends with its output."""


def measure(variant: Variant, setting: Setting, folder: Path) -> dict[str, Any]:
    """Train ``setting.steps`` optimizer steps; give ``step_seconds``, ``losses``, ``parameters``, ``weights``.

    Raises WorkerFailed.
    """
    folder.mkdir(parents=True)
    run = _meshwright if variant.tool == "meshwright" else _peer
    started = time.perf_counter()
    result = run(variant, setting, folder)
    if len(result["step_seconds"]) < setting.steps:
        raise WorkerFailed(f"{variant.name}: {len(result['step_seconds'])} of {setting.steps} steps timed")
    return result | {"process_seconds": time.perf_counter() - started}


def _peer(variant: Variant, setting: Setting, folder: Path) -> dict[str, Any]:
    job = asdict(setting.shape) | SAME
    job |= {"micro_batch_size": setting.micro_batch_size, "steps": setting.steps, "compile": setting.compile}
    job |= {"precision": variant.precision, "tokens": f"{setting.tokens}.bin"}
    job |= {"folder": str(folder / "output"), "result": str(folder / "result.json")}
    (folder / "job.json").write_text(json.dumps(job))
    worker = HERE / "peers" / f"{variant.tool}_worker.py"
    _run([setting.pythons[variant.tool], worker, folder / "job.json"], variant, setting)
    result: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return result


def _meshwright(variant: Variant, setting: Setting, folder: Path) -> dict[str, Any]:
    output = folder / "output"
    config = folder / "config.yaml"
    # JSON is YAML, and nothing here needs more.
    config.write_text(json.dumps(meshwright_config(variant, setting, output), indent=1))
    command = [setting.pythons["meshwright"], "-m", "meshwright", "train", config, *setting.overrides]
    _run(command, variant, setting)
    [metrics] = output.rglob("metrics.jsonl")
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    steps = [line for line in lines if "speed/step_ms" in line]
    return {
        "step_seconds": [line["speed/step_ms"] / 1000 for line in steps],
        "losses": [line["train/loss"] for line in steps],
        "parameters": total(_spec(setting.shape)),
        "weights": "bfloat16" if variant.precision == "bf16-true" else "float32",
    }


def _spec(shape: Shape) -> ModelSpec:
    sizes = asdict(shape)
    length, heads, width = sizes.pop("seq_length"), shape.num_heads, shape.hidden_size
    return ModelSpec(**sizes, num_kv_heads=heads, head_dim=width // heads, max_position_embeddings=length)


def meshwright_config(variant: Variant, setting: Setting, output: Path) -> dict[str, Any]:
    shape = asdict(setting.shape)
    seq_length = shape.pop("seq_length")
    prefix = str(setting.tokens)
    return {
        "output_dir": str(output),
        "model": shape | {"max_position_embeddings": seq_length},
        "train": {
            "seq_length": seq_length,
            "micro_batch_size": setting.micro_batch_size,
            "train_steps": setting.steps,
            "grad_clip": SAME["grad_clip"],
            "compile": setting.compile,
        },
        "amp_config": {"amp_level": AMP[variant.precision], "dtype": "bfloat16"},
        "optimizer": {k: SAME[k] for k in ("learning_rate", "weight_decay", "betas")},
        "lr_schedule": {"type": "constant", "warmup_steps": 0},
        "dataset": {"paths": [prefix]},
        "checkpoint": {"save_checkpoint_steps": 10**6, "resume": "never"},
        "monitor": {"log_steps": 1, "tensorboard": False},
    }


def _run(command: list[Any], variant: Variant, setting: Setting) -> None:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    if not setting.compile:
        environment["TORCH_COMPILE_DISABLE"] = "1"
    done = subprocess.run([str(part) for part in command], env=environment, capture_output=True, text=True)
    if done.returncode:
        tail = (done.stdout + done.stderr)[-4000:]
        raise WorkerFailed(f"{variant.name} ended with exit code {done.returncode}:\n{tail}")


def matmul_peak(python: Path, seconds: float) -> dict[str, float]:
    """FLOP/s of one core by dtype ('fp32', 'bf16'), measured now."""
    command = [str(python), str(HERE / "peak.py"), str(seconds)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, stderr=sys.stderr)
    flops: dict[str, float] = json.loads(done.stdout)
    return flops
