"""Training from a store: the batches are those of the disk, and the copies on the disk stay within their bound."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from stages.contract.manifest import load_manifest
from stages.contract.problem import RunError
from stages.storage.address import Address
from tests.store import CREDENTIALS, forget_clients, s3_server
from tests.trainer.corpora import make_corpus, random_documents
from trainer.config import read_plan
from trainer.loader import Loader
from trainer.planning.plan import Machine, Plan, resolve
from trainer.tools.runs import corpora, open_run

pytest.importorskip("moto")
pytest.importorskip("s3fs")

BOUND = 64 << 10


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with s3_server() as found:
        yield found


@pytest.fixture
def both(endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Address]:
    """One corpus on the disk and on the store, read through a cache that is much smaller."""
    cache = {"GRISTMILL_CACHE": str(tmp_path / "cache"), "GRISTMILL_CACHE_SIZE": str(BOUND)}
    for name, value in {**CREDENTIALS, "AWS_ENDPOINT_URL": endpoint, **cache}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("stages.storage.blocks.BLOCK", 4096)
    forget_clients()
    documents = {name: random_documents(400, seed=seed, longest=600) for seed, name in enumerate(("web", "books"))}
    disk = make_corpus(tmp_path / "corpus", documents, documents_per_shard=150, pack=(128,)).parent
    store = Address(f"s3://bucket/{tmp_path.name}")
    for path in disk.rglob("*"):
        if path.is_file():
            (store / path.relative_to(disk).as_posix()).put(path)
    return disk, store


def planned(folder: Path) -> Plan:
    words = ("model.params=1M", "model.seq_len=128", "batch.global_tokens=2048", "data.total_tokens=60k")
    return resolve(read_plan(None, words), [load_manifest(folder)], Machine("cpu", 1, 1, None))


def test_the_same_batches_from_a_store(both: tuple[Path, Address], tmp_path: Path) -> None:
    disk, store = both
    plan = planned(disk)
    with Loader([disk], plan) as here, Loader([store], plan) as there:
        for step in range(plan.steps):
            mine, theirs = here.batch(step), there.batch(step)
            assert mine.digest == theirs.digest
            for a, b in zip(mine.micros, theirs.micros, strict=True):
                assert all(np.array_equal(a[name], b[name]) for name in a)
    kept = sum(path.stat().st_size for path in (tmp_path / "cache" / "files").iterdir())
    tokens = sum(path.stat().st_size for path in disk.rglob("*.tok"))
    assert kept <= BOUND + 4096
    assert tokens > 4 * BOUND


def test_a_shard_of_a_store_that_is_cut_short_is_found_at_the_start(both: tuple[Path, Address]) -> None:
    disk, store = both
    whole = (disk / "shards/web/00001.tok").read_bytes()
    (store / "shards/web/00001.tok").write_bytes(whole[:-2])
    with pytest.raises(RunError, match=r"00001\.tok has .* bytes, but the manifest states"):
        Loader([store], planned(disk))


def test_a_run_from_a_store_is_the_run_from_the_disk(both: tuple[Path, Address], tmp_path: Path) -> None:
    from tests.trainer.tiny import lines, overrides

    disk, store = both
    sets = [part for text in overrides(6, "batch.micro_batch_size=8") for part in ("--set", text)]
    for where, out in ((str(disk), "here"), (str(store / "manifest.json"), "there")):
        command = [sys.executable, "-m", "trainer.cli", "fit", "--manifest", where, "--out", str(tmp_path / out), "--ranks", "1"]
        done = subprocess.run([*command, *sets], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    assert lines(tmp_path / "here") == lines(tmp_path / "there")
    (start,) = json.loads((tmp_path / "there" / "run.json").read_bytes())["starts"]
    assert start["manifests"] == [str(store)]
    manifests, folders = corpora(open_run(tmp_path / "there"), [])
    assert [manifest.digest for manifest in manifests] == [load_manifest(disk).digest]
    assert folders == [store]
    look = [sys.executable, "-m", "trainer.cli", "batch", "--step", "2", "--manifest", str(store), *sets]
    done = subprocess.run(look, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
