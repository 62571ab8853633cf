"""A build from raw files to the manifest: bytes, accounts, caching, damage."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from pipeline.engine.sealed import arrow_table
from stages.contract.manifest import load_manifest, verify_manifest
from stages.contract.problem import RunError
from stages.contract.shard import read_index, read_tokens
from stages.tokenizer.encode import Encoder
from tests.pipeline.corpora import (
    STAGES,
    document,
    make_inputs,
    ran,
    run_build,
    snapshot,
    write_config,
    write_jsonl,
)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with inputs, a config and a finished build in `out`."""
    folder = tmp_path_factory.mktemp("built")
    make_inputs(folder / "in")
    run_build(write_config(folder, folder / "in"))
    return folder


def test_the_manifest_holds_and_the_books_balance(built: Path) -> None:
    manifest = load_manifest(built / "out")
    assert verify_manifest(built / "out", manifest, deep=True) == []
    assert manifest.checks.roundtrip is not None
    assert manifest.checks.roundtrip.failures == 0
    for source in manifest.sources.values():
        left = None
        for step in source.funnel:
            assert step.documents_in == step.documents_out + sum(step.dropped.values()) + step.rejected
            assert left is None or step.documents_in == left
            left = step.documents_out
        assert left == source.documents + sum(h.documents for h in source.holdout)
    web = {s.stage: s for s in manifest.sources["web"].funnel}
    assert web["exact-dedup"].dropped == {"exact-dedup.duplicate": 11}  # 6 of them for books, which has the higher priority
    books = {s.stage: s for s in manifest.sources["books"].funnel}
    assert books["normalize"].dropped == {"normalize.empty": 1}
    assert books["exact-dedup"].dropped == {}


def test_every_document_of_a_shard_is_its_text_and_one_eos(built: Path) -> None:
    out = built / "out"
    manifest = load_manifest(out)
    encoder = Encoder.load(out / manifest.tokenizer.path)
    texts = {json.loads(line)["text"].strip() for f in (built / "in").rglob("*.jsonl") for line in f.open()}
    for source in manifest.sources.values():
        for shard in (*source.shards, *source.holdout):
            lengths = read_index(shard.path(out, "idx"), shard.tokens)["length"]
            ids = read_tokens(shard.path(out, "tok"), np.dtype("<u2"), 0, shard.tokens)
            starts = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
            for start, end in itertools.pairwise(starts):
                assert ids[end - 1] == manifest.tokenizer.eos_id
                assert encoder.decode(ids[start : end - 1]) in texts


def test_a_dropped_document_names_its_survivor(built: Path) -> None:
    table = arrow_table(built / "out" / "dropped" / "web" / "00000.arrow")
    exact = [row for row in table.to_pylist() if row["stage"] == "exact-dedup" and row["user_id"].endswith("-3")]
    kept = {row["id"] for docs in (built / "out").glob("*/books/docs-*.arrow") for row in arrow_table(docs).to_pylist()}
    assert len(exact) == 6
    assert all(row["survivor"] in kept and row["similarity"] == 1.0 for row in exact)
    assert all(row["text"] for row in exact)
    near = [row for row in table.to_pylist() if row["stage"] == "minhash-dedup"]
    assert len(near) == 1
    assert near[0]["survivor"] in kept
    assert near[0]["similarity"] > 0.9


def test_the_same_bytes_when_the_inputs_lie_elsewhere(built: Path, tmp_path: Path) -> None:
    shutil.copytree(built / "in", tmp_path / "moved")
    run_build(write_config(tmp_path / "config", tmp_path / "moved"))
    assert snapshot(tmp_path / "config" / "out") == snapshot(built / "out")


@pytest.mark.ray
@pytest.mark.parametrize("workers", [1, 2, pytest.param(4, marks=pytest.mark.long)])
def test_the_same_bytes_on_ray_for_any_number_of_workers(built: Path, tmp_path: Path, workers: int) -> None:
    from pipeline.engine.cluster import OnRay

    run_build(write_config(tmp_path, built / "in"), executor=OnRay(workers=workers))
    assert snapshot(tmp_path / "out") == snapshot(built / "out")


