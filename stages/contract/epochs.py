"""The order of the units of one source in one epoch: a keyed permutation, computed and not stored, with its inverse."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stages.contract.permutation import derive, permute

#: Windows: units in a block (read together) and blocks in a stretch that is shuffled together. A block of one unit is
#: a full shuffle, which suits disks without seek time.
BLOCK, WINDOW = 1, 2048

#: Packed rows: groups whose rows are mixed with each other.
GROUP_WINDOW = 32

#: Epochs of which the order of groups is kept.
TABLES = 4096


@dataclass(frozen=True)
class WindowEpochs:
    """Blocks of windows in random order, mixed inside of stretches of `window` blocks.

    A last block that is not full is spread evenly over the epoch, unit by unit. Stretches differ by a block at most.
    All arguments are arrays of shape (S,).
    """

    block: int
    window: int

    def forward(self, place: np.ndarray, units: np.ndarray, key: np.ndarray) -> np.ndarray:
        """The unit at each place of the epoch; 0 <= place < units."""
        full, rest = np.divmod(units, self.block)
        tails_before = place * rest // units
        is_tail = (place + 1) * rest // units > tails_before
        tail = permute(np.where(is_tail, tails_before, 0), np.maximum(rest, 1), derive(key, 0))
        full, low, high = _stretch(np.where(is_tail, 0, (place - tails_before) // self.block), full, self.window)
        inside = np.where(is_tail, 0, place - tails_before - low * self.block)
        mixed = permute(inside, (high - low) * self.block, derive(derive(key, 1), low))
        rank, offset = np.divmod(mixed, self.block)
        unit = permute(low + rank, full, derive(key, 2)) * self.block + offset
        return np.where(is_tail, units // self.block * self.block + tail, unit)

    def backward(self, unit: np.ndarray, units: np.ndarray, key: np.ndarray) -> np.ndarray:
        """The place of each unit in the epoch: the inverse of `forward`."""
        full, rest = np.divmod(units, self.block)
        block, offset = np.divmod(unit, self.block)
        is_tail = block >= full
        tail = permute(
            np.where(is_tail, unit - full * self.block, 0), np.maximum(rest, 1), derive(key, 0), inverse=True
        )
        rank = permute(np.where(is_tail, 0, block), np.maximum(full, 1), derive(key, 2), inverse=True)
        _, low, high = _stretch(rank, full, self.window)
        mixed = np.where(is_tail, 0, (rank - low) * self.block + offset)
        inside = permute(mixed, (high - low) * self.block, derive(derive(key, 1), low), inverse=True)
        number = inside + low * self.block
        tail_place = -(-(tail + 1) * units // np.maximum(rest, 1)) - 1
        return np.where(is_tail, tail_place, number * units // np.maximum(units - rest, 1))


def _stretch(rank: np.ndarray, full: np.ndarray, window: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`(full, low, high)`: full blocks (at least 1) and the stretch [low, high) that holds block number `rank`."""
    full = np.maximum(full, 1)
    windows = -(-full // window)
    number = ((rank + 1) * windows - 1) // full
    return full, number * full // windows, (number + 1) * full // windows


@dataclass(frozen=True, eq=False)
class Rows:
    """The packed rows of one length of a source.

    groups  int64 (G,), rows of each group, in the order of the shards; none is 0
    digest  of the files that hold them
    """

    groups: np.ndarray
    digest: str

    @cached_property
    def first(self) -> np.ndarray:
        """int64 (G + 1,), the number of the first row of each group, and of all rows."""
        return np.concatenate([[0], np.cumsum(self.groups, dtype=np.int64)])

    @property
    def total(self) -> int:
        """Rows of all groups."""
        return int(self.first[-1])


@dataclass(frozen=True, eq=False)
class _Table:
    """An epoch of packed rows.

    order  (G,), the group at each rank;  rank  (G,), its inverse
    first  (G + 1,), the number in the epoch, unmixed, of the first row of the group at each rank
    opens  (W + 1,), ranks at which another set of groups is opened;  starts  (W + 1,), `first` there
    """

    order: np.ndarray
    rank: np.ndarray
    first: np.ndarray
    opens: np.ndarray
    starts: np.ndarray


class RowEpochs:
    """Groups in random order; GROUP_WINDOW of them at a time are open, and their rows are mixed with each other."""

    def __init__(self) -> None:
        self._tables: OrderedDict[tuple[int, int], tuple[Rows, _Table]] = OrderedDict()

    def forward(self, rows: Rows, place: np.ndarray, key: np.uint64) -> np.ndarray:
        """The row at each place of the epoch; 0 <= place < rows.total. int64 of shape (S,)."""
        table = self._table(rows, key)
        window = np.searchsorted(table.starts, place, side="right") - 1
        low = table.starts[window]
        size = table.starts[window + 1] - low
        number = low + permute(place - low, size, derive(derive(np.array([key]), 1), table.opens[window]))
        rank = np.searchsorted(table.first, number, side="right") - 1
        return rows.first[table.order[rank]] + number - table.first[rank]

    def backward(self, rows: Rows, row: np.ndarray, key: np.uint64) -> np.ndarray:
        """The place of each row in the epoch: the inverse of `forward`."""
        table = self._table(rows, key)
        group = np.searchsorted(rows.first, row, side="right") - 1
        rank = table.rank[group]
        number = table.first[rank] + row - rows.first[group]
        window = np.searchsorted(table.opens, rank, side="right") - 1
        low = table.starts[window]
        size = table.starts[window + 1] - low
        return low + permute(number - low, size, derive(derive(np.array([key]), 1), table.opens[window]), inverse=True)

    def _table(self, rows: Rows, key: np.uint64) -> _Table:
        name = (id(rows), int(key))
        kept = self._tables.get(name)
        if kept is None:
            kept = self._tables[name] = (rows, _table(rows, key))  # holding `rows` keeps its id its own
            if len(self._tables) > TABLES:
                self._tables.popitem(last=False)
        self._tables.move_to_end(name)
        return kept[1]


def _table(rows: Rows, key: np.uint64) -> _Table:
    groups = len(rows.groups)
    order = permute(np.arange(groups), groups, derive(np.array([key]), 2)[0])
    rank = np.empty(groups, np.int64)
    rank[order] = np.arange(groups)
    first = np.concatenate([[0], np.cumsum(rows.groups[order], dtype=np.int64)])
    windows = -(-groups // GROUP_WINDOW)
    opens = np.arange(windows + 1, dtype=np.int64) * groups // windows
    return _Table(order, rank, first, opens, first[opens])
