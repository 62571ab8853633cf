"""Parquet and Arrow: every type that can be a text, every way to be damaged."""

from __future__ import annotations

import datetime
import decimal
import uuid
from pathlib import Path

import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as pq
import pytest

from tests.stages.readers.reading import read


def parquet(folder: Path, table: pa.Table, **options) -> Path:
    path = folder / "a.parquet"
    pq.write_table(table, path, **options)
    return path


def arrow(folder: Path, table: pa.Table, stream: bool = False, **options) -> Path:
    path = folder / "a.arrow"
    make = ipc.new_stream if stream else ipc.new_file
    with make(path, table.schema, options=ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table)
    return path


WORDS = ["a", "", "中文 and a string longer than twelve bytes"]


@pytest.mark.parametrize("write", [parquet, arrow])
@pytest.mark.parametrize(
    "kind",
    [pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view()],
    ids=str,
)
def test_every_type_of_text(tmp_path, write, kind):
    table = pa.table(
        {"text": pa.array([w.encode() for w in WORDS], pa.binary()).cast(pa.string()).cast(kind)}
    )
    outcome = read(write(tmp_path, table))
    assert outcome.texts == WORDS
    assert outcome.column("record") == [0, 1, 2]


@pytest.mark.parametrize("write", [parquet, arrow])
def test_dictionaries_nulls_and_slices(tmp_path, write):
    column = pa.array(["gone", "a", None, "b", "a"]).dictionary_encode()
    outcome = read(write(tmp_path, pa.table({"text": column}).slice(1)))
    assert outcome.texts == ["a", "b", "a"]
    assert [(r.record, r.reason) for r in outcome.rejects] == [(1, "not-text")]


@pytest.mark.parametrize("write", [parquet, arrow])
def test_cells_that_are_not_utf8_are_rejected_one_by_one(tmp_path, write):
    raw = pa.array([b"a", b"\xff", b"b"])
    text = pa.StringArray.from_buffers(3, raw.buffers()[1], raw.buffers()[2])
    for column in (raw, text):
        outcome = read(write(tmp_path, pa.table({"text": column})))
        assert outcome.texts == ["a", "b"]
        assert [(r.record, r.reason) for r in outcome.rejects] == [(1, "not-utf8")]


@pytest.mark.parametrize("write", [parquet, arrow])
def test_fields_inside_structs_templates_and_chats(tmp_path, write):
    chat = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    table = pa.table({
        "doc": [{"text": "t0", "meta": {"n": 1}}, None, {"text": None, "meta": None}],
        "a.b": ["dotted", "name", "column"],
        "messages": [chat, [], None],
        "n": [1, 2, None],
    })  # fmt: skip
    path = write(tmp_path, table)
    assert read(path, text="doc.text").texts == ["t0"]
    assert read(path, text="doc.text").reasons == ["not-text", "not-text"]
    assert read(path, text="a.b").texts == ["dotted", "name", "column"]
    template = read(path, text="{a.b} {n}: {doc.text}", keep_meta=("doc", "doc.meta.n"))
    assert template.texts == ["dotted 1: t0"]
    assert template.column("meta") == ['{"doc":{"meta":{"n":1},"text":"t0"},"doc.meta.n":1}']
    assert read(path, messages="plain").texts == ["user: q\n\nassistant: a\n\n", ""]
    assert read(path, messages="plain").reasons == ["not-text"]


@pytest.mark.parametrize("write", [parquet, arrow])
def test_ids_and_kept_fields_of_any_type(tmp_path, write):
    unique = uuid.UUID(int=5)
    columns = {
        "i": pa.array([7, None], pa.int64()),
        "u": pa.array([2**64 - 1, None], pa.uint64()),
        "s": ["x-1", None],
        "d": pa.array([decimal.Decimal("1.20"), None]),
        "t": pa.array([datetime.datetime(2020, 1, 2, 3, 4, 5), None], pa.timestamp("ms")),
        "b": pa.array([b"\xff\x00", None]),
        "f": pa.array([unique.bytes, None], pa.binary(16)),
        "l": pa.array([[1, 2], None]),
        "nan": pa.array([float("nan"), None]),
    }
    expected = {
        "i": "7", "u": str(2**64 - 1), "s": "x-1", "d": "1.20", "t": "2020-01-02 03:04:05.000", "b": "ff00",
        "f": unique.hex, "l": "[1,2]", "none": None,
    }  # fmt: skip
    path = write(tmp_path, pa.table({"text": ["t", "t"], **columns}))
    for name, value in expected.items():
        assert read(path, id=name).column("user_id") == [value, None], name
    first, second = read(path, keep_meta=("s", "d", "b", "l", "nan", "i", "none")).column("meta")
    assert first == '{"b":"ff00","d":"1.20","i":7,"l":[1,2],"nan":"NaN","s":"x-1"}'
    assert second == '{"b":null,"d":null,"i":null,"l":null,"nan":null,"s":null}'


