"""Rows from many producers to many readers: one file per producer, its rows grouped by who reads them.

A superstep task writes one outbox file. Per channel the file holds one Arrow IPC file whose record batches
are the groups (channel, address) in address order; rows keep their order inside a group. Behind it stand the
addresses of those batches. So a reader takes its own batches out of a memory-mapped file and touches no others:

    magic | per channel, in name order: IPC file, addresses u32 | index, JSON | its length, u64 | magic

The index maps a channel to [start, bytes of the IPC file, number of addresses]. Numbers are little-endian;
IPC files and addresses begin at multiples of 64 bytes. The bytes are a function of the rows alone.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa

from stages.contract.files import atomic_file, on_disk
from stages.contract.names import canonical_json
from stages.stage import Outbox

MAGIC = b"GRSTOUT1"
#: Whom the rows of a channel are for, where that is not one address.
MANY, NOBODY = -1, -2
_ALIGN = 64
_TAIL = 8 + len(MAGIC)


def write_outbox(path: str | Path, outboxes: Mapping[str, Outbox]) -> dict[str, int]:
    """Write what one producer sends; `read_inbox` reads it. The file appears under its name when complete.

    Returns whom each channel is for: the address that all its rows have, or `MANY`, or `NOBODY` (no rows).
    ValueError when a channel has not one address per row.
    """
    return _write(path, {name: partial(_write_groups, channel=name, outbox=box) for name, box in outboxes.items()})


def merge_outboxes(path: str | Path, paths: Sequence[Any], channel: str) -> dict[str, int]:
    """Write one outbox with the rows that all of `paths` have on a channel; returns what `write_outbox` does.

    A reader of the one gets the rows that it would get from the many, in the same order. Of the rows those of one
    address are held at a time. ValueError when two producers disagree about the schema.
    """
    found = [(path, section) for path in paths if (section := _find_section(path, channel)) is not None]
    return _write(path, {channel: partial(_merge_groups, channel=channel, found=found)})


def _write(path: str | Path, sections: Mapping[str, Callable[[BinaryIO], np.ndarray]]) -> dict[str, int]:
    index: dict[str, tuple[int, int, int]] = {}
    sent: dict[str, int] = {}
    with atomic_file(path) as file:
        file.write(MAGIC)
        for channel in sorted(sections):
            start = _align(file)
            addresses = sections[channel](file)
            stop = file.tell()
            _align(file)
            file.write(addresses.astype("<u4").tobytes())
            index[channel] = (start, stop - start, len(addresses))
            sent[channel] = int(addresses[0]) if len(addresses) == 1 else MANY if len(addresses) else NOBODY
        content = canonical_json(index)
        file.write(content + len(content).to_bytes(8, "little") + MAGIC)
    return sent


def _align(file: BinaryIO) -> int:
    file.write(b"\0" * (-file.tell() % _ALIGN))
    return file.tell()


class _Section(io.RawIOBase):
    """The tail of a file seen as a file of its own, because Arrow's footer counts from what `tell` says."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._start = file.tell()

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._file.tell() - self._start

    def write(self, data: Any) -> int:
        return self._file.write(data)


def _write_groups(file: BinaryIO, channel: str, outbox: Outbox) -> np.ndarray:
    """Write the groups of one channel as an IPC file; returns the address of each group, ascending uint32."""
    rows = outbox.rows if isinstance(outbox.rows, pa.Table) else pa.Table.from_batches([outbox.rows])
    addresses, starts, rows = _grouped(channel, outbox.address, rows)
    # A group of a table may span several chunks: it becomes one batch, so that there is one per address.
    with pa.ipc.new_file(pa.PythonFile(_Section(file), mode="w"), rows.schema) as writer:
        for i in range(len(addresses)):
            group = rows.slice(int(starts[i]), int(starts[i + 1] - starts[i])).combine_chunks()
            writer.write_batch(group.to_batches()[0])
    return addresses


def _merge_groups(
    file: BinaryIO, channel: str, found: Sequence[tuple[Any, tuple[pa.Buffer, np.ndarray]]]
) -> np.ndarray:
    """The same for what several producers wrote, in their order."""
    readers = [pa.ipc.open_file(section) for _, (section, _) in found]
    addresses = np.concatenate([mine for _, (_, mine) in found])
    owners = np.repeat(np.arange(len(found)), [len(mine) for _, (_, mine) in found])
    places = np.concatenate([np.arange(len(mine)) for _, (_, mine) in found])
    order = np.argsort(addresses, kind="stable")
    used, first = np.unique(addresses[order], return_index=True)
    for reader, (path, _) in zip(readers, found, strict=True):
        if not reader.schema.equals(readers[0].schema):
            raise ValueError(f"{path}: channel {channel} has another schema than the producers before it")
    with pa.ipc.new_file(pa.PythonFile(_Section(file), mode="w"), readers[0].schema) as writer:
        for mine in np.split(order, first[1:]) if len(used) else ():
            batches = [readers[owners[i]].get_batch(int(places[i])) for i in mine]
            writer.write_batch(pa.Table.from_batches(batches).combine_chunks().to_batches()[0])
    return used.astype(np.uint32)


