"""Exact byte-level BPE of single pieces, compiled.

The rule (Sennrich et al. 2016, with ranks as in GPT-2): of all adjacent pairs that the merge list knows, the one of
lowest rank is merged, the leftmost first, until none is left. Up to `_SCAN` tokens are searched for it; more of them
keep their pairs in a heap, so that a line of a million characters costs n log n.

A character of several bytes begins as one token where that changes nothing, which saves most of the work on text that
is not ASCII. It changes nothing if the merges inside the character come before every merge that could reach into it:
its level, the highest rank of a merge that makes its token, is below the rank of each merge whose right part is the
beginning of such a character and whose left part ends like the text before it, and of each whose left part is the end
of such a character and whose right part begins like the text behind it. And nothing that uses the token may have a
lower rank than what makes it, which is checked once for the whole list.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit, types

from stages.text.memory import BORROWED
from stages.tokenizer.pieces import prefetch
from stages.tokenizer.segments import joints

_SCAN = 128  # a power of two, and places fit into 7 bits
_NONE = 0x7FFFFFFF
#: Ids and ranks are below this, so that a pair and its rank share one word.
LARGEST_ID = 1 << 21
_FREE = 0xFFFFFFFFFFFFFFFF
_BITS = 1 << 21  # of Merges.known

#: Bytes of the longest piece that `merge_piece` has working memory for at first.
ROOM = 4 * _SCAN

_KEYS = types.Array(types.uint64, 1, "C", readonly=True)
_NUMBERS = types.Array(types.int32, 1, "C", readonly=True)
_BYTES = types.Array(types.uint8, 1, "C", readonly=True)
_PLACES = types.Array(types.int64, 1, "C", readonly=True)


class Merges(NamedTuple):
    """A merge list as arrays that the kernels take.

    byte_ids    int32[256]       id of each single byte, -1 for none
    byte_ranks  int32[65536]     rank of each pair of bytes, first << 8 | second
    pairs       uint64           open-addressed table: left << 42 | right << 21 | rank, all ones where free
    known       uint64[32768]    a bit per hash of a pair, 0 where no such pair is in `pairs`: most questions end here
    results     int32            per rank, the id that the pair becomes
    chars       int32[65536]     per code point of two or three bytes, its id if it may begin as one token, else -1
    levels      int32[65536]     its level
    ahead       int32[256, 64]   by the byte before a character and the low bits of its first: lowest rank that hurts it
    behind      int32[64, 256]   by the low bits of the last byte of a character and the byte behind it: the same
    joined      uint64[16384]    `segments.joints`
    """

    byte_ids: np.ndarray
    byte_ranks: np.ndarray
    pairs: np.ndarray
    known: np.ndarray
    results: np.ndarray
    chars: np.ndarray
    levels: np.ndarray
    ahead: np.ndarray
    behind: np.ndarray
    joined: np.ndarray


_LIST, _GRID = types.int32[::1], types.int32[:, ::1]
_WORDS = types.uint64[::1]
MERGES = types.NamedTuple((_LIST, _LIST, _WORDS, _WORDS, _LIST, _LIST, _LIST, _GRID, _GRID, _WORDS), Merges)


def compile_merges(byte_ids: np.ndarray, triples: np.ndarray, flat: np.ndarray, bounds: np.ndarray) -> Merges:
    """The arrays for a merge list.

    byte_ids      int32[256], id of each single byte, -1 for none
    triples       int32 (M, 3): left id, right id, id of the result, by rank
    flat, bounds  uint8 and int64: left part i is flat[bounds[2 * i]:bounds[2 * i + 1]], its right part follows

    ValueError for ids or ranks of LARGEST_ID and above.
    """
    if max(len(triples), int(triples.max(initial=0))) >= LARGEST_ID:
        raise ValueError(f"a vocabulary of {LARGEST_ID} ids or more")
    byte_ids = byte_ids.astype(np.int32)
    left, right, results = (np.ascontiguousarray(column) for column in triples.T)
    pairs = np.full(1 << max(4, (len(triples) * 4 // 3).bit_length()), _FREE, np.uint64)
    known = np.zeros(_BITS >> 6, np.uint64)
    ranks = np.arange(len(triples))
    keys = left.astype(np.uint64) << np.uint64(21) | right.astype(np.uint64)
    _fill(keys << np.uint64(21) | ranks.astype(np.uint64), pairs, known)
    ahead, behind = np.full((256, 64), _NONE, np.int32), np.full((64, 256), _NONE, np.int32)
    _hurting(flat, bounds, ahead, behind)
    chars, levels = np.full(1 << 16, -1, np.int32), np.zeros(1 << 16, np.int32)
    merges = Merges(
        byte_ids, _byte_ranks(byte_ids, pairs, known), pairs, known, results, chars, levels, ahead, behind,
        joints(flat, bounds),
    )  # fmt: skip
    made = np.full(int(triples.max(initial=0)) + 1, -1, np.int64)
    np.maximum.at(made, results, ranks)
    if np.all(made[left] < ranks) and np.all(made[right] < ranks):
        found = _characters(merges)
        chars[:] = found
        levels[:] = np.where(found >= 0, made[found], 0)
    return merges


@njit(inline="always", **BORROWED)
def _hash(key):  # type: ignore[no-untyped-def]
    """Of a pair (left << 21 | right): the low bits choose its slot, bits 19 to 39 its bit in `known`."""
    h = key * np.uint64(0x9E3779B97F4A7C15)
    return h ^ (h >> np.uint64(32))


@njit(inline="always", **BORROWED)
def _bit(h):  # type: ignore[no-untyped-def]
    """`(word, bit)` of a hash in `known`."""
    bit = (h >> np.uint64(19)) & np.uint64(_BITS - 1)
    return np.int64(bit >> np.uint64(6)), bit & np.uint64(63)


@njit(inline="always", **BORROWED)
def _place(key, h, pairs):  # type: ignore[no-untyped-def]
    """The slot of a pair of this hash, or the free one where it belongs."""
    mask = np.uint64(len(pairs) - 1)
    at = h & mask
    while pairs[at] >> np.uint64(21) != key and pairs[at] != np.uint64(_FREE):
        at = (at + np.uint64(1)) & mask
    return at


@njit(types.void(_KEYS, _WORDS, _WORDS), **BORROWED)
def _fill(entries, pairs, known):  # type: ignore[no-untyped-def]
    """Puts the entries into the table; of two for the same pair the later one counts."""
    for i in range(len(entries)):
        key = entries[i] >> np.uint64(21)
        h = _hash(key)
        pairs[_place(key, h, pairs)] = entries[i]
        word, bit = _bit(h)
        known[word] |= np.uint64(1) << bit


@njit(inline="always", **BORROWED)
def _rank(left, right, pairs, known):  # type: ignore[no-untyped-def]
    """Rank of the pair, or _NONE."""
    key = np.uint64(left) << np.uint64(21) | np.uint64(right)
    h = _hash(key)
    word, bit = _bit(h)
    if known[word] >> bit & np.uint64(1) == 0:
        return np.int32(_NONE)
    entry = pairs[_place(key, h, pairs)]
    return np.int32(entry & np.uint64(LARGEST_ID - 1)) if entry != np.uint64(_FREE) else np.int32(_NONE)


@njit(inline="always", **BORROWED)
def _ask(left, right, pairs):  # type: ignore[no-untyped-def]
    """Asks for the slot of a pair, which `_rank` is about to look at."""
    h = _hash(np.uint64(left) << np.uint64(21) | np.uint64(right))
    prefetch(pairs, np.int64(h & np.uint64(len(pairs) - 1)))


def _byte_ranks(byte_ids: np.ndarray, pairs: np.ndarray, known: np.ndarray) -> np.ndarray:
    """int32[65536]: ranks of the pairs of bytes; a byte without an id is in no pair."""
    ranks = np.full(65536, _NONE, np.int32)
    _rank_bytes(byte_ids, pairs, known, ranks)
    return ranks


@njit(types.void(_NUMBERS, _WORDS, _WORDS, _LIST), **BORROWED)
def _rank_bytes(byte_ids, pairs, known, ranks):  # type: ignore[no-untyped-def]
    """Fills `ranks`, see `_byte_ranks`."""
    for first in range(256):
        for second in range(256):
            if byte_ids[first] >= 0 and byte_ids[second] >= 0:
                ranks[first << 8 | second] = _rank(byte_ids[first], byte_ids[second], pairs, known)


@njit(inline="always", **BORROWED)
def _width(lead):  # type: ignore[no-untyped-def]
    """Bytes of a character that begins with this byte, 1 where none does."""
    return 1 + (0xC2 <= lead < 0xF5) + (0xE0 <= lead < 0xF5) + (0xF0 <= lead < 0xF5)


@njit(types.void(_BYTES, _PLACES, _GRID, _GRID), **BORROWED)
def _hurting(flat, bounds, ahead, behind):  # type: ignore[no-untyped-def]
    """Fills `ahead` and `behind`: the lowest ranks of merges that reach into a character."""
    for rank in range(len(bounds) >> 1):
        start, middle, end = bounds[2 * rank], bounds[2 * rank + 1], bounds[2 * rank + 2]
        lead = flat[middle]
        size = end - middle
        within = size < _width(lead)
        for i in range(middle + 1, end):
            within &= flat[i] & 0xC0 == 0x80
        if within:
            place = np.int64(flat[middle - 1]), np.int64(lead & 63)
            ahead[place] = min(ahead[place], rank)
        within = middle - start <= 3
        for i in range(start, middle):
            within &= flat[i] & 0xC0 == 0x80
        if within:
            place = np.int64(flat[middle - 1] & 63), np.int64(lead)
            behind[place] = min(behind[place], rank)


@njit(inline="always", **BORROWED)
def _character(data, at, start, end, chars, levels, ahead, behind):  # type: ignore[no-untyped-def]
    """`(id, bytes)` of the character at data[at] if it may begin as one token, else -1."""
    lead = np.int64(data[at])
    size = _width(lead)
    if size > 3 or at + size > end or data[at + 1] & 0xC0 != 0x80 or data[at + size - 1] & 0xC0 != 0x80:
        return np.int32(-1), 1
    code = (lead & 31) << 6 | np.int64(data[at + 1] & 63)
    if size == 3:
        code = (code & 0x3FF) << 6 | np.int64(data[at + 2] & 63)
    level = levels[code]
    if at > start and ahead[np.int64(data[at - 1]), lead & 63] <= level:
        return np.int32(-1), 1
    if at + size < end and behind[np.int64(data[at + size - 1] & 63), np.int64(data[at + size])] <= level:
        return np.int32(-1), 1
    return chars[code], size


@njit(inline="always", **BORROWED)
def _begin(  # type: ignore[no-untyped-def]
    data, start, end, byte_ids, byte_ranks, pairs, known, chars, levels, ahead, behind, token, ranks
):
    """Fills `token` with what merging begins with and `ranks` with the ranks of the pairs; how many tokens."""
    count = 0
    at = start
    while at < end:
        byte = data[at]
        token[count] = byte_ids[byte]
        ranks[count] = byte
        size = 1
        if byte >= 0xC2:
            whole, width = _character(data, at, start, end, chars, levels, ahead, behind)
            if whole >= 0:
                token[count] = whole
                ranks[count] = -1
                size = width
        count += 1
        at += size
    for i in range(count - 1):
        if ranks[i] >= 0 and ranks[i + 1] >= 0:
            ranks[i] = byte_ranks[np.int64(ranks[i]) << 8 | np.int64(ranks[i + 1])]
        else:
            ranks[i] = _rank(token[i], token[i + 1], pairs, known)
    ranks[count - 1] = _NONE
    return count


@njit(**BORROWED)
def _merge_short(n, pairs, known, results, token, order, after, before, ids, filled):  # type: ignore[no-untyped-def]
    """Merges `n` <= _SCAN tokens, whose pairs have the ranks in `order`, into ids[filled:]; how many ids.

    A pair stands at the place of its left token as rank << 7 | place, so one minimum over all places, which compiles
    to vector instructions, finds the leftmost pair of lowest rank. Tokens merged away leave _NONE behind.
    """
    for i in range(n):
        order[i] = order[i] << 7 | i if order[i] != _NONE else _NONE
        after[i] = i + 1
        before[i] = i - 1
    left = n
    while left > 1:
        lowest = np.int32(_NONE)
        for i in range(n):
            lowest = min(lowest, order[i])
        if lowest == _NONE:
            break
        at = np.int64(lowest & (_SCAN - 1))
        gone = np.int64(after[at])
        behind = np.int64(after[gone])
        token[at] = results[lowest >> 7]
        after[at] = behind
        order[gone] = _NONE
        order[at] = _NONE
        left -= 1
        ahead = np.int64(before[at])
        if behind < n:
            _ask(token[at], token[behind], pairs)
        if ahead >= 0:
            _ask(token[ahead], token[at], pairs)
        if behind < n:
            before[behind] = at
            rank = _rank(token[at], token[behind], pairs, known)
            order[at] = rank << 7 | at if rank != _NONE else _NONE
        if ahead >= 0:
            rank = _rank(token[ahead], token[at], pairs, known)
            order[ahead] = rank << 7 | ahead if rank != _NONE else _NONE
    at = np.int64(0)
    for i in range(left):
        ids[filled + i] = token[at]
        at = np.int64(after[at])
    return left


@njit(inline="always", **BORROWED)
def _push(heap, size, item):  # type: ignore[no-untyped-def]
    """Adds to a binary min-heap of `size` items; the new size."""
    at = size
    while at > 0:
        parent = (at - 1) >> 1
        if heap[parent] <= item:
            break
        heap[at] = heap[parent]
        at = parent
    heap[at] = item
    return size + 1


@njit(inline="always", **BORROWED)
def _pop(heap, size):  # type: ignore[no-untyped-def]
    """Takes the smallest item off; `(item, new size)`."""
    top = heap[0]
    size -= 1
    item = heap[size]
    at = 0
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        if child + 1 < size and heap[child + 1] < heap[child]:
            child += 1
        if heap[child] >= item:
            break
        heap[at] = heap[child]
        at = child
    heap[at] = item
    return top, size


@njit(**BORROWED)
def _merge_long(n, pairs, known, results, token, current, after, before, heap, ids, filled):  # type: ignore[no-untyped-def]
    """The same with a heap of rank << 32 | place over a linked list; an entry is stale if the pair there changed."""
    size = 0
    for i in range(n):
        after[i] = i + 1
        before[i] = i - 1
    for i in range(n - 1):
        if current[i] != _NONE:
            size = _push(heap, size, np.uint64(current[i]) << np.uint64(32) | np.uint64(i))
    while size > 0:
        item, size = _pop(heap, size)
        at = np.int64(item & np.uint64(0xFFFFFFFF))
        rank = np.int32(item >> np.uint64(32))
        if current[at] != rank:
            continue
        gone = after[at]
        token[at] = results[rank]
        current[gone] = _NONE
        after[at] = after[gone]
        if after[at] < n:
            before[after[at]] = at
            current[at] = _rank(token[at], token[after[at]], pairs, known)
            if current[at] != _NONE:
                size = _push(heap, size, np.uint64(current[at]) << np.uint64(32) | np.uint64(at))
        else:
            current[at] = _NONE
        left = before[at]
        if left >= 0:
            current[left] = _rank(token[left], token[at], pairs, known)
            if current[left] != _NONE:
                size = _push(heap, size, np.uint64(current[left]) << np.uint64(32) | np.uint64(left))
    count = 0
    at = np.int64(0)
    while at < n:
        ids[filled + count] = token[at]
        count += 1
        at = np.int64(after[at])
    return count


@njit(**BORROWED)
def merge_piece(data, start, end, merges, lists, heap, ids, filled):  # type: ignore[no-untyped-def]
    """Encodes the piece data[start:end] into ids[filled:]; how many ids, never more than it has bytes.

    lists, heap: `working_memory` for that many bytes.
    """
    byte_ids, byte_ranks, pairs, known, results, chars, levels, ahead, behind, _joined = merges
    token, order, after, before = lists[0], lists[1], lists[2], lists[3]
    n = _begin(
        data, start, end, byte_ids, byte_ranks, pairs, known, chars, levels, ahead, behind, token, order
    )
    if n <= _SCAN:
        return _merge_short(n, pairs, known, results, token, order, after, before, ids, filled)
    return _merge_long(n, pairs, known, results, token, order, after, before, heap, ids, filled)


def working_memory(size: int) -> tuple[np.ndarray, np.ndarray]:
    """`(lists, heap)` for `merge_piece`, for pieces of up to `size` bytes: int32 (4, size), uint64."""
    return np.empty((4, size), np.int32), np.empty(3 * size, np.uint64)


def _characters(merges: Merges) -> np.ndarray:
    """int32[65536]: the id of each character of two or three bytes, -1 where it is several tokens or none exists."""
    found = np.full(1 << 16, -1, np.int32)
    _encode_characters(merges, *working_memory(ROOM), np.empty(3, np.uint8), np.empty(3, np.uint32), found)
    return found


@njit(types.void(MERGES, _GRID, _WORDS, types.uint8[::1], types.uint32[::1], _LIST), **BORROWED)
def _encode_characters(merges, lists, heap, data, ids, found):  # type: ignore[no-untyped-def]
    """Fills `found`, see `_characters`."""
    for code in range(0x80, 1 << 16):
        if 0xD800 <= code < 0xE000:
            continue
        size = 2 if code < 0x800 else 3
        data[0] = 0xC0 | code >> 6 if size == 2 else 0xE0 | code >> 12
        data[1] = 0x80 | (code & 63 if size == 2 else code >> 6 & 63)
        data[2] = 0x80 | code & 63
        missing = False
        for i in range(size):
            missing |= merges.byte_ids[data[i]] < 0
        if missing:
            continue
        n = merge_piece(data, 0, size, merges, lists, heap, ids, 0)
        if n == 1:
            found[code] = ids[0]
