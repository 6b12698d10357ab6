"""Writes devices.md beside this file from the catalogue that the planner reads: ``make docs``."""

from pathlib import Path

from meshwright.spec.catalogue import HARDWARE
from meshwright.spec.devices import Hardware

PAGE = Path(__file__).with_name("devices.md")
HEAD = """# Device catalogue

What `--hardware NAME` means. Rates are dense, in TFLOP/s of matrix products; bandwidths are decimal and links one
direction per device, half of what data sheets print; memory is what the driver gives to processes, in GiB.
[Hardware](hardware.md) says how to change a number, and how to measure a machine.

This page is written by `make docs` from `meshwright.spec.devices`.

| name | device | GiB | TB/s | 16-bit | 8-bit | 4-bit | fp32 | fast link, GB/s | joins | network, GB/s |
|---|---|---|---|---|---|---|---|---|---|---|
"""


def page() -> str:
    """The whole page."""
    rows = "".join(_row(entry) for entry in HARDWARE)
    sources = "".join(f"- `{entry.name}`: {entry.source}\n" for entry in HARDWARE)
    return f"{HEAD}{rows}\n## Sources\n{sources}"


def _row(entry: Hardware) -> str:
    names = ", ".join(f"`{name}`" for name in (entry.name, *entry.aliases))
    rates = (entry.bf16 or entry.fp16, entry.fp8, entry.fp4, entry.fp32)
    cells = [
        names,
        entry.title,
        f"{entry.memory_gib:.4g}",
        f"{entry.bandwidth:g}",
        *("" if rate is None else f"{rate:g}" for rate in rates),
        f"{entry.link.name} {entry.link.bandwidth / 1e9:g}",
        str(entry.devices_per_node),
        f"{entry.network.bandwidth / 1e9:.4g}",
    ]
    return f"| {' | '.join(cells)} |\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
