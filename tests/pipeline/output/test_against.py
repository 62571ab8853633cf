"""New data against an earlier corpus, through its signatures alone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from pipeline.engine.sealed import arrow_table
from stages.contract.problem import SpecError
from tests.pipeline.corpora import document, ran, run_build, snapshot, write_jsonl

CONFIG = """\
name: %(name)s
sources:
  web: {path: %(path)s}
stages:
  - exact-dedup%(exact)s
  - minhash-dedup: {%(near)s}
tokenizer: {vocab_size: 300}
holdout: {share: 0}
output: {path: out-%(name)s}
"""


def config(folder: Path, name: str, path: object, against: str = "", near: str = "") -> Path:
    """A corpus with exact and near deduplication, perhaps against another one."""
    where = f"against: {against}" if against else ""
    values = {"name": name, "path": path, "exact": f": {{{where}}}" if where else "", "near": ", ".join(x for x in (where, near) if x)}
    file = folder / f"{name}.yaml"
    file.write_text(CONFIG % values, encoding="utf-8")
    return file


def dropped(folder: Path, name: str) -> dict[str, dict]:
    """Rows of the table of dropped documents, by the user's id."""
    return {row["user_id"]: row for row in arrow_table(folder / f"out-{name}" / "dropped" / "web" / "00000.arrow").to_pylist()}


def kept(folder: Path, name: str) -> dict[str, bytes]:
    """Ids of the documents in shards, by the user's id."""
    files = (folder / f"out-{name}").glob("shards/web/docs-*.arrow")
    return {row["user_id"]: row["id"] for file in files for row in arrow_table(file).to_pylist()}


@pytest.mark.data
def test_the_case_of_two_deliveries(shared: Path, tmp_path: Path) -> None:
    inputs = shared / "cases/inputs/incremental"
    run_build(config(tmp_path, "A", inputs / "A.jsonl"))
    before = snapshot(tmp_path / "out-A")
    run_build(config(tmp_path, "B", inputs / "B.jsonl", "out-A/manifest.json"))
    assert snapshot(tmp_path / "out-A") == before
    old, gone = kept(tmp_path, "A"), dropped(tmp_path, "B")
    assert set(gone) == {name for name in gone if name.startswith("B-")}
    assert gone["B-copy-of-d1"]["survivor"] == old["d1"]
    assert gone["B-near-d3"]["survivor"] == old["d3"]
    rows = [json.loads(line)["id"] for line in (inputs / "B.jsonl").open()]
    assert set(kept(tmp_path, "B")) == {name for name in rows if not name.startswith("B-")}


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus `A`, and texts of a second delivery: a copy, near copies, fresh ones, and copies among themselves."""
    folder = tmp_path_factory.mktemp("two")
    first = [document(i) for i in range(30)]
    write_jsonl(folder / "in" / "a" / "first.jsonl", [*first[:20], document(3)])
    write_jsonl(folder / "in" / "a" / "second.jsonl", first[20:])
    second = [first[3], first[6] + " One more.", document(100), document(101), document(100), document(101) + " More."]
    write_jsonl(folder / "in" / "b" / "fresh.jsonl", second)
    run_build(config(folder, "A", "in/a/*.jsonl"))
    return folder


def test_old_documents_survive_and_new_ones_are_deduplicated_too(two: Path) -> None:
    result = run_build(config(two, "B", "in/b/*.jsonl", "out-A"))
    old, gone = kept(two, "A"), dropped(two, "B")
    assert {name: row["stage"] for name, row in gone.items()} == {
        "fresh-0": "exact-dedup", "fresh-1": "minhash-dedup", "fresh-4": "exact-dedup", "fresh-5": "minhash-dedup",
    }  # fmt: skip
    assert gone["fresh-0"]["survivor"] == old["first-3"]
    assert gone["fresh-1"]["survivor"] == old["first-6"]
    assert set(kept(two, "B")) == {"fresh-2", "fresh-3"}
    assert {name: n for name, n in ran(result).items() if "take up" in name} == {
        "exact-dedup: take up": 1, "minhash-dedup: take up": 1,
    }  # fmt: skip
    assert ran(run_build(two / "B.yaml")) == {}


def test_the_old_text_is_not_needed_and_the_result_is_the_same_elsewhere(two: Path, tmp_path: Path) -> None:
    run_build(config(two, "B", "in/b/*.jsonl", "out-A"))
    for name in ("out-A", "in"):
        shutil.copytree(two / name, tmp_path / name)
    shutil.rmtree(tmp_path / "in" / "a")
    shutil.rmtree(tmp_path / "out-A" / "shards")
    run_build(config(tmp_path, "B", "in/b/*.jsonl", "out-A"))
    assert snapshot(tmp_path / "out-B") == snapshot(two / "out-B")


def test_a_third_delivery_against_both(two: Path) -> None:
    run_build(config(two, "B", "in/b/*.jsonl", "out-A"))
    write_jsonl(two / "in" / "c" / "third.jsonl", [document(100), document(2), document(500)])
    run_build(config(two, "C", "in/c/*.jsonl", "[out-A, out-B]"))
    assert {row["survivor"] for row in dropped(two, "C").values()} == {kept(two, "B")["fresh-2"], kept(two, "A")["first-2"]}


@pytest.mark.parametrize(
    ("near", "field"), [("ngram: 4", "ngram is 5 there and 4 here"), ("seed: 1", "seed is 0 there and 1 here"), ("bands: 14, rows: 8", "bands is 13 there and 14 here")]
)
def test_other_settings_are_refused_by_name(two: Path, near: str, field: str) -> None:
    with pytest.raises(SpecError, match=field):
        run_build(config(two, "D", "in/b/*.jsonl", "out-A", near))


def test_a_corpus_without_signatures_is_refused(two: Path, tmp_path: Path) -> None:
    shutil.copytree(two / "out-A", tmp_path / "out-A", ignore=shutil.ignore_patterns("work"))
    shutil.copytree(two / "in", tmp_path / "in")
    with pytest.raises(SpecError, match="no signatures are left"):
        run_build(config(tmp_path, "B", "in/b/*.jsonl", "out-A"))
    with pytest.raises(SpecError, match="reads no old text"):
        run_build(config(two, "E", "in/b/*.jsonl", "out-A", "verify: exact"))
