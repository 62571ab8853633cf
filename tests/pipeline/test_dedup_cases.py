"""Deduplication through whole builds: the shared cases, and what must not decide who is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from stages.contract.manifest import load_manifest
from stages.contract.problem import SpecError
from stages.shards.provenance import origins
from tests.pipeline.corpora import make_inputs, ran, run_build, snapshot, write_config

CONFIG = """\
name: case
sources:
  web: {path: %(path)s%(more)s}
stages:
%(stages)s
tokenizer: {vocab_size: 300}
holdout: {share: 0}
output: {path: %(out)s}
"""
BOTH = "  - exact-dedup\n  - minhash-dedup\n"


def config(folder: Path, path: Path, stages: str = BOTH, out: str = "out", more: str = "") -> Path:
    file = folder / "corpus.yaml"
    file.write_text(CONFIG % {"path": path, "stages": stages, "out": out, "more": more}, encoding="utf-8")
    return file


def outcome(folder: Path, out: str = "out") -> tuple[int, dict[str, int]]:
    """`(documents kept, dropped by reason)`."""
    source = load_manifest(folder / out).sources["web"]
    return source.documents, {reason: n for step in source.funnel for reason, n in step.dropped.items()}


def kept(out: Path) -> set[tuple[str, str, int]]:
    """Source, file and record of every document that was kept."""
    found = set()
    for name, source in load_manifest(out).sources.items():
        for shard in source.shards:
            rows = origins(shard.path(out, "docs"), range(shard.documents))
            found |= {(name, Path(row["uri"]).name, row["record"]) for row in rows}
    return found


@pytest.mark.parametrize("cut", ["one task", "a task each", "files in pieces", "listed backwards"])
def test_neither_cuts_nor_the_order_of_files_decide_who_is_kept(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, cut: str
) -> None:
    folder = tmp_path / "in"
    make_inputs(folder, files=5, documents=40)
    run_build(write_config(tmp_path / "usual", folder, BOTH), ["holdout.share=0"])
    expected = kept(tmp_path / "usual" / "out")
    again = write_config(tmp_path / "again", folder, BOTH)
    if cut == "listed backwards":
        files = sorted((folder / "web").glob("*.jsonl"), reverse=True)
        listed = ", ".join(str(file) for file in files)
        again.write_text(again.read_text().replace(f"{folder}/web/*.jsonl", f"[{listed}]"))
    monkeypatch.setattr("pipeline.engine.inputs.BUNDLE_STOP", {"one task": 1 << 62, "a task each": 1}.get(cut, 64))
    monkeypatch.setattr("pipeline.engine.inputs.TASK_BYTES", 3_000 if cut == "files in pieces" else 64 << 20)
    run_build(again, ["holdout.share=0"])
    assert len(expected) > 150
    assert kept(tmp_path / "again" / "out") == expected


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "kept", "exact", "near"),
    [("short_docs", 6, 2, 0), ("templated", 40, 0, 3), ("copies", 3, 6, 0), ("zh_near", 6, 1, 1)],
)
def test_what_is_kept(shared: Path, tmp_path: Path, name: str, kept: int, exact: int, near: int) -> None:
    run_build(config(tmp_path, shared / "cases/inputs" / f"{name}.jsonl"))
    dropped = {"exact-dedup.duplicate": exact, "minhash-dedup.near-duplicate": near}
    assert outcome(tmp_path) == (kept, {reason: n for reason, n in dropped.items() if n})


@pytest.mark.data
@pytest.mark.parametrize("stages", ["  - exact-dedup\n", "  - minhash-dedup\n", "  - minhash-dedup: {verify: exact}\n", BOTH])
def test_copies_have_one_survivor_in_every_mode(shared: Path, tmp_path: Path, stages: str) -> None:
    run_build(config(tmp_path, shared / "cases/inputs/copies.jsonl", stages))
    assert outcome(tmp_path)[0] == 3


@pytest.mark.data
def test_bands_and_rows_that_were_swapped(shared: Path, tmp_path: Path) -> None:
    from pipeline.corpus import load_corpus
    from pipeline.engine.plan import make_plan
    from pipeline.show import plan_text

    path = shared / "cases/inputs/copies.jsonl"
    swapped = "  - minhash-dedup: {bands: 13, rows: 60, permutations: 780}\n"
    text = plan_text(make_plan(load_corpus(config(tmp_path, path, swapped))))
    assert "warning: only 0.0% of the duplicates at the threshold 0.8 would be found" in text
    meant = plan_text(make_plan(load_corpus(config(tmp_path, path, "  - minhash-dedup: {threshold: 0.8}\n"))))
    assert "13 bands x 8 rows propose two documents of similarity J with chance 0.5: 5.0%" in meant
    assert "warning" not in meant
    with pytest.raises(SpecError, match="780 are more than permutations = 112"):
        load_corpus(config(tmp_path, path, "  - minhash-dedup: {bands: 13, rows: 60}\n"))


@pytest.mark.data
@pytest.mark.parametrize("setting", ["minhash-dedup.seed=5", "minhash-dedup.ngram=3", "exact-dedup.normalise=text"])
def test_another_setting_in_the_same_work_folder_is_computed_anew(shared: Path, tmp_path: Path, setting: str) -> None:
    path = shared / "cases/inputs/copies.jsonl"
    run_build(config(tmp_path, path))
    again = run_build(tmp_path / "corpus.yaml", [f"stages.{setting}"])
    assert any(name.startswith(setting.split(".")[0]) for name in ran(again))
    run_build(config(tmp_path, path, out="fresh"), [f"stages.{setting}"])
    assert snapshot(tmp_path / "out") == snapshot(tmp_path / "fresh")


@pytest.mark.data
def test_another_field_and_n_gram_in_the_same_work_folder(shared: Path, tmp_path: Path) -> None:
    path = shared / "cases/inputs/two_fields.jsonl"
    run_build(config(tmp_path, path))
    for more, settings in ((", text: title", []), (", text: title", ["stages.minhash-dedup.ngram=2"])):
        run_build(config(tmp_path, path, more=more), settings)
        run_build(config(tmp_path, path, out=f"fresh-{len(settings)}", more=more), settings)
        assert snapshot(tmp_path / "out") == snapshot(tmp_path / f"fresh-{len(settings)}")
