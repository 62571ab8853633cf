"""Text for benchmarks: the mixture in the shared data, in a fixed order."""

from __future__ import annotations

import os
import random
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
