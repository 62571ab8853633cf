"""Web archives: what is read from whole, odd and damaged ones."""

from __future__ import annotations

import gzip
import hashlib
import json
import random
import zlib
from collections import Counter
from pathlib import Path

import brotli
import pytest
import zstandard

from tests.stages.readers.archives import PAGE, chunked, http, record, write
from tests.stages.readers.reading import Outcome, read

PAGES = [f"<html><p>page {n} 第{n}页 {'x' * 200 * n}</p></html>" for n in range(6)]


def pages(*texts: str) -> list[bytes]:
    return [record(http(text), **{"Target-URI": f"http://example.com/{n}"}) for n, text in enumerate(texts)]


def metas(outcome: Outcome) -> list[dict]:
    return [json.loads(meta) for meta in outcome.column("meta")]


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_the_same_documents_however_it_is_stored(tmp_path, suffix):
    records = pages(*PAGES)
    outcome = read(write(tmp_path / f"a.warc{suffix}", *records))
    assert outcome.texts == PAGES
    assert outcome.column("record") == [sum(map(len, records[:n])) for n in range(6)]
    assert outcome.column("user_id") == ["urn:uuid:1"] * 6
    assert metas(outcome)[3] == {
        "charset": "utf-8",
        "content_type": "text/html",
        "date": "2024-06-01T12:00:00Z",
        "url": "http://example.com/3",
    }
    assert (outcome.rejects, outcome.damaged) == ([], None)


def test_names_do_not_decide_the_compression(tmp_path):
    plain, packed = tmp_path / "a.warc.gz", tmp_path / "b.warc"
    plain.write_bytes(b"".join(pages(*PAGES)))
    packed.write_bytes(gzip.compress(b"".join(pages(*PAGES))))
    assert read(plain).texts == read(packed).texts == PAGES


def test_zstd_with_a_dictionary_in_front(tmp_path):
    records = pages(*PAGES * 30)
    dictionary = zstandard.train_dictionary(4096, records)
    frames = [zstandard.ZstdCompressor(dict_data=dictionary).compress(item) for item in records]
    for stored in (dictionary.as_bytes(), zstandard.ZstdCompressor().compress(dictionary.as_bytes())):
        path = tmp_path / "a.warc.zst"
        path.write_bytes(b"\x5d\x2a\x4d\x18" + len(stored).to_bytes(4, "little") + stored + b"".join(frames))
        assert read(path).texts == PAGES * 30


def test_records_that_are_no_documents_are_counted(tmp_path):
    kinds = ["warcinfo", "request", "metadata", "revisit", "continuation", "strange"]
    path = write(tmp_path / "a.warc.gz", *[record(b"x", kind) for kind in kinds], *pages(PAGE))
    outcome = read(path)
    assert outcome.texts == [PAGE]
    assert outcome.counters == {f"{kind}-records": 1 for kind in [*kinds[:-1], "other"]} | {
        "bytes": outcome.counters["bytes"]
    }


def test_conversions_and_resources_are_read_as_their_type_says(tmp_path):
    records = [
        record("纯文本\n".encode(), "conversion", Content_Type="text/plain"),
        record(PAGE.encode(), "resource", Content_Type="text/html"),
        record(b"\x89PNG\r\n\x1a\n", "resource", Content_Type="image/png"),
    ]
    outcome = read(write(tmp_path / "a.warc.wet.gz", *records))
    assert outcome.texts == ["纯文本\n", PAGE]
    assert [meta["content_type"] for meta in metas(outcome)] == ["text/plain", "text/html"]
    assert outcome.reasons == ["not-html"]


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        (http("{}", "application/json"), "not-html"),
        (http(b"%PDF-1.4", "application/pdf"), "not-html"),
        (http(b"\x89PNG\0\0", "text/html"), "not-html"),
        (http("not a page", ""), "not-html"),
        (b"", "not-html"),
        (http(PAGE, status="404 Not Found"), "http-status"),
        (http("", status="301 Moved"), "http-status"),
        (http(b"\x1f\x9d\x90", Content_Encoding="compress"), "bad-coding"),
    ],
)
def test_what_is_no_page_is_rejected_by_name(tmp_path, response, reason):
    outcome = read(write(tmp_path / "a.warc.gz", record(response), *pages(PAGE)))
    assert outcome.texts == [PAGE]
    assert [(item.reason, item.record) for item in outcome.rejects] == [(reason, 0)]


