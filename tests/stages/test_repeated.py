"""Lines that a site repeats: counted over all documents, cut, and nothing else touched."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from pipeline.engine.sealed import arrow_table
from stages.document import document_batch, text_buffers
from stages.repeated import RepeatedLines
from stages.text.cutting import line_bounds
from tests.pipeline.corpora import document, run_build, snapshot, write_config, write_jsonl
from tests.stages.bsp import run_global
from tests.stages.scripts_corpus import TEXTS

NAVIGATION = "Home | About | 联系我们"
NOTICE = "© 2024 Example. All rights reserved."


def page(number: int, extra: str = "") -> str:
    return f"{NAVIGATION}\n\nPage about {document(number, 12)}\nand more of it {number}\n\n{extra}{NOTICE}"


def parts_of(rows: Sequence[tuple[str, str | None]], pieces: int, batch: int = 4) -> list[list[pa.RecordBatch]]:
    """`(text, url)` rows cut into parts of about equal size, those into batches."""
    parts = []
    for number in range(pieces):
        mine = range(len(rows) * number // pieces, len(rows) * (number + 1) // pieces)
        cuts = [list(mine)[i : i + batch] for i in range(0, len(mine), batch)]
        parts.append(
            [
                document_batch(
                    "web", [f"{number}.jsonl"] * len(cut), cut, [rows[i][0] for i in cut],
                    metas=[json.dumps({"url": rows[i][1]}) if rows[i][1] else None for i in cut],
                )
                for cut in cuts
            ]
        )  # fmt: skip
    return parts


def run(rows: Sequence[tuple[str, str | None]], tmp_path: Path, pieces: int = 3, **settings) -> list[dict]:
    ran = run_global(RepeatedLines(**settings), parts_of(rows, pieces), tmp_path)
    return [row for part in ran.apply().values() for batch in part for row in batch.to_pylist()]


SITE = [(page(i), f"https://www.example.org/{i}") for i in range(12)]
OTHER = [(page(100 + i), f"https://example.net/{i}") for i in range(3)]


def test_what_a_site_repeats_goes_and_nothing_else(tmp_path):
    rows = run([*SITE, *OTHER], tmp_path)
    for i, row in enumerate(rows[:12]):
        assert row["text"] == f"Page about {document(i, 12)}\nand more of it {i}"
        assert (row["repeated.lines"], row["repeated.documents"]) == (2, 12)
    assert [row["text"] for row in rows[12:]] == [text for text, _ in OTHER]
    assert {row["drop"] for row in rows} == {None}


def test_the_source_is_the_scope_where_asked_and_where_there_is_no_address(tmp_path):
    rows = run([*SITE, *OTHER], tmp_path / "a", scope="source", min_documents=15)
    assert {row["repeated.lines"] for row in rows} == {2}
    rows = run([(text, None) for text, _ in SITE], tmp_path / "b")
    assert {row["repeated.lines"] for row in rows} == {2}


def test_share_and_number_both_count(tmp_path):
    few = [(page(i) if i < 11 else document(i), "http://a.example/") for i in range(40)]
    assert sum(row["repeated.lines"] for row in run(few, tmp_path / "a", min_share="25%")) == 22
    assert sum(row["repeated.lines"] for row in run(few, tmp_path / "b", min_share="30%")) == 0
    assert sum(row["repeated.lines"] for row in run(few, tmp_path / "c", min_documents=12)) == 0


def test_a_line_is_its_words_and_one_without_words_stays(tmp_path):
    texts = [(f"{'READ  more!' if i % 2 else 'read more'}\n* * *\n{{\nStory {i}\n}}", None) for i in range(10)]
    rows = run(texts, tmp_path)
    assert [row["text"] for row in rows] == [f"* * *\n{{\nStory {i}\n}}" for i in range(10)]


def test_a_line_that_a_document_repeats_counts_once_and_goes_everywhere(tmp_path):
    texts = [("same\nsame\n" + document(i, 9) + "\nsame", None) for i in range(10)]
    rows = run(texts, tmp_path / "a")
    assert [row["text"] for row in rows] == [document(i, 9) for i in range(10)]
    assert {(row["repeated.lines"], row["repeated.documents"]) for row in rows} == {(3, 10)}
    assert {row["repeated.lines"] for row in run([("same\n" * 20, None)], tmp_path / "b")} == {0}


def test_a_document_of_nothing_else_is_dropped_and_marks_change_nothing(tmp_path):
    texts = [*SITE, (f"{NAVIGATION}\n\n{NOTICE}\n", "http://example.org/empty")]
    last = run(texts, tmp_path / "a")[-1]
    assert (last["text"], last["drop"]) == ("", "repeated-lines.nothing-left")
    marked = run(texts, tmp_path / "b", mark=True)
    assert [row["text"] for row in marked] == [text for text, _ in texts]
    assert {row["repeated.lines"] for row in marked} == {2}
    assert {row["drop"] for row in marked} == {None}


def test_paragraphs_count_as_a_whole(tmp_path):
    texts = [(f"shared line\n{document(i, 6)}\n\nshared\nparagraph\n\nend {i}", None) for i in range(10)]
    rows = run(texts, tmp_path, unit="paragraph")
    assert [row["text"] for row in rows] == [f"shared line\n{document(i, 6)}\n\nend {i}" for i in range(10)]


def test_cuts_into_parts_and_batches_change_nothing(tmp_path):
    rows = [*SITE, *OTHER]
    wanted = run(rows, tmp_path / "one", pieces=1)
    for pieces in (2, 5, 15):
        keep = ("text", "drop", "repeated.lines", "repeated.documents")
        assert [{k: row[k] for k in keep} for row in run(rows, tmp_path / str(pieces), pieces=pieces)] == [
            {k: row[k] for k in keep} for row in wanted
        ]


def test_every_script_and_no_document_at_all(tmp_path):
    rows = run([(text, None) for text in TEXTS.values()], tmp_path / "a")
    assert [row["text"] for row in rows] == list(TEXTS.values())
    assert run([], tmp_path / "b", pieces=1) == []
    repeated = "村口那座石桥"
    rows = run([(f"{repeated}\n{text}", None) for text in TEXTS.values()], tmp_path / "c")
    assert not any(repeated in (row["text"] or "").split("\n") for row in rows)


@pytest.mark.parametrize("paragraphs", [False, True])
def test_lines_are_all_of_the_text(paragraphs):
    texts = [*TEXTS.values(), "\n\na\nb\n\n\nc", "x\n", "\n"]
    data, offsets = text_buffers(pa.array(texts, pa.large_string()))
    bounds, starts, stops = line_bounds(data, offsets, paragraphs)
    for text, (low, high) in zip(texts, itertools.pairwise(bounds.tolist()), strict=True):
        lines = [bytes(data[a:b]).decode() for a, b in zip(starts[low:high], stops[low:high], strict=True)]
        whole = "\n".join(lines)
        assert whole == text or whole + "\n" == text
    assert np.all(starts <= stops)


def test_a_build_cuts_and_accounts(tmp_path):
    for number in range(3):
        write_jsonl(tmp_path / "in" / "web" / f"{number}.jsonl", [page(50 * number + i) for i in range(20)])
    write_jsonl(tmp_path / "in" / "books" / "all.jsonl", [document(i) for i in range(20)])
    stages = "  - normalize\n  - repeated-lines: {min_documents: 5, only: [web]}\n  - exact-dedup\n"
    config = write_config(tmp_path, tmp_path / "in", stages)
    result = run_build(config)
    count = next(c for c in result.accounts["web"] if c.stage == "repeated-lines")
    assert count.totals["repeated.lines"] == 120
    assert count.documents_in == count.documents_out == 60
    assert count.bytes_in - count.bytes_out > 60 * len(NOTICE)
    before = snapshot(tmp_path / "out")
    run_build(write_config(tmp_path, tmp_path / "in", stages, out="again"))
    assert {k: v for k, v in snapshot(tmp_path / "again").items() if k != "report.html"} == {
        k: v for k, v in before.items() if k != "report.html"
    }
    docs = arrow_table(next((tmp_path / "out" / "shards" / "web").glob("docs-*.arrow")))
    assert set(docs.column("repeated.lines").to_pylist()) == {2}
