from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.contract.names import canonical_json, check_source_name, digest, path_name


def test_canonical_json_has_one_form():
    assert canonical_json({"b": [1, 2.5, None], "a": "中文"}) == '{"a":"中文","b":[1,2.5,null]}'.encode()
    assert canonical_json({"x": 1, "y": 2}) == canonical_json({"y": 2, "x": 1})
    with pytest.raises(ValueError):
        canonical_json(float("nan"))


@given(st.dictionaries(st.text(), st.text(st.characters(codec=None)) | st.integers() | st.lists(st.booleans())))
def test_canonical_json_reads_back(value):
    assert json.loads(canonical_json(value)) == value


def test_a_digest_knows_where_parts_end():
    assert digest("ab", "c") != digest("a", "bc")
    assert digest("ab") == digest(b"ab")
    assert digest("中") == digest("中".encode())
    assert len(digest()) == 64


@pytest.mark.parametrize("name", ["web", "web-2", "web_zh", "网页", "ウェブ", "ข้อมูล", "हिन्दी", "Ω", "0", "a" * 64])
def test_good_source_names(name):
    assert check_source_name(name) is None


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("", "empty"), ("../x", "holds . /"), ("a/b", "/"), ("web.0", "."), ("a b", "a space"), ("a\0b", "\0"),
        ("..\\win", "\\"), ("CON", "Windows"), ("nul", "Windows"), ("com1", "Windows"), ("-rf", "start"),
        ("a" * 65, "64"), ("𝒳" * 64, "200 bytes"), ("e\u0301", "NFC"), ("\u0301e", "start"), ("a\u202eb", "\u202e"),
        ("~root", "~"), ("a:b", ":"), ("😀", "😀"),
    ],
)  # fmt: skip
def test_bad_source_names(name, says):
    sentence = check_source_name(name)
    assert sentence is not None
    assert says in sentence


@given(st.text(st.characters(codec=None)))
def test_a_path_name_is_safe(text):
    name = path_name(text)
    assert 0 < len(name) <= 64
    assert name.isascii()
    assert all(c.isalnum() or c in "_-" for c in name)
    assert name[0] != "-"
    assert name.casefold() not in {"con", "nul"}


def test_different_texts_have_different_path_names():
    texts = ["web", "../web", "web/", "..", ".", "", "CON", "con", "a b", "a_b", "-rf", "中文", "中"]
    texts += [path_name(text) for text in texts]  # a name made to look like one that was made
    assert len({path_name(text) for text in texts}) == len(set(texts))
    assert path_name("web") == "web"


def test_names_from_hostile_records_stay_inside(shared, tmp_path):
    for line in (shared / "cases/inputs/traversal_ids.jsonl").read_text(encoding="utf-8").splitlines():
        target = tmp_path / path_name(json.loads(line)["id"])
        target.write_text("x")
        assert target.parent == tmp_path
    assert check_source_name("../x") is not None
