"""Packing: every token once, no cut that is not needed, little padding, the same rows from the same documents."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.contract.problem import RunError
from stages.contract.rows import check_rows, read_rows
from stages.shards.pack import GROUP_DOCUMENTS, GROUP_TOKENS, group_borders, pack_shard


def ids(count, seed=0):
    return np.frombuffer(np.random.default_rng(seed).bytes(16 * count), "V16")


def lognormal(count, mean=6.5, seed=0):
    return np.clip(np.random.default_rng(seed).lognormal(mean, 1.0, count), 5, 200_000).astype(np.int64)


def padding(lengths, packing):
    return 1 - lengths.sum() / (packing.rows.rows * packing.rows.length)


@settings(max_examples=60, deadline=None)
@given(lengths=st.lists(st.integers(1, 300), min_size=0, max_size=120), length=st.sampled_from([2, 7, 64, 100, 4096]))
def test_every_token_stands_in_one_row_and_only_long_documents_are_cut(lengths, length):
    lengths = np.array(lengths, np.int64)
    packing = pack_shard(lengths, ids(len(lengths)), length)
    first, spans = packing.rows.first, packing.rows.spans
    assert sum(packing.groups) == packing.rows.rows
    pieces: dict[int, list[tuple[int, int]]] = {}
    for row in range(packing.rows.rows):
        mine = spans[first[row] : first[row + 1]]
        assert 0 < mine["length"].sum() <= length
        for start, size, document in mine.tolist():
            pieces.setdefault(document, []).append((start, size))
    starts = np.cumsum(lengths) - lengths
    assert sorted(pieces) == list(range(len(lengths)))
    for document, found in pieces.items():
        cut = [(int(starts[document]) + at, min(length, int(lengths[document]) - at)) for at in range(0, int(lengths[document]), length)]
        assert sorted(found) == cut


@settings(max_examples=30, deadline=None)
@given(lengths=st.lists(st.integers(1, 300), min_size=1, max_size=80))
def test_whole_documents_may_be_kept_in_rows_of_their_own(lengths):
    lengths = np.array(lengths, np.int64)
    packing = pack_shard(lengths, ids(len(lengths)), 64, whole=True)
    spans = packing.rows.spans
    assert sorted(spans["document"].tolist()) == list(range(len(lengths)))
    assert np.array_equal(spans["length"][np.argsort(spans["document"])], lengths)
    filled = np.add.reduceat(spans["length"].astype(np.int64), packing.rows.first[:-1])
    alone = np.diff(packing.rows.first) == 1
    assert np.all((filled <= 64) | alone)


@pytest.mark.parametrize("length", [2048, 4096])
@pytest.mark.parametrize("count", [8_192, 30_000])
@pytest.mark.parametrize("mean", [5.5, 6.5, 7.5])
def test_padding_of_large_sources_is_below_a_tenth_of_a_percent(length, count, mean):
    lengths = lognormal(count, mean)
    packing = pack_shard(lengths, ids(count), length)
    fewest = -(-int(lengths.sum()) // length)  # short sources: even the fewest rows leave more than that over
    assert padding(lengths, packing) < 0.001 or packing.rows.rows == fewest


@pytest.mark.parametrize("count", [50, 500, 3_000])
def test_padding_of_small_sources_is_that_of_the_best_rows_there_are(count):
    """No packing can have fewer rows than the tokens fill, or than there are documents of more than half a row."""
    lengths = lognormal(count)
    packing = pack_shard(lengths, ids(count), 2048)
    rest = lengths % 2048
    least = max(-(-int(lengths.sum()) // 2048), int(np.sum(lengths // 2048)) + int(np.sum(rest > 1024)))
    assert packing.rows.rows - least <= 1


def test_groups_close_near_their_size_and_pack_within_themselves():
    assert group_borders(np.empty(0, np.int64)) == [0]
    assert group_borders(np.full(100, 5)) == [0, 100]
    many = np.diff(group_borders(np.full(100_000, 50)))
    assert len(many) == round(100_000 / GROUP_DOCUMENTS)
    assert many.max() - many.min() <= 1
    long = group_borders(np.full(1_000, GROUP_TOKENS // 100))
    assert len(long) - 1 == 10
    lengths = lognormal(40_000, 5.0)
    packing = pack_shard(lengths, ids(40_000), 2048)
    borders = np.cumsum([0, *packing.groups])
    edges = group_borders(lengths)
    for group, (low, high) in enumerate(pairwise(borders)):
        spans = packing.rows.spans[packing.rows.first[low] : packing.rows.first[high]]
        assert (spans["document"].min(), spans["document"].max()) == (edges[group], edges[group + 1] - 1)


def test_rows_are_in_hashed_order():
    """Any stretch of a group is a sample of it: the longest documents do not come first."""
    lengths = lognormal(5_000)
    packing = pack_shard(lengths, ids(5_000), 2048)
    heads = packing.rows.spans["length"][packing.rows.first[:-1].astype(np.int64)]
    assert abs(np.corrcoef(heads, np.arange(len(heads)))[0, 1]) < 0.05
    assert not np.array_equal(pack_shard(lengths, ids(5_000, 1), 2048).rows.spans, packing.rows.spans)
    assert np.array_equal(pack_shard(lengths, ids(5_000), 2048).rows.spans, packing.rows.spans)


def test_the_rows_of_version_1():
    """If this fails, `VERSION` of stages/shards/pack.py goes up: rows on disk were made by these numbers."""
    packing = pack_shard(np.array([9, 3, 20, 1, 7, 4, 8, 2]), ids(8, 5), 8)
    assert packing.groups == (7,)
    assert packing.rows.first.tolist() == GOLDEN_FIRST
    assert packing.rows.spans.tolist() == GOLDEN_SPANS


GOLDEN_FIRST = [0, 1, 2, 3, 5, 8, 10, 11]
GOLDEN_SPANS = [(44, 8, 6), (12, 8, 2), (20, 8, 2), (8, 1, 0), (33, 7, 4), (9, 3, 1), (32, 1, 3), (52, 2, 7), (28, 4, 2), (40, 4, 5), (0, 8, 0)]


def test_a_file_of_rows_reads_back_and_a_foreign_one_is_refused(tmp_path):
    lengths = lognormal(300, 4.0)
    packing = pack_shard(lengths, ids(300), 128)
    path = tmp_path / "00000.rows-128"
    path.write_bytes(packing.rows.to_bytes())
    read = read_rows(path, 128)
    assert np.array_equal(read.first, packing.rows.first)
    assert np.array_equal(read.spans, packing.rows.spans)
    assert check_rows(path, 128, packing.groups, lengths) == []
    which, spans = read.of(np.array([5, 2]))
    assert which.tolist() == sorted(which.tolist())
    assert spans["length"][which == 1].tolist() == read.spans["length"][read.first[2] : read.first[3]].tolist()
    assert 7 in {int(d) for row in read.holding(7) for d in read.spans["document"][read.first[row] : read.first[row + 1]]}
    with pytest.raises(RunError, match="wanted are rows of 64"):
        read_rows(path, 64)
    assert check_rows(path, 128, (1,), lengths)[0].code == "D002"
    assert "exactly once" in check_rows(path, 128, packing.groups, lengths[::-1].copy())[0].message
