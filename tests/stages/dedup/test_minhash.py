"""Near-duplicate removal: equal to a brute-force oracle in any cut of the corpus; the settings; the cases."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from pydantic import ValidationError

from stages.contract.problem import RunError
from stages.dedup import signature
from stages.dedup.exact import ExactDedup
from stages.dedup.exactly import reaches
from stages.dedup.jaccard import shingle_sets, similarities
from stages.dedup.minhash import MinhashDedup
from stages.dedup.selftest import check
from stages.dedup.shares import audit_text, interval
from stages.dedup.signature import needed
from stages.document import with_column
from stages.numbering import sortable
from tests.stages.bsp import Ran, parts_of, run_global


def sentence(rng, words=60):
    return [f"w{n}" for n in rng.integers(0, 5000, words)]


def changed(rng, words, count):
    """A copy with `count` words replaced."""
    copy = list(words)
    for place in rng.choice(len(copy), count, replace=False):
        copy[place] = f"x{rng.integers(0, 10**6)}"
    return copy


def corpus(seed, documents=300):
    """Unique texts, light and heavy variants, monotone version chains, a templated site, twins, short ones."""
    rng = np.random.default_rng(seed)
    texts = []
    frame = sentence(rng, 90)
    while len(texts) < documents:
        kind = rng.integers(0, 6)
        base = sentence(rng)
        if kind == 0:
            texts.append(base)
        elif kind == 1:
            texts.extend(changed(rng, base, c) for c in (0, 1, 1, 2, 3, 4))
        elif kind == 2:  # each version is similar to the one before it only
            for _ in range(12):
                texts.append(base)
                base = changed(rng, base, 1)
        elif kind == 3:
            texts.extend(frame + sentence(rng, 12) for _ in range(6))
        elif kind == 4:
            texts.extend([base] * 3)
        else:
            texts.append(base[: rng.integers(0, 6)])
    order = rng.permutation(len(texts)) if seed % 2 else np.arange(len(texts))
    return [" ".join(texts[i]) for i in order]


def cut(count, pieces):
    edges = [count * i // pieces for i in range(pieces + 1)]
    return [b - a for a, b in pairwise(edges)]


def oracle(stage, texts, order=None, dead=()):
    """Rows kept by comparing all documents that share a band key, best first; and all similar pairs."""
    made = stage.emit(parts_of(texts, [len(texts)], batch=len(texts))[0][0], 0)
    sketches = [np.frombuffer(s, np.uint8) for s in made.column("sketch").to_pylist()]
    keys = [np.frombuffer(k, np.uint64) for k in made.column("keys").to_pylist()]
    alive = [
        n >= stage.min_shingles and i not in dead for i, n in enumerate(made.column("shingles").to_pylist())
    ]
    rank = {row: place for place, row in enumerate(order if order is not None else range(len(texts)))}
    buckets: dict[tuple[int, int], list[int]] = {}
    similar: dict[int, set[int]] = {row: set() for row in range(len(texts))}
    kept = set()
    for row in sorted(rank, key=rank.__getitem__):
        if not alive[row]:
            continue
        mates = {m for band, key in enumerate(keys[row]) for m in buckets.get((band, int(key)), ())}
        for mate in mates:
            equal, empty = sketches[row] == sketches[mate], (sketches[row] == 0) & (sketches[mate] == 0)
            m, z = int((equal & ~empty).sum()), int(empty.sum())
            if m * 255 >= needed(stage.threshold) * (256 - z):
                similar[row].add(mate)
        if not similar[row] & kept:
            kept.add(row)
        for band, key in enumerate(keys[row]):
            buckets.setdefault((band, int(key)), []).append(row)
    return kept | {row for row in range(len(texts)) if not alive[row]}, similar


def dropped_rows(ran: Ran):
    return {part.base + row for part in ran.parts for row in ran.facts[part.index].column("row").to_pylist()}


def evidence(ran: Ran):
    """`(row, survivor, similarity)` of each dropped document, by global row numbers, in order of row."""
    bases = {part.index: part.base for part in ran.parts}
    return [
        (part.base + e["row"], bases[e["survivor_part"]] + e["survivor_row"], e["similarity"])
        for part in ran.parts
        for e in ran.channel("evidence", part.index).to_pylist()
    ]


def check_evidence(ran: Ran, similar, better=lambda survivor, row: survivor < row):
    """Every dropped document has a better, kept one that is verified similar."""
    gone = dropped_rows(ran)
    assert [row for row, _, _ in evidence(ran)] == sorted(gone)
    for row, survivor, value in evidence(ran):
        assert survivor not in gone
        assert survivor in similar[row]
        assert better(survivor, row)
        assert ran.stage.threshold - 0.005 <= value <= 1


@pytest.mark.parametrize(("seed", "threshold"), [(0, 0.8), (1, 0.6), (2, 0.6), (3, 0.8)])
def test_equal_to_brute_force_in_any_cut(tmp_path, monkeypatch, seed, threshold):
    stage = MinhashDedup(threshold=threshold, seed=seed)
    texts = corpus(seed)
    kept, similar = oracle(stage, texts)
    assert 60 < len(kept) < len(texts) - 50
    proofs = []
    for pieces, rows_per_task in ((1, 4_000_000), (7, 4_000_000), (4, 300)):
        monkeypatch.setattr(MinhashDedup, "rows_per_task", rows_per_task)
        parts = parts_of(texts, cut(len(texts), pieces), batch=50)
        ran = run_global(stage, parts, tmp_path / f"{pieces}-{rows_per_task}")
        assert set(range(len(texts))) - dropped_rows(ran) == kept
        assert ran.counters["released"] == 0
        check_evidence(ran, similar)
        proofs.append(evidence(ran))
    assert all(proof == proofs[0] for proof in proofs)


def site(seed, pages=300):
    """Pages of one template, J about 0.74 between any two, and a near copy of every fifth."""
    rng = np.random.default_rng(seed)
    frame = sentence(rng, 180)
    texts = []
    for page in range(pages):
        texts.append(frame + sentence(rng, 24))
        if page % 5 == 0:
            texts.append(changed(rng, texts[-1], 1))
    return [" ".join(texts[i]) for i in rng.permutation(len(texts))]


def test_buckets_that_need_every_round(tmp_path):
    stage = MinhashDedup()
    texts = site(3)
    kept, similar = oracle(stage, texts)
    ran = run_global(stage, parts_of(texts, cut(len(texts), 3), batch=50), tmp_path)
    assert set(range(len(texts))) - dropped_rows(ran) == kept
    check_evidence(ran, similar)
    assert (
        sum(ran.channel("wanted.2", part).num_rows for part in range(3)) > 0
    )  # buckets of more than 34 live documents


@pytest.mark.parametrize("max_bucket", [1, 12])
def test_a_capped_bucket_costs_recall_but_never_the_guarantee(tmp_path, monkeypatch, max_bucket):
    stage = MinhashDedup(max_bucket=max_bucket)
    texts = site(4) + corpus(4, 200)
    _, similar = oracle(stage, texts)
    proofs = []
    for pieces, rows_per_task in ((1, 4_000_000), (4, 150)):
        monkeypatch.setattr(MinhashDedup, "rows_per_task", rows_per_task)
        ran = run_global(stage, parts_of(texts, cut(len(texts), pieces), batch=50), tmp_path / str(pieces))
        check_evidence(ran, similar)
        assert ran.counters["released"] > 0
        proofs.append(evidence(ran))
    assert proofs[0] == proofs[1]
    assert len(proofs[0]) > 100


def test_a_bucket_over_the_memory_limit_releases_the_worst(tmp_path, monkeypatch):
    monkeypatch.setattr(MinhashDedup, "bucket_rows", 20)
    stage, texts = MinhashDedup(), site(5)
    _, similar = oracle(stage, texts)
    ran = run_global(stage, parts_of(texts, cut(len(texts), 2), batch=50), tmp_path)
    check_evidence(ran, similar)
    assert ran.counters["released"] > 0


def test_priority_rows_already_dropped_and_sparse_parts(tmp_path):
    stage, texts = MinhashDedup(), corpus(6, 300)
    sizes = cut(len(texts), 4)
    ranks, indices = [2, 0, 1, 0], [3, 4, 8, 20]
    bases = np.cumsum([0, *sizes])
    order = [row for part in (1, 3, 2, 0) for row in range(bases[part], bases[part + 1])]
    place = {row: at for at, row in enumerate(order)}
    dead = set(range(0, len(texts), 7))
    dropped = {
        index: np.array([row - bases[i] for row in sorted(dead) if bases[i] <= row < bases[i + 1]])
        for i, index in enumerate(indices)
    }
    kept, similar = oracle(stage, texts, order, dead)
    ran = run_global(stage, parts_of(texts, sizes), tmp_path, ranks=ranks, indices=indices, dropped=dropped)
    assert set(range(len(texts))) - dropped_rows(ran) == kept
    check_evidence(ran, similar, lambda survivor, row: place[survivor] < place[row])
    assert not dead & dropped_rows(ran)


def test_twins_follow_their_head(tmp_path):
    rng = np.random.default_rng(8)
    base = sentence(rng, 80)
    better, head = " ".join(base), " ".join(changed(rng, base, 1))
    other = " ".join(sentence(rng, 80))
    texts = [other, head, better, head.upper(), other + "!", head + " ."]  # case and marks are no words
    ran = run_global(MinhashDedup(), parts_of(texts, [2, 1, 3]), tmp_path, ranks=[1, 0, 1])
    assert ran.counters["twins"] == 3
    found = {row: survivor for row, survivor, _ in evidence(ran)}
    assert found == {1: 2, 3: 2, 4: 0, 5: 2}
    alike = {row: value for row, _, value in evidence(ran)}
    assert alike[4] == 1.0
    assert alike[1] == alike[3] == alike[5] < 1.0


def test_emission_does_not_depend_on_batches(tmp_path):
    texts = [*corpus(9, 40), "", "好" * 12, "cat"]
    stage = MinhashDedup()
    whole = stage.emit(parts_of(texts, [len(texts)], batch=100)[0][0], 0)
    pieces = [stage.emit(batch, 0) for batch in parts_of(texts, [len(texts)], batch=7)[0]]
    assert whole.to_pylist() == [row for piece in pieces for row in piece.to_pylist()]
    assert whole.column("shingles").to_pylist()[-3:] == [0, 8, 0]


def test_nothing_to_do(tmp_path):
    ran = run_global(MinhashDedup(), [[], parts_of(["cat", ""], [2])[0]], tmp_path)
    assert [facts.num_rows for facts in ran.facts.values()] == [0, 0]
    assert ran.kept() == ["cat", ""]
    assert run_global(MinhashDedup(), [], tmp_path / "none").facts == {}


def test_reason_and_value(tmp_path):
    words = sentence(np.random.default_rng(1), 100)
    texts = [" ".join(words), "another", " ".join(words[:-1])]
    ran = run_global(MinhashDedup(), parts_of(texts, [3]), tmp_path)
    last = ran.apply()[0][0].slice(2).to_pylist()[0]
    assert last["drop"] == "minhash-dedup.near-duplicate"
    assert last["drop_value"].endswith(" >= 0.8")
    assert 0.9 < float(last["drop_value"].split()[0]) <= 1


# ------------------------------------------------------------------------------------------ who survives


def with_score(parts, scores):
    """The same parts with a column `quality.edu`."""
    left = iter(scores)
    return [
        [with_column(batch, "quality.edu", pa.array([next(left) for _ in range(batch.num_rows)], pa.float32())) for batch in part]
        for part in parts
    ]


@pytest.mark.parametrize("survivor", ["length", "quality.edu"])
def test_a_column_decides_who_survives(tmp_path, monkeypatch, survivor):
    monkeypatch.setattr(MinhashDedup, "rows_per_task", 150)  # several stretches, cut by a sample of the column
    stage, texts = MinhashDedup(survivor=survivor), corpus(7, 300)
    scores = [None if row % 11 == 0 else float(row * 37 % 101) - 50 for row in range(len(texts))]
    value = [len(text) for text in texts] if survivor == "length" else scores
    order = sorted(range(len(texts)), key=lambda row: (value[row] is None, -(value[row] or 0), row))
    place = {row: at for at, row in enumerate(order)}
    kept, similar = oracle(stage, texts, order)
    proofs = []
    for pieces in (1, 5):
        parts = with_score(parts_of(texts, cut(len(texts), pieces), batch=50), scores)
        ran = run_global(stage, parts, tmp_path / str(pieces))
        assert set(range(len(texts))) - dropped_rows(ran) == kept
        check_evidence(ran, similar, lambda survivor, row: place[survivor] < place[row])
        proofs.append(evidence(ran))
    assert proofs[0] == proofs[1]


def test_a_source_without_the_column_comes_last():
    batch = parts_of(["a b c d e f"], [1])[0][0]
    made = MinhashDedup(survivor="quality.edu").emit(batch, 0)
    assert made.column("order").to_pylist() == [2**24 - 1]
    assert MinhashDedup(survivor="quality.edu").wants() == ("quality.edu",)
    assert MinhashDedup(survivor="length").wants() == MinhashDedup().wants() == ()


def test_order_by_a_column():
    values = [float("inf"), 3.5, 3.4, 1, 0.0, -0.0, -1, -1e30, float("-inf"), float("nan"), None]
    order = sortable(pa.array(values)).tolist()
    assert order == sorted(order)
    assert order[4] == order[5]
    assert order[-2:] == [2**24 - 1] * 2
    assert len(set(order)) == len(order) - 2


# ------------------------------------------------------------------------------------------ exact similarity


def exact_similarities(stage, texts):
    batch = parts_of(texts, [len(texts)], batch=len(texts))[0][0]
    numbers = np.arange(len(texts))
    sets = shingle_sets([batch], numbers, numbers.astype(np.uint64), stage.ngram)
    left, right = np.triu_indices(len(texts), 1)
    sizes = similarities(sets, left, sets, right)
    return {(int(a), int(b)): int(s) / max(int(u), 1) for a, b, (s, u) in zip(left, right, sizes, strict=True)}


@pytest.mark.parametrize("seed", range(2))
def test_exact_similarity_decides(tmp_path, monkeypatch, seed):
    stage, texts = MinhashDedup(verify="exact", seed=seed), [*site(seed, 40), *corpus(seed, 100)]
    exact = exact_similarities(stage, texts)
    proofs = []
    for pieces, rows_per_task in ((1, 4_000_000), (4, 70)):
        monkeypatch.setattr(MinhashDedup, "rows_per_task", rows_per_task)
        ran = run_global(stage, parts_of(texts, cut(len(texts), pieces), batch=30), tmp_path / str(pieces))
        gone = dropped_rows(ran)
        assert len(gone) > 20
        for row, survivor, value in evidence(ran):
            similarity = exact[survivor, row]
            assert similarity >= 0.8
            assert similarity - 0.001 <= value <= similarity + 0.005
            assert survivor not in gone
        met = [pair for pair, j in exact.items() if j >= 0.95]
        assert all(gone & set(pair) for pair in met)
        assert ran.counters["verified"] < ran.counters["measured"] < ran.counters["candidates"]
        assert ran.counters["audit_removals"] == ran.counters["audit_removals_similar"] > 0
        proofs.append(evidence(ran))
    assert proofs[0] == proofs[1]


def test_equal_signatures_are_not_enough_for_exact_similarity(tmp_path):
    rng = np.random.default_rng(3)
    texts = []
    for _ in range(6):
        words = sentence(rng, 4000)
        texts += [" ".join(words), " ".join(changed(rng, words, 1))]
    estimated = run_global(MinhashDedup(threshold=1.0), parts_of(texts, [12], batch=12), tmp_path / "estimated")
    assert estimated.counters["twins"] > 0
    exact = run_global(MinhashDedup(threshold=1.0, verify="exact"), parts_of(texts, [12], batch=12), tmp_path / "exact")
    assert dropped_rows(exact) == set()


def test_an_exact_threshold_is_met_by_equality():
    assert reaches(np.array([[4, 5], [3, 5], [0, 0], [79_999, 100_000], [800_001, 1_000_000]]), 0.8).tolist() == [
        True, False, False, False, True,
    ]  # fmt: skip


# ------------------------------------------------------------------------------------------ guards


def test_the_audit_does_not_depend_on_cuts_and_finds_what_is_there(tmp_path, monkeypatch):
    stage, texts = MinhashDedup(audit=60), corpus(5, 300)
    counted = []
    for pieces, rows_per_task in ((1, 4_000_000), (6, 90)):
        monkeypatch.setattr(MinhashDedup, "rows_per_task", rows_per_task)
        ran = run_global(stage, parts_of(texts, cut(len(texts), pieces), batch=30), tmp_path / str(pieces))
        counted.append({name: n for name, n in ran.counters.items() if name.startswith("audit")})
    assert counted[0] == counted[1]
    assert counted[0]["audit_removals"] == min(240, len(dropped_rows(ran)))
    assert counted[0]["audit_removals_similar"] > 50
    assert counted[0]["audit_removals_far"] == 0
    assert counted[0]["audit_pairs"] > 10
    assert counted[0]["audit_pairs_found"] >= 0.9 * counted[0]["audit_pairs"]
    said = audit_text(ran.counters)
    assert f"n = {counted[0]['audit_removals']}" in said
    assert "of similar pairs have a side removed" in said
    assert run_global(MinhashDedup(audit=0), parts_of(["a"], [1]), tmp_path / "none").counters["audit_pairs"] == 0


def test_the_audit_tells_when_bands_miss_what_is_similar(tmp_path):
    texts = corpus(5, 300)
    ran = run_global(MinhashDedup(bands=2, rows=40, audit=300), parts_of(texts, [len(texts)], batch=60), tmp_path)
    assert ran.counters["audit_pairs_found"] < 0.8 * ran.counters["audit_pairs"]


def test_intervals():
    assert [round(x, 3) for x in interval(8, 10)] == [0.490, 0.943]  # Wilson's, as in R's prop.test without correction
    assert interval(0, 0) == (0, 1)
    assert interval(50, 50)[0] > 0.92


def test_a_large_cluster_raises_an_alarm(tmp_path):
    texts = [" ".join(sentence(np.random.default_rng(1)))] * 12 + ["x y z u v w"]
    ran = run_global(MinhashDedup(cluster_alarm=10), parts_of(texts, [5, 8]), tmp_path)
    assert ran.counters["largest_cluster"] == 12
    (warning,) = [name for name in ran.counters if name.startswith("warn:")]
    assert "a cluster of 12 documents was reduced to one" in warning
    assert "cluster_alarm = 10" in warning


def test_the_self_test_runs_in_every_run_and_notices_a_broken_signature(tmp_path, monkeypatch):
    ran = run_global(MinhashDedup(), parts_of(["a"], [1]), tmp_path / "whole")
    assert ran.counters["self_test_pairs"] == 48
    sign, noise = signature.sign_texts, np.random.default_rng(0)

    def broken(*arguments):
        made = sign(*arguments)
        made.keys[:] ^= noise.integers(0, 2**64, made.keys.shape, np.uint64)
        return made

    monkeypatch.setattr(signature, "sign_texts", broken)
    with pytest.raises(RunError, match=r"self-test of minhash-dedup failed.*pairs well above the threshold were found"):
        run_global(MinhashDedup(), parts_of(["a"], [1]), tmp_path / "broken")


@pytest.mark.parametrize(
    "settings",
    [
        {"bands": 13, "rows": 60, "permutations": 780},
        {"threshold": 1.0},
        {"threshold": 0.5, "ngram": 1},
        {"verify": "exact", "survivor": "length", "max_bucket": 1},
        {"min_shingles": 300},
    ],
)
def test_the_self_test_holds_for_odd_settings(settings):
    assert check(MinhashDedup(**settings)) == 48


# ------------------------------------------------------------------------------------------ settings


def test_a_threshold_is_enough_and_decides_the_bands():
    shapes = {t: MinhashDedup(threshold=t).shape for t in (0.7, 0.75, 0.8, 0.85)}
    assert shapes == {0.7: (13, 5), 0.75: (12, 6), 0.8: (13, 8), 0.85: (11, 10)}
    assert MinhashDedup(threshold=0.8, bands="datasketch").shape == (9, 12)
    assert MinhashDedup(bands=14).shape == (14, 8)
    assert MinhashDedup(rows=8).shape == (13, 8)
    assert MinhashDedup(bands="14", rows="8", threshold="80%", permutations="112").shape == (14, 8)


def test_bands_and_rows_that_do_not_fit():
    with pytest.raises(ValidationError, match=r"13 bands x 60 rows = 780 .* at most 1 bands fit"):
        MinhashDedup(bands=13, rows=60)
    with pytest.raises(ValidationError, match="60 rows"):
        MinhashDedup(bands=60, rows=60)
    with pytest.raises(ValidationError, match="outside"):
        MinhashDedup(threshold=0.01)


def test_swapped_bands_and_rows_are_called_out():
    swapped = MinhashDedup(bands=13, rows=60, permutations=780).notes()
    assert "0.9: 2.3%" in swapped[0]
    assert swapped[-1].startswith("warning: only 0.0% of the duplicates at the threshold 0.8 would be found")
    meant = MinhashDedup(bands=60, rows=13, permutations=780).notes()
    assert not any(note.startswith("warning") for note in meant)
    assert "60 bands x 13 rows" in meant[0]


def test_a_plan_names_scratch_and_memory():
    notes = MinhashDedup().notes()
    assert any("N x 736 bytes of scratch" in note and "0.7 GB for 1 M" in note for note in notes)
    assert any("whatever N is" in note for note in notes)
    assert any("reads the text of candidates" in note for note in MinhashDedup(verify="exact").notes())


# ------------------------------------------------------------------------------------------ cases and data


def texts_in(path):
    return [json.loads(line)["text"] for line in path.read_text(encoding="utf-8").splitlines()]


def after_exact(texts, tmp_path):
    """Exact deduplication, then near-duplicate removal over the same parts."""
    parts = parts_of(texts, cut(len(texts), 2))
    exact = run_global(ExactDedup(), parts, tmp_path / "exact")
    gone = {index: facts.column("row").to_numpy() for index, facts in exact.facts.items()}
    near = run_global(MinhashDedup(), parts, tmp_path / "near", dropped=gone)
    return dropped_rows(exact), dropped_rows(near)


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "exactly", "nearly"),
    [("short_docs", 2, 0), ("copies", 6, 0), ("zh_near", 1, 1), ("templated", 0, 3)],
)
def test_cases(shared, tmp_path, name, exactly, nearly):
    texts = texts_in(shared / "cases/inputs" / f"{name}.jsonl")
    exact, near = after_exact(texts, tmp_path)
    assert (len(exact), len(near)) == (exactly, nearly)
    assert not exact & near


@pytest.mark.data
@pytest.mark.parametrize("name", ["copies", "zh_near"])
def test_near_duplicates_alone_find_the_copies_too(shared, tmp_path, name):
    texts = texts_in(shared / "cases/inputs" / f"{name}.jsonl")
    ran = run_global(MinhashDedup(), parts_of(texts, cut(len(texts), 3)), tmp_path)
    assert len(ran.kept()) == {"copies": 3, "zh_near": 6}[name]
