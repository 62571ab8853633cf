"""A remote file read here and there: its blocks come when they are asked for and are kept in the cache of the machine.

A trainer reads windows all over a corpus that may be larger than its disk. Blocks are a MiB: one request for a window,
and neighbours in a shard, which packed rows of one group are, come along.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from stages.storage.cache import cache

if TYPE_CHECKING:
    from stages.storage.address import Address

BLOCK = 1 << 20


class Blocks:
    """The blocks of one file."""

    def __init__(self, address: Address) -> None:
        stat = address.stat()
        self._address = address
        self._name = f"{address}#{stat.mark}"
        self.size = stat.st_size

    def bring(self, stretches: Sequence[tuple[int, int]]) -> None:
        """Fetches the blocks of these stretches `(start, end)` that are not here, all at once."""
        wanted = sorted({n for start, end in stretches for n in range(start // BLOCK, -(-min(end, self.size) // BLOCK))})
        missing = [n for n in wanted if not cache().has(self._key(n))]
        if len(missing) < 2:
            return  # one comes when it is read
        ranges = [(n * BLOCK, min((n + 1) * BLOCK, self.size)) for n in missing]
        for n, data in zip(missing, self._address.read_ranges(ranges), strict=True):
            cache().put(self._key(n), data)

    def read_into(self, at: int, view: memoryview) -> int:
        """Fills `view` with the bytes from `at` on; how many there were."""
        end = min(at + len(view), self.size)
        done = 0
        while at + done < end:
            number, offset = divmod(at + done, BLOCK)
            data = self._block(number)[offset : offset + end - at - done]
            view[done : done + len(data)] = data
            done += len(data)
        return done

    def _block(self, number: int) -> bytes:
        found = cache().read(self._key(number))
        if found is None:
            found = self._address.read_range(number * BLOCK, min((number + 1) * BLOCK, self.size))
            cache().put(self._key(number), found)
        return found

    def _key(self, number: int) -> str:
        return f"{self._name}/{number}"
