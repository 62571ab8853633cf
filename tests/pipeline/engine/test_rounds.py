"""Who opens which outbox, and many small ones made into few: the rows that arrive are the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.engine import rounds
from pipeline.engine.records import FileRef, StepRecord
from pipeline.engine.rounds import Mail, received
from pipeline.events import Event, PassDone
from stages.contract.files import sha256_file
from stages.dedup.neighbours import Neighbours
from stages.exchange import read_inbox, write_outbox
from stages.stage import Outbox
from tests.pipeline.corpora import make_inputs, run_build, snapshot, write_config

#: What a producer sends: one address for all of its rows, or one for each.
SENT = st.one_of(st.integers(0, 4), st.lists(st.integers(0, 4), max_size=6))


def send(folder: Path, number: int, sent: int | list[int]) -> StepRecord:
    address = sent if isinstance(sent, int) else np.array(sent, np.uint32)
    values = np.arange(3 if isinstance(sent, int) else len(sent)) + 10 * number
    path = folder / f"{number:032x}.outbox"
    sends = write_outbox(path, {"x": Outbox(address, pa.table({"v": pa.array(values, pa.uint64())}))})
    digest = f"{number:032x}" + sha256_file(path)[:32]
    return StepRecord(file=FileRef(name=path.name, bytes=path.stat().st_size, digest=digest), sends=sends)


@settings(max_examples=60, deadline=None)
@given(st.lists(SENT, min_size=1, max_size=7))
def test_a_reader_that_opens_only_its_own_finds_the_same(tmp_path_factory: pytest.TempPathFactory, producers: list) -> None:
    folder = tmp_path_factory.mktemp("mail")
    records = [send(folder, number, sent) for number, sent in enumerate(producers)]
    mail = Mail()
    for record in records:
        mail.add(record)
    routes = mail.routes("x")
    every = [folder / record.file.name for record in records]
    for address in range(6):
        assert received(folder, routes, "x", address).to_pylist() == read_inbox(every, "x", address).to_pylist()
        assert received(folder, routes, "x", address).column_names == ["v"]
    assert received(folder, mail.routes("y"), "y", 0).num_columns == 0


def test_one_that_sends_to_itself_is_opened_by_itself(tmp_path: Path) -> None:
    mail = Mail()
    records = [send(tmp_path, number, number) for number in range(5)]
    for record in records:
        mail.add(record)
    assert [mail.routes("x").of(number) for number in range(5)] == [[record.file] for record in records]
    assert not mail.crowded("x", 10**9)


def test_merged_outboxes_give_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.engine.inputs.TASK_BYTES", 4000)
    make_inputs(tmp_path / "in", files=7, documents=14)
    monkeypatch.setattr(Neighbours, "rows_per_task", 200)
    stages = "  - normalize\n  - exact-dedup\n  - minhash-dedup\n"
    run_build(write_config(tmp_path / "a", tmp_path / "in", stages))
    monkeypatch.setattr(rounds, "PAIRS", 0)
    monkeypatch.setattr(rounds, "MERGED", 2)
    monkeypatch.setattr(rounds, "FACTS", 3)
    heard: list[Event] = []
    run_build(write_config(tmp_path / "b", tmp_path / "in", stages), heard=heard)
    merged = [event.name for event in heard if isinstance(event, PassDone) and ": merge " in event.name]
    assert any(name.startswith("minhash-dedup: merge band_keys") for name in merged), merged
    assert snapshot(tmp_path / "a" / "out") == snapshot(tmp_path / "b" / "out")
