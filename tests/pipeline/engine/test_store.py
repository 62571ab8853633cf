"""The lock, the journal, and what a kill leaves behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import orjson
import pytest

from pipeline.engine.lock import SILENCE_SECONDS, owner_of
from pipeline.engine.records import FileRef, TableRecord
from pipeline.engine.sealed import SealedFile
from pipeline.engine.store import Store
from pipeline.engine.work import Work
from stages.contract.problem import RunError


def seal(store: Store, content: bytes) -> FileRef:
    file = SealedFile(Work(store.work), "bin")
    file.write(content)
    return file.seal()


def test_a_record_survives_and_is_found_again(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        record = TableRecord(file=seal(store, b"abc"), rows=3)
        store.put("k", record)
    with Store(tmp_path) as store:
        assert store.get("k", TableRecord) == record
        assert store.epoch == 2


def test_a_record_without_its_file_is_not_believed(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        record = TableRecord(file=seal(store, b"abc"), rows=3)
        store.put("k", record)
        store.path(record.file).unlink()
        assert store.get("k", TableRecord) is None
        store.path(record.file).write_bytes(b"ab")  # cut short
        assert store.get("k", TableRecord) is None


def test_a_record_of_a_version_with_another_shape_is_written_anew(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        record = TableRecord(file=seal(store, b"abc"), rows=3)
        store.put("k", record)
    (journal,) = (path for path in tmp_path.rglob("*") if path.is_file() and b"TableRecord" in path.read_bytes())
    journal.write_bytes(journal.read_bytes().replace(b'"rows":3', b'"lines":3'))
    with Store(tmp_path) as store:
        assert store.get("k", TableRecord) is None
        store.put("k", record)
    with Store(tmp_path) as store:
        assert store.get("k", TableRecord) == record


def test_a_line_cut_short_by_a_kill_is_ignored(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        record = TableRecord(file=seal(store, b"abc"), rows=3)
        store.put("k", record)
        journal = tmp_path / "work" / "journal" / "000001.jsonl"
    journal.write_bytes(journal.read_bytes() + b'{"key": "half", "pa')
    with Store(tmp_path) as store:
        assert store.get("k", TableRecord) == record
        assert store.get("half", TableRecord) is None


def test_a_spoiled_journal_is_named(tmp_path: Path) -> None:
    with Store(tmp_path):
        pass
    (tmp_path / "work" / "journal" / "000001.jsonl").write_bytes(b"rubbish\n")
    with pytest.raises(RunError, match=r"000001\.jsonl"):
        Store(tmp_path)
    assert not owner_of(tmp_path / "work")  # and the lock is given back


def test_sweep_keeps_what_this_build_used(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        for key in ("old", "new"):
            store.put(key, TableRecord(file=seal(store, key.encode()), rows=1))
    with Store(tmp_path) as store:
        assert store.get("new", TableRecord) is not None
        store.sweep()
        assert len(list(store.data.iterdir())) == 1
    with Store(tmp_path) as store:
        assert store.get("new", TableRecord) is not None
        assert store.get("old", TableRecord) is None


def test_a_second_build_is_refused_and_names_the_owner(tmp_path: Path) -> None:
    with Store(tmp_path), pytest.raises(RunError) as error:
        Store(tmp_path)
    assert f"process {os.getpid()}" in str(error.value)


HOLDER = "import sys, time; from pathlib import Path; from pipeline.engine.store import Store; s = Store(Path(sys.argv[1])); print('held', flush=True); time.sleep(600)"


def test_the_lock_of_a_killed_process_is_taken_at_once(tmp_path: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    with pytest.raises(RunError, match=f"process {holder.pid}"):
        Store(tmp_path)
    holder.kill()
    holder.wait()
    with Store(tmp_path) as store:
        assert store.epoch == 2


def test_a_reused_process_id_is_not_the_owner(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        path = store.lock.path
        owner = orjson.loads(path.read_bytes())
        owner["born"] = "another-boot:1"
        path.write_bytes(orjson.dumps(owner))
        assert not owner_of(store.work)


def test_silence_from_another_host_ends_its_lock(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir(parents=True)
    lock = work / "lock-000004"
    lock.write_bytes(orjson.dumps({"host": "elsewhere", "pid": 1, "started": 0.0}))
    with pytest.raises(RunError, match="elsewhere"):
        Store(tmp_path)
    old = time.time() - SILENCE_SECONDS - 1
    os.utime(lock, (old, old))
    with Store(tmp_path) as store:
        assert store.epoch == 5


def test_a_driver_that_was_overtaken_writes_nothing_more(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        record = TableRecord(file=seal(store, b"abc"), rows=3)
        (store.work / "lock-000009").write_bytes(b"{}")
        with pytest.raises(RunError, match="took over"):
            store.put("k", record)
