"""The laws of row-local stages, for every one that the registry has."""

from __future__ import annotations

import hashlib
import io
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from stages.document import DOCUMENT
from stages.stage import REGISTRY, RowStage, stage_class
from tests.stages import guarded
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
    ("rules", 2): "41b632530cd338da",
    ("pii", 3): "ab76685740f75309",
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


@pytest.mark.parametrize(("name", "given"), CASES)
def test_no_text_is_an_empty_text(name, given):
    stage = stage_of(name, given)
    texts = [TEXTS["zh"], "", TEXTS["ru"], ""]
    nulls = pa.array([text or None for text in texts], pa.large_string())
    empty = batch(texts)
    for rows in (slice(0, 4), slice(1, 2), slice(2, 4)):  # a cut array keeps its bits of nulls
        length = rows.stop - rows.start
        bare = pa.RecordBatch.from_arrays(
            [nulls if name == "text" else empty.column(name) for name in empty.schema.names],
            schema=empty.schema.set(empty.schema.get_field_index("text"), pa.field("text", pa.large_string())),
        )
        after, wanted = (stage.apply(one.slice(rows.start, length)) for one in (bare, empty))
        for column in wanted.schema.names:
            found = after.column(column).to_pylist()
            if column == "text":
                found = [text or "" for text in found]
            assert found == wanted.column(column).to_pylist(), column


#: One line of 50 MB: words with spaces, Chinese, and no space at all.
UNITS = {
    "spaced": "The quick brown fox jumps over the lazy dog, and it does so again for 3,000 days. ",
    "zh": "水车转动，石磨碾碎麦粒，面粉从磨盘的缝隙里慢慢流出来，落进木槽。",
    "solid": "aGVsbG8gd29ybGQ0",
}
ONE_LINE = """
import resource, sys, time
from stages.document import document_batch
from stages.stage import GlobalStage, stage_class
name, given, unit, size = sys.argv[1], eval(sys.argv[2]), sys.argv[3], int(sys.argv[4])
stage = stage_class(name)(**given)
work = (lambda rows: stage.emit(rows, 0)) if isinstance(stage, GlobalStage) else stage.apply
work(document_batch("web", ["a"], [0], [unit]))
rows = document_batch("web", ["a"], [0], [unit * (size // len(unit.encode()))])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
started = time.process_time()
assert work(rows).num_rows == 1
print(time.process_time() - started, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""
#: Theirs: Python objects of every word, and minutes for one such line.
SLOW = ("datatrove",)


def one_line(name: str, given: dict, unit: str, size: int) -> tuple[float, float]:
    """CPU seconds of a stage over one line of so many bytes, and bytes of memory that it took on top."""
    command = [sys.executable, "-c", ONE_LINE, name, repr(given), unit, str(size)]
    ran = subprocess.run(command, cwd=HERE.parents[1], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-2000:]
    seconds, memory = map(float, ran.stdout.split())
    return seconds, memory


@pytest.mark.long
@pytest.mark.parametrize("unit", UNITS.values(), ids=UNITS)
@pytest.mark.parametrize("name", [name for name in REGISTRY if name not in SLOW])
def test_one_line_of_50_megabytes(name, unit):
    given = (guarded.SETTINGS.get(name) or [{}])[0]
    seconds, memory = one_line(name, given, unit, 50_000_000)
    assert seconds < 60
    assert memory < 30 * 50_000_000  # so many bytes for each of the batch; words have hashes, places and sets


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
