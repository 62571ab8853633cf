"""Files that are complete or not there: written under a temporary name, hashed on the way, named by their digest.

Parts, emissions and outboxes are Arrow IPC files; a part is read batch by batch, memory-mapped, so a worker's
memory does not depend on how large a part is.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.engine.records import FileRef, Part
from pipeline.engine.work import Work
from stages.contract.files import on_disk
from stages.document import with_column


class SealedFile:
    """A binary file in the making; `seal()` makes it durable and returns its reference.

    work    the work folder: written in its `tmp`, sealed into its `data`
    suffix  the kind, such as `arrow` or `tok`
    """

    def __init__(self, work: Work, suffix: str) -> None:
        self._work = work
        self._suffix = suffix
        self._path = work.tmp / f"{os.getpid()}-{secrets.token_hex(8)}"
        self._file = open(self._path, "wb")
        self._hash = hashlib.sha256()
        self._bytes = 0
        self.closed = False

    def write(self, data: Any) -> int:
        """Appends bytes (anything with the buffer protocol)."""
        view = memoryview(data).cast("B")
        self._hash.update(view)
        self._file.write(view)
        self._bytes += len(view)
        return len(view)

    def tell(self) -> int:
        """Bytes so far."""
        return self._bytes

    def flush(self) -> None:
        """For Arrow's writer; what counts is the fsync of `seal`."""

    def close(self) -> None:
        """For Arrow's writer; see `flush`."""

    def seal(self) -> FileRef:
        """The reference of the complete file: fsync, rename to its digest, fsync of the folder."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        digest = self._hash.hexdigest()
        name = f"{digest[:32]}.{self._suffix}"
        self._work.seal(self._path, name)
        return FileRef(name=name, bytes=self._bytes, digest=digest)

    def discard(self) -> None:
        """Forgets the file."""
        self._file.close()
        self._path.unlink(missing_ok=True)


class ArrowFile:
    """Batches of one schema on their way into a sealed Arrow IPC file."""

    def __init__(self, work: Work, suffix: str, compression: str | None = None) -> None:
        self._file = SealedFile(work, suffix)
        self._options = pa.ipc.IpcWriteOptions(compression=compression)
        self._writer: pa.ipc.RecordBatchFileWriter | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        """Appends a batch; the first one sets the schema."""
        if self._writer is None:
            self._writer = pa.ipc.new_file(
                pa.PythonFile(self._file, "w"), batch.schema, options=self._options
            )
        self._writer.write_batch(batch)

    @property
    def started(self) -> bool:
        """Whether a batch (hence a schema) has been written."""
        return self._writer is not None

    def seal(self) -> FileRef:
        """The reference of the complete file; at least one batch must have been written."""
        assert self._writer is not None
        self._writer.close()
        return self._file.seal()

    def discard(self) -> None:
        """Forgets the file."""
        self._file.discard()

    def __enter__(self) -> ArrowFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.discard()


def arrow_batches(path: Any) -> Iterator[pa.RecordBatch]:
    """The batches of an Arrow IPC file (path or address), read one by one: mapped pages would count as memory of the process."""
    with pa.OSFile(str(on_disk(path))) as source:
        reader = pa.ipc.open_file(source)
        for i in range(reader.num_record_batches):
            yield reader.get_batch(i)


def arrow_table(path: Any) -> pa.Table:
    """The whole of an Arrow IPC file (path or address), memory-mapped."""
    with pa.memory_map(str(on_disk(path))) as source:
        return pa.ipc.open_file(source).read_all()


def part_batches(data: Any, part: Part) -> Iterator[pa.RecordBatch]:
    """The documents of a part. An overlay names the rows of the base that are left and brings newer columns."""
    base = arrow_batches(data / part.base.name)
    if part.overlay is None:
        yield from base
        return
    overlay = arrow_table(data / part.overlay.name).combine_chunks()
    rows = overlay.column("row").to_numpy()
    first = 0
    for batch in base:
        low, high = np.searchsorted(rows, [first, first + batch.num_rows])
        if low < high:
            taken = batch.take(pa.array(rows[low:high].astype(np.int64) - first))
            for name in overlay.column_names:
                if name != "row":
                    taken = with_column(taken, name, _flat(overlay.column(name).slice(low, high - low)))
            yield taken
        first += batch.num_rows


def part_column(data: Any, part: Part, name: str) -> pa.Array:
    """One column of a part as one array."""
    chunks = [batch.column(name) for batch in part_batches(data, part)]
    return pa.concat_arrays(chunks) if chunks else pa.nulls(0)


def kept_rows(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """`(kept, dropped)` rows of a batch, order kept."""
    mask = pc.is_null(batch.column("drop"))
    if pc.all(mask).as_py() in (True, None):
        return batch, batch.slice(0, 0)
    return batch.filter(mask), batch.filter(pc.invert(mask))


def _flat(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
