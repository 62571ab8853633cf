"""Repeated spans: winnowing keeps its promise, spans are verbatim, cuts are exact, and nothing is lost."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest

from stages.dedup.spans import SpanDedup
from stages.dedup.winnow import winnow
from stages.document import text_buffers
from stages.text import word_hashes, words
from tests.stages.bsp import parts_of, run_global


def prose(rng, count):
    return [f"w{n}" for n in rng.integers(0, 50_000, count)]


def test_every_shared_run_holds_a_common_fingerprint():
    rng = np.random.default_rng(0)
    k, window = 4, 5
    shared = k + window - 1
    for _ in range(200):
        run = rng.integers(0, 2**64, shared, np.uint64)
        texts = [
            np.concatenate([rng.integers(0, 2**64, rng.integers(0, 30), np.uint64), run, rng.integers(0, 2**64, rng.integers(0, 30), np.uint64)])
            for _ in range(2)
        ]
        offsets = np.cumsum([0, *(len(text) for text in texts)])
        hashes, places, bounds = winnow(np.concatenate(texts), offsets, k, window)
        left, right = (set(hashes[bounds[i] : bounds[i + 1]].tolist()) for i in range(2))
        assert left & right
        for i, text in enumerate(texts):
            assert places[bounds[i] : bounds[i + 1]].max() <= len(text) - k


def test_winnowing_chooses_the_smallest_of_every_window():
    words_N = np.random.default_rng(1).integers(0, 4, 300).astype(np.uint64)  # many equal hashes
    grams, _, _ = winnow(words_N, np.array([0, 300]), 3, 1)  # a window of one chooses them all
    _, places, bounds = winnow(words_N, np.array([0, 300, 300]), 3, 7)
    expect = set()
    for start in range(len(grams) - 6):
        block = grams[start : start + 7]
        expect.add(start + max(np.flatnonzero(block == block.min())))
    chosen = set(places.tolist())
    assert bounds.tolist() == [0, len(places), len(places)]
    assert all(any(start <= place < start + 7 for place in chosen) for start in range(len(grams) - 6))
    assert chosen <= expect


def run(texts, tmp_path, pieces=3, **settings):
    stage = SpanDedup(**settings)
    sizes = [len(texts) * (i + 1) // pieces - len(texts) * i // pieces for i in range(pieces)]
    ran = run_global(stage, parts_of(texts, sizes), tmp_path)
    rows = [row for part in ran.apply().values() for batch in part for row in batch.to_pylist()]
    return ran, rows


def test_a_shared_paragraph_is_cut_from_all_but_the_best(tmp_path):
    rng = np.random.default_rng(2)
    notice = " ".join(prose(rng, 60)) + "."
    texts = [" ".join(prose(rng, 80)) + f". {notice} " + " ".join(prose(rng, 40)) for _ in range(5)]
    texts.append("短文。" + notice)
    texts.append(notice)
    ran, rows = run(texts, tmp_path)
    assert rows[0]["text"] == texts[0]
    assert rows[0]["spans.words"] == 0
    for before, row in zip(texts[1:5], rows[1:5], strict=True):
        assert row["text"] == before.replace(f"{notice} ", "")
        assert row["spans.words"] == 60
        (cut,) = json.loads(row["spans.from"])
        assert cut["from"] == rows[0]["id"].hex()
        content = before.encode()
        assert words(content[cut["start"] : cut["start"] + cut["bytes"]].decode()) == words(notice)
    assert rows[5]["text"] == "短文。"
    assert rows[6]["drop"] == "span-dedup.nothing-left"
    assert ran.counters["spans"] == 6
    assert ran.counters["words"] == 360


@pytest.mark.parametrize("seed", range(3))
def test_cuts_are_verbatim_and_nothing_is_lost(tmp_path, monkeypatch, seed):
    rng = np.random.default_rng(seed)
    blocks = [prose(rng, rng.integers(10, 60)) for _ in range(25)]
    han = [[chr(0x4E00 + n) for n in rng.integers(0, 3000, 40)] for _ in range(5)]
    texts = []
    for _ in range(40):
        chosen = rng.choice(len(blocks), rng.integers(1, 5))
        own = prose(rng, rng.integers(0, 40))
        texts.append(" ".join([*own, *(w for i in chosen for w in blocks[i])]) + " " + "".join(han[rng.integers(0, 5)]))
    kept = []
    for pieces, rows_per_task in ((1, 4_000_000), (5, 20_000)):
        monkeypatch.setattr(SpanDedup, "rows_per_task", rows_per_task)
        _, rows = run(texts, tmp_path / str(pieces), pieces, min_words=24)
        kept.append([row["text"] for row in rows])
    assert kept[0] == kept[1]
    place = {row["id"].hex(): number for number, row in enumerate(rows)}
    hashes = [row.tolist() for row in (word_hashes(*text_buffers(pa.array([t], pa.large_string())))[0] for t in texts)]
    cut_words = 0
    for number, row in enumerate(rows):
        for cut in json.loads(row["spans.from"] or "[]"):
            better = place[cut["from"]]
            assert better < number
            piece = texts[number].encode()[cut["start"] : cut["start"] + cut["bytes"]].decode()
            span = word_hashes(*text_buffers(pa.array([piece], pa.large_string())))[0].tolist()
            assert len(span) == cut["words"]
            cut_words += len(span)
            assert any(hashes[better][i : i + len(span)] == span for i in range(len(hashes[better])))
    assert cut_words > 400
    before = {word for text in texts for word in words(text)}
    assert {word for text in kept[0] for word in words(text)} == before
    _, rows = run(kept[0], tmp_path / "again", min_words=24)
    assert sum(row["spans.words"] for row in rows) < 0.1 * cut_words


def test_nothing_to_do_and_mark(tmp_path):
    _, rows = run(["", "short text", "好"], tmp_path / "none")
    assert [row["text"] for row in rows] == ["", "short text", "好"]
    assert all(row["drop"] is None for row in rows)
    assert run_global(SpanDedup(), [], tmp_path / "no parts").facts == {}
    notice = " ".join(prose(np.random.default_rng(3), 60))
    _, rows = run([notice, notice], tmp_path / "mark", mark=True)
    assert [row["text"] for row in rows] == [notice, notice]
    assert [row["spans.words"] for row in rows] == [0, 60]


def test_priority_decides_who_keeps_a_span(tmp_path):
    notice = " ".join(prose(np.random.default_rng(4), 60))
    parts = parts_of([notice + " a", notice + " b"], [1, 1])
    ran = run_global(SpanDedup(), parts, tmp_path, ranks=[1, 0])
    texts = [batch.column("text")[0].as_py() for part in ran.apply().values() for batch in part]
    assert texts == ["a", notice + " b"]
