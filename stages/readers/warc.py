"""Web archives (WARC, WET, ARC) -> documents: pages as decoded HTML, and plain text.

`record` of a document is where its record starts in the decompressed stream, so the same archive gives the same
documents as gzip, as zstd and plain. Requests, metadata, revisits … are no documents; they are counted. A damaged
record is a reject and the rest of the file is read; a file that ends too early is `Damaged`.

A slice owns the records that begin in a member whose first stored byte lies in its range (of a plain archive: whose own
first byte does). Archives hold archives, so nothing but the records before it tells for certain where a record begins:
each slice goes over all that is in front of it, as fast as that can be unpacked, and looks into its own records only.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from stages.readers.archive import Broken, Record, Unreadable, records, starts_record
from stages.readers.batches import Pending, Row
from stages.readers.fields import Counters, count
from stages.readers.html import kind_of, page_row
from stages.readers.http import decoded_body, parse_response
from stages.readers.members import Event, Place, archive_events
from stages.readers.record import Damaged, FileSlice, ReadSettings, Reject, Unfit

#: Records that hold a page or a text; all others are only counted.
_DOCUMENTS = frozenset({"response", "resource", "conversion"})
_COUNTED = frozenset({"warcinfo", "request", "metadata", "revisit", "continuation"})


def read_warc(
    where: FileSlice, settings: ReadSettings, counters: Counters
) -> Iterator[pa.RecordBatch | Reject | Damaged]:
    """The pages of an archive. `meta` has `url`, `date` (of the crawl), `content_type`, `charset`.

    `keep_meta` adds header fields of the record by name (`WARC-IP-Address`); the user's id is the field that `id`
    names, else the WARC-Record-ID. Counted are the records that are no documents by kind (`request-records`),
    wrong lengths (`repaired-records`), bodies that break off (`cut-bodies`), wrong sequences that became U+FFFD
    (`sequences-replaced`). With `on_damaged: stop` the first damaged record ends the file.
    """
    pending = Pending(where, settings, web=True)
    events = _counted(archive_events(where.path, starts_record), where, counters)
    for item in records(events, settings.max_document):
        if item.place < where.start:
            continue
        if where.end is not None and item.place >= where.end:
            break
        if isinstance(item, Broken) and settings.on_damaged == "stop":
            item = Unreadable(item.place, "corrupt", item.detail)
        if isinstance(item, Unreadable):
            yield from pending.rest()
            yield Damaged(where.uri, item.reason, item.detail, pending.taken)
            return
        if isinstance(item, Broken):
            yield Reject(where.uri, item.offset, None, "damaged-record", item.detail)
            continue
        count(counters, "repaired-records", int(item.repaired))
        if item.kind not in _DOCUMENTS:
            count(counters, f"{item.kind if item.kind in _COUNTED else 'other'}-records")
            continue
        try:
            row = _row(item, settings, counters)
        except Unfit as unfit:
            yield Reject(where.uri, item.offset, None, unfit.reason, unfit.detail)
            continue
        if pending.full(row.size):
            yield pending.take()
        pending.add(item.offset, *row)
    yield from pending.rest()


def _counted(events: Iterator[Event], where: FileSlice, counters: Counters) -> Iterator[Event]:
    """The same events; the decompressed bytes of members of the slice are counted."""
    place, plain = 0, False
    for event in events:
        if isinstance(event, Place):
            place, plain = event.stored, event.plain
        elif isinstance(event, bytes):
            first = max(where.start - place, 0)
            last = len(event) if where.end is None else min(where.end - place, len(event))
            if plain:
                count(counters, "bytes", max(last - first, 0))
                place += len(event)
            elif first == 0 and (where.end is None or place < where.end):
                count(counters, "bytes", len(event))
        yield event


def _row(record: Record, settings: ReadSettings, counters: Counters) -> Row:
    """The document of a record. Raises `Unfit`."""
    limit = settings.max_document
    if record.body is None:
        raise Unfit("too-large", f"a record of {record.size:,} bytes; max_document is {limit:,}")
    fields = record.fields
    content_type, body = fields.get("content-type", ""), record.body
    if record.kind == "response":
        content_type, body = _response(record, limit, counters)
    kind = kind_of(content_type, body)
    meta: dict[str, object] = {
        name: fields[name.lower()] for name in settings.keep_meta if name.lower() in fields
    }
    url = fields.get("warc-target-uri", "").removeprefix("<").removesuffix(">")
    meta |= {key: value for key, value in (("url", url), ("date", fields.get("warc-date"))) if value}
    user_id = fields.get(settings.id.lower()) or fields.get("warc-record-id", "").strip("<>") or None
    return page_row(body, kind, content_type, meta, user_id, limit, counters)


def _response(record: Record, limit: int, counters: Counters) -> tuple[str, bytes]:
    """`(content type, decoded body)` of a response. Raises `Unfit`."""
    assert record.body is not None
    stated = record.fields.get("content-type", "")
    response = parse_response(record.body)
    if response is None:
        if stated.replace(" ", "").lower().startswith("application/http"):
            raise Unfit("not-html", "the record holds no HTTP response")
        return stated, record.body  # an ARC record without header, or another protocol
    if not 200 <= response.status < 300:
        raise Unfit("http-status", f"HTTP status {response.status}")
    body, cut = decoded_body(response, limit)
    count(counters, "cut-bodies", int(cut))
    content_type = response.fields.get("content-type", "")
    return content_type or record.fields.get("warc-identified-payload-type", ""), body
