"""The reader's part of the shared cases and of the nasty files."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from stages.readers import guess_format, list_files
from tests.stages.readers.reading import Outcome, read

pytestmark = pytest.mark.data


@pytest.fixture(scope="module")
def inputs(shared: Path) -> Path:
    return shared / "cases" / "inputs"


def values(path: Path, name: str) -> list:
    return [json.loads(line).get(name) for line in path.read_bytes().split(b"\n") if line.strip()]


def test_g000_blank_lines(inputs):
    outcome = read(inputs / "blank_lines.jsonl")
    assert (len(outcome.texts), outcome.rejects, outcome.damaged) == (5, [], None)


def test_g002_a_cut_gzip_file_beside_a_healthy_one(inputs):
    healthy, cut = read(inputs / "healthy.jsonl.gz"), read(inputs / "truncated.jsonl.gz")
    assert healthy.damaged is None
    assert healthy.texts
    assert cut.damaged is not None
    assert (cut.damaged.uri, cut.damaged.reason) == ("truncated.jsonl.gz", "truncated")


def test_g004_unicode_line_separators(inputs):
    path = inputs / "unicode_linesep.jsonl"
    assert read(path).texts == values(path, "text")
    assert len(read(path).texts) == 4


def test_g006_long_lines(inputs, tmp_path):
    subprocess.run([sys.executable, str(inputs / "make_long_lines.py")], cwd=tmp_path, check=True)
    path = tmp_path / "long_lines.jsonl"
    assert read(path).texts == values(path, "text")
    limited = read(path, max_document=1 << 20)
    assert limited.reasons == ["too-large", "too-large"]


def test_g008_ids_of_any_type(inputs):
    outcome = read(inputs / "mixed_ids.jsonl")
    assert outcome.column("user_id") == ["7", "x-1", "12345678901234567890123", None, None]
    assert len(set(outcome.column("id"))) == 5


def test_g010_surrogates(inputs):
    outcome = read(inputs / "surrogates.jsonl")
    assert len(outcome.texts) == 5
    assert "\U0001f600" in outcome.texts[2]
    assert ["\ufffd" in text for text in outcome.texts] == [True, True, False, True, False]
    assert outcome.counters["surrogates-replaced"] == 3


def test_g012_empty_documents_are_passed_on(inputs):
    assert len(read(inputs / "empty_first.jsonl").texts) == 4


def test_g016_chinese_articles_are_read_as_they_stand(inputs):
    path = inputs / "zh_articles.jsonl"
    assert read(path).texts == values(path, "text")


@pytest.fixture(scope="module")
def nasty(shared: Path, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("nasty")
    script = shared / "data" / "nasty" / "dev" / "make_nasty.py"
    subprocess.run([sys.executable, str(script), str(folder)], check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def cases(nasty: Path) -> dict[str, dict]:
    lines = (nasty / "manifest.jsonl").read_text(encoding="utf-8").split("\n")
    return {case["name"]: case for case in map(json.loads, filter(None, lines))}


def outcomes(nasty: Path, case: dict) -> list[Outcome]:
    return [
        read(nasty / name, uri=name, format=None if guess_format(name) else "jsonl") for name in case["files"]
    ]


def test_every_nasty_file_ends_without_an_exception(nasty, cases):
    for case in cases.values():
        for format in ("jsonl", "json", "text", "lines", "parquet", "arrow", None):
            for name in case["files"]:
                if format or guess_format(name):
                    read(nasty / name, uri=name, format=format)


def test_nasty_files_give_the_documents_they_hold(nasty, cases):
    counted = {}
    for case in cases.values():
        if case["good_docs"] is not None and case["name"] not in ("names", "pq_empty"):
            counted[case["name"]] = (
                sum(len(outcome.texts) for outcome in outcomes(nasty, case)) - case["good_docs"]
            )
    assert set(counted.values()) == {0}, counted


@pytest.mark.parametrize(
    ("name", "documents", "reasons", "damage"),
    [
        ("truncated_gz", 223, {}, ["truncated"]),
        ("invalid_utf8", 7, {"not-utf8": 3}, []),
        ("utf16", 0, {}, ["wrong-encoding", "wrong-encoding"]),
        ("deep_json", 4, {"too-deep": 2}, []),
        ("bad_json", 3, {"bad-json": 6, "not-object": 4}, []),
        ("interleaved_writer", 10, {"bad-json": 1}, []),
        ("control_text", 1, {}, []),
        ("pq_nested", 0, {}, ["missing-column"]),
        ("pq_empty", 0, {}, ["missing-column"]),
    ],
)
def test_nasty_files_say_what_is_wrong(nasty, cases, name, documents, reasons, damage):
    found = outcomes(nasty, cases[name])
    assert sum(len(outcome.texts) for outcome in found) == documents
    assert Counter(reason for outcome in found for reason in outcome.reasons) == reasons
    assert [outcome.damaged.reason for outcome in found if outcome.damaged] == damage


def test_nasty_zstd_is_never_taken_for_complete(nasty, cases):
    (outcome,) = outcomes(nasty, cases["truncated_zst"])
    assert outcome.damaged is not None
    assert 0 < len(outcome.texts) < 400


def test_nasty_names(nasty):
    listing = list_files("names", str(nasty))
    assert len(listing.files) == 12
    assert all(len(read(found.path, uri=found.uri).texts) == 1 for found in listing.files)
    assert listing.reasons() == {"unknown-suffix": 3, "broken-link": 1, "hidden": 1, "link-loop": 1}


def test_a_mixed_folder(nasty):
    listing = list_files("mixed", str(nasty))
    assert [found.uri for found in listing.files] == [
        "README.md",
        "a.jsonl",
        "b.parquet",
        "c.jsonl.zst",
        "d.txt",
    ]
    assert sum(len(read(found.path, uri=found.uri).texts) for found in listing.files) == 11
    assert listing.reasons() == {"binary": 1, "hidden": 1}
