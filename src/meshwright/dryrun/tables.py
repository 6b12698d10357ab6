"""Figures of a dry run as rows of words: memory by stage and by phase, modules, messages."""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from meshwright.dryrun.analysis import CATEGORIES, Peak, layers_together
from meshwright.dryrun.findings import RankFound
from meshwright.dryrun.run import DryRun
from meshwright.plan.words import size as link_size
from meshwright.spec.cluster import GIB
from meshwright.spec.layout import Layout

MODULES_SHOWN = 10
Row = Sequence[str]


@dataclass(frozen=True, kw_only=True)
class Unit:
    """What bytes are shown in."""

    name: str
    bytes: int

    def of(self, value: float) -> str:
        """Two decimals, without the unit."""
        return f"{value / self.bytes:.2f}"

    def shows(self, value: float) -> bool:
        """Whether anything but 0.00 is left of it."""
        return abs(value) >= self.bytes / 200

    def named(self, value: float) -> str:
        """Two decimals, with the unit."""
        return f"{self.of(value)} {self.name}"


def unit_for(largest: int) -> Unit:
    """GiB, or MiB where everything is smaller than one of them."""
    return Unit(name="GiB", bytes=GIB) if largest >= GIB else Unit(name="MiB", bytes=2**20)


def aligned(rows: Sequence[Row], left: Collection[int] = (0,)) -> list[str]:
    """Rows with columns of equal width, those of ``left`` to the left; indented. No rows are no lines."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  " + "  ".join(_cells(row, widths, left)).rstrip() for row in rows]


def stages(ranks: Sequence[RankFound], unit: Unit) -> list[Row]:
    """One row for each stage, the last column in words."""
    rows: list[Row] = [("stage", "rank", "layers", "allocated", "reserved", "spare", "peak in")]
    for found in ranks:
        result, spare = found.result, found.verdict.spare
        rows.append(
            (
                str(result.at.pipeline),
                str(result.rank),
                layers(result),
                unit.of(result.allocated),
                reserved(result, unit) or "-",
                unit_for(abs(spare)).named(spare),
                moment(result.memory.peak),
            )
        )
    return rows


def by_stage(ranks: Sequence[RankFound], unit: Unit) -> list[Row]:
    """Categories at the peak of each stage."""
    heads = [f"stage {found.result.at.pipeline}" for found in ranks]
    return _categories(heads, [found.result.memory.peak for found in ranks], unit)


def by_phase(result: DryRun, unit: Unit) -> list[Row]:
    """Categories at the worst moment of each phase."""
    peaks = result.memory.phases
    heads = [f"{'*' if peak is result.memory.peak else ''}{phase}" for phase, peak in peaks.items()]
    return _categories(heads, list(peaks.values()), unit)


def modules(peak: Peak, unit: Unit) -> list[Row]:
    """The modules that hold most, those of the same place in all layers together."""
    largest = layers_together(peak.modules).most_common(MODULES_SHOWN)
    return [(name or "outside the model", unit.of(held)) for name, held in largest if unit.shows(held)]


def messages(result: DryRun, layout: Layout, devices_per_node: int) -> list[Row]:
    """Collectives and sends by kind, group and place, under a head; nothing where there are none."""
    counts: Counter[tuple[str, ...]] = Counter()
    sizes: Counter[tuple[str, ...]] = Counter()
    for message in result.traffic.messages:
        ranks = message.members(result.rank)
        if len(ranks) == 1:
            continue
        nodes = message.nodes(result.rank, devices_per_node)
        place = "inside a node" if nodes == 1 else f"over {nodes} nodes"
        key = (message.kind, group(ranks, layout), str(len(ranks)), place)
        counts[key] += message.count
        sizes[key] += message.bytes
    rows: list[Row] = [("kind", "group", "ranks", "where", "count", "bytes", "each")]
    rows += [(*key, str(counts[key]), link_size(sizes[key]), link_size(sizes[key] / counts[key])) for key in sizes]
    return rows if sizes else []


def group(ranks: Sequence[int], layout: Layout) -> str:
    """The mesh dimensions along which ranks differ, such as ``data x context``; ``all`` for every rank of several."""
    places = [layout.coordinates(rank) for rank in ranks]
    dims = [dim for dim in layout.mesh_order if len({getattr(place, dim) for place in places}) > 1]
    return "all" if len(dims) > 1 and len(ranks) == layout.world_size else " x ".join(dims)


def layers(result: DryRun) -> str:
    """``0-19``."""
    first, last = result.layers[0], result.layers[-1]
    return str(first) if first == last else f"{first}-{last}"


def reserved(result: DryRun, unit: Unit) -> str:
    """``66.74-71.48``; empty where no allocator caches."""
    if result.reserved is None:
        return ""
    ends = (unit.of(value) for value in sorted((result.reserved.native, result.reserved.expandable)))
    return "-".join(dict.fromkeys(ends))


def moment(peak: Peak) -> str:
    """Where in the step, in words."""
    at = peak.moment
    micro_batch = f", micro-batch {at.micro_batch}" if at.micro_batch >= 0 else ""
    again = " (recomputing)" if at.recomputing else ""
    return f"{at.phase}{micro_batch}, {at.module or 'outside the model'}, {at.operator}{again}"


def _categories(heads: Sequence[str], peaks: Sequence[Peak], unit: Unit) -> list[Row]:
    rows: list[Row] = [("", *heads)]
    for name in CATEGORIES:
        held = [peak.categories.get(name, 0) for peak in peaks]
        if any(map(unit.shows, held)):
            rows.append((name, *(unit.of(size) if size else "-" for size in held)))
    rest = [peak.bytes - sum(peak.categories.values()) for peak in peaks]
    if any(map(unit.shows, rest)):
        rows.append(("rest of the estimate", *map(unit.of, rest)))
    rows.append(("total", *(unit.of(peak.bytes) for peak in peaks)))
    return rows


def _cells(row: Row, widths: Sequence[int], left: Collection[int]) -> Iterator[str]:
    for place, (cell, width) in enumerate(zip(row, widths, strict=True)):
        yield cell.ljust(width) if place in left else cell.rjust(width)