@pytest.mark.parametrize("content_type", ["", "application/octet-stream", "text/xml", "application/xhtml+xml; charset=utf-8"])
def test_a_page_without_a_clear_type_is_known_by_its_start(tmp_path, content_type):
    text = f'<?xml version="1.0"?>\n<!-- x -->\n<!DOCTYPE html>{PAGE}'
    outcome = read(write(tmp_path / "a.warc", record(http(text, content_type))))
    assert outcome.texts == [text]
    assert metas(outcome)[0]["content_type"] == "text/html"


def raw_deflate(data: bytes) -> bytes:
    return gzip.compress(data)[10:-8]


BODY = PAGE.encode() * 20
CODINGS = {
    "plain": ({}, BODY),
    "gzip": ({"Content_Encoding": "gzip"}, gzip.compress(BODY)),
    "deflate": ({"Content_Encoding": "deflate"}, zlib.compress(BODY)),
    "raw deflate": ({"Content_Encoding": "deflate"}, raw_deflate(BODY)),
    "br": ({"Content_Encoding": "br"}, brotli.compress(BODY)),
    "zstd": ({"Content_Encoding": "zstd"}, zstandard.ZstdCompressor().compress(BODY)),
    "two codings": ({"Content_Encoding": "deflate, gzip"}, gzip.compress(raw_deflate(BODY))),
    "chunked": ({"Transfer_Encoding": "chunked"}, chunked(BODY[:1000], BODY[1000:])),
    "chunked, no last chunk": ({"Transfer_Encoding": "chunked"}, chunked(BODY[:1000], BODY[1000:], last=False)),
    "chunked, sizes too large": ({"Transfer_Encoding": "chunked"}, chunked(BODY[:99], BODY[99:500], BODY[500:], sizes=(99, 408, 1147))),
    "chunked, sizes too small": ({"Transfer_Encoding": "chunked"}, chunked(BODY[:99], BODY[99:500], BODY[500:], sizes=(99, 391, 1130))),
    "chunked gzip": ({"Transfer_Encoding": "chunked", "Content_Encoding": "gzip"}, chunked(gzip.compress(BODY))),
    "says chunked": ({"Transfer_Encoding": "chunked"}, BODY),
    "says gzip": ({"Content_Encoding": "gzip"}, BODY),
    "says br": ({"Content_Encoding": "br"}, BODY),
    "says deflate": ({"Content_Encoding": "deflate"}, BODY),
    "says nonsense": ({"Content_Encoding": "utf-8"}, BODY),
}  # fmt: skip


@pytest.mark.parametrize("name", CODINGS)
def test_codings_of_bodies_are_undone_where_they_are_there(tmp_path, name):
    fields, body = CODINGS[name]
    outcome = read(write(tmp_path / "a.warc.gz", record(http(body, **fields))))
    assert outcome.texts == [BODY.decode()]


def test_a_body_that_breaks_off_is_kept_and_counted(tmp_path):
    path = write(tmp_path / "a.warc", record(http(gzip.compress(BODY)[:-20], Content_Encoding="gzip")))
    outcome = read(path)
    assert BODY.decode().startswith(outcome.texts[0][:100])
    assert outcome.counters["cut-bodies"] == 1


def test_limits_are_kept_by_bombs_too(tmp_path):
    huge = b"<html>" + b" " * 3_000_000
    bodies = [(gzip.compress(huge), "gzip"), (brotli.compress(huge), "br"), (raw_deflate(huge), "deflate"),
              (zstandard.ZstdCompressor().compress(huge), "zstd"), (huge, "identity")]  # fmt: skip
    records = [record(http(body, Content_Encoding=coding)) for body, coding in bodies]
    outcome = read(write(tmp_path / "a.warc.gz", *records, *pages(PAGE)), max_document=1_000_000)
    assert outcome.texts == [PAGE]
    assert outcome.reasons == ["too-large"] * 5


def test_heads_that_are_written_oddly(tmp_path):
    body = http(PAGE)
    odd = (
        f"WARC/1.0\r\nwarc-type: response\r\nContent-type: application/http\r\nWARC-TARGET-URI:<http://example.com/a\r\n b>\r\n"
        f"content-LENGTH : {len(body)}\r\n\r\n"
    ).encode() + body
    lines = record(body, end="\n")
    old = record(body).replace(b"WARC/1.0", b"WARC/0.18")
    outcome = read(write(tmp_path / "a.warc", odd, lines, old))  # the first has no breaks behind it
    assert outcome.texts == [PAGE] * 3
    assert metas(outcome)[0]["url"] == "http://example.com/a b"