@pytest.mark.parametrize("write", [parquet, arrow])
@pytest.mark.parametrize(
    ("table", "says"),
    [
        (pa.table({"body": ["x"]}), "'text'; the columns are body"),
        (pa.table({"text": [1]}), "int64, not text"),
        (pa.table({"text": [["x"]]}), "not text"),
        (pa.Table.from_arrays([pa.array(["x"]), pa.array(["y"])], ["text", "text"]), "more than one column"),
    ],
)
def test_a_table_without_the_text_is_damage_with_advice(tmp_path, write, table, says):
    outcome = read(write(tmp_path, table))
    assert outcome.damaged is not None
    assert outcome.damaged.reason == "missing-column"
    assert says in outcome.damaged.detail


def test_large_cells_and_limits(tmp_path):
    table = pa.table({"text": ["z" * (4 << 20), "ok", "y" * 200]})
    path = parquet(tmp_path, table, compression="zstd")
    assert [len(text) for text in read(path, batch_bytes=1_000).texts] == [4 << 20, 2, 200]
    assert read(path, max_document=100).reasons == ["too-large", "too-large"]


def test_a_page_with_a_flipped_bit_is_noticed(tmp_path):
    table = pa.table({"text": [f"document {i} " * 20 for i in range(2_000)]})
    path = parquet(
        tmp_path,
        table,
        compression="none",
        use_dictionary=False,
        write_page_checksum=True,
        row_group_size=500,
    )
    data = bytearray(path.read_bytes())
    data[data.index(b"document 1234 ")] ^= 1
    path.write_bytes(data)
    outcome = read(path)
    assert outcome.damaged is not None
    assert outcome.damaged.reason == "corrupt"
    assert 1_000 <= len(outcome.texts) <= 1_234


@pytest.mark.parametrize("share", [0.01, 0.5, 0.99])
@pytest.mark.parametrize("write", [parquet, arrow])
def test_a_cut_table_is_damage(tmp_path, write, share):
    path = write(tmp_path, pa.table({"text": [f"document {i}" for i in range(3_000)]}))
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    outcome = read(path)
    assert outcome.damaged is not None
    assert (outcome.texts, outcome.damaged.reason) == ([], "truncated")


def test_a_cut_stream_gives_its_good_batches(tmp_path):
    table = pa.table({"text": [f"document {i}" for i in range(3_000)]})
    path = tmp_path / "a.arrows"
    with ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=100)
    assert len(read(path).texts) == 3_000
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    outcome = read(path)
    assert outcome.damaged is not None
    assert 1_000 < len(outcome.texts) < 1_600


def test_offsets_outside_their_buffer_are_damage_not_a_crash(tmp_path):
    table = pa.table({"text": pa.array(["abc", "def"], pa.large_string())})
    path = arrow(tmp_path, table)
    data = bytearray(path.read_bytes())
    place = data.index((6).to_bytes(8, "little"), data.index((3).to_bytes(8, "little")))
    data[place : place + 8] = (1 << 50).to_bytes(8, "little")
    path.write_bytes(data)
    outcome = read(path)
    assert outcome.damaged is not None
    assert outcome.damaged.reason == "corrupt"


@pytest.mark.parametrize("options", [{"compression": "zstd"}, {"compression": "lz4"}, {"stream": True}])
def test_arrow_with_compressed_buffers_and_streams(tmp_path, options):
    table = pa.table({"other": range(1_500), "text": [f"document {i}" for i in range(1_500)]})
    outcome = read(arrow(tmp_path, table, **options))
    assert outcome.texts == table["text"].to_pylist()
    assert outcome.column("record") == list(range(1_500))


def test_tables_of_an_fsspec_address(tmp_path):
    import fsspec

    table = pa.table({"text": ["a", "b"]})
    for write, suffix in ((parquet, "parquet"), (arrow, "arrow")):
        with fsspec.open(f"memory://tables/a.{suffix}", "wb") as file:
            file.write(write(tmp_path, table).read_bytes())
        assert read(f"memory://tables/a.{suffix}").texts == ["a", "b"]
