"""Pages in files."""

from __future__ import annotations

import gzip
import json

import pytest

from stages.readers import guess_format, list_files
from tests.stages.readers.archives import PAGE
from tests.stages.readers.reading import read


@pytest.mark.parametrize("name", ["a.html", "a.HTM", "a.xhtml", "a.html.gz"])
@pytest.mark.parametrize("codec", ["utf-8", "gbk", "utf-16"])
def test_a_file_is_a_page(tmp_path, name, codec):
    text = PAGE.replace("<head>", f"<head><meta charset={codec}>")
    path = tmp_path / name
    path.write_bytes(gzip.compress(text.encode(codec)) if name.endswith(".gz") else text.encode(codec))
    outcome = read(path)
    assert outcome.texts == [text]
    assert outcome.column("record") == [0]
    (meta,) = map(json.loads, outcome.column("meta"))
    assert meta["content_type"] == "text/html"


def test_what_is_no_page(tmp_path):
    path = tmp_path / "a.html"
    path.write_bytes(b"%PDF-1.4")
    assert read(path).reasons == ["not-html"]
    path.write_bytes(b"<p>" + b"x" * 1_000)
    assert read(path, max_document=999).reasons == ["too-large"]
    packed = tmp_path / "b.html.gz"
    packed.write_bytes(gzip.compress(PAGE.encode())[:-5])
    damaged = read(packed).damaged
    assert damaged is not None
    assert damaged.reason == "truncated"


def test_names(tmp_path):
    for name, format in (("x.warc.gz", "warc"), ("x.warc", "warc"), ("x.arc.gz", "warc"), ("x.warc.wet.gz", "wet"),
                         ("x.warc.zst", "warc"), ("x.warc.wat.gz", None), ("x.wat", "text"), ("x.htm", "html")):  # fmt: skip
        assert guess_format(name) == format
        (tmp_path / name).write_bytes(b"")
    assert [item.path.rsplit("/", 1)[-1] for item in list_files(str(tmp_path), "/").skipped] == ["x.warc.wat.gz"]