def test_a_second_build_does_nothing_and_changes_nothing(built: Path) -> None:
    before = snapshot(built / "out")
    result = run_build(built / "corpus.yaml")
    assert ran(result) == {}
    assert snapshot(built / "out") == before


@pytest.fixture
def copy(built: Path, tmp_path: Path) -> Path:
    """A copy of the finished build, to be changed."""
    shutil.copytree(built, tmp_path / "copy", copy_function=shutil.copy2)
    return write_config(tmp_path / "copy", tmp_path / "copy" / "in")


def test_a_late_setting_runs_only_what_follows(copy: Path, tmp_path: Path) -> None:
    result = run_build(copy, ["stages.pii.replace=remove"])
    assert not any(name.startswith(("pass 0", "exact-dedup", "minhash-dedup")) for name in ran(result))
    assert ran(result)["pass 1"] == 7 or ran(result)["pass 1"] > 0
    fresh = write_config(tmp_path / "fresh", copy.parent / "in")
    run_build(fresh, ["stages.pii.replace=remove"])
    assert snapshot(copy.parent / "out") == snapshot(tmp_path / "fresh" / "out")


def test_shard_size_runs_only_the_shards(copy: Path) -> None:
    result = run_build(copy, ["output.shard_tokens=2048"])
    assert set(ran(result)) == {"shards"}


def test_a_touched_file_is_hashed_and_found_equal(copy: Path) -> None:
    for path in (copy.parent / "in").rglob("*.jsonl"):
        os.utime(path, (1, 1))
    assert ran(run_build(copy)) == {}


def test_a_changed_file_runs_its_task_the_rounds_and_changed_applies(copy: Path, tmp_path: Path) -> None:
    books = copy.parent / "in" / "books" / "all.jsonl"
    write_jsonl(books, [document(i) for i in range(20)] + ["", document(70_000)])
    result = run_build(copy)
    tasks = ran(result)
    assert tasks["pass 0"] == 1  # of two: the bundle of web is untouched
    assert tasks["pass 1"] == 1  # web's facts are what they were
    fresh = write_config(tmp_path / "fresh", copy.parent / "in")
    run_build(fresh)
    assert snapshot(copy.parent / "out") == snapshot(tmp_path / "fresh" / "out")


def test_an_added_and_a_removed_file(copy: Path, tmp_path: Path) -> None:
    write_jsonl(copy.parent / "in" / "web" / "99.jsonl", [document(9000 + i) for i in range(5)])
    (copy.parent / "in" / "web" / "00.jsonl").unlink()
    run_build(copy)
    run_build(write_config(tmp_path / "fresh", copy.parent / "in"))
    assert snapshot(copy.parent / "out") == snapshot(tmp_path / "fresh" / "out")


def test_a_lost_shard_is_made_again(copy: Path) -> None:
    before = snapshot(copy.parent / "out")
    shard = next((copy.parent / "out" / "shards" / "web").glob("*.tok"))
    content = shard.read_bytes()
    shard.unlink()
    shard.write_bytes(content[:-4])
    run_build(copy)
    assert snapshot(copy.parent / "out") == before


def truncated(folder: Path, policy: str) -> Path:
    """A source with a healthy file and a gzip file that breaks off."""
    write_jsonl(folder / "in" / "web" / "healthy.jsonl", [document(i) for i in range(40)])
    rows = "".join(json.dumps({"text": document(100 + i, 400)}) + "\n" for i in range(200))
    (folder / "in" / "web" / "torn.jsonl.gz").write_bytes(gzip.compress(rows.encode(), mtime=0)[:-2000])
    config = folder / "corpus.yaml"
    config.write_text(
        f"name: torn\nsources:\n  web: {{path: 'in/web/*', on_damaged: {policy}}}\nstages: [normalize]\n"
        "tokenizer: {vocab_size: 300}\nholdout: {share: 0}\noutput: {path: out}\n"
    )
    return config


