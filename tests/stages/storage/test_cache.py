"""Copies within a bound that nobody loses while working with them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stages.storage.cache import Cache


def content(text: str):
    return lambda target: target.write_text(text)


def test_a_copy_is_fetched_once_and_has_its_suffix(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 1000)
    first = cache.get("s3://b/a.docs.arrow", content("one"))
    assert first.read_text() == "one"
    assert first.name.endswith(".docs.arrow")
    cache.release()
    assert cache.get("s3://b/a.docs.arrow", content("never")).read_text() == "one"


def test_the_least_recently_used_go_first(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 100)
    for number in range(4):
        cache.put(str(number), b"x" * 30)
        path = next(p for p in (tmp_path / "files").iterdir() if p.stat().st_mtime > 1e6)
        os.utime(path, (number, number))
    assert not cache.has("0")
    assert cache.has("3")
    assert sum(p.stat().st_size for p in (tmp_path / "files").iterdir()) <= 100


def test_what_is_held_outlives_its_copy(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 50)
    held = cache.get("held", content("h" * 40))
    for number in range(5):
        cache.put(str(number), b"x" * 40)
    assert not cache.has("held")
    assert held.read_text() == "h" * 40
    cache.release()
    assert not held.exists()


def test_a_fetch_that_fails_leaves_nothing(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 50)

    def half(target: Path) -> None:
        target.write_text("half")
        raise OSError("cut off")

    with pytest.raises(OSError, match="cut off"):
        cache.get("a", half)
    assert not cache.has("a")
    assert not list((tmp_path / "tmp").iterdir())


def test_what_a_dead_process_held_is_buried(tmp_path: Path) -> None:
    (tmp_path / "held" / "999999999").mkdir(parents=True)
    Cache(tmp_path, 50)
    assert [p.name for p in (tmp_path / "held").iterdir()] == [str(os.getpid())]
