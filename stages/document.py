"""The Arrow schema of a document batch: what every reader makes and every stage gets.

One row is one document. `text` is `large_string` (64-bit offsets) from the door on, so that no
concatenation can overflow. The identity of a document is its place, never what a user wrote in it:
`id = blake2b-128(source, uri, record)`. The user's own id is carried along as a string.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

ID_BYTES = 16

#: Columns that a reader makes. `drop` is null while a document is kept, else the reason;
#: `drop_value` says what was measured against what ("0.71 < 0.80"). Stages add columns behind these.
DOCUMENT = pa.schema(
    [
        pa.field("id", pa.binary(ID_BYTES), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("uri", pa.string(), nullable=False),  # path relative to the part of the pattern before a wildcard
        pa.field("record", pa.int64(), nullable=False),  # byte offset in the decompressed stream, or row number
        pa.field("user_id", pa.string()),
        pa.field("text", pa.large_string(), nullable=False),
        pa.field("meta", pa.string()),  # JSON object of the kept fields, or null
        pa.field("drop", pa.string()),
        pa.field("drop_value", pa.string()),
    ]
)


def document_id(source: str, uri: str, record: int) -> bytes:
    """The 16-byte identity of a document: a function of its place alone."""
    key = f"{source}\0{uri}\0{record}".encode("utf-8", "surrogateescape")
    return hashlib.blake2b(key, digest_size=ID_BYTES).digest()


def document_batch(
    source: str,
    uris: Sequence[str],
    records: Sequence[int],
    texts: Sequence[str] | pa.Array,
    user_ids: Sequence[str | None] | None = None,
    metas: Sequence[str | None] | None = None,
) -> pa.RecordBatch:
    """A batch of fresh documents of one source; ids are computed here and nowhere else."""
    n = len(uris)
    ids = [document_id(source, uri, record) for uri, record in zip(uris, records, strict=True)]
    text = texts if isinstance(texts, pa.Array) else pa.array(texts, pa.large_string())
    columns = [
        pa.array(ids, pa.binary(ID_BYTES)),
        pa.array([source] * n, pa.string()),
        pa.array(uris, pa.string()),
        pa.array(records, pa.int64()),
        pa.array(user_ids, pa.string()) if user_ids is not None else pa.nulls(n, pa.string()),
        text.cast(pa.large_string()),
        pa.array(metas, pa.string()) if metas is not None else pa.nulls(n, pa.string()),
        pa.nulls(n, pa.string()),
        pa.nulls(n, pa.string()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=DOCUMENT)


def with_column(batch: pa.RecordBatch, name: str, values: pa.Array) -> pa.RecordBatch:
    """The batch with column `name` replaced, or added at the end."""
    index = batch.schema.get_field_index(name)
    field = pa.field(name, values.type) if index < 0 else batch.schema.field(index).with_type(values.type)
    if index < 0:
        return pa.RecordBatch.from_arrays([*batch.columns, values], schema=batch.schema.append(field))
    columns = [values if i == index else column for i, column in enumerate(batch.columns)]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema.set(index, field))


def drop_rows(
    batch: pa.RecordBatch, mask: np.ndarray, reason: str | Sequence[str], value: Sequence[str] | str | None = None
) -> pa.RecordBatch:
    """The batch with `drop` set where `mask` (bool, one per row) says so; rows already dropped keep their reason.

    `reason` and `value` are one string for all rows, or one per row of the batch.
    """
    chosen = pa.array(np.asarray(mask, bool))
    fresh = pc.and_(chosen, pc.is_null(batch.column("drop")))
    reasons = pa.scalar(reason, pa.string()) if isinstance(reason, str) else pa.array(reason, pa.string())
    batch = with_column(batch, "drop", pc.if_else(fresh, reasons, batch.column("drop")))
    if value is None:
        return batch
    values = pa.scalar(value, pa.string()) if isinstance(value, str) else pa.array(value, pa.string())
    return with_column(batch, "drop_value", pc.if_else(fresh, values, batch.column("drop_value")))


def text_buffers(texts: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """`(bytes_U8, offsets_N1)` of a large_string array, the form that compiled kernels take.

    bytes_U8    uint8, read-only, the UTF-8 of all texts
    offsets_N1  int64, n + 1 offsets into it; text i is bytes[offsets[i]:offsets[i + 1]]
    A sliced array keeps its offsets (offsets[0] need not be 0). Nulls are empty texts.
    """
    if texts.type != pa.large_string():
        texts = texts.cast(pa.large_string())
    if texts.null_count:
        texts = pc.fill_null(texts, "")
    _, offsets, data = texts.buffers()
    if len(texts) == 0 or offsets is None:
        return np.empty(0, np.uint8), np.zeros(1, np.int64)
    numbers = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    content = np.frombuffer(data, np.uint8) if data is not None and data.size else np.empty(0, np.uint8)
    return content, numbers


def text_array(data_U8: np.ndarray, offsets_N1: np.ndarray) -> pa.Array:
    """The large_string array of N texts whose UTF-8 a kernel wrote: the way back from `text_buffers`. Nothing is copied."""
    return pa.LargeStringArray.from_buffers(len(offsets_N1) - 1, pa.py_buffer(offsets_N1), pa.py_buffer(data_U8))
