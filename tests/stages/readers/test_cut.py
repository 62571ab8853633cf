"""Any cut of a file gives the same documents in the same order."""

from __future__ import annotations

import gzip
import itertools
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.readers import split_points
from stages.readers.streams import frames_of
from tests.stages.readers.archives import http, record
from tests.stages.readers.reading import Outcome, read

LINE = st.one_of(
    st.just(b""),
    st.just(b"\r"),
    st.just(b"bad"),
    st.binary(max_size=6).map(lambda b: b.replace(b"\n", b"")),
    st.text(max_size=12).map(
        lambda text: b'{"text":"%b"}' % text.replace('"', "").encode("utf-8", "replace")
    ),
    st.integers(50, 300).map(lambda n: b'{"text":"%b"}' % (b"x" * n)),
)
FILE = st.builds(
    lambda lines, end: b"\n".join(lines) + end,
    st.lists(LINE, max_size=12),
    st.sampled_from([b"", b"\n", b"\n\n"]),
)


def whole_and_parts(path: Path, cuts: list[int], **how) -> tuple[Outcome, Outcome]:
    """The file read at once, and read in slices that start at the cuts."""
    starts = [0, *cuts]
    parts = Outcome()
    for start, end in zip(starts, [*cuts, None], strict=True):
        part = read(path, start, end, **how)
        parts.batches += part.batches
        parts.rejects += part.rejects
        parts.damaged = parts.damaged or part.damaged
        for name, number in part.counters.items():
            parts.counters[name] = parts.counters.get(name, 0) + number
    return read(path, **how), parts


def assert_equal(whole: Outcome, parts: Outcome) -> None:
    for name in ("id", "record", "text", "user_id", "meta"):
        assert parts.column(name) == whole.column(name)
    assert [reject._replace(line_hint=None) for reject in parts.rejects] == [
        reject._replace(line_hint=None) for reject in whole.rejects
    ]
    assert parts.counters == whole.counters
    told = [outcome.damaged and (outcome.damaged.reason, outcome.damaged.detail) for outcome in (whole, parts)]
    assert told[0] == told[1]


@settings(deadline=None, max_examples=150)
@given(content=FILE, data=st.data(), format=st.sampled_from(["jsonl", "lines"]))
def test_plain_lines(content, data, format):
    content = b"{}\n" + content  # two equal bytes at the start would be taken for another format
    cuts = sorted(data.draw(st.lists(st.integers(1, len(content) + 3), max_size=6)))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.jsonl")
        path.write_bytes(content)
        assert_equal(*whole_and_parts(path, cuts, format=format, max_document=60))


