"""The frames of a zstd file without decompressing it (format: RFC 8878, section 3.1)."""

from __future__ import annotations

from typing import BinaryIO, NamedTuple

import zstandard

_MAGIC = b"\x28\xb5\x2f\xfd"
_LONGEST_HEADER = 18
_RLE, _RESERVED = 1, 3


class Frame(NamedTuple):
    """One frame: where it is stored, and which bytes of the decompressed stream it holds."""

    stored: int
    stored_end: int
    content: int
    content_end: int


def zstd_frames(file: BinaryIO) -> list[Frame] | None:
    """All frames in order, or None where a frame does not state its size or the file is damaged.

    Reads frame and block headers only. Skippable frames are frames without content.
    """
    size = file.seek(0, 2)
    frames: list[Frame] = []
    stored = content = 0
    while stored < size:
        frame = _frame(file, stored, content)
        if frame is None or frame.stored_end > size:
            return None
        frames.append(frame)
        stored, content = frame.stored_end, frame.content_end
    return frames


def _frame(file: BinaryIO, stored: int, content: int) -> Frame | None:
    head = _at(file, stored, _LONGEST_HEADER)
    if head[1:4] == b"\x2a\x4d\x18" and head[0] & 0xF0 == 0x50 and len(head) >= 8:
        return Frame(stored, stored + 8 + int.from_bytes(head[4:8], "little"), content, content)
    if not head.startswith(_MAGIC):
        return None
    try:
        known = zstandard.get_frame_parameters(head)
        place = stored + zstandard.frame_header_size(head)
    except zstandard.ZstdError:
        return None
    if known.content_size == zstandard.CONTENTSIZE_UNKNOWN:
        return None
    last = False
    while not last:
        block = int.from_bytes(_at(file, place, 3).ljust(3, b"\xff"), "little")
        last, kind, size = bool(block & 1), block >> 1 & 3, block >> 3
        if kind == _RESERVED:
            return None
        place += 3 + (1 if kind == _RLE else size)
    return Frame(stored, place + 4 * known.has_checksum, content, content + known.content_size)


def _at(file: BinaryIO, place: int, size: int) -> bytes:
    file.seek(place)
    return file.read(size)
