"""The data order: bijections, caps, continuity, elasticity, mixture, and the numbers that version 1 is frozen to."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.contract.epochs import BLOCK, GROUP_WINDOW, WINDOW, RowEpochs, Rows, WindowEpochs
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


def packed(*groups, name="rows"):
    return Rows(np.array(groups, np.int64), name)


@settings(max_examples=80, deadline=None)
@given(groups=st.lists(st.integers(1, 30), min_size=1, max_size=80), key=keys)
def test_an_epoch_of_packed_rows_reads_every_row_once(groups, key):
    rows = packed(*groups)
    place = np.arange(rows.total)
    row = RowEpochs().forward(rows, place, key)
    assert np.array_equal(np.sort(row), place)
    assert np.array_equal(RowEpochs().backward(rows, row, key), place)


def test_rows_of_a_group_are_spread_over_the_open_groups_and_groups_are_shuffled():
    groups = 4 * GROUP_WINDOW
    rows = packed(*[50] * groups)
    row = RowEpochs().forward(rows, np.arange(rows.total), key_of("x"))
    group = row // 50
    opened = group.reshape(4, -1)
    assert all(len(set(part.tolist())) == GROUP_WINDOW for part in opened)
    assert np.mean(group[1:] == group[:-1]) == pytest.approx(1 / GROUP_WINDOW, abs=0.01)
    assert np.mean(np.diff(np.sort(np.unique(opened[0]))) == 1) < 0.6  # not the first quarter of the source
    assert abs(np.corrcoef(row, np.arange(len(row)))[0, 1]) < 0.15


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
    for slots_done in (0, 1, len(slots) // 3, len(slots)):
        found = np.bincount(source[:slots_done], minlength=len(counts))
        assert tree.counts(slots_done).tolist() == found.tolist()


@settings(max_examples=150, deadline=None)
@given(counts=counts_of, batch=st.integers(1, 64))
def test_any_batch_holds_each_source_within_two_of_its_share(counts, batch):
    total = sum(counts)
    source, _ = Tree(counts, range(len(counts))).descend(np.arange(total))
    for start in range(0, total - batch + 1, max(1, batch // 2)):
        found = np.bincount(source[start : start + batch], minlength=len(counts))
        assert np.all(np.abs(found - np.array(counts) * batch / total) < 2.5)


def test_the_tree_can_be_climbed_in_phases_of_billions_of_sequences():
    counts = [3_500_000_000, 1_500_000_000, 999_999_999, 1]
    tree = Tree(counts, range(4))
    for s, count in enumerate(counts):
        numbers = np.unique(np.array([0, count // 3, count - 1]))
        source, number = tree.descend(tree.ascend(s, numbers))
        assert set(source.tolist()) == {s}
        assert np.array_equal(number, numbers)


def test_most_batches_are_within_two_also_with_many_sources():
    weights = np.array([2 ** -(i / 4) for i in range(40)])
    counts = (weights / weights.sum() * 128_000).astype(int).tolist()
    source, _ = Tree(counts, range(40)).descend(np.arange(sum(counts)))
    batches = source[: sum(counts) // 128 * 128].reshape(-1, 128)
    worst = max(
        np.abs(np.bincount(b, minlength=40) - np.array(counts) * 128 / sum(counts)).max() for b in batches
    )
    assert worst <= 2


@settings(max_examples=25, deadline=None)
@given(
    weights=st.lists(st.floats(0.001, 1), min_size=2, max_size=24), batch=st.sampled_from([16, 128, 1000]), at=st.floats(0, 1)
)
def test_any_thousand_steps_hold_each_source_to_a_tenth_of_a_percent_of_its_share(weights, batch, at):
    steps = 3_000
    counts = [int(weight / sum(weights) * steps * batch) for weight in weights]
    counts[0] += steps * batch - sum(counts)
    tree = Tree(counts, range(len(counts)))
    first = int(at * 2_000) * batch
    found = tree.counts(first + 1_000 * batch) - tree.counts(first)
    assert np.all(np.abs(found / (1_000 * batch) - np.array(counts) / (steps * batch)) < 0.001)


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
    return again(draw(st.integers(0, 9)), sources(*units), stretches, block, window)


def again(seed, found, stretches, block, window, skip=()):
    """An order over units of 8, with what it was made of in `made`."""
    order = Order(seed, 8, found, stretches, skip, block, window)
    order.made = {"seed": seed, "found": found, "stretches": stretches, "block": block, "window": window}
    return order


@settings(max_examples=30, deadline=None)
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


# ---- packed rows -----------------------------------------------------------------------------------------------


@st.composite
def packed_orders(draw):
    """Two lengths; every group has twice as many short rows as long ones, as far as that goes."""
    found = []
    for i in range(draw(st.integers(1, 3))):
        long = draw(st.lists(st.integers(1, 6), min_size=1, max_size=12))
        found.append(Source(f"{i:016x}", f"d{i}", 0, {8: packed(*long), 4: packed(*[2 * n for n in long])}))
    stretches = []
    for _ in range(draw(st.integers(1, 3))):
        batch, steps = draw(st.integers(1, 7)), draw(st.integers(1, 7))
        cuts = sorted(draw(st.lists(st.integers(0, batch * steps), min_size=len(found) - 1, max_size=len(found) - 1)))
        samples = tuple(b - a for a, b in itertools.pairwise([0, *cuts, batch * steps]))
        stretches.append(Stretch(steps, batch, draw(st.sampled_from([4, 8])), samples))
    return Order(draw(st.integers(0, 9)), 8, found, stretches)


@settings(max_examples=60, deadline=None)
@given(order=packed_orders())
def test_packed_rows_are_read_evenly_and_found_again(order):
    """With one length reads of rows differ by one at most; where the length changes, those of groups by little."""
    when: dict[tuple[int, int, int], list[tuple[int, int]]] = {}
    for step, batch in enumerate(everything(order)):
        for slot, (s, row, length) in enumerate(batch):
            when.setdefault((int(s), int(row), int(length)), []).append((step, slot))
    lengths = {stretch.seq_len for stretch in order.stretches}
    for s, source in enumerate(order.sources):
        shares = []
        for length in sorted(lengths):
            rows = source.rows[length]
            reads = np.array([len(when.get((s, row, length), ())) for row in range(rows.total)])
            if len(lengths) == 1:
                assert reads.max() - reads.min() <= 1
            shares.append(np.add.reduceat(reads, rows.first[:-1]) / rows.groups)
            for row in {0, rows.total // 2, rows.total - 1}:
                found = order.locate_rows(s, length, np.array([row]))
                assert [(int(r["step"]), int(r["slot"])) for r in found] == when.get((s, row, length), [])
        if len(source.rows[8].groups) == 1:  # all groups open: the account of the whole is exact to a row and seam
            seams = len(order.stretches)
            total = sum(st.samples[s] / source.rows[st.seq_len].total for st in order.stretches)
            assert abs(sum(share[0] for share in shares) - total) < 1e-9 + seams / source.rows[8].total


def test_another_length_goes_on_at_the_same_share_of_the_epoch():
    """Groups that were closed before the change are not read again in the epoch, groups behind are not lost."""
    groups = 8 * GROUP_WINDOW
    source = Source("a", "d", 0, {4: packed(*[40] * groups), 8: packed(*[20] * groups)})
    half = source.rows[4].total // 2 + 100
    rest = source.rows[8].total - source.rows[8].total // 2 - 50
    order = Order(0, 8, [source], [Stretch(half, 1, 4, (half,)), Stretch(rest, 1, 8, (rest,))])
    batches = np.concatenate([order.samples(0, half), order.samples(half, half + rest)])
    reads = np.zeros(groups)
    for length, each in ((4, 1 / 40), (8, 1 / 20)):
        mine = batches["offset"][batches["length"] == length] * length // 160
        reads += np.bincount(mine, minlength=groups) * each
    exact = np.count_nonzero(np.abs(reads - 1) < 1e-9)
    assert exact >= groups - GROUP_WINDOW
    assert reads.sum() == pytest.approx(groups, abs=1 / 20)


# ---- edits of a run --------------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(order=orders(), data=st.data())
def test_skipped_steps_are_missing_and_nothing_else_changes(order, data):
    a = data.draw(st.integers(0, order.steps - 1))
    b = data.draw(st.integers(a + 1, order.steps))
    if b - a == order.steps:
        return
    skipping = again(**order.made, skip=[(a, b)])
    batches = everything(order)
    assert [batch.tolist() for batch in everything(skipping)] == [batch.tolist() for batch in batches[:a] + batches[b:]]
    assert [skipping.data_step(step) for step in range(skipping.steps)] == [*range(a), *range(b, order.steps)]
    begun = sum(piece.first < a for piece in skipping.pieces)
    assert skipping.chain[: begun + 1] == order.chain[: begun + 1]
    assert (skipping.chain == order.chain) == (b == order.steps and len(skipping.pieces) == len(order.pieces))
    for s, source in enumerate(order.sources):
        kept = order.locate(s, 0, source.units * order.longest)
        kept = kept[(kept["step"] < a) | (kept["step"] >= b)]
        kept["step"] -= np.where(kept["step"] >= b, b - a, 0)
        assert skipping.locate(s, 0, source.units * order.longest).tolist() == kept.tolist()


@settings(max_examples=25, deadline=None)
@given(order=orders(), data=st.data())
def test_a_phase_that_ends_early_was_read_as_it_was_and_the_next_goes_on_behind_it(order, data):
    first = order.stretches[0]
    used = data.draw(st.integers(1, first.steps))
    ending = Stretch(first.steps, first.batch, first.seq_len, first.samples, used)
    ended = again(**order.made | {"stretches": [ending, first]})
    whole = again(**order.made | {"stretches": [first, first]})
    assert [b.tolist() for b in everything(ended)[:used]] == [b.tolist() for b in everything(whole)[:used]]
    assert ended.chain[:2] == whole.chain[:2]
    assert ended.chain[2] != whole.chain[2]
    reads = [np.zeros(source.units * order.longest, np.int64) for source in order.sources]
    for batch in everything(ended):
        for source, offset, length in batch:
            reads[source][offset : offset + length] += 1
    for s, source in enumerate(order.sources):
        if first.samples[s]:
            assert reads[s].max() <= -(-int(ended._before_PS[1, s] + ended._drawn_PS[1, s]) // source.units)


def test_what_cannot_be_skipped_is_refused():
    stretch = Stretch(4, 2, 8, (8,))
    for skip in ([(2, 2)], [(3, 5)], [(2, 3), (1, 2)], [(0, 4)]):
        with pytest.raises(ValueError, match=r"skipped|without a single step"):
            Order(0, 8, sources(5), [stretch], skip)


# ---- scale -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("packing", [False, True])
def test_ten_trillion_tokens_of_a_thousand_sources_need_no_array_of_their_length(packing):
    """What is computed for a plan and its first batch is counted, not timed: elements of the largest arrays."""
    count, each = 1_000, 10**13 // 1_000
    made = []
    for i in range(count):
        groups = packed(*[2 * 4096] * (each // 4096 // 8192)) if packing else None
        made.append(Source(f"{i:016x}", "d", each // 4096, {4096: groups} if groups else {}))
    steps, batch = 2_000_000, 1_000
    order = Order(0, 4096, made, [Stretch(steps, batch, 4096, (steps * batch // count,) * count)])
    found = order.batch_samples(steps - 1)
    assert len(found) == batch
    assert len(np.unique(found["source"])) > 600
    held = [value.size for value in vars(order).values() if isinstance(value, np.ndarray)]
    held += [value.size for tree in order._trees for value in vars(tree).values() if isinstance(value, np.ndarray)]
    assert max(held) <= 4 * count
    tables = [table for _, table in order._rows._tables.values()]
    assert all(len(table.order) <= each // 4096 // 8192 for table in tables)


# ---- golden vectors: ORDER_VERSION 1 ---------------------------------------------------------------------------
# A run on disk refers to these numbers. If this test fails, the order has a new version; never edit them.


def test_golden_order_version_1():
    assert permute(np.arange(10), 10, key_of("golden")).tolist() == GOLDEN_PERMUTATION
    assert derive(np.array([key_of("golden")]), 7).tolist() == [GOLDEN_KEY]
    order = Order(
        42, 8, [Source("6e317bcd6839e887", "d0", 11), Source("4b5e57f6eb2f42b9", "d1", 7)],
        [Stretch(3, 6, 4, (12, 6)), Stretch(3, 5, 8, (5, 10))],
    )  # fmt: skip
    assert SAMPLE.itemsize == 20
    assert [[(int(s), int(o)) for s, o, _ in batch] for batch in everything(order)] == GOLDEN_BATCHES
    assert order.chain[-1] == GOLDEN_CHAIN


def test_golden_order_version_1_of_packed_rows_with_an_early_end_and_a_skip():
    first = Source("6e317bcd6839e887", "d0", 0, {4: packed(9, 7, 6, name="r"), 8: packed(4, 4, 3, name="r")})
    second = Source("4b5e57f6eb2f42b9", "d1", 0, {4: packed(14, name="r"), 8: packed(7, name="r")})
    order = Order(42, 8, [first, second], [Stretch(3, 6, 4, (12, 6), 2), Stretch(3, 5, 8, (5, 10))], [(1, 2)])
    assert [[(int(s), int(o)) for s, o, _ in batch] for batch in everything(order)] == GOLDEN_ROWS
    assert order.chain[-1] == GOLDEN_ROWS_CHAIN


GOLDEN_PERMUTATION = [8, 7, 1, 2, 4, 3, 5, 0, 9, 6]
GOLDEN_KEY = 12865891900595439171
GOLDEN_BATCHES = [
    [(1, 16), (0, 48), (0, 40), (0, 56), (0, 24), (1, 0)],
    [(1, 24), (0, 52), (0, 60), (0, 64), (0, 16), (1, 4)],
    [(0, 20), (1, 20), (1, 28), (0, 68), (0, 44), (0, 28)],
    [(0, 0), (1, 32), (1, 48), (1, 8), (1, 40)],
    [(1, 8), (1, 32), (0, 72), (1, 48), (0, 80)],
    [(1, 40), (1, 24), (0, 8), (1, 16), (0, 32)],
]
GOLDEN_CHAIN = "daa344fbc9f7e5ecb2b90999b02e545e11d4bdb99fa89db542c2f9d29f105159"
GOLDEN_ROWS = [
    [(1, 3), (0, 6), (0, 13), (0, 8), (0, 17), (1, 13)],
    [(1, 3), (0, 6), (1, 6), (1, 4), (1, 0)],
    [(1, 5), (1, 1), (1, 5), (0, 10), (0, 4)],
    [(0, 2), (0, 9), (1, 3), (1, 6), (1, 4)],
]
GOLDEN_ROWS_CHAIN = "5dcb574d8b79f1e005fd9be7a57f6a4d32f99221a63ef848f164e0938e516f10"
