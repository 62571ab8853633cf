"""The last step: from token parts to shards and the holdout.

The driver knows the token length of every document (12 bytes each, one source at a time) and cuts shards from
their running sum in canonical order, so many small tasks fill one shard and the cut depends on nothing else.
"""

from __future__ import annotations

import math
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.engine.records import FileRef, Part, RowsRecord, ShardRecord
from pipeline.engine.sealed import ArrowFile, SealedFile, arrow_batches, part_batches, part_column
from pipeline.engine.state import Outcome
from pipeline.engine.work import Work
from stages.contract.files import on_disk
from stages.contract.rows import rows_kind
from stages.contract.shard import Documents, read_index, token_dtype, write_shard
from stages.shards.arrow_shard import write_arrow_shard
from stages.shards.pack import pack_shard
from stages.storage.address import Address

HOLDOUT_FLOOR = 20  # documents, where the source has ten times as many
HOLDOUT_FLOOR_FROM = 200


@dataclass(frozen=True)
class Segment:
    """A run of documents of one part."""

    documents: FileRef
    tokens: FileRef
    first: int
    last: int  # exclusive


@dataclass(frozen=True)
class Tier:
    """Documents whose column is at least `low` and below `high`; None is no bound."""

    column: str
    low: float | None
    high: float | None

    def holds(self, values: np.ndarray) -> np.ndarray:
        """Whether each value lies in the tier."""
        mine = np.ones(len(values), bool) if self.low is None else values >= self.low
        return mine if self.high is None else mine & (values < self.high)


@dataclass(frozen=True)
class Cut:
    """One shard to be written: of its segments the documents on one side of the holdout threshold, of one tier."""

    segments: tuple[Segment, ...]
    threshold: int  # keys up to and including it are held out; -1 = none
    holdout: bool
    tier: Tier | None = None


@dataclass(frozen=True)
class Numbers:
    """What the driver knows of the documents of a source, part by part: arrays of one number a document."""

    records: tuple[Outcome, ...]
    lengths: tuple[np.ndarray, ...]
    keys: tuple[np.ndarray, ...]
    values: tuple[np.ndarray, ...]  # of the column of its buckets; empty without
    threshold: int

    @classmethod
    def of(cls, records: Sequence[Outcome], data: Any, share: float, most: int, column: str | None) -> Numbers:
        """The numbers of a source, and its holdout threshold."""
        lengths = tuple(_numbers(data, r.part, "length") for r in records)
        keys = tuple(_numbers(data, r.part, "holdout_key") for r in records)
        values = tuple(_values(data, r.part, column) for r in records) if column is not None else ()
        all_keys = np.concatenate(keys) if keys else np.empty(0, np.uint64)
        return cls(tuple(records), lengths, keys, values, holdout_threshold(all_keys, share, most))

    def cut(self, shard_tokens: int, holdout: bool, tier: Tier | None = None) -> list[Cut]:
        """The shards of one side of the holdout, of one tier if one is given."""
        mine = [self._mine(i, holdout, tier) for i in range(len(self.records))]
        cuts = _cut(self.records, self.lengths, mine, shard_tokens)
        return [Cut(segments, self.threshold, holdout, tier) for segments in cuts]

    def lengths_of(self, tier: Tier | None = None) -> np.ndarray:
        """Tokens of each training document."""
        found = [n[self._mine(i, False, tier)] for i, n in enumerate(self.lengths)]
        return np.concatenate(found) if found else np.empty(0, np.uint32)

    def _mine(self, i: int, holdout: bool, tier: Tier | None) -> np.ndarray:
        side = on_side(self.keys[i], self.threshold, holdout)
        return side if tier is None else side & tier.holds(self.values[i])


def holdout_threshold(keys: np.ndarray, share: float, most: int) -> int:
    """The largest key that is held out, or -1. Equal texts have equal keys, so they are on the same side.

    Never so many that less than half of the source is left.
    """
    wanted = min(most, math.ceil(share * len(keys))) if share > 0 else 0
    if wanted and len(keys) >= HOLDOUT_FLOOR_FROM:
        wanted = max(wanted, HOLDOUT_FLOOR)
    if not wanted or len(keys) < 2:
        return -1
    ordered = np.sort(keys)
    threshold = int(ordered[wanted - 1])
    return threshold if np.searchsorted(ordered, np.uint64(threshold), "right") * 2 <= len(keys) else -1


def _cut(
    records: Sequence[Outcome], lengths: Sequence[np.ndarray], mine: Sequence[np.ndarray], shard_tokens: int
) -> list[tuple[Segment, ...]]:
    cuts: list[tuple[Segment, ...]] = []
    segments: list[Segment] = []
    filled = 0
    for record, length, chosen in zip(records, lengths, mine, strict=True):
        assert record.tokens is not None
        total = np.cumsum(np.where(chosen, length, 0), dtype=np.int64)
        start, row, rows = 0, 0, len(length)
        while row < rows:
            room = shard_tokens - filled
            end = int(np.searchsorted(total, start + room, "right"))
            if end == row and filled == 0:
                end = row + 1  # one document larger than a shard
            if end > row:
                segments.append(Segment(record.part.base, record.tokens, row, end))
                filled += int(total[end - 1]) - start
                start, row = int(total[end - 1]), end
            if row < rows and filled:
                cuts.append(tuple(segments))
                segments, filled = [], 0
    if filled:
        cuts.append(tuple(segments))
    return cuts


def on_side(keys: np.ndarray, threshold: int, holdout: bool) -> np.ndarray:
    """Whether each document belongs to the holdout (or to training)."""
    held = keys <= np.uint64(threshold) if threshold >= 0 else np.zeros(len(keys), bool)
    return held if holdout else ~held


