"""Which of many hashes are in a set, and where: open addressing, compiled."""

from __future__ import annotations

import numpy as np
from numba import njit, types

from stages.text.kernels import HASHES


def hash_table(keys: np.ndarray) -> np.ndarray:
    """int64, open addressing by the low bits: the place of each key, -1 where there is none."""
    size = 64
    while size < 4 * len(keys):
        size *= 2
    slots = np.full(size, -1, np.int64)
    for place, key in enumerate(keys.tolist()):
        slot = key & (size - 1)
        while slots[slot] >= 0:
            slot = (slot + 1) & (size - 1)
        slots[slot] = place
    return slots


_SLOTS = types.Array(types.int64, 1, "C", readonly=True)


@njit(types.void(HASHES, HASHES, _SLOTS, types.int64[::1]), cache=True, nogil=True)
def _look_up(hashes, keys, slots, places):
    """Fills places with that of each hash among the keys, or -1."""
    mask = np.int64(len(slots) - 1)
    for i in range(len(hashes)):
        slot = np.int64(hashes[i] & np.uint64(mask))
        places[i] = -1
        while slots[slot] >= 0:
            if keys[slots[slot]] == hashes[i]:
                places[i] = slots[slot]
                break
            slot = (slot + 1) & mask


def look_up(hashes: np.ndarray, keys: np.ndarray, slots: np.ndarray) -> np.ndarray:
    """int64: the place of each hash in `keys`, -1 where it is not there. `slots` is the hash table of the keys."""
    places = np.empty(len(hashes), np.int64)
    _look_up(hashes, keys, slots, places)
    return places
