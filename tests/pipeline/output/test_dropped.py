"""The tables of dropped documents: the same rows and survivors however the parts are grouped."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.engine import inputs
from pipeline.engine.records import Routes
from pipeline.engine.sealed import arrow_table
from pipeline.engine.writer import DROPPED
from pipeline.output import dropped
from pipeline.output.dropped import Common, Survivors, ask
from tests.pipeline.corpora import document, run_build, write_config, write_jsonl

STAGES = "  - normalize\n  - rules: {preset: fineweb, mark: true}\n  - exact-dedup\n  - minhash-dedup\n"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nine parts in two sources; copies of one document stand behind survivors of other parts and sources."""
    folder = tmp_path_factory.mktemp("dropped")
    for number in range(8):
        texts = [document(100 * number + i, 120) for i in range(12)]
        texts[2 : 2 + number] = [document(9000 + i, 120) for i in range(number)]  # copies of all files before
        texts[11] = document(9500, 150) + f" The end of number {number}."
        write_jsonl(folder / "in" / "web" / f"{number}.jsonl", texts)
    write_jsonl(folder / "in" / "books" / "b.jsonl", [document(9000, 120), document(9001, 120), document(9500, 150)])
    return folder


def tables(folder: Path) -> dict[str, pa.Table]:
    root = folder / "out" / "dropped"
    return {path.relative_to(root).as_posix(): arrow_table(path) for path in sorted(root.rglob("*.arrow"))}


def build(corpus: Path, folder: Path, parts: int, monkeypatch: pytest.MonkeyPatch) -> dict[str, pa.Table]:
    monkeypatch.setattr(dropped, "PARTS", parts)
    monkeypatch.setattr(inputs, "TASK_BYTES", 12_000)  # a task for each file
    run_build(write_config(folder, corpus / "in", STAGES))
    return tables(folder)


def test_tables_of_few_parts_hold_the_rows_of_one_table(corpus, tmp_path, monkeypatch):
    whole = build(corpus, tmp_path / "whole", 64, monkeypatch)
    assert list(whole) == ["web/00000.arrow"]
    rows = whole["web/00000.arrow"].to_pylist()
    behind = [row for row in rows if row["survivor"] is not None]
    assert len(behind) > 20
    assert {row["stage"] for row in behind} == {"exact-dedup", "minhash-dedup"}
    for parts, count in ((1, 8), (3, 3)):
        cut = build(corpus, tmp_path / str(parts), parts, monkeypatch)
        assert len([name for name in cut if name.startswith("web/")]) >= count - 1
        assert [row for table in cut.values() for row in table.to_pylist()] == rows


def test_the_one_kept_is_named_by_its_id(corpus, tmp_path, monkeypatch):
    found = build(corpus, tmp_path, 2, monkeypatch)
    kept = {
        row["id"]: row
        for docs in (tmp_path / "out").glob("*/*/docs-*.arrow")
        for row in arrow_table(docs).to_pylist()
    }
    rows = [row for table in found.values() for row in table.to_pylist()]
    for row in rows:
        assert (row["survivor"] in kept) == row["stage"].endswith("dedup")
        assert row["id"] not in kept
    copies = [row for row in rows if row["stage"] == "exact-dedup"]
    assert {kept[row["survivor"]]["source"] for row in copies} == {"books", "web"}
    assert {row["similarity"] for row in copies} == {1.0}


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**31), st.integers(0, 60))
def test_rows_are_joined_to_their_answers_in_any_order(seed, size):
    chance = random.Random(seed)
    pairs = [(part, row) for part in range(4) for row in range(20)]
    answered = {}
    expected = {}
    for label in ("first", "second"):
        mine = chance.sample(pairs, chance.randint(0, 40))
        ids = [chance.randbytes(16) for _ in mine]
        expected |= {(label, *pair): one for pair, one in zip(mine, ids, strict=True)}
        columns = [[part for part, _ in mine], [row for _, row in mine], ids, [0.5] * len(mine)]
        answered[label] = pa.table(columns, schema=dropped._ANSWERED)
    part = chance.randrange(4)
    stages = [chance.choice(("first", "second", "rules")) for _ in range(size)]
    rows = [chance.choice((-1, *range(25))) for _ in range(size)]
    columns = {name: pa.nulls(size, field.type) for name, field in zip(DROPPED.names, DROPPED, strict=True)}
    columns |= {"stage": pa.array(stages, pa.string()), "row": pa.array(rows, pa.int64())}
    batch = pa.RecordBatch.from_arrays([columns[name] for name in DROPPED.names], schema=DROPPED)
    joined = Survivors(answered).join(batch, part)
    wanted = [expected.get((stage, part, row)) for stage, row in zip(stages, rows, strict=True)]
    assert joined.column("survivor").to_pylist() == wanted
    assert joined.column("similarity").to_pylist() == [None if one is None else 0.5 for one in wanted]
    assert "row" not in joined.schema.names


def test_texts_stay_for_the_first_of_each_reason():
    size = dropped.DROPPED_TEXTS
    seen: dict[str, int] = {}
    kept = []
    for first in range(0, 2 * size, 500):
        reasons = ["short" if (first + i) % 2 else "long" for i in range(500)]
        columns = {name: pa.nulls(500, field.type) for name, field in zip(DROPPED.names, DROPPED, strict=True)}
        columns |= {"stage": pa.array(["rules"] * 500), "reason": pa.array(reasons), "text": pa.array(["text"] * 500, pa.large_string())}
        batch = pa.RecordBatch.from_arrays([columns[name] for name in DROPPED.names], schema=DROPPED)
        kept += [*zip(reasons, dropped._cap_texts(batch, seen).column("text").to_pylist(), strict=True)]
    assert seen == {"rules\nshort": size, "rules\nlong": size}
    assert all(text == "text" for _, text in kept)
    more = dropped._cap_texts(batch, seen)
    assert more.column("text").null_count == 500


def test_a_part_is_found_in_its_group():
    common = Common("", ask, ((4, 0), (), (2,), (1 << 30, 3)), {}, Routes())
    assert common.group_of(np.array([3, 0, 4, 1 << 30, 2, 0])).tolist() == [3, 0, 0, 3, 2, 0]
