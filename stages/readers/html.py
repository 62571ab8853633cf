"""A page in a file -> a document of HTML; and what kind of thing the bytes of a response are."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pyarrow as pa

from stages.readers.batches import Pending, Row, text_bytes, too_large
from stages.readers.charset import MARKS, decode, label_of_header, labels_of_page
from stages.readers.fields import Counters, count, json_text
from stages.readers.record import Damaged, DamagedStream, FileSlice, ReadSettings, Reject, Unfit
from stages.readers.streams import blocks

HTML = "text/html"
PLAIN = "text/plain"
#: Media types that are pages; XML is one if its content is.
HTML_TYPES = frozenset({HTML, "application/xhtml+xml", "application/vnd.wap.xhtml+xml"})
_UNSURE = frozenset({"", "application/octet-stream", "application/xml", "text/xml", "unknown/unknown", "application/unknown", "text"})
_PAGE = re.compile(
    rb"\s*(?:<!--.*?-->\s*|<\?xml[^>]*>\s*)*<(?:!doctype\s+html|html|head|body|title|meta|script|div|p|table|h1|a|b|br|center|font|frameset|iframe|style)\b",
    re.IGNORECASE | re.DOTALL,
)
_BINARY = (b"%PDF", b"\x89PNG", b"GIF8", b"\xff\xd8\xff", b"PK\x03\x04", b"\x1f\x8b", b"RIFF", b"\0\0\x01\0", b"BM", b"OggS", b"ID3", b"\x7fELF")
_LOOK_AT = 2048


def kind_of(media_type: str, body: bytes) -> str:
    """`text/html` or `text/plain`, by the stated type and, where that says nothing, by the first bytes.

    Raises `Unfit("not-html")`.
    """
    stated = media_type.partition(";")[0].strip().lower()
    start = body[:_LOOK_AT]
    if body.startswith(_BINARY) or (b"\0" in start and not _is_wide(start)):
        raise Unfit("not-html", f"{stated or 'no type stated'}, but the content is binary")
    if stated in HTML_TYPES:
        return HTML
    if stated == PLAIN:
        return PLAIN
    if stated in _UNSURE:
        if _PAGE.match(start.removeprefix(b"\xef\xbb\xbf")):
            return HTML
        raise Unfit("not-html", f"{stated or 'no type stated'}, and the content is no page")
    raise Unfit("not-html", stated[:100])


def _is_wide(start: bytes) -> bool:
    """Whether NUL bytes are those of UTF-16 or UTF-32: a mark, or all at odd or all at even places."""
    if any(start.startswith(mark) for mark, _ in MARKS):
        return True
    return start[::2].count(0) == 0 or start[1::2].count(0) == 0


def page_row(
    body: bytes, kind: str, content_type: str, meta: dict[str, object], user_id: str | None, limit: int, counters: Counters
) -> Row:
    """The document of a page (or of plain text): its text decoded, `meta` with `content_type` and `charset`.

    Raises `Unfit`: `too-large` above `limit` bytes of UTF-8, `not-utf8` if the encoding cannot be told.
    """
    labels = [label_of_header(content_type), *(labels_of_page(body) if kind == HTML else ())]
    found = decode(body, labels)
    if found is None:
        raise Unfit("not-utf8", "no encoding is stated; to have it guessed: pip install 'gristmill[web]'")
    count(counters, "sequences-replaced", found.replaced)
    size = text_bytes(found.text)
    if size > limit:
        raise too_large(size, limit)
    return Row(found.text, size, user_id, json_text(meta | {"content_type": kind, "charset": found.charset}))


def read_html(
    where: FileSlice, settings: ReadSettings, counters: Counters
) -> Iterator[pa.RecordBatch | Reject | Damaged]:
    """One document: the whole file, record 0, still HTML. `meta` is `{charset, content_type}`."""
    held: list[bytes] = []
    size = 0
    try:
        for block in blocks(where.path):
            size += len(block)
            held = [*held, block] if size <= settings.max_document else []
    except DamagedStream as damage:
        yield Damaged(where.uri, damage.reason, damage.detail, 0)
        return
    count(counters, "bytes", size)
    pending = Pending(where, settings, web=True)
    try:
        if size > settings.max_document:
            raise too_large(size, settings.max_document)
        body = b"".join(held)
        row = page_row(body, kind_of(HTML, body), "", {}, None, settings.max_document, counters)
    except Unfit as unfit:
        yield Reject(where.uri, 0, None, unfit.reason, unfit.detail)
        return
    pending.add(0, *row)
    yield from pending.rest()