@settings(deadline=None, max_examples=80)
@given(content=FILE, data=st.data())
def test_zstd_frames(content, data):
    content = b"{}\n" + content
    inner = data.draw(st.lists(st.integers(0, len(content)), max_size=5).map(sorted))
    pieces = [content[a:b] for a, b in zip([0, *inner], [*inner, len(content)], strict=True)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.jsonl.zst")
        path.write_bytes(b"".join(map(zstandard.ZstdCompressor(write_checksum=True).compress, pieces)))
        frames = frames_of(str(path))
        assert frames is not None
        assert [frame.content_end - frame.content for frame in frames] == [len(piece) for piece in pieces]
        starts = sorted(data.draw(st.sets(st.sampled_from([frame.stored for frame in frames]))) - {0})
        assert_equal(*whole_and_parts(path, starts, max_document=60))


RECORDS = b"".join(b'{"id":%d,"text":"%d %s"}\n' % (i, i, b"word " * (i % 50)) for i in range(5_000))


def test_cuts_of_lines_are_about_the_target(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(RECORDS)
    ranges = split_points(str(path), "jsonl", 100_000)
    assert len(ranges) == round(len(RECORDS) / 100_000)
    assert ranges[0][0] == 0
    assert ranges[-1][1] is None
    assert [end for _, end in ranges[:-1]] == [start for start, _ in ranges[1:]]
    assert_equal(*whole_and_parts(path, [start for start, _ in ranges[1:]]))
    assert split_points(str(path), "jsonl", 1 << 30) == [(0, None)]
    assert split_points(str(path), "text", 100) == [(0, None)]


def test_zstd_is_cut_where_every_frame_states_its_size(tmp_path):
    path = tmp_path / "a.jsonl.zst"
    pieces = [RECORDS[at : at + 40_000] for at in range(0, len(RECORDS), 40_000)]
    path.write_bytes(b"".join(map(zstandard.compress, pieces)))
    ranges = split_points(str(path), "jsonl", 100_000)
    assert len(ranges) == -(-len(pieces) // 3)
    assert_equal(*whole_and_parts(path, [start for start, _ in ranges[1:]]))
    stream = zstandard.ZstdCompressor().compressobj()
    path.write_bytes(path.read_bytes() + stream.compress(RECORDS) + stream.flush())
    assert split_points(str(path), "jsonl", 100_000) == [(0, None)]


def test_a_frame_cut_short_is_left_to_one_reader(tmp_path):
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes((zstandard.compress(RECORDS) * 3)[:-5])
    assert split_points(str(path), "jsonl", 1_000) == [(0, None)]
    assert read(path).damaged is not None


def test_a_range_that_no_cut_gives_is_refused(tmp_path):
    zst, gz = tmp_path / "a.jsonl.zst", tmp_path / "a.jsonl.gz"
    zst.write_bytes(zstandard.compress(RECORDS) * 2)
    gz.write_bytes(gzip.compress(RECORDS))
    for path, start, end in ((zst, 5, None), (zst, 0, 5), (gz, 5, None)):
        with pytest.raises(ValueError, match=r"slices|frame"):
            read(path, start, end)


def pages(number: int, size: int = 40) -> list[bytes]:
    """Records of an archive; every fifth is a request, every seventh holds an archive itself."""
    made = []
    for n in range(number):
        body = http(f"<p>page {n} {'word ' * (n * 7 % size)}</p>")
        if n % 7 == 6:
            body = http(b"<pre>\r\n" + record(body) * 2 + b"</pre>")
        made.append(record(body, "request" if n % 5 == 4 else "response", length=99 if n % 11 == 10 else None))
    return made


def stored_members(suffix: str, members: list[bytes]) -> list[bytes]:
    if suffix == ".gz":
        return [gzip.compress(member, n % 3 * 3, mtime=0) for n, member in enumerate(members)]
    return list(map(zstandard.compress, members)) if suffix == ".zst" else members


@settings(deadline=None, max_examples=60)
@given(data=st.data(), suffix=st.sampled_from(["", ".gz", ".zst"]))
def test_web_archives(data, suffix):
    """Records and members need not begin together, and members may be damaged."""
    content = b"".join(pages(24))
    inner = data.draw(st.lists(st.integers(0, len(content)), max_size=5))
    by_record = data.draw(st.booleans())
    edges = [sum(map(len, pages(24)[:n])) for n in range(25)] if by_record else []
    edges = sorted({0, len(content), *(edges or inner)})
    stored = bytearray(b"".join(stored_members(suffix, [content[a:b] for a, b in itertools.pairwise(edges)])))
    for place in data.draw(st.lists(st.integers(10, len(stored) - 1), max_size=2)):
        stored[place] ^= 0x10
    cuts = sorted(data.draw(st.sets(st.integers(1, len(stored) + 3), max_size=4)))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"a.warc{suffix}")
        path.write_bytes(stored)
        assert_equal(*whole_and_parts(path, cuts))


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_large_web_archives_are_cut_into_few_pieces(tmp_path, suffix):
    path = tmp_path / f"a.warc{suffix}"
    path.write_bytes(b"".join(stored_members(suffix, pages(600))))
    size = path.stat().st_size
    assert split_points(str(path), "warc", size // 8 + 1) == [(0, None)]
    assert split_points(str(path), "warc", size // 8) == [(0, size // 2), (size // 2, None)]
    ranges = split_points(str(path), "warc", 10)
    assert [start for start, _ in ranges] == [0, size // 4, size // 2, size * 3 // 4]
    whole, parts = whole_and_parts(path, [start for start, _ in ranges[1:]])
    assert_equal(whole, parts)
    assert len(whole.texts) > 400
    for start, end in ranges:
        assert 60 < len(read(path, start, end).texts) < 240


def test_real_and_broken_archives_in_pieces(shared):
    paths = sorted(path for path in (shared / "data" / "web").rglob("*arc*") if path.is_file())
    paths = [path for path in paths if path.name.endswith((".gz", ".zst", "arc"))]
    assert len(paths) > 20
    for path in paths:
        size = path.stat().st_size
        assert_equal(*whole_and_parts(path, [size // 3, size // 2, size - size // 9], format="warc"))


def test_an_archive_in_one_member_is_not_cut(tmp_path):
    path = tmp_path / "a.warc.gz"
    for content in (gzip.compress(b"".join(pages(600))), b"", b"\x1f\x8b\x08" * 50, b"BZh" * 50):
        path.write_bytes(content)
        assert split_points(str(path), "warc", 10) == [(0, None)]


def test_importing_the_readers_costs_nothing():
    code = "import sys, stages.readers; print({'pyarrow', 'numpy', 'fsspec'} & set(sys.modules))"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        == "set()\n"
    )


@pytest.fixture
def table() -> pa.Table:
    return pa.table({"id": range(1_000), "text": [f"text {i} " * (i % 30) for i in range(1_000)]})


def test_row_groups(tmp_path, table):
    path = tmp_path / "a.parquet"
    pq.write_table(table, path, row_group_size=64)
    ranges = split_points(str(path), "parquet", 20_000)
    assert 2 <= len(ranges) <= 16
    assert_equal(*whole_and_parts(path, [start for start, _ in ranges[1:]]))
    assert_equal(*whole_and_parts(path, [1, 1, 5, 16]))


@pytest.mark.parametrize("codec", [None, "zstd", "lz4"])
def test_record_batches(tmp_path, table, codec):
    path = tmp_path / "a.arrow"
    with ipc.new_file(path, table.schema, options=ipc.IpcWriteOptions(compression=codec)) as writer:
        writer.write_table(table, max_chunksize=64)
    ranges = split_points(str(path), "arrow", 10_000)
    assert 2 <= len(ranges) <= 16
    assert_equal(*whole_and_parts(path, [start for start, _ in ranges[1:]]))


def test_an_arrow_stream_is_not_cut(tmp_path, table):
    path = tmp_path / "a.arrows"
    with ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=64)
    assert split_points(str(path), "arrow", 10) == [(0, None)]
    assert read(path).texts == table["text"].to_pylist()


@pytest.mark.parametrize("format", ["parquet", "arrow"])
@pytest.mark.parametrize("content", [b"", b"PAR1", b"ARROW1\0\0", b"rubbish" * 100])
def test_a_damaged_table_is_left_to_one_reader(tmp_path, format, content):
    path = tmp_path / f"a.{format}"
    path.write_bytes(content)
    assert split_points(str(path), format, 10) == [(0, None)]
    assert read(path).damaged is not None
