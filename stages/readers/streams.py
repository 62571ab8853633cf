"""Bytes of a file, decompressed: plain, gzip, zstd, bzip2, xz; local or any fsspec address.

Concatenated members and frames are one stream. What comes before a fault is given before `DamagedStream`
is raised: all of it if the file was cut or is gzip, else all but what the last 64 KiB of stored bytes hold.
"""

from __future__ import annotations

import bz2
import io
import lzma
import os
import zlib
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, Protocol, cast

import zstandard

from stages.readers.frames import Frame, zstd_frames
from stages.readers.guess import compression_of, is_url
from stages.readers.record import KIB, MIB, DamagedStream
from stages.storage.access import options_of
from stages.storage.address import Address, is_address

BLOCK = MIB
_STORED_BLOCK = 64 * KIB
#: zstd gives no way to bound the output of a call, so little goes in until the ratio is known.
_ZSTD_FIRST, _ZSTD_MOST = KIB, 32 * KIB


def open_stored(path: str) -> BinaryIO:
    """The stored bytes of a file, seekable. OSError as usual."""
    if not is_url(path):
        return cast(BinaryIO, open(path, "rb"))
    if "::" in path or not is_address(path):
        import fsspec

        return cast(BinaryIO, fsspec.open(path, "rb", **options_of(path)).open())
    return Address(path).open()


def blocks(path: str, start: int = 0) -> Iterator[bytes]:
    """The decompressed stream from stored byte `start` on (of a compressed file: where a member starts).

    Raises `DamagedStream` at the place of a fault, after everything before it was yielded.
    """
    kind = compression_of(path)
    with open_stored(path) as file:
        if start:
            file.seek(start)
        if kind is None:
            while block := file.read(BLOCK):
                yield block
        else:
            yield from _gathered(_members(file, kind))


def frames_of(path: str) -> list[Frame] | None:
    """The frames of a local zstd file if it can be cut at them, else None."""
    if compression_of(path) != "zstd" or is_url(path):
        return None
    with open(path, "rb", buffering=4 * KIB) as file:
        return zstd_frames(file)


