"""How MindSpore's graph mode cut each parameter over ranks: the strategy files beside its checkpoints.

``strategy/ckpt_strategy_rank_N.ckpt`` is a protobuf message (mindspore/ccsrc/utils/node_strategy.proto), with the
extension ``.json`` the same as JSON::

    ParallelStrategyMap { current_stage = 1; repeated parallel_strategy_item = 2;
                          repeated ParallelLayoutItem parallel_layout_item = 3; }
    ParallelLayoutItem  { string param_name = 1; ParallelLayouts parallel_layouts = 2; }
    ParallelLayouts     { repeated DevMatrix dev_matrix = 1; repeated TensorMap tensor_map = 2; param_split_shape = 3;
                          indices_offset = 4; field = 5; opt_weight_shard_step = 6; opt_weight_shard_size = 7; }
    DevMatrix, TensorMap { repeated int32 dim = 1; }
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from meshwright.checkpoint.errors import CheckpointError
from meshwright.checkpoint.files import read_json
from meshwright.checkpoint.protobuf import fields, read_varint

_FILE = re.compile(r"ckpt_strategy_rank_(\d+)(?:_rank_\d+)?\.(?:ckpt|json)")


@dataclass(frozen=True)
class Cut:
    """How one parameter lies over the ranks of its pipeline stage.

    Attributes:
        devices: the stage's ranks as a grid, the last dimension counting fastest.
        tensor_map: for each dimension of the tensor, which dimension of the grid cuts it, counted from the last one;
            -1 for none.
        shard_step: ranks between neighbours that share a block for the parallel optimizer; 0 where they do not.
        shard_size: how many share it, along the first dimension; -1 is all that would hold the same.
    """

    devices: tuple[int, ...]
    tensor_map: tuple[int, ...]
    shard_step: int = 0
    shard_size: int = 0

    def block(self, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Index of the block that a rank of the stage holds and number of blocks, along each dimension."""
        place = _unravel(rank % math.prod(self.devices), self.devices)
        cuts = [1 if at < 0 else self.devices[-1 - at] for at in self.tensor_map]
        index = [0 if at < 0 else place[-1 - at] for at in self.tensor_map]
        shared = self._sharing(math.prod(cuts))
        if shared > 1:
            index[0] = index[0] * shared + rank % math.prod(self.devices) // self.shard_step % shared
            cuts[0] *= shared
        return tuple(index), tuple(cuts)

    def _sharing(self, blocks: int) -> int:
        """Ranks over which the parallel optimizer cuts a block once more."""
        if not self.shard_step or not self.shard_size:
            return 1
        if self.shard_step != blocks:
            raise ValueError(f"opt_weight_shard_step {self.shard_step} is not the number of blocks, {blocks}")
        return self.shard_size if self.shard_size > 0 else math.prod(self.devices) // blocks


Strategy = Mapping[str, Cut]


def read_strategies(folder: Path) -> dict[int, Strategy]:
    """The strategy of each rank whose file lies in ``folder``. Raises CheckpointError naming a file that is damaged."""
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: no such folder of strategy files")
    found: dict[int, Strategy] = {}
    for path in sorted(folder.iterdir()):
        if match := _FILE.fullmatch(path.name):
            found[int(match[1])] = read_strategy(path)
    return found


def read_strategy(path: Path) -> dict[str, Cut]:
    """Cuts by parameter. Raises CheckpointError."""
    try:
        return _from_json(path) if path.suffix == ".json" else _from_protobuf(path)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path}: not a strategy file of MindSpore ({type(error).__name__}: {error})") from error


def _from_json(path: Path) -> dict[str, Cut]:
    items = read_json(path)["parallel_layout_item"]
    return {
        name: Cut(
            tuple(item["dev_matrix"]),
            tuple(item["tensor_map"]),
            item["opt_weight_shard_step"],
            item["opt_weight_shard_size"],
        )
        for name, item in items.items()
    }


def _from_protobuf(path: Path) -> dict[str, Cut]:
    content = path.read_bytes()
    cuts = {}
    for number, _, start, stop in fields(content, 0, len(content)):
        if number == 3:
            name, cut = _layout_item(content, start, stop)
            cuts[name] = cut
    return cuts


def _layout_item(content: bytes, start: int, stop: int) -> tuple[str, Cut]:
    parts = {number: (first, last) for number, _, first, last in fields(content, start, stop)}
    name = content[slice(*parts[1])].decode("utf-8")
    grids: dict[int, tuple[int, ...]] = {}
    numbers: dict[int, int] = {}
    for number, value, first, last in fields(content, *parts[2]):
        if last < 0:
            numbers[number] = _signed(value)
        elif number in (1, 2) and number not in grids:
            grids[number] = _integers(content, first, last)
    return name, Cut(grids[1], grids[2], numbers.get(6, 0), numbers.get(7, 0))


def _integers(content: bytes, start: int, stop: int) -> tuple[int, ...]:
    """Field 1 of a message, packed or not."""
    found = []
    for _, value, first, last in fields(content, start, stop):
        if last < 0:
            found.append(_signed(value))
        while first < last:
            value, first = read_varint(content, first, last)
            found.append(_signed(value))
    return tuple(found)


def _signed(value: int) -> int:
    """A negative int32 is a varint of 64 bits in two's complement."""
    return value - 2**64 if value >= 2**63 else value


def _unravel(number: int, sizes: tuple[int, ...]) -> tuple[int, ...]:
    index = []
    for size in reversed(sizes):
        number, place = divmod(number, size)
        index.append(place)
    return tuple(reversed(index))
