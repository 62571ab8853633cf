"""Signatures against exact Jaccard similarity and against datasketch; the sketch and its comparison."""

from __future__ import annotations

import hashlib
from itertools import pairwise

import numpy as np
import pytest
from datasketch import MinHash
from datasketch.lsh import _optimal_param

from stages.dedup.bands import (
    DATASKETCH,
    VERIFIED,
    choose_bands,
    collision_curve,
    collision_probability,
    selective_bands,
)
from stages.dedup.clusters import compare_pairs, compare_runs
from stages.dedup.signature import Permutations, needed, sign, similarity


def pair(rng, shingles, jaccard):
    """Word hashes of two documents whose sets of words have this similarity, and the true value."""
    shared = round(2 * shingles * jaccard / (1 + jaccard))
    words = rng.integers(0, 2**64, 2 * shingles - shared, np.uint64)
    left, right = words[:shingles], np.concatenate([words[:shared], words[shingles:]])
    return left, right, shared / len(words)


def signatures(documents, ngram, bands, rows, seed=0):
    offsets = np.concatenate([[0], np.cumsum([len(d) for d in documents])]).astype(np.int64)
    return sign(np.concatenate(documents), offsets, ngram, bands, rows, Permutations.make(seed, bands * rows))


def sketch_estimate(left_N32, right_N32):
    left, right = left_N32.view(np.uint8), right_N32.view(np.uint8)
    empty = ((left == 0) & (right == 0)).sum(1)
    q = ((left == right) & (left != 0)).sum(1) / (256 - empty)
    return (q - 1 / 255) / (254 / 255)


def test_minhash_and_sketch_estimate_jaccard_over_seeds():
    rng = np.random.default_rng(0)
    pairs = [pair(rng, 400, j) for j in (0.5, 0.8, 0.9) for _ in range(40)]
    true = np.array([j for _, _, j in pairs])
    documents = [d for left, right, _ in pairs for d in (left, right)]
    rows_error, sketch_error = [], []
    for seed in range(8):
        made = signatures(documents, 1, 112, 1, seed)  # a band of one row is one MinHash value
        rows_error.append((made.keys[::2] == made.keys[1::2]).mean(1) - true)
        sketch_error.append(sketch_estimate(made.sketches[::2], made.sketches[1::2]) - true)
    deviation = np.sqrt((true * (1 - true)).mean() / 112)
    assert np.sqrt(np.mean(np.square(rows_error))) == pytest.approx(deviation, rel=0.1)
    assert abs(np.mean(rows_error)) < 4 * deviation / np.sqrt(len(true) * 8)
    assert np.sqrt(np.mean(np.square(sketch_error))) < 0.026
    assert abs(np.mean(sketch_error)) < 0.003


def test_estimates_agree_with_datasketch_on_the_same_shingles():
    rng = np.random.default_rng(1)
    pairs = [pair(rng, 200, 0.8) for _ in range(30)]
    made = signatures([d for left, right, _ in pairs for d in (left, right)], 1, 112, 1)
    ours = (made.keys[::2] == made.keys[1::2]).mean(1)
    theirs = []
    for left, right, _ in pairs:
        sketches = [MinHash(num_perm=112, seed=1) for _ in range(2)]
        for sketch, words in zip(sketches, (left, right), strict=True):
            sketch.update_batch([word.tobytes() for word in words])
        theirs.append(sketches[0].jaccard(sketches[1]))
    both = np.sqrt(2 * 0.8 * 0.2 / 112)  # standard error of the difference of two independent estimates
    assert np.sqrt(np.mean(np.square(ours - np.array(theirs)))) < 1.35 * both
    assert abs(np.mean(ours) - np.mean(theirs)) < 4 * both / np.sqrt(30)


def test_bands_collide_as_the_curve_says():
    rng = np.random.default_rng(2)
    pairs = [pair(rng, 100, 0.8) for _ in range(400)]
    made = signatures([d for left, right, _ in pairs for d in (left, right)], 1, 9, 12)
    met = (made.keys[::2] == made.keys[1::2]).any(1).mean()
    assert met == pytest.approx(np.mean([1 - (1 - j**12) ** 9 for _, _, j in pairs]), abs=0.08)


def test_short_documents_are_estimated_almost_exactly():
    rng = np.random.default_rng(3)
    pairs = [pair(rng, 20, 0.8) for _ in range(200)]
    made = signatures([d for left, right, _ in pairs for d in (left, right)], 1, 12, 9)
    error = sketch_estimate(made.sketches[::2], made.sketches[1::2]) - np.array([j for _, _, j in pairs])
    assert np.sqrt(np.mean(error**2)) < 0.022


def test_shingles_are_runs_of_words_in_order():
    words = np.random.default_rng(4).integers(0, 2**64, 50, np.uint64)
    made = signatures(
        [words, words[::-1].copy(), words[:4], words[:5], np.concatenate([words, words])], 5, 12, 9
    )
    assert made.counts.tolist() == [46, 46, 0, 1, 96]
    estimate = sketch_estimate(made.sketches[[0]], made.sketches[[1]])[0]
    assert estimate < 0.1
    assert not made.sketches[2].any()
    assert not made.keys[2].any()
    assert (made.sketches[3].view(np.uint8) != 0).sum() == 1
    assert sketch_estimate(made.sketches[[0]], made.sketches[[4]])[0] > 0.85  # a set: repeats do not count
    same = signatures([words, words], 5, 12, 9)
    np.testing.assert_array_equal(same.twins[0], same.twins[1])