def _numbers(data: Any, part: Part, name: str) -> np.ndarray:
    column = part_column(data, part, name)
    return column.to_numpy(zero_copy_only=False) if len(column) else np.empty(0, np.uint64)


def _values(data: Any, part: Part, name: str) -> np.ndarray:
    """A column as float64; NaN where a document has no value, or the part no such column."""
    names = {field for batch in part_batches(data, part) for field in batch.schema.names}
    if name not in names:
        return np.full(part.rows, np.nan)
    return part_column(data, part, name).cast(pa.float64()).to_numpy(zero_copy_only=False)


@dataclass(frozen=True)
class ShardTask:
    """Writes one shard, in the layout `memmap` or `arrow`."""

    key: str
    name: str
    folder: str
    cut: Cut
    vocab_size: int
    eos_id: int
    layout: str = "memmap"

    def run(self) -> Iterator[ShardRecord]:
        """One record: the shard's files under content names."""
        pa.set_cpu_count(1)
        work = Work(self.folder)
        with ArrowFile(work, "docs.arrow", "lz4") as docs:
            yield write_record(work, self._documents(work), docs, self.vocab_size, self.eos_id, self.layout)

    def _documents(self, work: Work) -> Iterator[tuple[Documents, pa.RecordBatch]]:
        dtype = token_dtype(self.vocab_size)
        for segment in self.cut.segments:
            size = segment.tokens.bytes // dtype.itemsize
            tokens = (
                np.memmap(on_disk(work.data / segment.tokens.name), dtype, "r") if size else np.empty(0, dtype)
            )
            row, position = 0, 0
            for batch in arrow_batches(work.data / segment.documents.name):
                length = batch.column("length").to_numpy()
                ends = position + np.cumsum(length, dtype=np.int64)
                low, high = max(segment.first - row, 0), min(segment.last - row, len(length))
                if low < high:
                    mine = np.zeros(len(length), bool)
                    mine[low:high] = on_side(
                        batch.column("holdout_key").to_numpy()[low:high], self.cut.threshold, self.cut.holdout
                    )
                    if self.cut.tier is not None:
                        values = batch.column(self.cut.tier.column).cast(pa.float64())
                        mine &= self.cut.tier.holds(values.to_numpy(zero_copy_only=False))
                    yield self._take(batch, tokens[position : int(ends[-1])], length, mine)
                row += len(length)
                position = int(ends[-1]) if len(ends) else position

    def _take(
        self, batch: pa.RecordBatch, tokens: np.ndarray, length: np.ndarray, mine: np.ndarray
    ) -> tuple[Documents, pa.RecordBatch]:
        chosen = batch.filter(pa.array(mine)).drop_columns(["holdout_key"])
        ids = np.frombuffer(b"".join(chosen.column("id").to_pylist()), "V16")
        return Documents(tokens[np.repeat(mine, length)], length[mine], ids), chosen


def write_record(
    work: Work,
    content: Iterable[tuple[Documents, pa.RecordBatch]],
    docs: ArrowFile,
    vocab_size: int,
    eos_id: int,
    layout: str,
) -> ShardRecord:
    """Writes a shard from documents and their rows of provenance, which have a column `text_bytes`."""
    base = work.tmp / f"shard-{secrets.token_hex(8)}"
    text_bytes = 0

    def batches() -> Iterator[Documents]:
        nonlocal text_bytes
        for documents, batch in content:
            docs.write(batch)
            text_bytes += int(pc.sum(batch.column("text_bytes")).as_py() or 0)
            yield documents

    segments: tuple[tuple[int, int], ...] = ()
    if layout == "arrow":
        facts, segments = write_arrow_shard(base, batches(), vocab_size, eos_id)
    else:
        facts = write_shard(base, batches(), vocab_size, eos_id)
    docs_ref = docs.seal()
    kind = "arrow" if layout == "arrow" else "tok"
    files = {}
    for field, suffix, fact in (("tok", kind, facts.tok), ("idx", "idx", facts.idx), ("crc", "crc", facts.crc)):
        files[field] = FileRef(name=f"{fact.sha256[:32]}.{suffix}", bytes=fact.bytes, digest=fact.sha256)
        work.seal(Path(f"{base}.{suffix}"), files[field].name)
    return ShardRecord(
        **files,
        docs=docs_ref,
        segments=segments,
        documents=facts.documents,
        tokens=facts.tokens,
        largest_id=facts.largest_id,
        text_bytes=text_bytes,
    )


@dataclass(frozen=True)
class RowsTask:
    """Packs the documents of one shard into rows of one length."""

    key: str
    name: str
    folder: str
    idx: FileRef
    tokens: int
    length: int
    whole: bool = False  # documents longer than a row are not cut

    def run(self) -> Iterator[RowsRecord]:
        """One record: the file of the rows, and their groups."""
        work = Work(self.folder)
        records = read_index(work.data / self.idx.name, self.tokens)
        packing = pack_shard(records["length"], records["id"], self.length, self.whole)
        file = SealedFile(work, rows_kind(self.length))
        file.write(packing.rows.to_bytes())
        yield RowsRecord(file=file.seal(), groups=packing.groups)


def place(source: Any, target: Any) -> None:
    """Puts a sealed file at its name in the output folder: a hard link where the disk can, else a copy.

    Both may be addresses; within one store the store itself copies.
    """
    if isinstance(target, Address):
        if isinstance(source, Address):
            target.copy_from(source)
        else:
            target.put(source)
        return
    source = on_disk(source)
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.exists() and os.path.samefile(source, target):
        return
    temporary = target.parent / f".tmp-{secrets.token_hex(8)}"
    try:
        os.link(source, temporary)
    except OSError:
        shutil.copyfile(source, temporary)
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
    os.replace(temporary, target)
