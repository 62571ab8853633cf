"""A slice of any file -> document batches, rejects, and at most one `Damaged` at the end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from stages.readers.guess import FORMATS, guess_format
from stages.readers.record import Damaged, FileSlice, ReadSettings, Reject

if TYPE_CHECKING:
    import pyarrow as pa

    from stages.readers.fields import Counters


def read_slice(
    where: FileSlice, settings: ReadSettings, counters: Counters | None = None
) -> Iterator[pa.RecordBatch | Reject | Damaged]:
    """The documents that the slice owns, in the order of the file, in batches of `document.DOCUMENT`.

    A `Reject` comes for each record not taken, somewhere before the batch of the records behind it. A file
    that cannot be read to its end gives its good documents and then a `Damaged`, the last thing yielded.
    `counters` gets `bytes` (decompressed, of the slice), `blank-lines` and `surrogates-replaced` added, and what
    the reader of web archives counts (`warc.read_warc`).

    Raises ValueError if the format is unknown or the settings cannot be meant, OSError if the file cannot
    be opened or the disk fails.
    """
    counters = {} if counters is None else counters
    kind = settings.format or guess_format(where.uri)
    if kind == "jsonl":
        from stages.readers.jsonl import read_jsonl

        return read_jsonl(where, settings, counters)
    if kind == "json":
        from stages.readers.jsonl import read_json

        return read_json(where, settings, counters)
    if kind == "parquet":
        from stages.readers.tables import read_parquet

        return read_parquet(where, settings, counters)
    if kind == "arrow":
        from stages.readers.tables import read_arrow

        return read_arrow(where, settings, counters)
    if kind in ("text", "tree"):
        from stages.readers.text import read_text

        return read_text(where, settings, counters, tree=kind == "tree")
    if kind == "lines":
        from stages.readers.text import read_lines

        return read_lines(where, settings, counters)
    if kind in ("warc", "wet"):
        from stages.readers.warc import read_warc

        return read_warc(where, settings, counters)
    if kind == "html":
        from stages.readers.html import read_html

        return read_html(where, settings, counters)
    raise ValueError(f"no reader for {where.uri!r}; set `format` to one of {', '.join(FORMATS)}")


def recipe(settings: ReadSettings, uri: str) -> dict[str, str]:
    """Versions of the packages whose output reaches the text of a file: charset detection is a guess of one of them."""
    kind = settings.format or guess_format(uri)
    if kind in ("warc", "wet", "html") or settings.encoding == "auto":
        from importlib.metadata import PackageNotFoundError, version

        try:
            return {"chardet": version("chardet")}
        except PackageNotFoundError:
            return {"chardet": ""}
    return {}
