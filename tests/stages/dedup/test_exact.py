"""Exact deduplication: who survives, in every cut of the corpus."""

from __future__ import annotations

import json

import numpy as np
import pytest

from stages.dedup.exact import ExactDedup, folded
from stages.document import document_batch
from stages.numbering import Numbering, partition_bits
from stages.stage import PartInfo
from tests.stages.bsp import parts_of, run_global

TEXTS = ["cat", "dog", "cat", "好的", "谢谢", "好的", "yes", "no", "cat", "ไทย", "好的 ", "Yes"]


def test_one_of_each_text_stays(tmp_path):
    ran = run_global(ExactDedup(), parts_of(TEXTS, [12]), tmp_path)
    assert ran.kept() == ["cat", "dog", "好的", "谢谢", "yes", "no", "ไทย", "好的 ", "Yes"]
    assert ran.facts[0].column("row").to_pylist() == [2, 5, 8]
    assert ran.channel("evidence").to_pylist()[1] == {
        "row": 5, "survivor_part": 0, "survivor_row": 3, "similarity": 1.0,
    }  # fmt: skip
    reasons = {
        b.column("drop")[i].as_py()
        for batches in ran.apply().values()
        for b in batches
        for i in range(len(b))
    }
    assert reasons == {None, "exact-dedup.duplicate"}


def test_folded_text(tmp_path):
    texts = ["Yes  sir", "yes sir", "yes\u3000SIR\n", "e\u0301té", "Été", "全角", "全角\n"]
    ran = run_global(ExactDedup(normalise="text"), parts_of(texts, [7]), tmp_path)
    assert ran.kept() == ["Yes  sir", "e\u0301té", "全角"]
    assert folded(document_batch("s", ["u"], [0], [" \u2028 "]).column("text")).to_pylist() == [""]


@pytest.mark.parametrize("sizes", [[12], [1, 11], [4, 0, 5, 3], [1] * 12])
@pytest.mark.parametrize("rows_per_task", [4_000_000, 2])
def test_any_cut_and_any_number_of_partitions(tmp_path, monkeypatch, sizes, rows_per_task):
    monkeypatch.setattr(ExactDedup, "rows_per_task", rows_per_task)
    ran = run_global(ExactDedup(), parts_of(TEXTS, sizes), tmp_path)
    assert ran.kept() == ["cat", "dog", "好的", "谢谢", "yes", "no", "ไทย", "好的 ", "Yes"]


def test_priority_before_order_sparse_indices_and_rows_already_dropped(tmp_path):
    parts = parts_of(["a", "b", "c"], [3]) + parts_of(["b", "a", "d"], [3]) + parts_of(["a", "d", "c"], [3])
    options = {"sources": ["web", "web", "books"], "ranks": [1, 1, 0], "indices": [2, 5, 9]}
    ran = run_global(ExactDedup(), parts, tmp_path / "1", **options)
    assert {i: t.column("row").to_pylist() for i, t in ran.facts.items()} == {2: [0, 2], 5: [0, 1, 2], 9: []}
    assert ran.channel("evidence", 5).to_pylist()[1]["survivor_part"] == 9

    ran = run_global(ExactDedup(), parts, tmp_path / "2", dropped={9: np.array([0], np.uint32)}, **options)
    assert {i: t.column("row").to_pylist() for i, t in ran.facts.items()} == {2: [2], 5: [0, 1, 2], 9: []}
    assert ran.channel("evidence", 5).to_pylist()[1]["survivor_part"] == 2

    ran = run_global(ExactDedup(scope="source"), parts, tmp_path / "3", **options)
    assert {i: t.column("row").to_pylist() for i, t in ran.facts.items()} == {2: [], 5: [0, 1], 9: []}


def test_nothing_to_do(tmp_path):
    ran = run_global(ExactDedup(), [[]], tmp_path)
    assert ran.facts[0].num_rows == 0
    assert run_global(ExactDedup(), [], tmp_path / "none").facts == {}


@pytest.mark.data
def test_copies_leave_one_each(shared, tmp_path):
    lines = (shared / "cases/inputs/copies.jsonl").read_text().splitlines()
    texts = [json.loads(line)["text"] for line in lines]
    ran = run_global(ExactDedup(), parts_of(texts, [4, 5]), tmp_path)
    assert len(ran.kept()) == 3 == len(set(texts))


def test_numbering_goes_there_and_back():
    parts = (PartInfo(1, "a", 3, 0, 10), PartInfo(4, "b", 0, 10, 0), PartInfo(7, "c", 0, 10, 5))
    numbering = Numbering(parts)
    codes = numbering.codes(parts[2], np.arange(5))
    assert codes.dtype == np.uint64
    assert codes.max() < numbering.codes(parts[0], np.array([0]))[0]  # rank 0 is better than rank 3
    index, row = numbering.locate(codes)
    assert (index.tolist(), row.tolist()) == ([7] * 5, [0, 1, 2, 3, 4])
    assert numbering.fixed_end == 0
    with pytest.raises(ValueError, match="64 different priorities"):
        Numbering((PartInfo(0, "a", 64, 0, 1),))
    with pytest.raises(ValueError, match="more than one deduplication can number"):
        Numbering((PartInfo(0, "a", 0, 1 << 34, 1),))


def test_partitions_are_a_function_of_size():
    assert [partition_bits(n, 100) for n in (0, 1, 100, 101, 200, 201, 10**9)] == [0, 0, 0, 1, 1, 2, 16]
