"""Added tokens that are not special: strings that a tokenizer finds in text before anything is cut into pieces.

The rules are those of `tokenizers`: tokens that do not want normalized text are searched first, then the others in
what is left; each time the leftmost match counts, of those that begin there the longest, and the search goes on behind
it. A special token is found like the others and then left in the text, for special tokens are never matched in text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numba import njit, types

from stages.text.vectors import load8, lowest

_BYTES = types.Array(types.uint8, 1, "C", readonly=True)
_PLACES = types.Array(types.int64, 1, "C", readonly=True)
_FLAGS = types.Array(types.boolean, 1, "C", readonly=True)


class AddedTokens:
    """The added tokens of one tokenizer.

    some   whether any is not special; else there is nothing to find
    plain  whether `find` does all that they ask for: none strips spaces around it or wants to be a word of its own
    """

    def __init__(
        self, added: Sequence[dict[str, Any]], ids: dict[str, int], normalize: Callable[[str], str]
    ) -> None:
        """`added` as in tokenizer.json; `normalize` is the tokenizer's normalizer."""
        own = [token for token in added if token["content"] and not token.get("special")]
        self.some = bool(own)
        self.plain = not any(token.get(flag) for token in own for flag in ("lstrip", "rstrip", "single_word"))
        self._searches: list[_Search] = []
        for normalized in (False, True):
            group = [t for t in added if t["content"] and bool(t.get("normalized")) == normalized]
            if any(not token.get("special") for token in group):
                contents = [normalize(t["content"]) if normalized else t["content"] for t in group]
                self._searches.append(
                    _Search(
                        [content.encode() for content in contents],
                        [-1 if t.get("special") else ids[t["content"]] for t in group],
                    )
                )

    def find(self, data: np.ndarray, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """`(cuts, ids)`: the texts cut at every match. int64 positions from offsets[0] to offsets[-1], ascending, text
        borders included, and int32 per part between two of them: the id of the token that it is, or -1 for text."""
        cuts, ids = offsets, np.full(len(offsets) - 1, -1, np.int32)
        for search in self._searches:
            cuts, ids = search.cut(data, cuts, ids)
        return cuts, ids

    def stands_in(self, data: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        """bool per text: whether `find` finds a token in it."""
        cuts, ids = self.find(data, offsets)
        result = np.zeros(len(offsets) - 1, bool)
        result[np.searchsorted(offsets, cuts[:-1][ids >= 0], "right") - 1] = True
        return result


class _Search:
    """Strings to look for at the same time."""

    def __init__(self, contents: Sequence[bytes], ids: Sequence[int]) -> None:
        order = sorted(range(len(contents)), key=lambda i: (contents[i][:1], -len(contents[i])))
        ordered = [contents[i] for i in order]
        self._ids = np.array([ids[i] for i in order], np.int32)
        self._flat = np.frombuffer(b"".join(ordered), np.uint8)
        self._offsets = np.zeros(len(ordered) + 1, np.int64)
        np.cumsum([len(content) for content in ordered], out=self._offsets[1:])
        firsts = np.array([content[0] for content in ordered])
        self._ranges = np.searchsorted(firsts, np.arange(257))  # strings by their first byte
        self._spread = np.unique(firsts).astype(np.uint64) * np.uint64(0x0101010101010101)
        self._starts = np.zeros(1 << 16, np.bool_)  # by two bytes of text: whether a string begins with them
        for content in ordered:
            follow = slice(content[1], content[1] + 1) if len(content) > 1 else slice(0, 256)
            self._starts[content[0] << 8 :][follow] = True

    def cut(self, data: np.ndarray, cuts: np.ndarray, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Cuts the parts with id -1 further, see `AddedTokens.find`."""
        strings = (self._flat, self._offsets, self._ranges, self._spread, self._starts)
        found = _find(data, cuts, ids >= 0, *strings, np.empty((0, 3), np.int64))  # type: ignore[call-arg]
        if found == 0:
            return cuts, ids
        matches = np.empty((found, 3), np.int64)
        _find(data, cuts, ids >= 0, *strings, matches)  # type: ignore[call-arg]
        matches = matches[self._ids[matches[:, 2]] >= 0]
        finer = np.sort(np.concatenate([cuts, matches[:, 0], matches[:, 1]]))
        finer_ids = np.full(len(finer) - 1, -1, np.int32)
        # of several cuts at one place, the last one begins the part that is not empty
        finer_ids[np.searchsorted(finer, cuts[:-1][ids >= 0], "right") - 1] = ids[ids >= 0]
        finer_ids[np.searchsorted(finer, matches[:, 0], "right") - 1] = self._ids[matches[:, 2]]
        return finer, finer_ids


def replace_ids(
    ids: np.ndarray, bounds: np.ndarray, cuts: np.ndarray, tokens: np.ndarray, offsets: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """`(ids, bounds)` of texts from the ids of their parts: each part that is an added token becomes its one id.

    bounds by part; cuts and tokens as `AddedTokens.find` returns them; offsets of the texts.
    """
    matched = np.flatnonzero(tokens >= 0)
    begins, ends = bounds[matched], bounds[matched + 1]
    ids[begins] = tokens[matched]
    steps = np.zeros(len(ids) + 1, np.int64)
    np.add.at(steps, begins + 1, 1)
    np.add.at(steps, ends, -1)
    keep = np.cumsum(steps[:-1]) == 0
    places = np.zeros(len(ids) + 1, np.int64)
    np.cumsum(keep, out=places[1:])
    return ids[keep], places[bounds[np.searchsorted(cuts, offsets)]]


@njit(inline="always", cache=True, nogil=True)
def _ahead(word, spread):  # type: ignore[no-untyped-def]
    """How many of the eight bytes stand before the first that any string begins with."""
    found = np.uint64(0)
    for byte in spread:
        other = word ^ byte  # the lowest byte that is 0 has its top bit set below
        found |= (other - np.uint64(0x0101010101010101)) & ~other & np.uint64(0x8080808080808080)
    return lowest(found) >> 3


@njit(
    types.int64(
        _BYTES, _PLACES, _FLAGS, _BYTES, types.int64[::1], types.int64[::1], types.uint64[::1], types.boolean[::1],
        types.int64[:, ::1],
    ),
    cache=True,
    nogil=True,
)  # fmt: skip
def _find(data, cuts, done, flat, offsets, ranges, spread, starts, matches):  # type: ignore[no-untyped-def]
    """How many matches there are in parts that are not done; `matches` (start, end, string) gets as many as fit."""
    count = 0
    for part in range(len(done)):
        at, end = cuts[part], cuts[part + 1]
        if done[part]:
            continue
        while at < end:
            if at + 8 <= end:
                at += _ahead(load8(data, at), spread)
                if at == end or ranges[data[at]] == ranges[np.int64(data[at]) + 1]:
                    continue
            first = np.int64(data[at])
            if ranges[first] == ranges[first + 1]:
                at += 1
                continue
            following = np.int64(data[at + 1]) if at + 1 < end else np.int64(0)
            step = 1
            if starts[first << 8 | following] or at + 1 == end:
                for string in range(ranges[first], ranges[first + 1]):
                    size = offsets[string + 1] - offsets[string]
                    same = size <= end - at
                    i = 1
                    while same and i < size:
                        same = data[at + i] == flat[offsets[string] + i]
                        i += 1
                    if same:
                        if count < len(matches):
                            matches[count, 0] = at
                            matches[count, 1] = at + size
                            matches[count, 2] = string
                        count += 1
                        step = size
                        break
            at += step
    return count
