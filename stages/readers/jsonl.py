"""JSON records -> documents: one a line, or the elements of one array.

orjson reads each line. What it cannot take or would change (lone surrogates, NaN, integers over 64 bits) is
read again, slowly and exactly, so the common record pays nothing for the odd one.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any

import orjson
import pyarrow as pa

from stages.readers.batches import Pending, Row, text_bytes, too_large
from stages.readers.fields import Counters, count, find, id_text, json_text, kept, repair, shape
from stages.readers.lines import check_head, line_pieces
from stages.readers.record import KIB, Damaged, DamagedStream, FileSlice, ReadSettings, Reject, Unfit
from stages.readers.streams import blocks, head
from stages.readers.template import plain_field, text_maker

#: Depth of nesting that the exact parser follows (orjson: 1,024); fixed, whatever the stack has room for.
MAX_DEPTH = 500
#: A line may be this many times larger than the text it may hold: escapes, and the other fields.
LINE_FACTOR = 4

_BOM = b"\xef\xbb\xbf"
_NESTING = re.compile(rb'"(?:[^"\\]|\\.)*"?|[\[{]|[\]}]', re.DOTALL)


class JsonRecords:
    """Lines (`line`) or parsed objects (`record`) -> `Row`; both raise `Unfit`."""

    def __init__(self, settings: ReadSettings, counters: Counters) -> None:
        self._settings = settings
        self._counters = counters
        self._text_of = text_maker(settings)
        field = plain_field(settings)
        self._field = field if field is not None and "." not in field else None
        self._id = settings.id
        self._dotted_id = "." in settings.id
        self._keep = settings.keep_meta
        self.longest = LINE_FACTOR * settings.max_document

    def line(self, line: bytes) -> Row | None:
        """The document of one line; None if the line is blank."""
        size = len(line)
        try:
            record = orjson.loads(line)
            text = record[self._field] if self._field is not None else None
            user = record.get(self._id)
        except (ValueError, KeyError, TypeError, AttributeError):
            return self._again(line)
        if size > self._settings.max_document or type(text) is not str:
            return self._made(record, line)
        if type(user) is not str and (user is not None or self._dotted_id):
            user = self._user_id(record, line)
        return Row(text, size, user, self._meta(record, line) if self._keep else None)

    def record(self, record: Any) -> Row:
        """The document of a parsed value."""
        return self._made(record, None)

    def _made(self, record: Any, line: bytes | None) -> Row:
        """The document, whatever makes its text. `line` is None where the parser was exact already."""
        if not isinstance(record, dict):
            kind = {list: "an array; for a file that is one array set `format: json`", type(None): "null"}
            raise Unfit("not-object", f"the record is {kind.get(type(record), type(record).__name__)}")
        if line is not None and len(line) > self.longest:
            raise long_line(len(line))
        text = repair(self._text_of(record), self._counters)
        size = text_bytes(text)
        if size > self._settings.max_document:
            raise too_large(size, self._settings.max_document)
        return Row(text, size, self._user_id(record, line), self._meta(record, line) if self._keep else None)

    def _user_id(self, record: dict[str, Any], line: bytes | None) -> str | None:
        value = find(record, self._id)
        if isinstance(value, float) and line is not None:
            value = find(json.loads(line.removeprefix(_BOM), parse_int=str, parse_float=str), self._id)
        text = id_text(value)
        return text if text is None else repair(text, self._counters)

    def _meta(self, record: dict[str, Any], line: bytes | None) -> str:
        values = kept(record, self._keep)
        if line is not None and not shape(values).exact:
            values = kept(parse_exactly(line), self._keep)
        return repair(json_text(values), self._counters)

    def _again(self, line: bytes) -> Row | None:
        """A line that orjson refused, or that lacks a field."""
        if not line.strip():
            count(self._counters, "blank-lines")
            return None
        if len(line) > self.longest:
            raise long_line(len(line))
        try:
            return self._made(parse_exactly(line), line)
        except Unfit as unfit:
            if unfit.reason == "bad-json" and line.strip() == b"[":
                raise Unfit(unfit.reason, "an array that spans lines; set `format: json`") from None
            raise


def long_line(size: int) -> Unfit:
    """The outcome of a line that is too long to parse."""
    return Unfit("too-large", f"a line of {size:,} bytes; the limit is {LINE_FACTOR} x max_document")


def parse_exactly(data: bytes) -> Any:
    """The JSON value with integers of any size; NaN and infinities become strings. Raises `Unfit`."""
    try:
        text = data.removeprefix(_BOM).decode()
    except UnicodeDecodeError as error:
        raise Unfit("not-utf8", f"byte {error.start} of the record: {error.reason}") from None
    if data.count(b"[") + data.count(b"{") > MAX_DEPTH and _depth(data) > MAX_DEPTH:
        raise Unfit("too-deep", f"nested deeper than {MAX_DEPTH}")
    try:
        return json.loads(text, parse_int=_integer, parse_float=_number, parse_constant=str)
    except json.JSONDecodeError as error:
        raise Unfit("bad-json", f"{error.msg} at character {error.pos + 1}") from None
    except RecursionError:
        raise Unfit("too-deep", "nested too deeply") from None


def _depth(data: bytes) -> int:
    deepest = depth = 0
    for token in _NESTING.finditer(data):
        first = data[token.start()]
        if first in b"[{":
            depth += 1
            deepest = max(deepest, depth)
        elif first in b"]}":
            depth -= 1
    return deepest


def _integer(digits: str) -> int | str:
    return int(digits) if len(digits) < 4_000 else digits  # int() refuses more than 4,300 digits


def _number(digits: str) -> float | str:
    value = float(digits)
    return value if math.isfinite(value) else digits


def read_jsonl(
    where: FileSlice, settings: ReadSettings, counters: Counters
) -> Iterator[pa.RecordBatch | Reject | Damaged]:
    """The documents of a slice of a file of JSON lines."""
    records = JsonRecords(settings, counters)
    pending = Pending(where, settings)
    parse = records.line
    number = 0 if where.start == 0 else None  # lines before the current one
    try:
        check_head(where.path)
        for offset, data, size in line_pieces(where, records.longest):
            count(counters, "bytes", size)
            if data is None:
                number = None if number is None else number + 1
                yield Reject(where.uri, offset, number, *long_line(size - 1).args)
                continue
            lines = data.split(b"\n")
            if not lines[-1]:
                lines.pop()
            count(counters, "blank-lines", lines.count(b""))
            for index, line in enumerate(lines, 1):
                try:
                    found = parse(line) if line else None
                except Unfit as unfit:
                    hint = None if number is None else number + index
                    yield Reject(where.uri, offset, hint, unfit.reason, unfit.detail)
                else:
                    if found is not None:
                        if pending.full(found[1]):
                            yield pending.take()
                        pending.add(offset, *found)
                offset += len(line) + 1
            number = None if number is None else number + len(lines)
    except DamagedStream as damage:
        yield from pending.rest()
        yield Damaged(where.uri, damage.reason, damage.detail, pending.taken)
    else:
        yield from pending.rest()


def read_json(
    where: FileSlice, settings: ReadSettings, counters: Counters
) -> Iterator[pa.RecordBatch | Reject | Damaged]:
    """The documents of a file that is one JSON array of records, one record, or lines named .json.

    In the first two the record number is the index in the array. The file is held in memory.
    """
    try:
        check_head(where.path)
        if not _is_one_value(where.path):
            yield from read_jsonl(where, settings, counters)
            return
        data = b"".join(blocks(where.path))
        count(counters, "bytes", len(data))
        value = parse_exactly(data)
    except DamagedStream as damage:
        yield Damaged(where.uri, damage.reason, damage.detail, 0)
        return
    except Unfit as unfit:  # one fault makes the whole file unreadable
        reason = "wrong-encoding" if unfit.reason == "not-utf8" else "corrupt"
        yield Damaged(where.uri, reason, f"{unfit.reason}: {unfit.detail}", 0)
        return
    del data
    records = JsonRecords(settings, counters)
    pending = Pending(where, settings)
    for index, record in enumerate(value if isinstance(value, list) else [value]):
        try:
            found = records.record(record)
        except Unfit as unfit:
            yield Reject(where.uri, index, None, unfit.reason, unfit.detail)
        else:
            if pending.full(found.size):
                yield pending.take()
            pending.add(index, *found)
    yield from pending.rest()


def _is_one_value(path: str) -> bool:
    """Whether the file starts with an array, or with a line that is only the beginning of an object."""
    start = head(path, 64 * KIB).removeprefix(_BOM).lstrip()
    if start.startswith(b"["):
        return True
    line, end, _ = start.partition(b"\n")
    if not end or not line.startswith(b"{"):
        return False  # one line is read the same either way
    try:
        parse_exactly(line)
    except Unfit as unfit:
        return unfit.reason == "bad-json"
    return False