def _grouped(
    channel: str, address: np.ndarray | int, rows: pa.Table
) -> tuple[np.ndarray, np.ndarray, pa.Table]:
    """`(addresses_G uint32, starts_G1 int64, rows)` with the rows of one address side by side, order kept."""
    if isinstance(address, int | np.integer):
        used = np.array([address] if rows.num_rows else [], np.uint32)
        return used, np.array([0, rows.num_rows][: len(used) + 1], np.int64), rows
    numbers = np.asarray(address)
    if numbers.shape != (rows.num_rows,):
        raise ValueError(f"channel {channel}: {numbers.shape} addresses for {rows.num_rows} rows")
    numbers = numbers.astype(np.uint32, copy=False)
    if len(numbers) == 0:
        return numbers, np.zeros(1, np.int64), rows
    if (numbers[1:] < numbers[:-1]).any():
        order = _stable_order(numbers)
        numbers = numbers[order]
        rows = rows.combine_chunks().take(pa.array(order))
    first = np.flatnonzero(np.concatenate([[True], numbers[1:] != numbers[:-1]]))
    return numbers[first], np.append(first, len(numbers)).astype(np.int64), rows


def _stable_order(numbers: np.ndarray) -> np.ndarray:
    """The stable sorting permutation; 16-bit keys are sorted by radix, which is several times faster."""
    if int(numbers.max()) < 1 << 16:
        return np.argsort(numbers.astype(np.uint16), kind="stable")
    return np.argsort(numbers, kind="stable")


def read_inbox(paths: Sequence[Any], channel: str, index: int) -> pa.Table:
    """The rows that the producers (`paths`, in their order) sent to address `index` on `channel`.

    Columns lie in the memory-mapped files; each producer's rows are one chunk. No rows, but the schema, when
    the channel exists and nobody wrote to this address; no columns when no producer has the channel.
    ValueError when a file is not an outbox or two producers disagree about the schema.
    """
    batches: list[pa.RecordBatch] = []
    silent: pa.Buffer | None = None
    for path in paths:
        found = _find_section(path, channel)
        if found is None:
            continue
        section, addresses = found
        place = int(np.searchsorted(addresses, index))
        if place == len(addresses) or addresses[place] != index:
            silent = silent or section
            continue
        batches.append(pa.ipc.open_file(section).get_batch(place))
        if not batches[-1].schema.equals(batches[0].schema):
            raise ValueError(f"{path}: channel {channel} has another schema than the producers before it")
    if batches:
        return pa.Table.from_batches(batches)
    return pa.table({}) if silent is None else pa.ipc.open_file(silent).schema.empty_table()


def _find_section(path: Any, channel: str) -> tuple[pa.Buffer, np.ndarray] | None:
    """The IPC file of a channel and the address of each of its batches, uint32; None without the channel."""
    with pa.memory_map(str(on_disk(path))) as mapped:
        content = mapped.read_buffer()  # keeps the mapping alive; nothing is copied
    end = content.size - _TAIL
    if end < len(MAGIC) or content[end + 8 :].to_pybytes() != MAGIC:
        raise ValueError(f"{path}: not a complete outbox file")
    length = int.from_bytes(content[end : end + 8].to_pybytes(), "little")
    sections = json.loads(content[end - length : end].to_pybytes())
    if channel not in sections:
        return None
    start, size, groups = sections[channel]
    behind = start + size + -(start + size) % _ALIGN
    return content[start : start + size], np.frombuffer(content[behind : behind + 4 * groups], "<u4")


def column_values(table: pa.Table, name: str) -> np.ndarray:
    """A numeric column as one array; empty, uint64, when the table has no columns (nobody wrote)."""
    if table.num_columns == 0:
        return np.empty(0, np.uint64)
    return table.column(name).to_numpy()


def fixed_words(table: pa.Table, name: str, words: int) -> np.ndarray:
    """A binary column of `words` * 8 bytes as uint64, (rows, words); no rows when the table has no columns."""
    chunks = table.column(name).chunks if table.num_columns else []
    if len(chunks) == 1:
        return words_of(chunks[0])
    return np.concatenate([np.empty((0, words), np.uint64), *(words_of(chunk) for chunk in chunks)])


def words_of(chunk: pa.FixedSizeBinaryArray) -> np.ndarray:
    """One chunk of such a column, not copied."""
    words = chunk.type.byte_width // 8
    if len(chunk) == 0:
        return np.empty((0, words), np.uint64)
    flat = np.frombuffer(chunk.buffers()[1], np.uint64)
    return flat[chunk.offset * words : (chunk.offset + len(chunk)) * words].reshape(len(chunk), words)


def binary_of(words: np.ndarray) -> pa.FixedSizeBinaryArray:
    """Rows of u64 words as one fixed-width binary column, not copied."""
    content = pa.py_buffer(np.ascontiguousarray(words))
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(words.shape[1] * 8), len(words), [None, content])
