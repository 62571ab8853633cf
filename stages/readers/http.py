"""A stored HTTP response -> status, fields and the decoded body (RFC 9110, RFC 9112).

Crawlers store bodies decoded and keep the header that says otherwise, or the other way round. So a coding
that a header claims is undone where the bytes are in it, and the bytes are the body where they are not.
"""

from __future__ import annotations

import re
import zlib
from typing import NamedTuple

import zstandard

from stages.readers.archive import header_fields
from stages.readers.record import Unfit

_STATUS = re.compile(rb"HTTP/\d(?:\.\d)?[ \t]+(\d{3})[^\n]*\n")
_END = re.compile(rb"\r?\n[ \t]*\r?\n")
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,8})[ \t]*(?:;[^\r\n]*)?\r?\n")
_NEXT_CHUNK = re.compile(rb"\r\n(?=[0-9A-Fa-f]{1,8}[ \t]*(?:;[^\r\n]*)?\r\n)")
#: Bytes by which the stated size of a chunk may be wrong and still tell where it ends.
_NEAR = 64
_LAST_CHUNK = re.compile(rb"\r?\n(?:0+\r?\n(?:\r?\n)?)?\Z")


class Response(NamedTuple):
    """One response; `fields` have names in lower case, `body` is as stored."""

    status: int
    fields: dict[str, str]
    body: bytes


def parse_response(block: bytes) -> Response | None:
    """The response in a block; None if the block does not start with a status line."""
    status = _STATUS.match(block)
    if status is None:
        return None
    end = _END.search(block, status.end() - 1)
    head, body = (block[status.end() :], b"") if end is None else (block[status.end() : end.start()], block[end.end() :])
    return Response(int(status[1]), header_fields(head), body)


def decoded_body(response: Response, limit: int) -> tuple[bytes, bool]:
    """`(the body without transfer and content coding, whether its end was missing)`.

    Raises `Unfit`: `too-large` above `limit` bytes, `bad-coding` for a coding nothing here can undo.
    """
    body, cut = response.body, False
    if "chunked" in response.fields.get("transfer-encoding", "").lower():
        body = _dechunked(body)
    codings = response.fields.get("content-encoding", "").lower().replace(" ", "").split(",")
    for coding in reversed(codings):
        if coding in ("", "identity", "none", "utf-8") or not body:
            continue
        plain = _undone(coding, body, limit)
        if plain is not None:
            body, cut = plain[0], cut or plain[1]
    if len(body) > limit:
        raise Unfit("too-large", f"a body of {len(body):,} bytes; max_document is {limit:,}")
    return body, cut


def _dechunked(data: bytes) -> bytes:
    """The chunks put together; the data itself if it does not start with a chunk.

    A chunk whose size is wrong ends where the next one starts; a missing last chunk is no harm.
    """
    size = _CHUNK.match(data)
    chunks: list[bytes] = []
    place = 0
    while size is not None and (length := int(size[1], 16)):
        start = size.end()
        end = start + length
        if not _ends(data, end):
            found = _following(data, start, end)
            if found is None:
                if not chunks and end > len(data):
                    return data  # a body that begins like a chunk
                return b"".join([*chunks, _LAST_CHUNK.sub(b"", data[start:])])
            end = found
        chunks.append(data[start:end])
        place = end + 2
        size = _CHUNK.match(data, place)
    if size is None:
        chunks.append(data[place:])  # all of it, or what stands where the last chunk should
    return b"".join(chunks)


def _ends(data: bytes, end: int) -> bool:
    """Whether a chunk ends here: another follows, or the data ends with it."""
    if end >= len(data):
        return end == len(data) and not data.endswith(b"\r\n0\r\n\r\n")
    return data.startswith(b"\r\n", end) and (end + 2 >= len(data) or _CHUNK.match(data, end + 2) is not None)


def _following(data: bytes, place: int, stated: int) -> int | None:
    """Where a chunk that starts at `place` ends: before another chunk, near the stated end or one that ends right."""
    for found in _NEXT_CHUNK.finditer(data, place):
        if abs(found.start() - stated) <= _NEAR:
            return found.start()
        head = _CHUNK.match(data, found.end())
        assert head is not None
        end = head.end() + int(head[1], 16)
        if end == head.end() or _ends(data, end):
            return found.start()
    return None


def _undone(coding: str, body: bytes, limit: int) -> tuple[bytes, bool] | None:
    """`(content, whether its end was missing)`; None if the body is not in this coding."""
    if coding in ("gzip", "x-gzip"):
        return _inflated(body, limit, 31) if body.startswith(b"\x1f\x8b") else None
    if coding == "deflate":  # zlib by the standard, raw deflate by some servers
        return _inflated(body, limit, 15) or _inflated(body, limit, -15)
    if coding == "br":
        return _unbrotlied(body, limit)
    if coding == "zstd":
        return _unzstd(body, limit) if body.startswith(b"\x28\xb5\x2f\xfd") else None
    if coding in ("compress", "x-compress"):
        if body.startswith(b"\x1f\x9d"):
            raise Unfit("bad-coding", f"Content-Encoding: {coding}")
        return None
    return None  # not a coding but a mistake, such as a charset


def _inflated(body: bytes, limit: int, window: int) -> tuple[bytes, bool] | None:
    found = bytearray()
    while body:
        inflate = zlib.decompressobj(window)
        try:
            found += inflate.decompress(body, limit + 1 - len(found))
        except zlib.error:
            return (bytes(found), True) if found else None
        if len(found) > limit:
            raise Unfit("too-large", f"a compressed body of more than {limit:,} bytes; that is max_document")
        if not inflate.eof:
            return (bytes(found), True) if found else None
        body = inflate.unused_data if window == 31 else b""
        if not body.startswith(b"\x1f\x8b"):
            break
    return bytes(found), False


def _unbrotlied(body: bytes, limit: int) -> tuple[bytes, bool] | None:
    try:
        import brotli
    except ImportError:
        raise Unfit("bad-coding", "Content-Encoding: br needs the `web` extra: pip install 'gristmill[web]'") from None
    decoder = brotli.Decompressor()
    found = bytearray()
    given = body
    try:
        while not decoder.is_finished():
            piece = decoder.process(given, output_buffer_limit=1 << 20)
            given = b""
            found += piece
            if len(found) > limit:
                raise Unfit("too-large", f"a compressed body of more than {limit:,} bytes; that is max_document")
            if not piece and decoder.can_accept_more_data():
                return (bytes(found), True) if found else None
    except brotli.error:
        return None
    return bytes(found), False


def _unzstd(body: bytes, limit: int) -> tuple[bytes, bool] | None:
    try:
        with zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(body, read_across_frames=True) as reader:
            found = reader.read(limit + 1)
    except zstandard.ZstdError:
        return None
    if len(found) > limit:
        raise Unfit("too-large", f"a compressed body of more than {limit:,} bytes; that is max_document")
    return found, False
