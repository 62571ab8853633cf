"""Documents gathered into batches of bounded size."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa

from stages.document import document_batch
from stages.readers.record import FileSlice, ReadSettings, Unfit

#: Rows of one batch; keeps batches of empty or tiny texts from growing without bound.
MAX_ROWS = 65_536


class Row(NamedTuple):
    """What one record holds: text, an upper bound of its UTF-8 bytes, the user's id, kept fields as JSON."""

    text: str
    size: int
    user_id: str | None
    meta: str | None


def text_bytes(text: str) -> int:
    """Bytes of UTF-8. Asking is free for ASCII; `text` must not hold surrogates."""
    return len(text) if text.isascii() else len(text.encode())


def too_large(size: int, limit: int) -> Unfit:
    """The outcome of a record whose text (or line) has `size` bytes."""
    return Unfit("too-large", f"{size:,} bytes, but max_document is {limit:,}")


class Pending:
    """Documents of one file on their way into a batch. Cuts depend on the documents alone.

    if pending.full(row.size):
        yield pending.take()
    pending.add(record, *row)
    … and in the end: yield from pending.rest()

    Pages of the web (`web`) always have their meta: where they come from is not among the fields of a record.
    """

    def __init__(self, where: FileSlice, settings: ReadSettings, web: bool = False) -> None:
        self.taken = 0  # documents handed over or held
        self._uri = where.uri
        self._source = settings.source
        self._limit = settings.batch_bytes
        self._keeps_meta = web or bool(settings.keep_meta)
        self._clear()

    def _clear(self) -> None:
        self._bytes = 0
        self._records: list[int] = []
        self._texts: list[str] = []
        self._ids: list[str | None] = []
        self._metas: list[str | None] = []

    def full(self, size: int) -> bool:
        """Whether what is held must leave before `size` more bytes of text come in."""
        return (self._bytes + size > self._limit or len(self._records) >= MAX_ROWS) and bool(self._records)

    def add(self, record: int, text: str, size: int, user_id: str | None, meta: str | None) -> None:
        """Hold one document; `size` is an upper bound of its UTF-8 bytes."""
        self.taken += 1
        self._bytes += size
        self._records.append(record)
        self._texts.append(text)
        self._ids.append(user_id)
        self._metas.append(meta)

    def rest(self) -> Iterator[pa.RecordBatch]:
        """What is left, as at most one batch."""
        if self._records:
            yield self.take()

    def take(self) -> pa.RecordBatch:
        """What is held, as one batch."""
        metas = self._metas if self._keeps_meta else None
        uris = [self._uri] * len(self._records)
        batch = document_batch(self._source, uris, self._records, self._texts, self._ids, metas)
        self._clear()
        return batch