def _gathered(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """The same bytes in blocks of about `BLOCK`."""
    held: list[bytes] = []
    size = 0
    try:
        for piece in pieces:
            held.append(piece)
            size += len(piece)
            if size >= BLOCK:
                yield b"".join(held)
                held, size = [], 0
    except DamagedStream:
        if held:
            yield b"".join(held)
        raise
    if held:
        yield b"".join(held)


class Decoder(Protocol):
    """One member of a compressed file."""

    @property
    def eof(self) -> bool:
        """Whether its end was read."""
        ...

    @property
    def unused_data(self) -> bytes:
        """What was given to it and lies behind its end."""
        ...

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """What these stored bytes decompress to."""
        ...


class GzipMember:
    """One gzip member. Keeps a copy of its state before each step, so that a checksum error loses nothing before it."""

    def __init__(self) -> None:
        self._inflate = zlib.decompressobj(31)

    @property
    def eof(self) -> bool:
        return self._inflate.eof

    @property
    def unused_data(self) -> bytes:
        return self._inflate.unused_data

    def pieces(self, data: bytes) -> Iterator[bytes]:
        while True:
            before = self._inflate.copy()
            try:
                piece = self._inflate.decompress(data, BLOCK)
            except zlib.error:
                yield from _bytewise(before, data)
                raise
            if piece:
                yield piece
            data = self._inflate.unconsumed_tail
            if self._inflate.eof or (not data and len(piece) < BLOCK):
                return


def _bytewise(inflate: Any, data: bytes) -> Iterator[bytes]:
    """What comes out before the error that `data` is known to raise."""
    for place in range(len(data)):
        try:
            piece = inflate.decompress(data[place : place + 1])
        except zlib.error:
            return
        if piece:
            yield piece


class ZstdFrame:
    """One zstd frame; `dictionary` is what it may refer to."""

    def __init__(self, dictionary: zstandard.ZstdCompressionDict | None = None) -> None:
        context = zstandard.ZstdDecompressor(dict_data=dictionary, max_window_size=1 << 31)
        self._decompress = context.decompressobj()
        self._step = _ZSTD_FIRST
        self._unused = b""

    @property
    def eof(self) -> bool:
        return self._decompress.eof

    @property
    def unused_data(self) -> bytes:
        return self._unused

    def pieces(self, data: bytes) -> Iterator[bytes]:
        place = 0
        while place < len(data) and not self.eof:
            piece = self._decompress.decompress(data[place : place + self._step])
            place += self._step
            self._step = min(self._step * 2, _ZSTD_MOST) if len(piece) < BLOCK else max(self._step // 4, 64)
            if piece:
                yield piece
        self._unused = self._decompress.unused_data + data[place:]


class _Stepwise:
    """bzip2 and xz: the standard library's decompressors have one interface."""

    def __init__(self, decompress: Any) -> None:
        self._decompress = decompress

    @property
    def eof(self) -> bool:
        return self._decompress.eof

    @property
    def unused_data(self) -> bytes:
        return self._decompress.unused_data

    def pieces(self, data: bytes) -> Iterator[bytes]:
        while True:
            piece = self._decompress.decompress(data, BLOCK)
            if piece:
                yield piece
            data = b""
            if self._decompress.eof or self._decompress.needs_input:
                return


_DECODERS: dict[str, Callable[[], Decoder]] = {
    "gzip": GzipMember,
    "zstd": ZstdFrame,
    "bz2": lambda: _Stepwise(bz2.BZ2Decompressor()),
    "xz": lambda: _Stepwise(lzma.LZMADecompressor()),
}
#: What the decoders raise; bzip2 says OSError. Reading the file happens elsewhere.
_FAULTS = (zlib.error, zstandard.ZstdError, lzma.LZMAError, OSError, EOFError)
#: Formats whose tools may pad the end with zeros (gzip on tape, xz "stream padding").
_PADDED = ("gzip", "xz")


def _members(file: BinaryIO, kind: str) -> Iterator[bytes]:
    decoder: Decoder | None = None
    finished = 0
    while data := file.read(_STORED_BLOCK):
        while data:
            if decoder is None:
                if finished and kind in _PADDED and not (data := data.lstrip(b"\0")):
                    break
                decoder, gave = _DECODERS[kind](), False
            try:
                for piece in decoder.pieces(data):
                    gave = True
                    yield piece
            except _FAULTS as fault:
                raise _fault(kind, fault, finished, gave) from None
            data = decoder.unused_data if decoder.eof else b""
            if decoder.eof:
                decoder, finished = None, finished + 1
    if decoder is not None:
        raise DamagedStream("truncated", f"the {kind} data ends in the middle of its member {finished + 1}")
    if not finished:
        raise DamagedStream("truncated", f"the file is empty; even {kind} data of nothing has some bytes")


def _fault(kind: str, fault: Exception, finished: int, gave: bool) -> DamagedStream:
    if gave:
        return DamagedStream("corrupt", f"the {kind} data is wrong in member {finished + 1}: {fault}")
    if finished:
        return DamagedStream(
            "trailing-bytes", f"what follows {kind} member {finished} is not {kind}: {fault}"
        )
    return DamagedStream("wrong-format", f"the content does not start as {kind} data: {fault}")


def head(path: str, size: int) -> bytes:
    """The first bytes of the decompressed stream; fewer if it is shorter or damaged there."""
    stream = blocks(path)
    found = io.BytesIO()
    try:
        for block in stream:
            found.write(block[: size - found.tell()])
            if found.tell() >= size:
                break
    except DamagedStream:
        pass
    finally:
        stream.close()  # type: ignore[attr-defined]
    return found.getvalue()


def line_number(path: str, offset: int) -> int:
    """The line, counted from 1, that the byte at `offset` of the decompressed stream is in.

    A damaged file is counted as far as it goes. Reads the file up to there: for messages, not for loops.
    """
    line = 1
    try:
        for block in blocks(path):
            line += block[:offset].count(b"\n")
            offset -= len(block)
            if offset <= 0:
                break
    except DamagedStream:
        pass
    return line


def stored_size(path: str) -> int:
    """Bytes of the stored file."""
    if not is_url(path):
        return os.stat(path).st_size
    with open_stored(path) as file:
        return file.seek(0, 2)
