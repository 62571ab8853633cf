"""Documents and workers that fail: isolated, retried, quarantined, named."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from pipeline.corpus import Source
from pipeline.engine.cluster import OnRay
from pipeline.engine.store import Store
from pipeline.events import Event, Quarantined, WorkerDied
from stages.contract.manifest import load_manifest
from stages.contract.problem import RunError
from tests.pipeline import poison
from tests.pipeline.corpora import document, make_inputs, run_build, snapshot, write_config, write_jsonl


def make(folder: Path, texts: list[str], stage: str) -> Path:
    write_jsonl(folder / "in" / "web" / "a.jsonl", texts)
    write_jsonl(folder / "in" / "books" / "b.jsonl", [document(900 + i) for i in range(5)])
    return write_config(folder, folder / "in", f"  - normalize\n  - {stage}\n")


def test_a_document_on_which_a_stage_raises_is_rejected_by_name(tmp_path: Path) -> None:
    texts = [document(i) for i in range(30)]
    texts[11] = "RAISE " + texts[11]
    run_build(make(tmp_path, texts, "tests.pipeline.poison:Raises"))
    rows = [orjson.loads(line) for line in (tmp_path / "out" / "rejects.jsonl").read_bytes().splitlines()]
    assert len(rows) == 1
    assert rows[0]["reason"] == "stage-error"
    assert "this text is too much for me" in rows[0]["detail"]
    step = next(s for s in load_manifest(tmp_path / "out").sources["web"].funnel if s.stage == "raises")
    assert (step.documents_in, step.documents_out, step.rejected) == (30, 29, 1)


def test_a_document_that_asks_for_all_memory_is_rejected_by_name(tmp_path: Path) -> None:
    texts = [document(i) for i in range(30)]
    texts[20] = "HUNGRY " + texts[20]
    run_build(make(tmp_path, texts, "tests.pipeline.poison:Hungry"))
    rows = [orjson.loads(line) for line in (tmp_path / "out" / "rejects.jsonl").read_bytes().splitlines()]
    assert [row["reason"] for row in rows] == ["stage-error"]
    assert "MemoryError" in rows[0]["detail"]
    assert load_manifest(tmp_path / "out").sources["web"].funnel[-1].documents_in == 29


def test_a_stage_that_raises_on_everything_fails_the_build(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="stage `raises` failed on") as error:
        run_build(make(tmp_path, ["RAISE " + document(i) for i in range(40)], "tests.pipeline.poison:Raises"))
    assert "too much for me" in str(error.value)
    assert "a.jsonl" in str(error.value)


def test_a_large_file_in_one_piece_goes_on_behind_the_parts_that_are_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.engine.inputs.TASK_BYTES", 1000)
    monkeypatch.setattr("pipeline.engine.task.PART_BYTES", 30_000)
    rows = [orjson.dumps({"text": document(i, 300)}) for i in range(120)] + [b"[]"]
    folder = tmp_path / "in" / "web"
    folder.mkdir(parents=True)
    (folder / "a.jsonl.gz").write_bytes(gzip.compress(b"\n".join(rows), mtime=0))
    write_jsonl(tmp_path / "in" / "books" / "b.jsonl", [document(900)])
    config = write_config(tmp_path, tmp_path / "in", "  - normalize\n  - tests.pipeline.poison:RaisesAfter: {calls: 4}\n")
    settings = Source.settings
    monkeypatch.setattr(Source, "settings", lambda self, name: replace(settings(self, name), batch_bytes=10_000))
    where = f"sources.web.path={folder / 'a.jsonl.gz'}"
    poison.RaisesAfter.reset()
    with pytest.raises(RunError, match="gave up"):
        run_build(config, [where])
    with Store(tmp_path / "out") as store:
        parts = sum(1 for record in store.rows() if record["record"].get("more"))
    assert parts >= 1
    poison.RaisesAfter.reset(1000)
    run_build(config, [where])
    assert poison.RaisesAfter.seen_texts < 120  # what was done is read past, not done again
    poison.RaisesAfter.reset(1000)
    run_build(config, [where, f"output.path={tmp_path / 'fresh'}"])
    assert poison.RaisesAfter.seen_texts == 121
    assert snapshot(tmp_path / "fresh") == snapshot(tmp_path / "out")
    assert load_manifest(tmp_path / "out").rejects.total == 1


@pytest.mark.ray
def test_a_document_that_kills_its_worker_is_found_and_quarantined(tmp_path: Path) -> None:
    texts = [document(i) for i in range(40)]
    texts[17] = "KILL " + texts[17]
    heard: list[Event] = []
    config = make(tmp_path, texts, "tests.pipeline.poison:Kills")
    result = run_build(config, executor=OnRay(workers=2), heard=heard)
    assert result.exit_code == 3
    assert 2 <= sum(isinstance(e, WorkerDied) for e in heard) <= 4
    assert sum(isinstance(e, Quarantined) for e in heard) == 1
    manifest = load_manifest(tmp_path / "out")
    assert [(q.source, q.uri) for q in manifest.quarantine] == [("web", "a.jsonl")]
    assert manifest.sources["web"].funnel[0].rejected == 1
    assert sum(s.documents for s in manifest.sources.values()) > 40
    # A build that knows of the document from the start gives the same bytes, without a death.
    other = make(tmp_path / "other", texts, "tests.pipeline.poison:Kills")
    (tmp_path / "other" / "out").mkdir()
    (tmp_path / "other" / "out" / "quarantine.jsonl").write_bytes((tmp_path / "out" / "quarantine.jsonl").read_bytes())
    run_build(other)
    assert snapshot(tmp_path / "other" / "out") == snapshot(tmp_path / "out")


@pytest.mark.ray
def test_a_worker_that_dies_once_is_replaced(tmp_path: Path) -> None:
    texts = [document(i) for i in range(20)]
    config = make(tmp_path, texts, f"'tests.pipeline.poison:DiesOnce': {{marker: {tmp_path / 'marker'}}}")
    heard: list[Event] = []
    result = run_build(config, executor=OnRay(workers=1), heard=heard)
    assert result.exit_code == 0
    assert sum(isinstance(e, WorkerDied) for e in heard) == 1
    assert not os.path.exists(tmp_path / "out" / "quarantine.jsonl")


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str], int]:
    """Inputs, what a build with room makes of them, and the bytes that it leaves."""
    folder = tmp_path_factory.mktemp("room")
    make_inputs(folder / "in", files=8, documents=60)
    run_build(write_config(folder, folder / "in"))
    left = {path.stat().st_ino: path.stat().st_blocks * 512 for path in (folder / "out").rglob("*")}
    return folder / "in", snapshot(folder / "out"), sum(left.values())


@contextmanager
def small_disk(place: Path, size: int) -> Iterator[None]:
    """A file system of so many bytes at a place; skips where nobody may make one."""
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)], capture_output=True, check=False)
    if made.returncode:
        pytest.skip("mounting takes rights that this user has not")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_a_full_disk_is_named_and_what_is_done_stays(
    reference: tuple[Path, dict[str, str], int], tmp_path: Path, share: float
) -> None:
    inputs, expected, needed = reference
    disk = tmp_path / "disk"
    disk.mkdir()
    config = write_config(tmp_path, inputs, out=str(disk / "out"))
    command = [sys.executable, "-m", "pipeline.cli", "build", "-q", "--inline", str(config)]
    with small_disk(disk, int(share * needed)):
        full = subprocess.run(command, capture_output=True, text=True, check=False)
        assert full.returncode == 1, full.stderr
        assert "error[R005]" in full.stderr
        assert "no room left on the disk" in full.stderr
        assert "free some space and run again: what is done stays" in full.stderr
        assert "Traceback" not in full.stderr
        assert not (disk / "out" / "manifest.json").exists()
        subprocess.run(["mount", "-o", f"remount,size={4 * needed}", str(disk)], check=True)
        again = subprocess.run(command, capture_output=True, text=True, check=False)
        assert again.returncode == 0, again.stderr
        assert snapshot(disk / "out") == expected
