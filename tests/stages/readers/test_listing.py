"""Which files a source has, in which order, under which names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stages.readers import guess_format, list_files


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in (
        "data/web/b.jsonl", "data/web/a.jsonl.gz", "data/web/deep/er/c.jsonl", "data/web/deep/x.parquet",
        "data/web/.hidden.jsonl", "data/web/.git/config.json", "data/web/node_modules/m.js",
        "data/web/pic.png", "data/web/_SUCCESS", "data/web/part.jsonl.tmp",
        "data/books/中文 1.txt", "data/books/é.txt", "data/books/glob[1].txt",
    ):  # fmt: skip
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    return tmp_path


def uris(patterns, folder: Path, format=None) -> list[str]:
    return [found.uri for found in list_files(patterns, str(folder), format).files]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("data/web", ["a.jsonl.gz", "b.jsonl", "deep/er/c.jsonl", "deep/x.parquet"]),
        ("data/web/", ["a.jsonl.gz", "b.jsonl", "deep/er/c.jsonl", "deep/x.parquet"]),
        ("data/web/*.jsonl*", ["a.jsonl.gz", "b.jsonl"]),
        ("data/web/**/*.jsonl", ["b.jsonl", "deep/er/c.jsonl"]),
        ("data/*/b.jsonl", ["web/b.jsonl"]),
        ("data/web/[ab].jsonl", ["b.jsonl"]),
        ("data/web/[!a].jsonl", ["b.jsonl"]),
        ("data/web/?.jsonl", ["b.jsonl"]),
        (
            "data/{web,books}/*.{jsonl,txt}",
            ["books/glob[1].txt", "books/é.txt", "books/中文 1.txt", "web/b.jsonl"],
        ),
        ("data/web/deep/er/c.jsonl", ["c.jsonl"]),
        ("data/books/glob[1].txt", ["glob[1].txt"]),
        ("data/w*/deep/**", ["web/deep/er/c.jsonl", "web/deep/x.parquet"]),
        (["data/web/b.jsonl", "data/web/*.jsonl"], ["b.jsonl"]),
        ("data/web/.hid*", [".hidden.jsonl"]),
    ],
)
def test_patterns_and_the_names_they_give(folder, pattern, expected):
    assert uris(pattern, folder) == expected


def test_sizes_times_and_paths_are_those_of_the_files(folder):
    (found,) = list_files("data/web/b.jsonl", str(folder)).files
    stat = os.stat(folder / "data/web/b.jsonl")
    assert found == (str(folder / "data/web/b.jsonl"), "b.jsonl", stat.st_size, stat.st_mtime_ns)


def test_what_is_left_out_is_said(folder):
    listing = list_files("data/web", str(folder))
    assert listing.reasons() == {
        "unknown-suffix": 2, "binary": 1, "dependency-folder": 1, "hidden": 1, "version-control": 1,
    }  # fmt: skip
    assert {Path(item.path).name for item in listing.skipped if item.reason == "unknown-suffix"} == {
        "_SUCCESS", "part.jsonl.tmp",
    }  # fmt: skip


def test_a_given_format_takes_every_match(folder):
    assert uris("data/web/part.*", folder) == []
    assert uris("data/web/part.*", folder, "jsonl") == ["part.jsonl.tmp"]


def test_nothing_is_an_error_only_where_one_file_was_named(folder):
    assert uris("data/none*/x", folder) == []
    with pytest.raises(FileNotFoundError):
        list_files("data/none.jsonl", str(folder))


def test_two_files_of_one_name_are_refused(folder):
    (folder / "data/more").mkdir()
    (folder / "data/more/b.jsonl").write_bytes(b"")
    with pytest.raises(ValueError, match=r"b\.jsonl"):
        list_files(["data/web/*.jsonl", "data/more/*.jsonl"], str(folder))
    assert uris("data/{web,more}/*.jsonl", folder) == ["more/b.jsonl", "web/b.jsonl"]


def test_links_loop_never_and_count_once(folder):
    web = folder / "data/web"
    (web / "loop").symlink_to("../web")
    (web / "deep/up").symlink_to("..")
    (web / "aaa.jsonl").symlink_to("b.jsonl")
    (web / "broken.jsonl").symlink_to("nowhere")
    (web / "aaa").symlink_to("../books")
    (web / "dir.jsonl").mkdir()
    listing = list_files("data/web", str(folder))
    names = [found.uri for found in listing.files]
    assert names == [
        "a.jsonl.gz", "aaa/glob[1].txt", "aaa/é.txt", "aaa/中文 1.txt", "b.jsonl", "deep/er/c.jsonl",
        "deep/x.parquet",
    ]  # fmt: skip
    left_out = {(Path(item.path).name, item.reason) for item in listing.skipped}
    assert {
        ("loop", "link-loop"),
        ("up", "link-loop"),
        ("aaa.jsonl", "same-file"),
        ("broken.jsonl", "broken-link"),
    } <= left_out


@pytest.mark.skipif(os.name != "posix", reason="names are bytes on POSIX only")
def test_a_name_that_is_not_utf8_gets_a_uri_that_is(tmp_path):
    name = os.fsdecode(b"caf\xe9.jsonl")
    try:
        (tmp_path / name).write_bytes(b'{"text":"a"}\n')
    except OSError:
        pytest.skip("this file system refuses the name")
    from tests.stages.readers.reading import read

    (found,) = list_files("*.jsonl", str(tmp_path)).files
    assert found.uri == "caf\\xe9.jsonl"
    assert read(found.path, uri=found.uri).column("uri") == ["caf\\xe9.jsonl"]


def test_an_fsspec_address(tmp_path):
    import fsspec

    for name in ("in/b.jsonl", "in/a/c.jsonl", "in/.x.jsonl", "in/.git/y.json", "in/pic.png"):
        with fsspec.open(f"memory://list/{name}", "wb") as file:
            file.write(b"12345")
    for pattern in ("memory://list/in", "memory://list/in/", "memory://list/in/**"):
        listing = list_files(pattern, str(tmp_path))
        assert [(found.uri, found.size) for found in listing.files] == [("a/c.jsonl", 5), ("b.jsonl", 5)]
        assert listing.reasons() == {"binary": 1, "hidden": 1, "version-control": 1}
    assert [found.path for found in list_files("memory://list/in/*.jsonl", "/").files] == [
        "memory:///list/in/b.jsonl"
    ]
    assert [found.uri for found in list_files("memory://list/in/b.jsonl", "/").files] == ["b.jsonl"]
    with pytest.raises(FileNotFoundError):
        list_files("memory://list/none.jsonl", "/")


def test_a_source_tree(tmp_path):
    for name in (
        "main.py",
        "Makefile",
        "conf.yaml",
        "a.json",
        "README",
        "lib.so",
        "x.unknown",
        "中.md",
        "venv/v.py",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    listing = list_files(".", str(tmp_path), "tree")
    assert [found.uri for found in listing.files] == [
        "Makefile",
        "README",
        "a.json",
        "conf.yaml",
        "main.py",
        "中.md",
    ]
    assert listing.reasons() == {"binary": 1, "dependency-folder": 1, "unknown-suffix": 1}


@pytest.mark.parametrize(
    ("name", "format"),
    [
        ("a.jsonl", "jsonl"), ("a.JSONL.GZ", "jsonl"), ("x/a.ndjson.zst", "jsonl"), ("a.json", "json"),
        ("a.parquet", "parquet"), ("a.parquet.gz", None), ("a.arrow", "arrow"), ("a.feather", "arrow"),
        ("a.txt.bz2", "text"), ("a.md", "text"), ("a.rst.xz", "text"), ("a.py", "text"), ("Makefile", "text"),
        ("a.png", None), ("a", None), (".jsonl", None), ("a.jsonl~", None), ("", None),
    ],
)  # fmt: skip
def test_formats_by_name(name, format):
    assert guess_format(name) == format
