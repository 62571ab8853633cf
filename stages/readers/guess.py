"""What a file is, by its name alone."""

from __future__ import annotations

import os
import re
from typing import Final

#: Values of `format` in a source.
FORMATS: Final = ("jsonl", "json", "parquet", "arrow", "text", "lines", "tree", "warc", "wet", "html")

#: Suffix -> compression. Read everywhere but in Parquet and Arrow, which compress inside.
COMPRESSIONS: Final = {".gz": "gzip", ".zst": "zstd", ".zstd": "zstd", ".bz2": "bz2", ".xz": "xz"}

_SUFFIXES: Final = {
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".jsonlines": "jsonl", ".json": "json",
    ".parquet": "parquet", ".pq": "parquet",
    ".arrow": "arrow", ".arrows": "arrow", ".feather": "arrow", ".ipc": "arrow",
    ".warc": "warc", ".arc": "warc", ".wet": "wet", ".html": "html", ".htm": "html", ".xhtml": "html",
    ".txt": "text", ".text": "text", ".md": "text", ".markdown": "text", ".mdown": "text", ".rst": "text",
}  # fmt: skip

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+(?:://|::)")


def is_url(path: str) -> bool:
    """Whether fsspec has to open it: `s3://…`, `memory://…`, `zip://…::…`; a plain path is not."""
    return _URL.match(path) is not None


def compression_of(path: str) -> str | None:
    """`gzip`, `zstd`, `bz2`, `xz`, or None, by the last suffix."""
    return COMPRESSIONS.get(os.path.splitext(path)[1].lower())


def without_compression(name: str) -> str:
    """The name without its compression suffix."""
    stem, suffix = os.path.splitext(name)
    return stem if suffix.lower() in COMPRESSIONS else name


def guess_format(uri: str) -> str | None:
    """One of `FORMATS`, or None if the name does not say.

    Code is read as `text`, a document per file. Inside a folder of code, `format: tree` also takes JSON,
    YAML and the like as text, which this function takes for records or not at all.
    """
    from stages.readers.tree import is_code

    base = uri.rsplit("/", 1)[-1]
    plain = without_compression(base)
    found = _SUFFIXES.get(os.path.splitext(plain)[1].lower())
    if found in ("parquet", "arrow") and plain != base:
        return None
    if plain.lower().endswith(".warc.wat"):  # metadata of an archive; elsewhere .wat is code
        return None
    if found is None and is_code(plain):
        return "text"
    return found
