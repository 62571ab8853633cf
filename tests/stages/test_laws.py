"""The laws of row-local stages, for every one that the registry has."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path

import pyarrow as pa
import pytest

from stages.document import DOCUMENT
from stages.stage import REGISTRY, RowStage, stage_class
from tests.stages.scripts_corpus import TEXTS, batch

HERE = Path(__file__).parent
SETTINGS: dict[str, list[dict]] = {
    "decontaminate": [{"benchmarks": str(HERE / "items.jsonl")}, {"benchmarks": str(HERE / "items.jsonl"), "mark": True}],
    "extract": [{}],
    "urls": [{}],
    "words": [{"lists": {"any": str(HERE / "listed.txt")}}, {"lists": {"zh": str(HERE / "listed.txt")}, "mark": True}],
    "datatrove": [
        {"filter": "GopherQualityFilter"},
        {"filter": "C4QualityFilter", "options": {"min_num_sentences": 1}},
        {"filter": "FineWebQualityFilter", "mark": True},
    ],
    "normalize": [{}, {"mark": True}],
    "language": [{}, {"keep": ["zh", "en"]}, {"keep": ["zh"], "mark": True, "look_at": 64}],
    "rules": [{"preset": p} for p in ("gopher", "c4", "fineweb", "code")] + [{"mark": True, "preset": "c4"}],
    "pii": [
        {},
        {"replace": "remove"},
        {"replace": "pseudonym", "key": "k"},
        {"mark": True, "kinds": ["email"]},
    ],
}
ROW_STAGES = [name for name in REGISTRY if name in SETTINGS]
CASES = [
    pytest.param(name, given, id=f"{name}-{i}")
    for name in ROW_STAGES
    for i, given in enumerate(SETTINGS[name])
]

#: SHA-256 of the output for all of TEXTS: when it changes, raise the `version` of the stage, then this.
DIGESTS = {
    ("normalize", 1): "5d4aaac30c7052dd",
    ("language", 3): "e2db42c6e9986f4c",
    ("rules", 1): "6d7863c50399d707",
    ("pii", 2): "ab76685740f75309",
}


def test_every_row_stage_has_settings_here():
    row_stages = [name for name in REGISTRY if issubclass(stage_class(name), RowStage)]
    assert sorted(row_stages) == sorted(SETTINGS)


def stage_of(name: str, given: dict) -> RowStage:
    return stage_class(name)(**given)


@pytest.mark.parametrize(("name", "given"), CASES)
def test_other_cuts_give_the_same_rows(name, given):
    stage = stage_of(name, given)
    whole = stage.apply(batch())
    for size in (1, 3, 7):
        cuts = [stage.apply(batch().slice(i, size)) for i in range(0, len(TEXTS), size)]
        assert pa.Table.from_batches(cuts).combine_chunks() == pa.Table.from_batches([whole])


@pytest.mark.parametrize(("name", "given"), CASES)
def test_order_and_identity_stay(name, given):
    before, after = batch(), stage_of(name, given).apply(batch())
    for column in ("id", "source", "uri", "record", "user_id", "meta"):
        assert after.column(column) == before.column(column)
    if not stage_of(name, given).changes_text or given.get("mark"):
        assert name == "normalize" or after.column("text") == before.column("text")


@pytest.mark.parametrize(("name", "given"), CASES)
def test_added_columns_are_the_declared_ones(name, given):
    stage = stage_of(name, given)
    for rows in (batch(), batch([]), batch([""]), batch(["x"])):
        after = stage.apply(rows)
        added = {field.name: field.type for field in after.schema if field.name not in DOCUMENT.names}
        assert added == stage.adds()
        assert len(after) == len(rows)
        assert [after.schema.field(field.name).type for field in DOCUMENT] == [
            field.type for field in DOCUMENT
        ]
        after.validate(full=True)


@pytest.mark.parametrize(("name", "given"), CASES)
def test_a_drop_has_the_name_of_the_stage_and_a_mark_drops_nothing(name, given):
    after = stage_of(name, given).apply(batch())
    reasons = after.column("drop").to_pylist()
    if given.get("mark"):
        assert set(reasons) == {None}
        reasons = after.column(f"mark.{name}").to_pylist()
        assert any(reasons)
    assert all(reason is None or reason == name or reason.startswith(f"{name}.") for reason in reasons)


@pytest.mark.parametrize("name", ["normalize", "pii"])
@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_twice_is_as_once(name, text):
    for given in SETTINGS[name]:
        stage = stage_of(name, given)
        once = stage.apply(batch([text])).column("text").to_pylist()
        assert stage.apply(batch(once)).column("text").to_pylist() == once


@pytest.mark.parametrize("name", sorted(name for name, _ in DIGESTS))
def test_bytes_change_only_with_the_version(name):
    stage = stage_of(name, {})
    sink = io.BytesIO()
    after = stage.apply(batch())
    for column in after.columns:
        sink.write(repr(column.to_pylist()).encode())
    assert hashlib.sha256(sink.getvalue()).hexdigest()[:16] == DIGESTS[name, stage.version]
