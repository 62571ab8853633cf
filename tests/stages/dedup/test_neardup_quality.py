"""Near-duplicate removal on real documents with exact similarities: precision and recall, several seeds."""

from __future__ import annotations

import io
import json
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
import zstandard

from stages.dedup.minhash import MinhashDedup
from stages.document import text_buffers
from stages.text import word_hashes
from tests.stages.bsp import parts_of, run_global
from tests.stages.dedup.test_minhash import cut, dropped_rows, evidence

pytestmark = pytest.mark.data


def read(path):
    with path.open("rb") as file:
        stream = zstandard.ZstdDecompressor().stream_reader(file)
        return [json.loads(line) for line in io.TextIOWrapper(stream, "utf-8")]


def shingle_sets(texts):
    """5-grams of unspaced text as the stage sees them: of characters, marks skipped, Latin words whole."""
    words, offsets = word_hashes(*text_buffers(pa.array(texts, pa.large_string())))
    runs = [words[a:b].tolist() for a, b in pairwise(offsets.tolist())]
    return [{tuple(run[i : i + 5]) for i in range(len(run) - 4)} for run in runs]


@pytest.fixture(scope="module")
def documents(shared):
    """`(texts, is_cjk, similarity of each listed pair)`; absent pairs are below 0.1."""
    rows = read(shared / "data/neardup/dev/docs.jsonl.zst")
    place = {row["id"]: i for i, row in enumerate(rows)}
    cjk = np.array([row["lang"][:2] in ("zh", "ja") for row in rows])
    texts = [row["text"] for row in rows]
    sets = shingle_sets([text if c else "" for text, c in zip(texts, cjk, strict=True)])
    similar = {}
    for pair in read(shared / "data/neardup/dev/pairs.jsonl.zst"):
        a, b = place[pair["a"]], place[pair["b"]]
        exact = pair["j_word5"]
        if cjk[a]:
            exact = len(sets[a] & sets[b]) / max(1, len(sets[a] | sets[b]))
        similar[frozenset((a, b))] = exact
    return texts, cjk, similar


@pytest.mark.parametrize("seed", range(3))
def test_precision_and_recall(documents, tmp_path, seed):
    texts, cjk, similar = documents
    ran = run_global(MinhashDedup(seed=seed), parts_of(texts, cut(len(texts), 3), batch=400), tmp_path)
    gone, found = dropped_rows(ran), evidence(ran)
    for unspaced, enough in ((False, 800), (True, 120)):
        proofs = np.array([similar.get(frozenset((r, s)), 0.0) for r, s, _ in found if cjk[r] == unspaced])
        assert len(proofs) > enough
        assert (proofs >= 0.8).mean() > 0.96  # the others are just below: one standard error is 0.02
        assert proofs.min() > 0.74
        pairs = [(pair, j) for pair, j in similar.items() if cjk[min(pair)] == unspaced]
        assert np.mean([bool(pair & gone) for pair, j in pairs if j >= 0.8]) > 0.94
        assert np.mean([bool(pair & gone) for pair, j in pairs if j >= 0.9]) > 0.99
        assert np.mean([similar[frozenset((r, s))] for r, s, _ in found if cjk[r] == unspaced]) > 0.8


@pytest.mark.parametrize("seed", range(2))
def test_estimated_similarity(documents, tmp_path, seed):
    texts, _, similar = documents
    ran = run_global(MinhashDedup(seed=seed), parts_of(texts, cut(len(texts), 1), batch=400), tmp_path)
    error = np.array([value - similar[frozenset((row, survivor))] for row, survivor, value in evidence(ran)])
    assert np.sqrt(np.mean(error**2)) < 0.023
    assert abs(np.mean(error)) < 0.01
