"""Learned merges against the rule written down without any bookkeeping."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.tokenizer.learn import learn_merges

COUNTED = st.dictionaries(
    st.lists(st.sampled_from([97, 98, 99, 0xE5]), max_size=14).map(bytes), st.integers(1, 9), max_size=25
)


def learned(counted: dict[bytes, int], vocab_size: int, min_count: int = 2) -> list[tuple[int, int]]:
    offsets = np.zeros(len(counted) + 1, np.int64)
    np.cumsum([len(s) for s in counted], out=offsets[1:])
    counts = np.array(list(counted.values()), np.int64)
    merges = learn_merges(np.frombuffer(b"".join(counted), np.uint8), offsets, counts, vocab_size, min_count)
    return [tuple(merge) for merge in merges.tolist()]


def by_the_rule(counted: dict[bytes, int], vocab_size: int, min_count: int = 2) -> list[tuple[int, int]]:
    """Count all pairs, merge the most frequent (ties: smaller ids), everywhere, left to right; repeat."""
    pieces = {piece: list(piece) for piece in counted}
    merges: list[tuple[int, int]] = []
    while 256 + len(merges) < vocab_size:
        pairs: Counter[tuple[int, int]] = Counter()
        for piece, tokens in pieces.items():
            for pair in pairwise(tokens):
                pairs[pair] += counted[piece]
        best = min(pairs, key=lambda pair: (-pairs[pair], pair), default=None)
        if best is None or pairs[best] < min_count:
            break
        for tokens in pieces.values():
            at = 0
            while at + 1 < len(tokens):
                if (tokens[at], tokens[at + 1]) == best:
                    tokens[at : at + 2] = [256 + len(merges)]
                at += 1
        merges.append(best)
    return merges


@settings(max_examples=300, deadline=None)
@given(counted=COUNTED, size=st.integers(0, 90), min_count=st.integers(1, 3))
def test_merges_follow_the_rule(counted: dict[bytes, int], size: int, min_count: int) -> None:
    merges = by_the_rule(counted, 256 + size, min_count)
    assert learned(counted, 256 + size, min_count) == merges
    assert learned(dict(reversed(counted.items())), 256 + size, min_count) == merges


def test_two_merges_never_spell_the_same_bytes() -> None:
    counted = {
        ("ab" * n + "a" * m + "b" * k).encode(): 2 for n in range(7) for m in range(7) for k in range(7)
    }
    tokens = [bytes([byte]) for byte in range(256)]
    for left, right in learned(counted, 700):
        tokens.append(tokens[left] + tokens[right])
    assert len(set(tokens)) == len(tokens) > 300


def test_many_pairs_grow_the_arrays() -> None:
    """More pairs than the arrays begin with: random bytes have nearly all of the 65,536, merges make more."""
    random = np.random.default_rng(3)
    counted = {random.integers(0, 256, 120, np.uint8).tobytes(): 1 for _ in range(3000)}
    merges = learned(counted, 1500)
    tokens = [bytes([byte]) for byte in range(256)]
    for left, right in merges:
        tokens.append(tokens[left] + tokens[right])
    assert len(merges) == 1500 - 256
    first = Counter(pair for piece in counted for pair in pairwise(piece))
    assert tuple(tokens[256]) == min(first, key=lambda pair: (-first[pair], pair))


def test_nothing_to_learn() -> None:
    assert learned({}, 300) == learned({b"": 5, b"a": 9}, 300) == learned({b"ab": 1}, 300) == []
    with pytest.raises(ValueError, match="256"):
        learned({b"ab": 5}, 255)
