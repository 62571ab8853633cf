"""Where the documents of a task come from: slices of input files, or a part that an earlier pass wrote."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.engine.records import InputFile, Lost, Part
from pipeline.engine.sealed import arrow_batches, part_batches
from pipeline.engine.work import Work
from stages.document import DOCUMENT
from stages.readers import Damaged, FileSlice, ReadSettings, Reject, guess_format, read_slice
from stages.readers.streams import open_stored

HASH_BLOCK = 4 << 20


@dataclass(frozen=True, slots=True)
class InputSlice:
    """A slice to read, with what the listing said of its file."""

    slice: FileSlice
    size: int
    mtime_ns: int


@dataclass
class ReadOrigin:
    """Slices of input files. One slice of a large file, or a bundle of small ones."""

    settings: ReadSettings
    slices: tuple[InputSlice, ...]
    long: bool = False  # much may come of it: the task makes several parts
    lost: list[Lost] = field(default_factory=list)
    _rejects: list[tuple[str, int, str, str]] = field(default_factory=list)
    _counts: Counter[str] = field(default_factory=Counter)
    _notes: dict[str, int] = field(default_factory=dict)  # blank lines, repaired surrogates …
    _documents: int = 0
    _bytes: int = 0

    def batches(self, _work: Work) -> Iterator[pa.RecordBatch]:
        """Document batches; rejects and damage are kept aside until asked for.

        A damaged file of a bundle gives nothing under `on_damaged: skip`; that of a task of its own is
        given up by the driver, since parts of it may have gone out already.
        """
        if self.settings.access is not None:
            self.settings.access.allow()
        bundle = len(self.slices) > 1
        for item in self.slices:
            if bundle and self.settings.on_damaged == "skip":
                batches = list(self._read(item.slice))
                if self.lost and self.lost[-1].uri == item.slice.uri:
                    gone = sum(batch.num_rows for batch in batches)
                    if gone:
                        self._counts["damaged-file"] += gone
                    continue
                yield from map(self._count, batches)
            else:
                yield from map(self._count, self._read(item.slice))

    def _read(self, piece: FileSlice) -> Iterator[pa.RecordBatch]:
        for item in read_slice(piece, self.settings, self._notes):
            if isinstance(item, Reject):
                self._rejects.append((item.uri, item.record, item.reason, item.detail))
                self._counts[item.reason] += 1
            elif isinstance(item, Damaged):
                self.lost.append(
                    Lost(uri=item.uri, detail=f"{item.reason}: {item.detail}", records=item.good_records)
                )
            else:
                yield item

    def _count(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        self._documents += batch.num_rows
        self._bytes += int(pc.sum(pc.binary_length(batch.column("text"))).as_py() or 0)
        return batch

    def take_rejects(self) -> list[tuple[str, int, str, str]]:
        """`(uri, record, reason, detail)` since the last call."""
        taken, self._rejects = self._rejects, []
        return taken

    def take_counts(self) -> tuple[int, int, dict[str, int], dict[str, int]]:
        """`(documents, their text bytes, rejects by reason, notes of the reader)` since the last call."""
        taken = (
            self._documents,
            self._bytes,
            dict(self._counts),
            {k: v for k, v in self._notes.items() if k != "bytes" and v},
        )
        self._documents, self._bytes, self._counts = 0, 0, Counter()
        self._notes.clear()
        return taken

    def forget(self) -> None:
        """Drops rejects and counts of documents that an earlier attempt has booked."""
        self.take_rejects()
        self.take_counts()

    def inputs(self, complete: bool) -> list[InputFile]:
        """What was read. The digest comes when all of it has been read; before that it is empty."""
        return [
            InputFile(
                uri=item.slice.uri,
                start=item.slice.start,
                end=item.slice.end,
                size=item.size,
                mtime_ns=item.mtime_ns,
                digest=digest_slice(item.slice, self.settings.format) if complete else "",
            )
            for item in self.slices
        ]

    def empty(self, _work: Work) -> pa.RecordBatch:
        """A batch of no documents."""
        return pa.RecordBatch.from_arrays([pa.array([], f.type) for f in DOCUMENT], schema=DOCUMENT)


@dataclass
class PartOrigin:
    """A part in the work folder."""

    part: Part
    long: bool = False

    def batches(self, work: Work) -> Iterator[pa.RecordBatch]:
        """Document batches of the part."""
        return part_batches(work.data, self.part)

    def forget(self) -> None:
        """Nothing is booked here."""

    def empty(self, work: Work) -> pa.RecordBatch:
        """A batch of no documents with the columns of the part."""
        for batch in self.batches(work):
            return batch.slice(0, 0)
        return next(arrow_batches(work.data / self.part.base.name)).slice(0, 0)


def digest_slice(piece: FileSlice, format_name: str | None) -> str:
    """SHA-256 of the stored bytes that a slice is read from."""
    start, end = _stored_range(piece, format_name or guess_format(piece.uri))
    total = hashlib.sha256()
    with open_stored(piece.path) as file:
        file.seek(start)
        left = None if end is None else end - start
        while left is None or left > 0:
            block = file.read(HASH_BLOCK if left is None else min(HASH_BLOCK, left))
            if not block:
                break
            total.update(block)
            left = None if left is None else left - len(block)
    return total.hexdigest()


def _stored_range(piece: FileSlice, format_name: str | None) -> tuple[int, int | None]:
    """The bytes of the file behind a slice. Slices of tables count row groups or batches; for a batch it is all.

    What is in front of a slice of a web archive says where its records begin, so it belongs to it.
    """
    if format_name == "parquet" and (piece.start, piece.end) != (0, None):
        import pyarrow.parquet as pq

        with open_stored(piece.path) as file:
            footer = pq.read_metadata(file)
        groups = range(piece.start, footer.num_row_groups if piece.end is None else piece.end)
        chunks = [footer.row_group(g).column(c) for g in groups for c in range(footer.num_columns)]
        starts = [min(x for x in (c.dictionary_page_offset, c.data_page_offset) if x) for c in chunks]
        ends = [s + c.total_compressed_size for s, c in zip(starts, chunks, strict=True)]
        return (min(starts), max(ends)) if chunks else (0, 0)
    if format_name == "arrow":
        return 0, None
    return (0 if format_name in ("warc", "wet") else piece.start), piece.end