@pytest.mark.parametrize("wrong", [300, -40])
def test_wrong_lengths_cost_nothing(tmp_path, wrong):
    records = pages(*PAGES)
    size = len(http(PAGES[2]))
    records[2] = record(http(PAGES[2]), length=size + wrong)
    outcome = read(write(tmp_path / "a.warc", *records))
    assert outcome.texts == PAGES
    assert outcome.counters["repaired-records"] == 1


def test_missing_lengths_and_types(tmp_path):
    records = pages(*PAGES)
    records[1] = records[1].replace(b"Content-Length", b"X-Length")
    records[2] = records[2].replace(b"WARC-Type", b"WARC-Tipe")
    records[5] = records[5].replace(b"Content-Length: ", b"Content-Length: ab")
    outcome = read(write(tmp_path / "a.warc", *records))
    assert outcome.texts == [PAGES[0], PAGES[1], *PAGES[3:]]
    assert outcome.reasons == ["damaged-record"]
    assert outcome.counters["repaired-records"] == 2


def members(*texts: str) -> list[bytes]:
    return [gzip.compress(item, mtime=0) for item in pages(*texts)]


def flipped(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 0xFF]) + data[place + 1 :]


@pytest.mark.parametrize("place", [30, 60, -6])  # in the head, in the body, in the checksum
def test_a_damaged_member_costs_its_record_alone(tmp_path, place):
    parts = members(*PAGES)
    parts[2] = flipped(parts[2], place % len(parts[2]))
    path = tmp_path / "a.warc.gz"
    path.write_bytes(b"".join(parts))
    outcome = read(path)
    assert outcome.texts == [*PAGES[:2], *PAGES[3:]]
    assert outcome.reasons == ["damaged-record"]
    assert outcome.damaged is None
    stopped = read(path, on_damaged="stop")
    assert stopped.texts == PAGES[:2]
    assert stopped.damaged is not None


def test_a_damaged_zstd_frame_costs_its_record_alone(tmp_path):
    frames = [zstandard.ZstdCompressor(write_checksum=True).compress(item) for item in pages(*PAGES)]
    frames[2] = flipped(frames[2], len(frames[2]) - 30)
    path = tmp_path / "a.warc.zst"
    path.write_bytes(b"".join(frames))
    outcome = read(path)
    assert outcome.texts == [*PAGES[:2], *PAGES[3:]]
    assert outcome.reasons == ["damaged-record"]


def test_rubbish_between_members_and_padding_behind_them(tmp_path):
    parts = members(*PAGES)
    parts.insert(3, random.Random(0).randbytes(3_000))
    path = tmp_path / "a.warc.gz"
    path.write_bytes(b"".join(parts) + bytes(4_096))
    outcome = read(path)
    assert outcome.texts == PAGES
    assert outcome.reasons == ["damaged-record"]


def test_a_compressed_body_is_no_place_to_go_on(tmp_path):
    inner = gzip.compress(b"\0".join(pages("<html>inner</html>")), 0) + random.Random(1).randbytes(400)
    damaged = bytearray(gzip.compress(record(http(inner, Content_Encoding="gzip")), 0))
    damaged[-5] ^= 1
    path = tmp_path / "a.warc.gz"
    path.write_bytes(bytes(damaged) + b"".join(members(*PAGES)))
    assert read(path).texts[-6:] == PAGES


def test_rubbish_between_plain_records(tmp_path):
    records = pages(*PAGES)
    records.insert(3, b"\xff rubbish \n" * 50)
    outcome = read(write(tmp_path / "a.warc", *records))
    assert outcome.texts == PAGES
    assert outcome.reasons == ["damaged-record"]


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_a_cut_file_gives_its_whole_records(tmp_path, suffix):
    path = write(tmp_path / f"a.warc{suffix}", *pages(*PAGES))
    path.write_bytes(path.read_bytes()[:-40])
    outcome = read(path)
    assert outcome.texts == PAGES[:5]
    assert outcome.damaged is not None
    assert (outcome.damaged.reason, outcome.damaged.good_records) == ("truncated", 5)


