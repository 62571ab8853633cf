"""Lines of a stream, cut on the byte LF and nothing else, with the place where each starts.

A slice owns the lines whose first byte lies in [start, end) of its range. So every line is in exactly one
slice of any cut, and a slice reads past its end to finish its last line.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from stages.readers.guess import compression_of
from stages.readers.record import DamagedStream, FileSlice
from stages.readers.streams import blocks, frames_of, head


class Piece(NamedTuple):
    """Whole lines that follow each other, the first at `offset` of the decompressed stream.

    data  the bytes, each line with its LF (the last line of a file may lack it);
          None for one line of `size` bytes that is over the limit and was not held
    """

    offset: int
    data: bytes | None
    size: int


def line_pieces(where: FileSlice, longest: int) -> Iterator[Piece]:
    """The lines that the slice owns. Lines that are much longer than `longest` come without their bytes.

    Raises `DamagedStream` after the last whole line before the damage.
    """
    stored, offset, start, end = _range(where)
    stream = blocks(where.path, stored)
    if offset < start - 1:
        stream = _without(stream, start - 1 - offset)
        offset = start - 1
    yield from _owned(stream, offset, start, end, longest)


def _range(where: FileSlice) -> tuple[int, int, int, int | None]:
    """`(stored, offset, start, end)`: where to open, the decompressed place of that, and the range owned.

    The byte before the range is read as well: it tells whether a line starts at the range's first byte.
    Raises ValueError for a range that `cut.split_points` cannot have given.
    """
    if where.start == 0 and where.end is None:
        return 0, 0, 0, None
    if compression_of(where.path) is None:
        before = max(where.start - 1, 0)
        return before, before, where.start, where.end
    frames = frames_of(where.path)
    if not frames:
        raise ValueError(f"{where.path} cannot be read in slices")
    content = {frame.stored: frame.content for frame in frames}
    try:
        start = content[where.start]
        end = None if where.end is None else content[where.end]
    except KeyError as error:
        raise ValueError(f"no zstd frame starts at byte {error} of {where.path}") from None
    first = max((f for f in frames if f.content < start), default=frames[0], key=lambda f: f.stored)
    return first.stored, first.content, start, end


def _without(stream: Iterator[bytes], number: int) -> Iterator[bytes]:
    """The stream without its first bytes."""
    for block in stream:
        if number < len(block):
            yield block[number:]
        number = max(number - len(block), 0)


def _owned(stream: Iterator[bytes], at: int, start: int, end: int | None, longest: int) -> Iterator[Piece]:
    """Pieces of the lines that start in [start, end); `at` is the place of the stream's first byte."""
    seeking = start > 0  # for the first line that starts at or after `start`
    held: list[bytes] = []  # the line that starts at `at`, as far as it was read
    size = 0
    for block in stream:
        if seeking:
            cut = block.find(b"\n") + 1
            at += cut or len(block)
            block = block[cut or len(block) :]
            seeking = not cut
        if end is not None and at >= end:
            return
        last = block.rfind(b"\n") + 1
        if not last:
            size += len(block)
            held.append(block)
            if size > longest:
                held.clear()
            continue
        if size > longest:  # the long line ends in this block, and the rest of the block is ordinary
            first = block.find(b"\n") + 1
            yield Piece(at, None, size + first)
            at += size + first
            held, size = [], 0
            block, last = block[first:], last - first
            if end is not None and at >= end:
                return
        data = b"".join([*held, block[:last]])
        if end is not None and at + len(data) >= end:
            beyond = data.find(b"\n", max(end - 1 - at, 0)) + 1
            if beyond:
                yield Piece(at, data[:beyond], beyond)
                return
        if data:
            yield Piece(at, data, len(data))
        at += len(data)
        held, size = ([block[last:]] if last < len(block) else []), len(block) - last
    if size and not seeking and (end is None or at < end):
        yield Piece(at, b"".join(held) if size <= longest else None, size)


#: First bytes -> what the file is instead. UTF-32 before UTF-16: its mark begins with UTF-16's.
_MARKS: tuple[tuple[bytes, str, str], ...] = (
    (b"\xff\xfe\0\0", "wrong-encoding", "UTF-32 (little-endian)"),
    (b"\0\0\xfe\xff", "wrong-encoding", "UTF-32 (big-endian)"),
    (b"\xff\xfe", "wrong-encoding", "UTF-16 (little-endian)"),
    (b"\xfe\xff", "wrong-encoding", "UTF-16 (big-endian)"),
    (b"\x1f\x8b", "wrong-format", "gzip data; name it .gz"),
    (b"\x28\xb5\x2f\xfd", "wrong-format", "zstd data; name it .zst"),
    (b"PAR1", "wrong-format", "Parquet; name it .parquet or set `format: parquet`"),
    (b"ARROW1", "wrong-format", "Arrow IPC; name it .arrow or set `format: arrow`"),
)


def check_head(path: str) -> None:
    """Raises `DamagedStream` if the first bytes say that the file cannot hold lines of UTF-8."""
    first = head(path, 8)
    for mark, reason, what in _MARKS:
        if first.startswith(mark):
            raise DamagedStream(reason, f"the file is {what}, not lines of UTF-8")
    if b"\0" in first[:2] and len(first) > 1:
        raise DamagedStream(
            "wrong-encoding", "the file begins with a NUL byte, as UTF-16 without a mark does"
        )
