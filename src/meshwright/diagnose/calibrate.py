"""``meshwright bench --calibrate``: what this machine really does, as a hardware file for the planner."""

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshwright.config.hardware import written_hardware
from meshwright.plan.time.collectives import sent_bytes
from meshwright.spec.catalogue import hardware, hardware_of_driver
from meshwright.spec.cluster import GIB

WORKER_MODULE = "meshwright.diagnose.calibrate_worker"


class UnknownDevice(ValueError):
    """The accelerator is not in the catalogue, and no device was named to start from."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What the ranks of one calibration saw; rates and times as `calibrate_worker.measure` names them."""

    found: Mapping[str, Any]
    nodes: int

    @property
    def best(self) -> dict[str, float]:
        """Fastest product of each number format, FLOP/s."""
        rates: dict[str, float] = {}
        for product in self.found["products"]:
            rates[product["number_format"]] = max(product["flops"], rates.get(product["number_format"], 0.0))
        return rates


def calibrate(*, nproc_per_node: int, nnodes: int, rdzv_endpoint: str | None, seconds: float) -> Measured | int:
    """Start the ranks and measure for about ``seconds``; their exit code instead where they failed.

    On several nodes only the one with rank 0 gets the result; the others return 0.
    """
    from meshwright.launch.nodes import Nodes
    from meshwright.launch.run import launch

    with tempfile.TemporaryDirectory(prefix="meshwright-bench-") as folder:
        result = Path(folder) / "result.json"
        report = launch(
            [str(result), str(seconds)],
            nproc_per_node=nproc_per_node,
            nodes=Nodes(nnodes, nnodes),
            rdzv_endpoint=rdzv_endpoint,
            log_dir=Path(folder) / "logs",
            worker_module=WORKER_MODULE,
        )
        if report.code or not result.exists():
            return report.code
        return Measured(found=json.loads(result.read_text()), nodes=nnodes)


def hardware_values(measured: Measured, start_from: str | None) -> dict[str, Any]:
    """The keys of the hardware file.

    Args:
        start_from: catalogue device whose other numbers hold; None finds it by what the driver says.

    Raises:
        UnknownDevice: neither says which.
        ValueError: ``start_from`` is not in the catalogue.
    """
    found = measured.found
    on_cpu = found["device"] == "cpu"
    entry = hardware("cpu") if on_cpu and start_from is None else _entry(found["driver_name"], start_from)
    ranks = found["ranks_per_node"]
    values: dict[str, Any] = {"device": entry.name, "name": f"{entry.name}-measured"}
    if on_cpu:
        # The machine's memory is the processes' together, and no data sheet says what a core multiplies.
        values["memory_gib"] = round(found["memory_bytes"] / GIB / ranks, 2)
        values["memory_bandwidth_gb_s"] = _rounded(found["memory_bandwidth"] / 1e9)
        values["tflops"] = {name: _rounded(flops / 1e12) for name, flops in measured.best.items()}
        values["devices_per_node"] = ranks
        values["host_memory_gib"] = round(found["memory_bytes"] / GIB, 2)
        for key, crosses in (("link", False), ("network", True)):
            if reached := [_bus_bandwidth(one) for one in found["collectives"] if (one["nodes"] > 1) == crosses]:
                values[key] = {"bandwidth_gb_s": _rounded(max(reached) / 1e9)}
    else:
        values["memory_gib"] = round(found["memory_bytes"] / GIB, 2)
        values["devices_per_node"] = max(ranks, entry.devices_per_node)
    values["calibration"] = _calibration(found)
    return values


def _entry(driver_name: str, start_from: str | None) -> Any:
    if start_from is not None:
        return hardware(start_from)
    entry = hardware_of_driver(driver_name)
    if entry is None:
        raise UnknownDevice(f"{driver_name!r} is not in the catalogue: name the device to start from with --device")
    return entry


def _calibration(found: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "memory_bandwidth_gb_s": _rounded(found["memory_bandwidth"] / 1e9),
        "matmul": [
            {
                **{name: product[name] for name in ("m", "k", "n", "number_format")},
                "tflops": _rounded(product["flops"] / 1e12),
            }
            for product in found["products"]
        ],
        "collectives": [{**one, "seconds": _rounded(one["seconds"])} for one in found["collectives"]],
    }


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def table(measured: Measured) -> str:
    """What was measured, for people."""
    found = measured.found
    who = "one process" if found["device"] == "cpu" else found["driver_name"]
    lines = [
        f"{who}; {found['ranks_per_node']} ranks on each of {measured.nodes} node(s), all measuring at once",
        f"memory bandwidth {found['memory_bandwidth'] / 1e9:,.1f} GB/s",
        "",
        f"{'product m x k x n':<24}{'format':<10}{'TFLOP/s':>10}{'of best':>9}",
    ]
    best = measured.best
    for one in found["products"]:
        shape, name = f"{one['m']} x {one['k']} x {one['n']}", one["number_format"]
        lines.append(f"{shape:<24}{name:<10}{one['flops'] / 1e12:>10.4g}{one['flops'] / best[name]:>9.0%}")
    if found["collectives"]:
        lines += ["", f"{'collective':<16}{'ranks':>6}{'nodes':>6}{'MiB':>10}{'ms':>10}{'bus GB/s':>10}"]
        lines += [_collective_line(one) for one in found["collectives"]]
    return "\n".join(lines)


def _collective_line(one: Mapping[str, Any]) -> str:
    numbers = (one["message_bytes"] / 2**20, one["seconds"] * 1e3, _bus_bandwidth(one) / 1e9)
    columns = "".join(f"{number:>10.4g}" for number in numbers)
    return f"{one['collective']:<16}{one['ranks']:>6}{one['nodes']:>6}{columns}"


def _bus_bandwidth(one: Mapping[str, Any]) -> float:
    """Bytes/s that each rank sends, whatever the collective (nccl-tests' bus bandwidth)."""
    return sent_bytes(one["collective"], one["message_bytes"], one["ranks"]) / one["seconds"]


def hardware_file(measured: Measured, values: Mapping[str, Any]) -> str:
    """The file's text."""
    who = "CPU processes" if measured.found["device"] == "cpu" else measured.found["driver_name"]
    heading = (
        f"Measured by meshwright bench --calibrate: {measured.found['ranks_per_node']} x {who} on each of"
        f" {measured.nodes} node(s).\nUse it: meshwright plan CONFIG --hardware THIS_FILE. Every number can be"
        " changed by hand; docs/hardware.md says what each means."
    )
    return written_hardware(values, heading)