def test_one_member_for_all_is_read_up_to_its_fault(tmp_path):
    path = tmp_path / "a.warc.gz"
    noise = [f"<html>{random.Random(n).randbytes(20_000).hex()}</html>" for n in range(20)]
    whole = gzip.compress(b"".join(pages(*noise)), mtime=0)
    path.write_bytes(whole[: len(whole) // 2] + bytes(4_000))
    outcome = read(path)
    assert outcome.damaged is not None
    assert outcome.texts[:9] == noise[:9]


def test_files_that_are_no_archives(tmp_path):
    path = tmp_path / "a.warc.gz"
    for content, reason in ((b"", "truncated"), (gzip.compress(b"hello"), "wrong-format"), (b"PK\x03\x04" * 99, "wrong-format")):
        path.write_bytes(content)
        outcome = read(path)
        assert outcome.damaged is not None
        assert outcome.damaged.reason == reason


def test_arc_files(tmp_path):
    body = http(PAGE)
    info = b"1 0 Test\nURL IP-address Archive-date Content-type Archive-length\n"
    head = b"filedesc://a.arc 127.0.0.1 20140216050221 text/plain %d\n" % len(info)
    page = b"http://example.com/a b 127.0.0.1 20140216050221 text/html %d\n" % len(body) + body
    path = tmp_path / "a.arc"
    path.write_bytes(head + info + b"\n" + page + b"\n" + page.replace(b" b ", b" c ", 1) + b"\n")
    outcome = read(path)
    assert outcome.texts == [PAGE, PAGE]
    assert [(m["url"], m["date"]) for m in metas(outcome)] == [
        ("http://example.com/a b", "2014-02-16T05:02:21Z"),
        ("http://example.com/a c", "2014-02-16T05:02:21Z"),
    ]
    assert outcome.counters["warcinfo-records"] == 1


def test_header_fields_can_be_kept(tmp_path):
    path = write(tmp_path / "a.warc", record(http(PAGE), **{"IP-Address": "192.0.2.1"}))
    assert metas(read(path, keep_meta=("WARC-IP-Address", "url")))[0]["WARC-IP-Address"] == "192.0.2.1"
    assert read(path, id="WARC-Target-URI").column("user_id") == ["http://example.com/"]


def test_batches_are_bounded(tmp_path):
    path = write(tmp_path / "a.warc.gz", *pages(*["<p>" + "x" * 40_000] * 30))
    outcome = read(path, batch_bytes=200_000)
    assert len(outcome.batches) == 8
    assert len(outcome.texts) == 30


@pytest.fixture(scope="module")
def web(shared: Path) -> Path:
    return shared / "data" / "web"


@pytest.mark.data
def test_built_archives_give_every_good_record(web):
    small = read(web / "built" / "small.warc").texts
    for name in ("small.single_member.warc.gz", "small.warc.zst", "small.dict.warc.zst", "damaged.zero_padding.warc.gz"):
        assert read(web / "built" / name).texts == small
    expected = {
        "damaged.bitflip.warc.gz": (1, 1), "damaged.crc.warc.gz": (1, 1), "damaged.garbage_between.warc.gz": (0, 1),
    }  # fmt: skip
    for name, (lost, damaged) in expected.items():
        outcome = read(web / "built" / name)
        assert len(outcome.texts) == len(small) - lost
        assert outcome.reasons.count("damaged-record") == damaged
        assert outcome.damaged is None
    cut = read(web / "built" / "damaged.truncated.warc.gz")
    assert cut.texts == small[: len(cut.texts)]
    assert len(cut.texts) == 32
    for name in ("damaged.length_too_long.warc", "damaged.length_too_short.warc", "damaged.headers.warc"):
        assert read(web / "built" / name).texts == small[:25]
    for name in ("damaged.lf_only.warc", "odd.folded_and_case.warc"):
        assert read(web / "built" / name).texts == small[:15]


@pytest.mark.data
def test_pages_in_every_charset_and_coding_come_out_byte_for_byte(web):
    outcome = read(web / "built" / "docs.warc.gz")
    truth = [json.loads(line) for line in (web / "built" / "docs.truth.jsonl").open(encoding="utf-8")]
    wanted = Counter(row["body_bytes_sha256"] for row in truth if "lang" in row and row["transfer"] != "chunked_bad_size")
    charsets = {row["true_charset"] for row in truth if "lang" in row}
    found = Counter(
        hashlib.sha256(text.encode(charset, "ignore")).hexdigest() for text in outcome.texts for charset in charsets
    )
    assert sum((wanted - found).values()) == 0
    assert outcome.counters["request-records"] == 59
    assert Counter(outcome.reasons) == {"not-html": 4, "http-status": 3}


@pytest.mark.data
def test_real_archives_end_without_an_exception(web):
    counted = {}
    for path in sorted(web.glob("real/*/*")):
        if ".arc" in path.name or ".warc" in path.name:
            outcome = read(path, format="warc")
            counted[path.name] = len(outcome.texts)
    assert counted["sample-0000.warc.gz"] == 24
    assert counted["clueweb-quirk.warc.gz"] == 29
    assert counted["example.arc.gz"] == counted["example.warc.gz"] == 1