def test_a_damaged_file_is_left_out_whole_and_reported(tmp_path: Path) -> None:
    config = truncated(tmp_path, "skip")
    result = run_build(config)
    assert result.exit_code == 3
    manifest = load_manifest(tmp_path / "out")
    assert manifest.sources["web"].documents == 40
    assert [d.uri for d in manifest.damaged] == ["torn.jsonl.gz"]
    read = manifest.sources["web"].funnel[0]
    assert read.rejected == manifest.damaged[0].records > 0
    write_jsonl(tmp_path / "in" / "web" / "torn.jsonl.gz", [])
    (tmp_path / "in" / "web" / "torn.jsonl.gz").write_bytes(gzip.compress(json.dumps({"text": document(3)}).encode()))
    again = run_build(config)
    assert again.exit_code == 0
    assert load_manifest(tmp_path / "out").sources["web"].documents == 41


def test_a_damaged_file_may_stop_the_build_or_give_its_good_part(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"torn\.jsonl\.gz is damaged"):
        run_build(truncated(tmp_path / "stop", "stop"))
    assert not (tmp_path / "stop" / "out" / "manifest.json").exists()
    run_build(truncated(tmp_path / "part", "keep-good-part"))
    assert 40 < load_manifest(tmp_path / "part" / "out").sources["web"].documents < 240


def test_max_loss_stops_with_examples_and_the_way_on(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "in" / "web" / "a.jsonl", [document(1)] * 10)
    config = write_config(tmp_path, tmp_path / "in", "  - exact-dedup: {max_loss: 50%}\n")
    write_jsonl(tmp_path / "in" / "books" / "b.jsonl", [document(50)])
    with pytest.raises(RunError) as error:
        run_build(config)
    text = str(error.value)
    assert "9 of 10 documents of web (90.0 %), more than its max_loss of 50 %" in text
    assert "--set stages.exact-dedup.max_loss=90%" in text
    assert text.count("dropped: a.jsonl") == 3
    run_build(config, ["stages.exact-dedup.max_loss=90%"])


def test_mark_writes_a_column_and_drops_nothing(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "in" / "web" / "a.jsonl", [document(1), document(3), document(1)])
    write_jsonl(tmp_path / "in" / "books" / "b.jsonl", [document(50)])
    run_build(write_config(tmp_path, tmp_path / "in", "  - exact-dedup: {mark: true}\n"), ["holdout.share=0"])
    rows = arrow_table(tmp_path / "out" / "shards" / "web" / "docs-00000.arrow").to_pylist()
    assert [row["mark.exact-dedup"] for row in rows] == [None, None, "exact-dedup.duplicate"]


def test_only_leaves_other_sources_alone(tmp_path: Path) -> None:
    make_inputs(tmp_path / "in", files=1)
    run_build(write_config(tmp_path, tmp_path / "in", "  - exact-dedup: {only: [web]}\n"))
    stages = {n: [s.stage for s in e.funnel] for n, e in load_manifest(tmp_path / "out").sources.items()}
    assert stages == {"web": ["read", "exact-dedup", "tokenize"], "books": ["read", "tokenize"]}


def test_until_stops_early_and_goes_on_later(tmp_path: Path) -> None:
    make_inputs(tmp_path / "in", files=2)
    config = write_config(tmp_path, tmp_path / "in", STAGES)
    early = run_build(config, until="tokenizer")
    assert early.manifest is None
    assert (tmp_path / "out" / "tokenizer" / "tokenizer.json").exists()
    late = run_build(config)
    named = {f"{stage}: {what} survivors" for stage in ("exact-dedup", "minhash-dedup") for what in ("ask for", "name")}
    assert set(ran(late)) == {"pass 2", "shards", "dropped", *named}


def test_everything_dropped_is_an_error(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "in" / "web" / "a.jsonl", ["", " "])
    write_jsonl(tmp_path / "in" / "books" / "b.jsonl", [""])
    with pytest.raises(RunError, match="nothing is left"):
        run_build(write_config(tmp_path, tmp_path / "in", "  - normalize\n"))
