"""JSON records: what survives exactly, what is rejected and how it is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stages.document import document_id
from stages.readers import line_number
from stages.readers.jsonl import MAX_DEPTH
from tests.stages.readers.reading import SOURCE, read


@pytest.fixture
def jsonl(tmp_path: Path):
    """Writes bytes to a file and reads it."""

    def run(content: bytes, name: str = "a.jsonl", **settings):
        path = tmp_path / name
        path.write_bytes(content)
        return read(path, **settings)

    return run


def lines(*records: object) -> bytes:
    return b"".join(json.dumps(record, ensure_ascii=False).encode() + b"\n" for record in records)


def test_blank_lines_are_no_records(jsonl):
    outcome = jsonl(b'\n{"text":"a"}\n\n  \t\r\n{"text":"b"}\r\n\n\n')
    assert outcome.texts == ["a", "b"]
    assert outcome.rejects == []
    assert outcome.counters["blank-lines"] == 5


def test_the_last_line_needs_no_line_feed(jsonl):
    assert jsonl(b'{"text":"a"}\n{"text":"b"}').texts == ["a", "b"]


def test_only_the_line_feed_ends_a_record(jsonl):
    texts = [f"before{mark}after" for mark in "\u2028\u2029\u0085\x0b\x0c\x1c\x1d\x1e\r"]
    assert jsonl(lines(*({"text": text} for text in texts))).texts == texts
    raw = b'{"text":"a\xe2\x80\xa8b\xc2\x85c"}\n'
    assert jsonl(raw).texts == ["a\u2028b\u0085c"]


def test_a_record_is_where_it_starts(jsonl, tmp_path):
    content = b'{"text":"a"}\n\n{"text":"\xe4\xb8\xad"}\nbad\n{"text":"c"}'
    outcome = jsonl(content)
    assert outcome.column("record") == [0, 14, 33]
    assert outcome.column("id") == [document_id(SOURCE, "a.jsonl", record) for record in (0, 14, 33)]
    (reject,) = outcome.rejects
    assert (reject.uri, reject.record, reject.line_hint, reject.reason) == ("a.jsonl", 29, 4, "bad-json")
    assert line_number(str(tmp_path / "a.jsonl"), reject.record) == 4


def test_ids_survive_as_the_string_that_stands_in_the_file(jsonl):
    spelled = {
        b"7": "7", b'"x-1"': "x-1", b"12345678901234567890123": "12345678901234567890123", b"null": None,
        b"-5": "-5", b"18446744073709551616": "18446744073709551616", b"1.50": "1.50", b"true": "true",
        b'{"b":1,"a":2}': '{"a":2,"b":1}', b'"\\ud800x"': "\ufffdx", b"0.1e1": "0.1e1",
    }  # fmt: skip
    outcome = jsonl(b"".join(b'{"id":%b,"text":"t"}\n' % literal for literal in spelled) + b'{"text":"t"}\n')
    assert outcome.column("user_id") == [*spelled.values(), None]
    assert outcome.rejects == []


def test_the_id_may_be_any_field(jsonl):
    content = lines(
        {"text": "t", "meta": {"url": "u1"}}, {"text": "t", "meta.url": "u2"}, {"text": "t", "meta": 3}
    )
    assert jsonl(content, id="meta.url").column("user_id") == ["u1", "u2", None]


def test_lone_surrogates_are_replaced_and_counted(jsonl):
    outcome = jsonl(
        rb'{"text":"a \ud800 b \udc00"}' + b"\n" + rb'{"text":"\ud83d\ude00 \ude00\ud83d"}' + b"\n"
    )
    assert outcome.texts == ["a \ufffd b \ufffd", "\U0001f600 \ufffd\ufffd"]
    assert outcome.counters["surrogates-replaced"] == 4


def test_invalid_utf8_rejects_the_record_alone(jsonl):
    outcome = jsonl(b'{"text":"a"}\n{"text":"\xff"}\n{"text":"\xed\xa0\x80"}\n{"text":"b"}\n')
    assert outcome.texts == ["a", "b"]
    assert [(r.record, r.line_hint, r.reason) for r in outcome.rejects] == [
        (13, 2, "not-utf8"),
        (26, 3, "not-utf8"),
    ]
    assert "byte 9" in outcome.rejects[0].detail


def test_a_byte_order_mark_is_no_part_of_a_record(jsonl):
    outcome = jsonl(b'\xef\xbb\xbf{"text":"a"}\n\xef\xbb\xbf{"text":"b"}\n')
    assert outcome.texts == ["a", "b"]
    assert outcome.column("record") == [0, 16]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "utf-16-be", "utf-16-le", "utf-32-be"])
def test_other_encodings_are_damage_that_is_named(jsonl, encoding):
    outcome = jsonl('{"text":"a"}\n{"text":"b"}\n'.encode(encoding))
    assert outcome.damaged is not None
    assert outcome.damaged.reason == "wrong-encoding"
    assert outcome.rejects == []


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"text":"a",}', "bad-json"),
        (b'{"text":"a"}{"text":"b"}', "bad-json"),
        (b'{"text":"unterminated', "bad-json"),
        (b'{"text":"raw \x00 control"}', "bad-json"),
        (b"[1,2]", "not-object"),
        (b'"text"', "not-object"),
        (b"null", "not-object"),
        (b"42", "not-object"),
        (b'{"body":"a"}', "missing-field"),
        (b'{"text":null}', "not-text"),
        (b'{"text":7}', "not-text"),
        (b'{"text":["a"]}', "not-text"),
        (b'{"text":"a","m":' + b"[" * 200_000 + b"]" * 200_000 + b"}", "too-deep"),
        (b'{"a":' * 5_000 + b"1" + b"}" * 5_000, "too-deep"),
        (b'{"a":NaN,"text":"a","m":' + b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1) + b"}", "too-deep"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_bad_record_is_rejected_with_its_reason(jsonl, line, reason):
    outcome = jsonl(b'{"text":"before"}\n' + line + b'\n{"text":"after"}\n')
    assert outcome.texts == ["before", "after"]
    (reject,) = outcome.rejects
    assert (reject.reason, reject.record, reject.line_hint) == (reason, 18, 2)


def test_brackets_inside_strings_are_no_depth(jsonl):
    text = '[{"\\' * 2_000
    assert jsonl(lines({"text": text, "n": float("nan")})).texts == [text]


def test_an_empty_text_is_a_document(jsonl):
    assert jsonl(b'{"text":""}\n').texts == [""]


def test_numbers_that_json_lacks_do_not_cost_the_record(jsonl):
    content = b'{"text":"a","x":NaN,"y":-Infinity,"z":1e999}\n'
    outcome = jsonl(content, keep_meta=("x", "y", "z"))
    assert outcome.texts == ["a"]
    assert outcome.column("meta") == ['{"x":"NaN","y":"-Infinity","z":"1e999"}']


def test_kept_fields_are_json_with_sorted_keys_and_exact_integers(jsonl):
    content = (
        b'{"text":"a","url":"u","n":12345678901234567890123,"d":{"z":1,"a":[1.5]},"other":1}\n{"text":"b"}\n'
    )
    outcome = jsonl(content, keep_meta=("url", "n", "d", "d.z"))
    first, second = outcome.column("meta")
    assert first == '{"d":{"a":[1.5],"z":1},"d.z":1,"n":12345678901234567890123,"url":"u"}'
    assert second == "{}"
    assert jsonl(content).column("meta") == [None, None]


def test_a_kept_field_that_is_nested_too_deeply_rejects_the_record(jsonl):
    content = b'{"text":"a","m":' + b"[" * 900 + b"]" * 900 + b"}\n"
    assert jsonl(content).texts == ["a"]
    assert jsonl(content, keep_meta=("m",)).reasons == ["too-deep"]


def test_very_long_lines_are_read(jsonl):
    texts = ["word " * 600_000, "中文" * 500_000, "x" * 20_000_000]
    outcome = jsonl(lines(*({"text": text} for text in texts), {"text": "end"}))
    assert outcome.texts == [*texts, "end"]


def test_a_text_over_the_limit_is_rejected(jsonl):
    content = lines(
        {"text": "a" * 1_000}, {"text": "a" * 1_001}, {"text": "中" * 334}, {"text": "ok", "pad": "a" * 900}
    )
    outcome = jsonl(content, max_document=1_000)
    assert [len(text) for text in outcome.texts] == [1_000, 2]
    assert outcome.reasons == ["too-large", "too-large"]
    assert outcome.rejects[0].detail == "1,001 bytes, but max_document is 1,000"


def test_the_limit_is_about_the_text_not_about_its_escapes(jsonl):
    content = json.dumps({"text": "中" * 333}).encode() + b"\n"
    assert len(content) > 1_998
    assert len(jsonl(content, max_document=999).texts) == 1


@pytest.mark.parametrize("size", [4_500, 3_000_000])
def test_a_line_that_is_too_long_to_parse_is_rejected_without_its_bytes(jsonl, size):
    content = lines({"text": "a"}, {"text": "b", "pad": "x" * size}, {"text": "c"})
    outcome = jsonl(content, max_document=1_000)
    assert outcome.texts == ["a", "c"]
    (reject,) = outcome.rejects
    assert (reject.reason, reject.record, reject.line_hint) == ("too-large", 14, 2)
    assert f"{len(content) - 14 - 14 - 1:,} bytes" in reject.detail
    assert outcome.column("record") == [0, len(content) - 14]


def test_batches_hold_a_bounded_amount_of_text(jsonl):
    records = [{"text": "a" * (i % 700)} for i in range(200)] + [{"text": "b" * 9_000}, {"text": "c"}]
    outcome = jsonl(lines(*records), batch_bytes=2_000)
    assert outcome.texts == [record["text"] for record in records]
    assert len(outcome.batches) > 10
    assert any(
        batch.num_rows == 1 and batch.column("text")[0].as_py()[:1] == "b" for batch in outcome.batches
    )


def test_an_array_is_read_with_the_format_json(jsonl):
    records = [{"id": 12345678901234567890123, "text": "a"}, {"id": 1, "text": "\u2028"}, {"no": 1}, 5]
    for content in (json.dumps(records).encode(), b"\xef\xbb\xbf" + json.dumps(records, indent=1).encode()):
        outcome = jsonl(content, name="a.json")
        assert outcome.texts == ["a", "\u2028"]
        assert outcome.column("record") == [0, 1]
        assert outcome.column("user_id") == ["12345678901234567890123", "1"]
        assert [(r.record, r.reason) for r in outcome.rejects] == [(2, "missing-field"), (3, "not-object")]


def test_a_json_file_may_hold_lines_or_one_record(jsonl):
    assert jsonl(lines({"text": "a"}, {"text": "b"}), name="a.json").texts == ["a", "b"]
    assert jsonl(json.dumps({"text": "a"}, indent=2).encode(), name="a.json").texts == ["a"]
    assert jsonl(b"", name="a.json").texts == []
    broken = jsonl(b'[{"text":"a"},', name="a.json")
    assert broken.damaged is not None
    assert broken.damaged.reason == "corrupt"


def test_an_array_among_lines_says_what_to_do(jsonl):
    outcome = jsonl(json.dumps([{"text": "a"}], indent=1).encode())
    assert outcome.texts == []
    assert "format: json" in outcome.rejects[0].detail
    assert "format: json" in jsonl(b'[{"text":"a"}]\n').rejects[0].detail
