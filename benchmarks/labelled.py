"""Labelled rows for accuracy benchmarks: every JSON Lines file below a folder, plain or compressed."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import zstandard

from stages.document import document_batch


def rows(folder: Path, name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """`(file name, row)` of a set, in the order of the files.

    folder  the set itself, or a folder that holds it as `data/<name>` or `<name>`
    """
    places = [folder / "data" / name, folder / name, folder]
    root = next(place for place in places if place.is_dir())
    for path in sorted(root.rglob("*.jsonl*")):
        content = path.read_bytes()
        if path.suffix == ".zst":
            content = zstandard.ZstdDecompressor().stream_reader(content).read()
        elif path.suffix == ".gz":
            content = gzip.decompress(content)
        for line in content.split(b"\n"):
            if line:
                yield path.name, orjson.loads(line)


def batch_of(texts: list[str]) -> pa.RecordBatch:
    """One batch of documents with these texts."""
    return document_batch("benchmark", ["x"] * len(texts), list(range(len(texts))), texts)
