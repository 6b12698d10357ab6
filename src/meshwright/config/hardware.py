"""Hardware files: a user's own machine for ``plan --hardware FILE``, as written by ``meshwright bench --calibrate``.

A file names the catalogue device it starts from; every other key replaces one of that device's numbers. It is as
strict as a config: all mistakes at once, each with file, line, key and what would be legal.
"""

import difflib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args

import yaml
from pydantic import BaseModel, Field, ValidationError

from meshwright.config.errors import ConfigError, ConfigErrors, Origin
from meshwright.config.fields import BigCount, Count, NonNegative, Positive, Section, Word
from meshwright.config.source import ConfigDumper, Node, parse_text, read_file
from meshwright.config.validate import origin_of, show
from meshwright.spec.catalogue import device_cluster, hardware
from meshwright.spec.cluster import (
    GIB,
    Calibration,
    Cluster,
    CollectiveTime,
    Device,
    Link,
    MatmulRate,
    NumberFormat,
)


class Rates(Section):
    """Dense matrix-product rates, TFLOP/s."""

    float32: Positive | None = None
    bfloat16: Positive | None = None
    float16: Positive | None = None
    float8: Positive | None = None
    float4: Positive | None = None


class LinkFile(Section):
    """A link, one direction, per device."""

    name: Word | None = None
    bandwidth_gb_s: Positive | None = None
    latency_us: NonNegative | None = None
    switch_reduction: bool | None = None
    tree: bool | None = None


class MatmulFile(Section):
    """One measured product [m, k] x [k, n]."""

    m: Count
    k: Count
    n: Count
    number_format: NumberFormat
    tflops: Positive


class CollectiveFile(Section):
    """One measured collective; ``message_bytes`` is the full gathered or reduced tensor."""

    collective: Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send"]
    ranks: int = Field(ge=2)
    nodes: Count
    message_bytes: BigCount
    seconds: Positive


class CalibrationFile(Section):
    """What was measured on the machine."""

    memory_bandwidth_gb_s: Positive | None = None
    matmul: tuple[MatmulFile, ...] = ()
    collectives: tuple[CollectiveFile, ...] = ()


class HardwareFile(Section):
    """A machine, as changes to a device of the catalogue."""

    device: Word
    name: Word | None = None
    memory_gib: Positive | None = None
    memory_bandwidth_gb_s: Positive | None = None
    tflops: Rates = Rates()
    devices_per_node: Count | None = None
    host_memory_gib: Positive | None = None
    link: LinkFile = LinkFile()
    network: LinkFile = LinkFile()
    calibration: CalibrationFile = CalibrationFile()


SECTIONS: Mapping[str, type[BaseModel]] = {
    "": HardwareFile,
    "tflops": Rates,
    "link": LinkFile,
    "network": LinkFile,
    "calibration": CalibrationFile,
    "calibration.matmul.*": MatmulFile,
    "calibration.collectives.*": CollectiveFile,
}


def hardware_cluster(name_or_path: str, num_devices: int, devices_per_node: int | None = None) -> Cluster:
    """A cluster by a name of the catalogue, or by a hardware file (a path, or anything that ends in .yaml or .yml).

    Raises:
        ValueError: no such device; the message names the closest.
        ConfigErrors: every mistake in the file.
    """
    path = Path(name_or_path)
    if path.suffix in (".yaml", ".yml") or "/" in name_or_path:
        return read_hardware(path, num_devices, devices_per_node)
    return device_cluster(name_or_path, num_devices, devices_per_node)


def read_hardware(path: Path, num_devices: int, devices_per_node: int | None = None) -> Cluster:
    """The cluster that a hardware file describes. Raises ConfigErrors with every mistake in it."""
    errors: list[ConfigError] = []
    root = parse_text(read_file(path), str(path), errors)
    if root is None or not isinstance(root.value, dict):
        raise ConfigErrors(errors or [ConfigError("must be a mapping of keys", file=str(path), suggestion=_keys(""))])
    file = _validated(root, errors)
    errors.extend(_unknown_device(root))
    if file is None or errors:
        raise ConfigErrors(errors)
    return _changed(device_cluster(file.device, num_devices, devices_per_node or file.devices_per_node), file)


def _unknown_device(root: Node) -> list[ConfigError]:
    node = root.value.get("device") if isinstance(root.value, dict) else None
    if node is None or not isinstance(node.value, str):
        return []
    try:
        hardware(node.value)
    except ValueError as error:
        return [ConfigError.at(node.origin, str(error), "device")]
    return []


