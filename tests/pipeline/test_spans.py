"""Span deduplication in a build: the text that is tokenized, the evidence, the cache."""

from __future__ import annotations

import json
from pathlib import Path

from pipeline.engine.sealed import arrow_table
from stages.contract.manifest import load_manifest
from tests.pipeline.commands.test_why import call
from tests.pipeline.corpora import document, ran, run_build, snapshot, write_config, write_jsonl

STAGES = "  - normalize\n  - exact-dedup\n  - span-dedup: {min_words: 30}\n  - pii\n"


def corpus(folder: Path) -> Path:
    """Two sources whose documents share a notice."""
    notice = document(3, 40)
    write_jsonl(folder / "in" / "books" / "b.jsonl", [document(0, 60), f"{document(1, 60)} {notice}"])
    texts = [f"{document(100 + i, 50)} {notice} {document(200 + i, 20)}" for i in range(6)]
    write_jsonl(folder / "in" / "web" / "w.jsonl", [*texts, notice])
    return write_config(folder, folder / "in", STAGES)


def test_a_notice_stays_in_one_document(tmp_path: Path) -> None:
    config = corpus(tmp_path)
    run_build(config, ["holdout.share=0"])
    out = tmp_path / "out"
    (web,) = (out / "shards" / "web").glob("docs-*.arrow")
    rows = arrow_table(web).to_pylist()
    (books,) = (out / "shards" / "books").glob("docs-*.arrow")
    keeper = next(row for row in arrow_table(books).to_pylist() if row["user_id"] == "b-1")
    assert all(40 <= row["spans.words"] <= 45 for row in rows)  # a word beside the notice may be the same by chance
    for row in rows:
        assert [cut["from"] for cut in json.loads(row["spans.from"])] == [keeper["id"].hex()]
    _, text, lines = call("inspect", out, "--kept", "--source", "web", "-n", 6)
    assert document(3, 40)[:40] not in text
    assert document(3, 40) in call("why", out, "b-1")[2][-1]["result"]["documents"][0]["text"]
    assert "spans.from=" in call("why", out, "w-0")[1]
    assert load_manifest(out).sources["web"].funnel[3].dropped == {"span-dedup.nothing-left": 1}
    assert lines
    before = snapshot(out)
    assert ran(run_build(config, ["holdout.share=0"])) == {}
    run_build(config, ["holdout.share=0", "stages.pii.replace=remove"])
    run_build(config, ["holdout.share=0"])
    assert snapshot(out) == before
