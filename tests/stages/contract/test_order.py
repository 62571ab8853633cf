"""The data order: bijections, caps, continuity, elasticity, mixture, and the numbers that version 0 is frozen to."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.contract.epochs import BLOCK, WINDOW, WindowEpochs
from stages.contract.interleave import Tree
from stages.contract.order import GROUP, SAMPLE, Order, Source, Stretch
from stages.contract.permutation import derive, key_of, permute

keys = st.integers(0, 2**64 - 1).map(np.uint64)


def sources(*units):
    return [Source(f"{i:016x}", f"digest {i}", n) for i, n in enumerate(units)]


def everything(order):
    return [order.batch_samples(step) for step in range(order.steps)]


# ---- permutations ----------------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(n=st.integers(1, 3_000), key=keys)
def test_a_permutation_is_a_bijection_with_an_inverse(n, key):
    x = np.arange(n)
    y = permute(x, n, key)
    assert np.array_equal(np.sort(y), x)
    assert np.array_equal(permute(y, n, key, inverse=True), x)


@given(n=st.integers(1, 2**62), key=keys, share=st.floats(0, 1, exclude_max=True))
def test_large_ranges_keep_to_their_bounds(n, key, share):
    x = np.array([min(n - 1, int(share * n))])
    y = permute(x, n, key)
    assert 0 <= y[0] < n
    assert permute(y, n, key, inverse=True)[0] == x[0]


@settings(max_examples=100, deadline=None)
@given(n=st.integers(1, 2_000), block=st.integers(1, 40), window=st.integers(1, 9), key=keys)
def test_an_epoch_reads_every_unit_once(n, block, window, key):
    permutation = WindowEpochs(block, window)
    place, units = np.arange(n), np.full(n, n)
    unit = permutation.forward(place, units, np.array([key]))
    assert np.array_equal(np.sort(unit), place)
    assert np.array_equal(permutation.backward(unit, units, np.array([key])), place)


def test_units_of_a_block_stay_within_a_window_of_the_epoch():
    n, block, window = 8_000, 8, 10
    unit = WindowEpochs(block, window).forward(np.arange(n), np.full(n, n), np.array([key_of("x")]))
    place = np.empty(n, np.int64)
    place[unit] = np.arange(n)
    spread = place.reshape(-1, block)
    assert (spread.max(1) - spread.min(1)).max() < block * window


@pytest.mark.parametrize("n", [2, 3, 5, 16, 64, 1000, 1024, 70_001])
def test_no_structure_in_low_bits_neighbours_or_places(n):
    """Over many keys: even numbers land on even places half of the time, neighbours part, every place is reached."""
    trials = 2_000 if n < 100 else 400
    every = np.stack([permute(np.arange(min(n, 64)), n, key_of("k", k)) for k in range(trials)])
    same = np.mean(every % 2 == np.arange(every.shape[1]) % 2)
    evens = (n + 1) // 2 / n
    columns = np.arange(every.shape[1]) % 2 == 0
    expected = np.mean(np.where(columns, evens, 1 - evens))
    assert same == pytest.approx(expected, abs=0.04)
    assert np.mean(every[:, 1] == (every[:, 0] + 1) % n) == pytest.approx(1 / (n - 1), abs=0.06)
    if n <= 5:
        assert len(np.unique(every, axis=0)) == [1, 1, 2, 6, 24, 120][n]
    first = np.bincount(every[:, 0], minlength=n)
    if n <= 64:
        assert first.max() / trials < 2.5 / n


# ---- the interleave --------------------------------------------------------------------------------------------

counts_of = st.lists(st.integers(0, 400), min_size=1, max_size=9).filter(any)


@settings(max_examples=150, deadline=None)
@given(counts=counts_of)
def test_the_tree_gives_each_source_exactly_its_slots_and_can_be_climbed(counts):
    tree = Tree(counts, range(len(counts)))
    slots = np.arange(sum(counts))
    source, number = tree.descend(slots)
    for s, count in enumerate(counts):
        mine = slots[source == s]
        assert np.array_equal(number[source == s], np.arange(count))
        assert np.array_equal(tree.ascend(s, np.arange(count)), mine)


@settings(max_examples=150, deadline=None)
@given(counts=counts_of, batch=st.integers(1, 64))
def test_any_batch_holds_each_source_within_two_of_its_share(counts, batch):
    total = sum(counts)
    source, _ = Tree(counts, range(len(counts))).descend(np.arange(total))
    for start in range(0, total - batch + 1, max(1, batch // 2)):
        found = np.bincount(source[start : start + batch], minlength=len(counts))
        assert np.all(np.abs(found - np.array(counts) * batch / total) < 2.5)


def test_most_batches_are_within_two_also_with_many_sources():
    weights = np.array([2 ** -(i / 4) for i in range(40)])
    counts = (weights / weights.sum() * 128_000).astype(int).tolist()
    source, _ = Tree(counts, range(40)).descend(np.arange(sum(counts)))
    batches = source[: sum(counts) // 128 * 128].reshape(-1, 128)
    worst = max(
        np.abs(np.bincount(b, minlength=40) - np.array(counts) * 128 / sum(counts)).max() for b in batches
    )
    assert worst <= 2


# ---- the whole order -------------------------------------------------------------------------------------------


@st.composite
def orders(draw):
    units = draw(st.lists(st.integers(1, 60), min_size=1, max_size=4))
    stretches = []
    for _ in range(draw(st.integers(1, 3))):
        ratio = draw(st.sampled_from([1, 2, 4]))
        batch, steps = draw(st.integers(1, 9)), draw(st.integers(1, 8))
        cuts = sorted(
            draw(st.lists(st.integers(0, batch * steps), min_size=len(units) - 1, max_size=len(units) - 1))
        )
        edges = [0, *cuts, batch * steps]
        stretches.append(
            Stretch(steps, batch, 8 // ratio, tuple(b - a for a, b in itertools.pairwise(edges)))
        )
    block, window = draw(st.sampled_from([(BLOCK, WINDOW), (4, 3)]))
    return Order(draw(st.integers(0, 9)), 8, sources(*units), stretches, block=block, window=window)


@settings(max_examples=50, deadline=None)
@given(order=orders(), worlds=st.lists(st.integers(1, 13), min_size=1, max_size=4))
def test_ranks_of_any_world_share_out_the_same_batch(order, worlds):
    for step, world in zip(range(order.steps), itertools.cycle(worlds), strict=False):
        whole = order.batch_samples(step)
        parts = [order.batch_samples(step, rank, world) for rank in range(world)]
        assert np.array_equal(np.concatenate(parts), whole)
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


@settings(max_examples=80, deadline=None)
@given(order=orders())
def test_nothing_is_read_again_before_everything_has_been_read(order):
    """In every prefix of the draws of a source, the reads of its units differ by one at most; quotas are exact."""
    reads = [np.zeros(source.units, np.int64) for source in order.sources]
    for stretch, first in zip(
        order.stretches, itertools.accumulate((s.steps for s in order.stretches), initial=0), strict=False
    ):
        seen = [np.zeros(source.units * order.longest, np.int64) for source in order.sources]
        found = np.zeros(len(order.sources), np.int64)
        for step in range(first, first + stretch.steps):
            for source, offset, length in order.batch_samples(step):
                assert offset % length == 0
                assert length == stretch.seq_len
                seen[source][offset : offset + length] += 1
                found[source] += 1
        assert tuple(found) == stretch.samples
        for s, tokens in enumerate(seen):
            assert tokens.reshape(-1, order.longest).sum() == stretch.samples[s] * stretch.seq_len
            reads[s] += tokens.reshape(-1, order.longest).max(1, initial=0)
            assert reads[s].max() - reads[s].min() <= 1


@settings(max_examples=40, deadline=None)
@given(order=orders(), start=st.integers(0, 470), size=st.integers(1, 40))
def test_locating_a_range_finds_every_reading_and_nothing_else(order, start, size):
    for s in range(len(order.sources)):
        expected = [
            (step, slot, int(offset), int(length))
            for step, batch in enumerate(everything(order))
            for slot, (source, offset, length) in enumerate(batch)
            if source == s and offset < start + size and offset + length > start
        ]
        assert order.locate(s, start, start + size).tolist() == expected


def one_source(seed=0, units=500, uid="a", steps=50):
    return Order(seed, 4, [Source(uid, "d", units)], [Stretch(steps, 20, 4, (steps * 20,))])


def test_epochs_seeds_and_sources_have_orders_of_their_own():
    offsets = np.concatenate(everything(one_source()))["offset"] // 4
    first, second = offsets[:500], offsets[500:]
    assert set(first) == set(second) == set(range(500))
    others = [second]
    others += [
        np.concatenate(everything(order))["offset"][:500] // 4
        for order in (one_source(seed=1), one_source(uid="b"))
    ]
    for other in others:
        assert np.mean(first == other) < 0.02
        assert abs(np.corrcoef(first, other)[0, 1]) < 0.2
    assert abs(np.corrcoef(first, np.arange(500))[0, 1]) < 0.2


def test_another_source_or_a_later_phase_leaves_the_order_of_a_source_alone():
    def draws(order, uid):
        at = [source.uid for source in order.sources].index(uid)
        found = np.concatenate(
            [np.sort(batch[batch["source"] == at]["offset"]) for batch in everything(order)]
        )
        return found.tolist()

    a, b, c = Source("a", "x", 100), Source("b", "y", 100), Source("c", "z", 100)
    two = Order(3, 4, [a, b], [Stretch(10, 10, 4, (50, 50))])
    three = Order(3, 4, [c, a, b], [Stretch(10, 20, 4, (100, 50, 50))])
    assert sorted(draws(two, "a")) == sorted(draws(three, "a"))
    longer = Order(3, 4, [a, b], [Stretch(10, 10, 4, (50, 50)), Stretch(5, 10, 4, (50, 0))])
    assert [batch.tolist() for batch in everything(longer)[:10]] == [
        batch.tolist() for batch in everything(two)
    ]
    swapped = Order(3, 4, [b, a], [Stretch(10, 10, 4, (50, 50))])
    assert draws(swapped, "a") == draws(two, "a")


def test_sorted_data_is_shuffled_before_it_is_split():
    order = one_source(units=1000)
    shares = [
        [np.mean(order.batch_samples(step, rank, 2)["offset"]) for step in range(order.steps)]
        for rank in (0, 1)
    ]
    assert abs(np.mean(shares[0]) - np.mean(shares[1])) < 0.1 * np.mean(shares)


def test_sub_windows_of_a_unit_are_far_apart():
    order = Order(0, 8, sources(5_000), [Stretch(400, 50, 2, (20_000,))])
    when: dict[int, list[int]] = {}
    for step, batch in enumerate(everything(order)):
        for offset in batch["offset"]:
            when.setdefault(int(offset) // 8, []).append(step)
    gaps = [b - a for steps in when.values() for a, b in itertools.pairwise(sorted(steps))]
    assert np.median(gaps) == pytest.approx(GROUP / 50, abs=2)


def test_the_chain_tells_the_first_phase_that_differs():
    first, second = Stretch(10, 10, 4, (60, 40)), Stretch(5, 10, 4, (50, 0))
    base = Order(3, 4, sources(100, 100), [first, second]).chain
    assert len(base) == 3
    assert Order(3, 4, sources(100, 100), [first]).chain == base[:2]
    assert Order(3, 4, sources(100, 100), [first, Stretch(5, 10, 2, (50, 0))]).chain[:2] == base[:2]
    assert Order(3, 4, sources(100, 100)[::-1], [Stretch(10, 10, 4, (40, 60))]).chain == base[:2]
    others = [
        Order(4, 4, sources(100, 100), [first, second]),
        Order(3, 4, sources(100, 99), [first, second]),
        Order(3, 4, sources(100, 100), [Stretch(10, 10, 4, (61, 39)), second]),
        Order(3, 4, sources(100, 100), [Stretch(20, 5, 4, (60, 40)), second]),
    ]
    assert all(order.chain[1] != base[1] for order in others)
    changed = [Source("0" * 16, "other", 100), sources(100, 100)[1]]
    assert Order(3, 4, changed, [first]).chain[1] != base[1]


def test_what_is_no_plan_is_refused():
    with pytest.raises(ValueError, match="is not a phase"):
        Order(0, 8, sources(5), [Stretch(2, 2, 8, (3,))])
    with pytest.raises(ValueError, match="is not a phase"):
        Order(0, 8, sources(5), [Stretch(2, 2, 3, (4,))])
    with pytest.raises(ValueError, match="without a single unit"):
        Order(0, 8, sources(0), [Stretch(2, 2, 8, (4,))])
    order = one_source()
    for step in (-1, order.steps):
        with pytest.raises(IndexError, match="step"):
            order.batch_samples(step)
    with pytest.raises(IndexError, match="rank 2 of 2"):
        order.batch_samples(0, 2, 2)


def test_a_run_of_trillions_of_tokens_is_planned_at_once():
    units = 3_000_000_000
    order = Order(
        1, 4096, sources(units, units // 7), [Stretch(4_000_000, 1000, 4096, (3_000_000_000, 1_000_000_000))]
    )
    batch = order.batch_samples(3_999_999)
    assert batch["offset"].max() < units * 4096
    assert batch["offset"].min() >= 0
    slot = int(np.flatnonzero(batch["source"] == 0)[0])
    offset = int(batch["offset"][slot])
    assert (3_999_999, slot, offset, 4096) in order.locate(0, offset, offset + 1).tolist()


# ---- golden vectors: ORDER_VERSION 0 ---------------------------------------------------------------------------
# A run on disk refers to these numbers. If this test fails, the order has a new version; never edit them.


def test_golden_order_version_0():
    assert permute(np.arange(10), 10, key_of("golden")).tolist() == GOLDEN_PERMUTATION
    assert derive(np.array([key_of("golden")]), 7).tolist() == [GOLDEN_KEY]
    order = Order(
        42, 8, [Source("6e317bcd6839e887", "d0", 11), Source("4b5e57f6eb2f42b9", "d1", 7)],
        [Stretch(3, 6, 4, (12, 6)), Stretch(3, 5, 8, (5, 10))],
    )  # fmt: skip
    assert SAMPLE.itemsize == 20
    assert [[(int(s), int(o)) for s, o, _ in batch] for batch in everything(order)] == GOLDEN_BATCHES
    assert order.chain[-1] == GOLDEN_CHAIN


GOLDEN_PERMUTATION = [8, 7, 1, 2, 4, 3, 5, 0, 9, 6]
GOLDEN_KEY = 12865891900595439171
GOLDEN_BATCHES = [
    [(0, 40), (0, 32), (0, 8), (0, 16), (1, 48), (1, 16)],
    [(0, 64), (0, 44), (1, 0), (0, 20), (1, 20), (0, 48)],
    [(0, 52), (1, 52), (0, 68), (0, 12), (1, 4), (0, 36)],
    [(0, 72), (1, 24), (1, 40), (1, 8), (1, 32)],
    [(1, 48), (0, 80), (0, 0), (1, 16), (1, 24)],
    [(1, 32), (0, 24), (1, 8), (1, 40), (0, 56)],
]
GOLDEN_CHAIN = "90f4f0e158f6cfb5bff3c5ba99d66f12fdcc724393fd07a466afaabd77d20fb5"
