"""Plain text -> documents: a file each, or a line each."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from stages.readers.batches import Pending, too_large
from stages.readers.charset import decode
from stages.readers.fields import Counters, count
from stages.readers.lines import check_head, line_pieces
from stages.readers.record import KIB, Damaged, DamagedStream, FileSlice, ReadSettings, Reject
from stages.readers.streams import blocks

#: Byte-order marks; UTF-32 first, because its mark begins with that of UTF-16.
_MARKS = (
    (b"\xef\xbb\xbf", "utf-8-sig"),
    (b"\xff\xfe\0\0", "utf-32"),
    (b"\0\0\xfe\xff", "utf-32"),
    (b"\xff\xfe", "utf-16"),
    (b"\xfe\xff", "utf-16"),
)
_NUL_WITHIN = 8 * KIB


def read_text(
    where: FileSlice, settings: ReadSettings, counters: Counters, tree: bool = False
) -> Iterator[pa.RecordBatch | Reject | Damaged]:
    """One document: the whole file, record 0. UTF-8, or what its byte-order mark says; the mark is left out.

    With `encoding: auto` it is what statistics say where the bytes are not UTF-8 (`charset.decode`; `web` extra).

    In a source tree (`tree`) a file with NUL bytes near its start is rejected as binary.
    """
    held: list[bytes] = []
    size = 0
    try:
        for block in blocks(where.path):
            size += len(block)
            if size <= settings.max_document:
                held.append(block)
            else:  # the rest is only measured
                held.clear()
    except DamagedStream as damage:
        yield Damaged(where.uri, damage.reason, damage.detail, 0)
        return
    count(counters, "bytes", size)
    if size > settings.max_document:
        unfit = too_large(size, settings.max_document)
        yield Reject(where.uri, 0, 1, unfit.reason, unfit.detail)
        return
    data = b"".join(held)
    encoding = next((name for mark, name in _MARKS if data.startswith(mark)), "utf-8")
    if tree and encoding == "utf-8" and b"\0" in data[:_NUL_WITHIN]:
        yield Reject(where.uri, 0, 1, "binary", f"a NUL byte at byte {data.index(0)}")
        return
    try:
        text = _text(data, encoding, settings, counters)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1 if encoding.startswith("utf-8") else None
        yield Reject(where.uri, 0, line, "not-utf8", f"byte {error.start} as {encoding}: {error.reason}")
        return
    pending = Pending(where, settings)
    pending.add(0, text, size, None, None)  # alone in its batch, so its size decides nothing
    yield from pending.rest()


def _text(data: bytes, encoding: str, settings: ReadSettings, counters: Counters) -> str:
    """Raises UnicodeDecodeError."""
    if settings.encoding == "auto":
        found = decode(data)
        if found is not None:
            count(counters, "sequences-replaced", found.replaced)
            return found.text
    return data.decode(encoding)


def read_lines(
    where: FileSlice, settings: ReadSettings, counters: Counters
) -> Iterator[pa.RecordBatch | Reject | Damaged]:
    """One document per line that is not blank, without its line end (LF or CR LF)."""
    pending = Pending(where, settings)
    number = 0 if where.start == 0 else None
    limit = settings.max_document
    try:
        check_head(where.path)
        for offset, data, size in line_pieces(where, limit + 1):
            count(counters, "bytes", size)
            lines = [None] if data is None else data.removesuffix(b"\n").split(b"\n")
            for index, line in enumerate(lines, 1):
                content = b"" if line is None else _content(line, offset)
                size = size - 1 if line is None else len(content)
                hint = None if number is None else number + index
                if size > limit:
                    yield Reject(where.uri, offset, hint, *too_large(size, limit).args)
                elif not content.strip():
                    count(counters, "blank-lines")
                else:
                    try:
                        text = content.decode()
                    except UnicodeDecodeError as error:
                        yield Reject(
                            where.uri,
                            offset,
                            hint,
                            "not-utf8",
                            f"byte {error.start} of the line: {error.reason}",
                        )
                    else:
                        if pending.full(size):
                            yield pending.take()
                        pending.add(offset, text, size, None, None)
                offset += 0 if line is None else len(line) + 1
            number = None if number is None else number + len(lines)
    except DamagedStream as damage:
        yield from pending.rest()
        yield Damaged(where.uri, damage.reason, damage.detail, pending.taken)
    else:
        yield from pending.rest()


def _content(line: bytes, offset: int) -> bytes:
    if offset == 0:
        line = line.removeprefix(b"\xef\xbb\xbf")
    return line.removesuffix(b"\r")
