"""The layout `arrow`: a shard as an Arrow IPC file with one record per document, id and tokens.

Any tool that reads Arrow reads it. The trainer needs no Arrow: tokens stand in the file back to back, batch by batch,
and the manifest says where each batch has them.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pyarrow as pa

from stages.contract.checksums import Checksums
from stages.contract.files import atomic_file, sha256_file
from stages.contract.shard import (
    Documents,
    FileFacts,
    ShardFacts,
    check_documents,
    index_records,
    token_dtype,
    write_atomic_hashed,
)


def arrow_schema(vocab_size: int) -> pa.Schema:
    """`id` (16 bytes) and `tokens` (a list of uint16, or uint32 for a large vocabulary)."""
    values = pa.from_numpy_dtype(token_dtype(vocab_size))
    return pa.schema([("id", pa.binary(16)), ("tokens", pa.large_list(pa.field("item", values, nullable=False)))])


def write_arrow_shard(
    base: Path, batches: Iterable[Documents], vocab_size: int, eos_id: int
) -> tuple[ShardFacts, tuple[tuple[int, int], ...]]:
    """Writes `<base>.arrow`, `<base>.idx`, `<base>.crc`: `(what is in them, where tokens stand in the first)`.

    `tok` of the facts is the Arrow file. ValueError as `shard.write_shard`.
    """
    schema = arrow_schema(vocab_size)
    dtype = token_dtype(vocab_size)
    checksums, records = Checksums(), []
    tokens, largest = 0, -1
    path = Path(f"{base}.arrow")
    with ExitStack() as stack:
        file = stack.enter_context(atomic_file(path))
        writer = stack.enter_context(pa.ipc.new_file(pa.PythonFile(file, "w"), schema))
        for batch in batches:
            if len(batch.lengths) == 0:
                continue
            largest = max(largest, check_documents(batch, vocab_size, eos_id))
            values = np.ascontiguousarray(batch.tokens.astype(dtype, copy=False))
            checksums.add(values.tobytes())
            records.append(index_records(batch))
            offsets = np.concatenate([[0], np.cumsum(batch.lengths, dtype=np.int64)])
            ids = pa.Array.from_buffers(
                pa.binary(16), len(batch.lengths), [None, pa.py_buffer(np.ascontiguousarray(batch.ids).tobytes())]
            )
            lists = pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(values), type=schema.field("tokens").type)
            writer.write_batch(pa.RecordBatch.from_arrays([ids, lists], schema=schema))
            tokens += len(values)
    index = b"".join(one.tobytes() for one in records)
    idx, crc = (
        write_atomic_hashed(Path(f"{base}.{kind}"), data) for kind, data in (("idx", index), ("crc", checksums.table()))
    )
    tok = FileFacts(path.stat().st_size, sha256_file(path))
    documents = sum(len(one) for one in records)
    return ShardFacts(documents, tokens, largest, tok, idx, crc), token_places(path)


def token_places(path: Path) -> tuple[tuple[int, int], ...]:
    """`(first token, byte in the file)` of the tokens of each batch of an Arrow file, as `ShardEntry.segments`."""
    places, first = [], 0
    with pa.memory_map(str(path)) as source:
        whole = source.read_buffer()
        reader = pa.ipc.open_file(whole)
        for i in range(reader.num_record_batches):
            values = reader.get_batch(i).column("tokens").values
            at = values.buffers()[1].address - whole.address
            places.append((first, at + values.offset * values.type.bit_width // 8))
            first += len(values)
    return tuple(places) or ((0, 0),)
