"""Plain text: a document per file or per line."""

from __future__ import annotations

import gzip

import pytest

from tests.stages.readers.reading import read

TEXT = "第一行\u2028 same line\u0085 same\r\nsecond line\x0b\x0c\x1c\n\nlast"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
def test_a_file_is_one_document_as_it_stands(tmp_path, encoding):
    path = tmp_path / "a.md"
    path.write_bytes(TEXT.encode(encoding))
    outcome = read(path)
    assert outcome.texts == [TEXT]
    assert outcome.column("record") == [0]


def test_big_endian_marks(tmp_path):
    path = tmp_path / "a.txt"
    for mark, encoding in ((b"\xfe\xff", "utf-16-be"), (b"\0\0\xfe\xff", "utf-32-be")):
        path.write_bytes(mark + TEXT.encode(encoding))
        assert read(path).texts == [TEXT]


def test_other_encodings_are_rejected_by_name(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes("ok\nnaïve".encode("latin-1"))
    (reject,) = read(path).rejects
    assert (reject.reason, reject.record, reject.line_hint) == ("not-utf8", 0, 2)
    path.write_bytes(b"\xff\xfea")
    assert read(path).reasons == ["not-utf8"]


def test_an_empty_file_is_an_empty_document(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"")
    assert read(path).texts == [""]


def test_control_characters_are_kept(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"a\x0cb\x1b[2J\x08\rc\x00d\x1ae")
    assert read(path).texts == ["a\x0cb\x1b[2J\x08\rc\x00d\x1ae"]
    assert read(path, format="tree").reasons == ["binary"]


def test_limits_and_damage(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"x" * 2_000_001)
    assert read(path, max_document=2_000_001).texts == ["x" * 2_000_001]
    assert read(path, max_document=2_000_000).reasons == ["too-large"]
    packed = tmp_path / "a.txt.gz"
    packed.write_bytes(gzip.compress(b"x" * 1_000)[:-4])
    outcome = read(packed)
    assert outcome.damaged is not None
    assert (outcome.texts, outcome.damaged.reason) == ([], "truncated")


def test_a_document_per_line(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbf" + TEXT.encode() + b"\nbad \xff\n" + b"y" * 200 + b"\n  \nend\r\n")
    outcome = read(path, format="lines", max_document=100)
    assert outcome.texts == ["第一行\u2028 same line\u0085 same", "second line\x0b\x0c\x1c", "last", "end"]
    assert [(r.reason, r.line_hint) for r in outcome.rejects] == [("not-utf8", 5), ("too-large", 6)]
    assert outcome.counters["blank-lines"] == 2
    data = path.read_bytes()
    assert outcome.column("record") == [0, data.index(b"second"), data.index(b"last"), data.index(b"end")]


def test_a_line_is_exactly_at_the_limit(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"x" * 100 + b"\r\n" + b"y" * 101 + b"\n" + b"z" * 3_000_000 + b"\nend")
    outcome = read(path, format="lines", max_document=100)
    assert outcome.texts == ["x" * 100, "end"]
    assert [r.detail for r in outcome.rejects] == [
        "101 bytes, but max_document is 100",
        "3,000,000 bytes, but max_document is 100",
    ]
