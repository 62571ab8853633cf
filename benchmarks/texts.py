"""Text for benchmarks: the mixture in the shared data, in a fixed order."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterable
from pathlib import Path

import orjson
import pyarrow as pa
import zstandard

#: Files of the mixture by kind of text.
KINDS = {
    "english": ("web/digitalgov", "academic/plos", "books/novels_en"),
    "chinese": ("zh/d2l_zh", "zh/docs_zh", "books/classics_zh"),
    "code": ("code/code",),
}

TEXT_FILES = {".py", ".pyi", ".h", ".hpp", ".cuh", ".c", ".md", ".rst", ".txt", ".html", ".js", ".css", ".xml", ".json", ".po"}


def data_folder() -> Path:
    """The folder `data` that GRISTMILL_DATA names."""
    return Path(os.environ["GRISTMILL_DATA"]) / "data"


def unpacked(path: Path) -> bytes:
    """The content of a .zst file."""
    with path.open("rb") as file:
        return zstandard.ZstdDecompressor().stream_reader(file).read()


def mixture(megabytes: float) -> pa.Array:
    """large_string array of whole documents of about that size in all, from every domain, shuffled by a fixed seed."""
    paths = sorted((data_folder() / "mixture").glob("*/*.jsonl.zst"))
    texts = [text for path in paths for text in _texts(path)]
    random.Random(0).shuffle(texts)
    return _first(texts, megabytes)


def of_kind(kind: str, megabytes: float) -> pa.Array:
    """The same of one kind of text, the files in turn, not shuffled."""
    files = [_texts(data_folder() / "mixture" / f"{name}.jsonl.zst") for name in KINDS[kind]]
    turns = [texts[i] for i in range(max(map(len, files))) for texts in files if i < len(texts)]
    return _first(turns, megabytes)


def of_this_machine(megabytes: float) -> pa.Array:
    """The same of text files that lie on this machine: of Python and its packages, then of the system. Not the same elsewhere.

    SystemExit if there is less.
    """
    found, size = [], 0.0
    for root in dict.fromkeys((sys.prefix, sys.base_prefix, "/usr/include", "/usr/share")):
        for path in sorted(Path(root).rglob("*")):
            if path.suffix not in TEXT_FILES or not path.is_file() or not 200 < path.stat().st_size < 2_000_000:
                continue
            try:
                found.append(path.read_text(encoding="utf-8"))
            except (OSError, UnicodeDecodeError):
                continue
            size += len(found[-1]) / 1e6
            if size >= megabytes:
                return pa.array(found, pa.large_string())
    raise SystemExit(f"this machine has {size:.0f} MB of text files, not {megabytes:.0f}")


def _texts(path: Path) -> list[str]:
    return [orjson.loads(line)["text"] for line in unpacked(path).splitlines()]


def _first(texts: Iterable[str], megabytes: float) -> pa.Array:
    chosen, size = [], 0
    for text in texts:
        if size >= megabytes * 1e6:
            break
        chosen.append(text)
        size += len(text.encode())
    return pa.array(chosen, pa.large_string())
