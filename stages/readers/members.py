"""Stored bytes of a web archive -> decompressed pieces, going on behind a damaged place.

Archives hold one record per gzip member or zstd frame, so that a fault costs one record and not the rest of
the file. `streams.blocks` stops at a fault; this finds the next member that starts with a record. What the
file is, its first bytes say: archives are often named wrongly.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator
from enum import Enum
from typing import BinaryIO, NamedTuple

import zstandard

from stages.readers.record import KIB, MIB, DamagedStream
from stages.readers.streams import Decoder, GzipMember, ZstdFrame, blocks, open_stored

_BLOCK = 64 * KIB
_GZIP, _ZSTD = b"\x1f\x8b\x08", b"\x28\xb5\x2f\xfd"
#: Other containers, told by name only; they are read to their first fault.
_NAMED = (b"BZh", b"\xfd7zXZ\0")
_LZ4 = b"\x04\x22\x4d\x18"
#: A skippable zstd frame that holds the dictionary of all others (IIPC, "WARC-zstd").
_DICTIONARY = b"\x5d\x2a\x4d\x18"
_LARGEST_DICTIONARY = 128 * MIB
_FAULTS = (zlib.error, zstandard.ZstdError)


class Seal(Enum):
    """Everything before this was checked: a member ended as it should."""

    GOOD = "good"


class Fault(NamedTuple):
    """A place that cannot be read.

    reason  a key of `DAMAGE_REASONS`
    last    nothing readable follows in the file
    """

    reason: str
    detail: str
    last: bool


class Place(NamedTuple):
    """Where the bytes that follow are stored: a member starts at byte `stored`; where `plain`, they stand there as they are."""

    stored: int
    plain: bool


Event = bytes | Seal | Fault | Place
#: Whether decompressed bytes start with a record; told from the first bytes of a member.
StartsRecord = Callable[[bytes], bool]


def archive_events(path: str, starts_record: StartsRecord) -> Iterator[Event]:
    """The decompressed stream, with a `Fault` at each place where bytes are missing. OSError as usual."""
    with open_stored(path) as file:
        head = file.read(8)
        file.seek(0)
        if head.startswith(_GZIP):
            yield from _members(file, GzipMember, _GZIP, starts_record)
        elif head.startswith(_ZSTD) or (head[1:4] == b"\x2a\x4d\x18" and head[0] & 0xF0 == 0x50):
            dictionary = _dictionary(file)
            yield from _members(file, lambda: ZstdFrame(dictionary), _ZSTD, starts_record)
        elif head.startswith(_LZ4):
            yield Fault("wrong-format", "lz4 data; store the archive as gzip or zstd", True)
        elif head.startswith(_NAMED):
            yield from _once(path)
        else:
            yield Place(0, True)
            while block := file.read(MIB):
                yield block
                yield Seal.GOOD


def has_members(path: str, members: int, limit: int) -> bool:
    """Whether so many members of a compressed archive end within `limit` decompressed bytes, all well. True of a plain one."""
    passed = size = 0
    for event in archive_events(path, lambda _: False):
        if isinstance(event, Place):
            if event.plain or passed == members:
                return True
        elif isinstance(event, Fault):
            return False
        elif isinstance(event, bytes):
            size += len(event)
            if size > limit:
                return False
        else:
            passed += 1
    return False


def _once(path: str) -> Iterator[Event]:
    yield Place(0, False)
    try:
        for block in blocks(path):
            yield block
            yield Seal.GOOD
    except DamagedStream as damage:
        yield Fault(damage.reason, damage.detail, True)


def _dictionary(file: BinaryIO) -> zstandard.ZstdCompressionDict | None:
    """The dictionary at the start of the file, if there is one; the place in the file stays."""
    head = file.read(8)
    size = int.from_bytes(head[4:8], "little")
    content = file.read(size) if head.startswith(_DICTIONARY) and size <= _LARGEST_DICTIONARY else b""
    file.seek(0)
    if content.startswith(_ZSTD):
        try:
            content = zstandard.ZstdDecompressor().decompress(content, max_output_size=_LARGEST_DICTIONARY)
        except zstandard.ZstdError:
            return None  # then every frame that needs it is a fault, and said to be one
    return zstandard.ZstdCompressionDict(content) if content else None


def _members(
    file: BinaryIO, decoder_of: Callable[[], Decoder], magic: bytes, starts_record: StartsRecord
) -> Iterator[Event]:
    """Members one after the other; NUL bytes between them and at the end (tape padding) are passed over."""
    data, end = b"", 0  # `end`: the place in the file behind `data`
    while True:
        while not (data := data.lstrip(b"\0")):
            data = file.read(_BLOCK)
            end += len(data)
            if not data:
                return
        start = end - len(data)
        yield Place(start, False)
        decoder = decoder_of()
        try:
            while True:
                yield from decoder.pieces(data)
                if decoder.eof:
                    break
                data = file.read(_BLOCK)
                end += len(data)
                if not data:
                    raise EOFError
            data = decoder.unused_data
            yield Seal.GOOD
            continue
        except _FAULTS as fault:
            reason, why = "corrupt", str(fault)
        except EOFError:
            reason, why = "truncated", "the file ends within it"
        found = _next_member(file, start + 1, decoder_of, magic, starts_record)
        resumed = f"goes on at byte {found:,}" if found is not None else "nothing readable follows"
        yield Fault(reason, f"the stored data at byte {start:,} is damaged ({why}); {resumed}", found is None)
        if found is None:
            return
        file.seek(found)
        data, end = b"", found


def _next_member(
    file: BinaryIO, place: int, decoder_of: Callable[[], Decoder], magic: bytes, starts_record: StartsRecord
) -> int | None:
    """The first stored byte from `place` on where a member starts whose content starts with a record."""
    overlap = len(magic) - 1
    while True:
        file.seek(place)
        block = file.read(MIB)
        at = block.find(magic)
        while at >= 0:
            if _is_member(file, place + at, decoder_of, starts_record):
                return place + at
            at = block.find(magic, at + 1)
        if len(block) <= overlap:
            return None
        place += len(block) - overlap


def _is_member(file: BinaryIO, place: int, decoder_of: Callable[[], Decoder], starts_record: StartsRecord) -> bool:
    """Bodies are full of compressed data of their own, so the magic number alone says little."""
    file.seek(place, os.SEEK_SET)
    try:
        piece = next(decoder_of().pieces(file.read(_BLOCK)), b"")
    except _FAULTS:
        return False
    return starts_record(piece)