def test_neighbours_in_a_batch_do_not_matter():
    rng = np.random.default_rng(5)
    documents = [rng.integers(0, 2**64, n, np.uint64) for n in (30, 0, 7, 8, 9, 300)]
    together = signatures(documents, 5, 12, 9)
    for i, document in enumerate(documents):
        alone = signatures([document], 5, 12, 9)
        for name in ("keys", "sketches", "twins", "counts"):
            np.testing.assert_array_equal(getattr(together, name)[i], getattr(alone, name)[0])


def test_comparison_equals_counting_bytes():
    rng = np.random.default_rng(6)
    base = rng.integers(0, 256, (300, 256), np.uint8)
    other = np.where(
        rng.random((300, 256)) < rng.random((300, 1)) * 0.5, rng.integers(0, 256, (300, 256)), base
    )
    left, right = base.astype(np.uint8).view(np.uint64), other.astype(np.uint8).view(np.uint64)
    left[0] = right[0] = 0
    index = np.arange(300)
    for threshold in (0.5, 0.8, 1.0):
        need = needed(threshold)
        equal = ((base == other) & (base != 0)).sum(1)
        empty = ((base == 0) & (other == 0)).sum(1)
        expect = (equal > 0) & (equal * 255 >= need * (256 - empty))
        expect[0] = False
        got = compare_pairs(left, index, right, index, need)
        np.testing.assert_array_equal(got > 0, expect)
        estimate = sketch_estimate(left[expect], right[expect])
        np.testing.assert_allclose(similarity(got[expect]), estimate, atol=0.004)


@pytest.mark.parametrize("heads", [1, 3, 32, 1000])
def test_heads_of_runs_against_all_behind_them(heads):
    rng = np.random.default_rng(7)
    groups = rng.integers(0, 3, 700)
    sketches = rng.integers(1, 256, (3, 256), np.uint8)[groups].view(np.uint64)
    starts = np.array([0, 1, 300, 300, 700])
    better, worse, agreement, compared = compare_runs(sketches, starts, heads, needed(0.8))
    expect = {
        (i, j) for a, b in pairwise(starts) for i in range(a, min(a + heads, b)) for j in range(i + 1, b)
    }
    assert compared == len(expect)
    assert set(zip(better.tolist(), worse.tolist(), strict=True)) == {
        (i, j) for i, j in expect if groups[i] == groups[j]
    }
    assert set(agreement.tolist()) <= {255}


def test_bytes_of_a_signature_do_not_change():
    words = np.arange(1, 200, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    made = signatures([words, words[:6]], 5, 12, 9, seed=7)
    content = b"".join(getattr(made, name).tobytes() for name in ("keys", "sketches", "twins", "counts"))
    # A new digest here means stored emissions are stale: raise MinhashDedup.version too.
    assert (
        hashlib.sha256(content).hexdigest()
        == "cffb0f63a0d333b2c6df3747d01147c25a27d6331ebd5caa37ed0230eaf49bcc"
    )


def test_choice_of_bands_is_datasketchs_with_its_weights():
    for threshold in (0.5, 0.7, 0.8, 0.9):
        for weights in (DATASKETCH, VERIFIED):
            assert choose_bands(threshold, 112, weights) == _optimal_param(threshold, 112, *weights)


def test_the_default_choice_keeps_its_promise_with_the_fewest_proposals():
    for threshold in (0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95):
        chosen = selective_bands(threshold, 112)
        assert collision_probability(threshold, *chosen) >= 0.9
        assert collision_probability(min(threshold + 0.1, 1), *chosen) >= 0.99
        below = np.arange(0.0005, threshold, 0.001)
        for rows in range(1, 113):
            for bands in range(1, 112 // rows + 1):
                if collision_probability(threshold, bands, rows) >= 0.9 and (
                    collision_probability(min(threshold + 0.1, 1), bands, rows) >= 0.99
                ):
                    proposed = [(1 - (1 - below**r) ** b).sum() for b, r in (chosen, (bands, rows))]
                    assert proposed[0] <= proposed[1] + 1e-9
    assert selective_bands(0.8, 112, bands=2, rows=40) == (2, 40)  # a promise that nothing can keep
    with pytest.raises(ValueError, match="need more than"):
        selective_bands(0.8, 10, bands=11)


def test_collision_curve():
    assert {j: round(p, 3) for j, p in collision_curve(14, 8).items()} == {
        0.5: 0.053, 0.6: 0.211, 0.7: 0.565, 0.8: 0.924, 0.9: 1.0,
    }  # fmt: skip
    with pytest.raises(ValueError, match="need more than"):
        choose_bands(0.8, 10, VERIFIED, bands=11)
