"""Parquet and Arrow IPC files -> documents; the record number is the row number in the file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as pq
import pyarrow.types as pt

from stages.readers.batches import Pending
from stages.readers.columns import Table
from stages.readers.fields import Counters, count
from stages.readers.guess import is_url
from stages.readers.record import Damaged, DamagedStream, FileSlice, ReadSettings, Reject, Unfit
from stages.readers.streams import open_stored

PARQUET_MAGIC, ARROW_MAGIC, FEATHER1_MAGIC = b"PAR1", b"ARROW1", b"FEA1"
#: Rows looked at in one go. Small, because a cell can be megabytes while the file promises bytes.
_ROWS = 512

Rows = Iterator[tuple[int, pa.RecordBatch]]


def read_parquet(
    where: FileSlice, settings: ReadSettings, counters: Counters
) -> Iterator[pa.RecordBatch | Reject | Damaged]:
    """The documents of row groups `where.start` … `where.end`; page checksums are verified if present."""
    yield from _documents(where, settings, counters, _parquet_rows)


def read_arrow(
    where: FileSlice, settings: ReadSettings, counters: Counters
) -> Iterator[pa.RecordBatch | Reject | Damaged]:
    """The documents of batches `where.start` … `where.end` of an Arrow file, or of a whole Arrow stream."""
    yield from _documents(where, settings, counters, _arrow_rows)


def _documents(
    where: FileSlice,
    settings: ReadSettings,
    counters: Counters,
    rows_of: Callable[[FileSlice, ReadSettings], Iterator[tuple[Table, Rows]]],
) -> Iterator[pa.RecordBatch | Reject | Damaged]:
    pending = Pending(where, settings)
    try:
        for table, batches in rows_of(where, settings):
            for first, batch in batches:
                count(counters, "bytes", batch.nbytes)
                for record, row in enumerate(table.rows(batch), first):
                    if isinstance(row, Unfit):
                        yield Reject(where.uri, record, None, row.reason, row.detail)
                    else:
                        if pending.full(row.size):
                            yield pending.take()
                        pending.add(record, *row)
    except DamagedStream as damage:
        yield from pending.rest()
        yield Damaged(where.uri, damage.reason, damage.detail, pending.taken)
    else:
        yield from pending.rest()


@contextmanager
def arrow_faults() -> Iterator[None]:
    """What pyarrow says of the content becomes `DamagedStream`; faults of disk and network stay OSError."""
    try:
        yield
    except OSError as error:
        if error.errno is not None:
            raise
        raise DamagedStream("corrupt", _first_line(error)) from None
    except pa.ArrowMemoryError:
        raise
    except pa.ArrowException as error:
        raise DamagedStream("corrupt", _first_line(error)) from None


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n", 1)[0] or type(error).__name__


def open_parquet(file: Any) -> pq.ParquetFile:
    """The file with its footer read. Raises `DamagedStream`."""
    _check_ends(file, PARQUET_MAGIC, "Parquet")
    with arrow_faults():
        return pq.ParquetFile(file, page_checksum_verification=True)


def _check_ends(file: Any, magic: bytes, name: str) -> None:
    """Tells a file that was cut from one that is something else; leaves `file` at its start."""
    size = file.seek(0, 2)
    file.seek(0)
    start = file.read(len(magic))
    file.seek(max(size - len(magic), 0))
    end = file.read(len(magic))
    file.seek(0)
    if not start.startswith(magic):
        raise DamagedStream(
            "wrong-format" if size else "truncated", f"a file of {size:,} bytes that is not {name}"
        )
    if not end.endswith(magic) or size < 2 * len(magic) + 4:
        raise DamagedStream("truncated", f"a {name} file of {size:,} bytes without its end")


def _parquet_rows(where: FileSlice, settings: ReadSettings) -> Iterator[tuple[Table, Rows]]:
    with open_stored(where.path) as file:
        parquet = open_parquet(file)
        with arrow_faults():
            table = Table(parquet.schema_arrow, settings)
        yield table, _groups(parquet, where, table)


def _groups(parquet: pq.ParquetFile, where: FileSlice, table: Table) -> Rows:
    groups = [parquet.metadata.row_group(index) for index in range(parquet.num_row_groups)]
    row = sum(group.num_rows for group in groups[: where.start])
    for index in range(where.start, len(groups) if where.end is None else where.end):
        before = row
        with arrow_faults():
            for batch in parquet.iter_batches(_ROWS, row_groups=[index], columns=table.names):
                yield row, batch
                row += batch.num_rows
        if row - before != groups[index].num_rows:
            detail = (
                f"row group {index} has {row - before:,} rows; the footer says {groups[index].num_rows:,}"
            )
            raise DamagedStream("corrupt", detail)


def is_arrow_file(file: Any) -> bool:
    """Whether the content is the Arrow file format, which can be cut, rather than the stream format."""
    file.seek(0)
    start = file.read(len(ARROW_MAGIC))
    file.seek(0)
    return start == ARROW_MAGIC


def _arrow_rows(where: FileSlice, settings: ReadSettings) -> Iterator[tuple[Table, Rows]]:
    with open_stored(where.path) as file:
        if not is_arrow_file(file):
            yield _stream_rows(file, settings)
            return
        _check_ends(file, ARROW_MAGIC, "Arrow")
        source = file if is_url(where.path) else pa.memory_map(where.path)
        with arrow_faults():
            schema = ipc.open_file(source).schema
            table = Table(schema, settings)
            wanted = ipc.IpcReadOptions(included_fields=sorted(map(schema.get_field_index, table.roots)))
            reader = ipc.open_file(source, options=wanted)
        yield table, _file_batches(reader, where, _rows_before(source, schema, where.start))


def _rows_before(source: Any, schema: pa.Schema, batches: int) -> int:
    """Rows of the first batches of an Arrow file, loading one narrow column of them."""
    if not batches:
        return 0
    narrow = next((i for i, field in enumerate(schema) if pt.is_primitive(field.type)), 0)
    with arrow_faults():
        reader = ipc.open_file(source, options=ipc.IpcReadOptions(included_fields=[narrow]))
        return sum(reader.get_batch(index).num_rows for index in range(batches))


def _file_batches(reader: Any, where: FileSlice, row: int) -> Rows:
    for index in range(where.start, reader.num_record_batches if where.end is None else where.end):
        with arrow_faults():
            batch = reader.get_batch(index)
        yield from _pieces(batch, row)
        row += batch.num_rows


def _stream_rows(file: Any, settings: ReadSettings) -> tuple[Table, Rows]:
    start = file.read(len(FEATHER1_MAGIC))
    file.seek(0)
    if not start:
        raise DamagedStream("truncated", "the file is empty; even an Arrow stream of nothing has some bytes")
    if start == FEATHER1_MAGIC:
        raise DamagedStream("wrong-format", "Feather version 1; write it again as Arrow IPC")
    try:
        with arrow_faults():
            reader = ipc.open_stream(file)
    except DamagedStream as damage:
        raise DamagedStream(
            "wrong-format", f"neither an Arrow file nor an Arrow stream: {damage.detail}"
        ) from None
    return Table(reader.schema, settings), _stream_batches(reader)


def _stream_batches(reader: Any) -> Rows:
    row = 0
    while True:
        with arrow_faults():
            try:
                batch = reader.read_next_batch()
            except StopIteration:
                return
        yield from _pieces(batch, row)
        row += batch.num_rows


def _pieces(batch: pa.RecordBatch, row: int) -> Rows:
    """The batch in pieces of a few rows, after a check that its offsets stay inside its buffers."""
    with arrow_faults():
        for column in batch.columns:
            _checked(column).validate(full=True)
    for start in range(0, batch.num_rows, _ROWS):
        yield row + start, batch.slice(start, _ROWS)


def _checked(column: pa.Array) -> pa.Array:
    """Text as bytes: text that is not UTF-8 is the fault of one record, not of the file."""
    if column.type == pa.string():
        return column.view(pa.binary())
    if column.type == pa.large_string():
        return column.view(pa.large_binary())
    return column