def written_hardware(values: Mapping[str, Any], heading: str) -> str:
    """The text of a hardware file. ``heading`` becomes comments above it."""
    comments = "".join(f"# {line}\n" for line in heading.splitlines())
    return comments + yaml.dump(
        dict(values), Dumper=ConfigDumper, sort_keys=False, default_flow_style=None, width=120, allow_unicode=True
    )


def _changed(base: Cluster, file: HardwareFile) -> Cluster:
    device = base.device
    flops = dict(device.flops)
    formats: tuple[NumberFormat, ...] = get_args(NumberFormat)
    flops |= {key: rate * 1e12 for key in formats if (rate := getattr(file.tflops, key)) is not None}
    changed: Device = replace(
        device,
        name=file.name or device.name,
        title=file.name or device.title,
        memory_bytes=device.memory_bytes if file.memory_gib is None else file.memory_gib * GIB,
        bandwidth=device.bandwidth if file.memory_bandwidth_gb_s is None else file.memory_bandwidth_gb_s * 1e9,
        flops=flops,
    )
    host = base.host_memory_bytes if file.host_memory_gib is None else file.host_memory_gib * GIB
    return replace(
        base,
        device=changed,
        intra=_link(base.intra, file.link),
        inter=_link(base.inter, file.network),
        host_memory_bytes=host,
        calibration=_calibration(file.calibration),
    )


def _link(base: Link, file: LinkFile) -> Link:
    return Link(
        name=file.name or base.name,
        bandwidth=base.bandwidth if file.bandwidth_gb_s is None else file.bandwidth_gb_s * 1e9,
        latency=base.latency if file.latency_us is None else file.latency_us * 1e-6,
        switch_reduction=base.switch_reduction if file.switch_reduction is None else file.switch_reduction,
        tree=base.tree if file.tree is None else file.tree,
    )


def _calibration(file: CalibrationFile) -> Calibration:
    return Calibration(
        matmul=tuple(
            MatmulRate(m=one.m, k=one.k, n=one.n, number_format=one.number_format, flops=one.tflops * 1e12)
            for one in file.matmul
        ),
        memory_bandwidth=None if file.memory_bandwidth_gb_s is None else file.memory_bandwidth_gb_s * 1e9,
        collectives=tuple(CollectiveTime(**one.model_dump()) for one in file.collectives),
    )


def _validated(root: Node, errors: list[ConfigError]) -> HardwareFile | None:
    tree = root.plain()
    try:
        return HardwareFile.model_validate(tree)
    except ValidationError as error:
        origins = {path: node.origin for path, node in root.walk()}
        found: dict[str, ConfigError] = {}
        for detail in error.errors(include_url=False):
            path = ".".join(str(part) for part in detail["loc"])
            origin = origin_of(path, origins) or root.origin
            found.setdefault(path, _explained(path, detail, origin))
        errors.extend(found.values())
        return None


def _explained(path: str, detail: Any, origin: Origin) -> ConfigError:
    section, _, name = path.rpartition(".")
    if detail["type"] == "extra_forbidden":
        return ConfigError.at(origin, "unknown key", path, _nearest(name, section))
    if detail["type"] == "missing":
        return ConfigError.at(origin, "is missing", path, _keys(section))
    return ConfigError.at(origin, f"must be {_expected(detail)}, not {show(detail['input'])[:80]}", path)


def _expected(detail: Any) -> str:
    context = detail.get("ctx") or {}
    match detail["type"]:
        case "literal_error":
            return str(context["expected"]).replace("'", "")
        case "greater_than":
            return f"more than {context['gt']:g}"
        case "greater_than_equal":
            return f"{context['ge']} or more"
        case "int_type":
            return "a whole number"
        case "float_type":
            return "a number"
        case "bool_type":
            return "true or false"
        case "tuple_type":
            return "a list"
        case "model_type" | "model_attributes_type" | "dict_type":
            return "a mapping of keys"
    return "text"


def _nearest(name: str, section: str) -> str:
    names = _names(section)
    near = difflib.get_close_matches(name, names, 1, 0.6)
    if near:
        return f"did you mean {f'{section}.' if section else ''}{near[0]}?"
    return _keys(section)


def _keys(section: str) -> str:
    return f"{section or 'a hardware file'} has {', '.join(_names(section))}"


def _names(section: str) -> list[str]:
    starred = ".".join("*" if part.isdigit() else part for part in section.split("."))
    return list(SECTIONS[starred].model_fields)
