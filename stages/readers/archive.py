"""Records of a web archive: WARC (0.17 to 1.1) and ARC (1 and 2), with the place where each starts.

The length that a record states is believed where a record, or the end, follows. Else its end is where the
next record starts: wrong lengths are the commonest damage, and cost nothing this way.
Formats: ISO 28500 (WARC 1.1); "Arc File Format", Internet Archive 1996.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from stages.readers.members import Event, Fault, Place, Seal
from stages.readers.record import KIB, MIB

_LONGEST_HEAD = 256 * KIB
_LOOK_AHEAD = 16 * KIB  # of a following record, enough to know it by
_BREAKS = b"\r\n"
_END_OF_HEAD = re.compile(rb"\r?\n[ \t]*\r?\n")
_WARC = re.compile(rb"WARC/\d+\.\d+[ \t]*\r?\n(?=[A-Za-z])")
_ARC = re.compile(
    rb"(?P<url>[A-Za-z][A-Za-z0-9+.-]{1,20}:[^\r\n]{0,8192}?) (?P<ip>[0-9A-Fa-f.:]+|-) (?P<date>\d{8,18})"
    rb"(?: (?P<type>\S*))?(?: [^\r\n]*?)? (?P<length>-?\w+)[ \t]*\r?\n"
)
#: A record start in the middle of other bytes.
_START = re.compile(
    rb"\n(?=WARC/\d+\.\d+[ \t]*\r?\n[A-Za-z-]+[ \t]*:|" + re.sub(rb"\?P<\w+>", b"?:", _ARC.pattern) + rb")"
)
#: Breaks that belong to the format and not to the body before them.
_CLOSING = re.compile(rb"(?:\r?\n){1,2}\Z")


class Record(NamedTuple):
    """One record.

    offset   where it starts in the decompressed stream
    place    the stored byte at which the member starts that it starts in; of a plain archive, the offset
    kind     its WARC-Type in lower case; ARC records are `response`, its version block `warcinfo`
    fields   header fields, names in lower case; the first of several with one name
    body     its block; None if it is larger than was asked for
    size     bytes of the block
    repaired its length was wrong or missing
    """

    offset: int
    place: int
    kind: str
    fields: dict[str, str]
    body: bytes | None
    size: int
    repaired: bool


class Broken(NamedTuple):
    """Bytes that are not a whole record; what follows them can be read."""

    offset: int
    place: int
    detail: str


class Unreadable(NamedTuple):
    """The last thing of an archive that does not end well: `(reason, detail)` as in `Damaged`."""

    place: int
    reason: str
    detail: str


class _Head(NamedTuple):
    size: int
    kind: str
    fields: dict[str, str]
    length: int | None


def starts_record(data: bytes) -> bool:
    """Whether a record starts here, as far as these first bytes tell."""
    return _WARC.match(data) is not None or _ARC.match(data) is not None


def records(events: Iterator[Event], longest: int) -> Iterator[Record | Broken | Unreadable]:
    """All records in order; bodies of more than `longest` bytes are passed over. At most one `Unreadable`, at the end.

    A record that a fault is in, or that was not yet checked when the fault came, is `Broken`.
    """
    reader = _Reader(events, longest)
    yield from reader.records()


class _Reader:
    """A window on the stream: `_held` starts at `_offset`, everything before `_checked` is known to be good."""

    def __init__(self, events: Iterator[Event], longest: int) -> None:
        self._events = events
        self._longest = longest
        self._held = bytearray()
        self._offset = 0
        self._checked = 0
        self._fault: Fault | None = None
        self._over = False  # no more bytes before the next fault, or at all
        self._any = False
        #: Where in the stream members begin that were read, and where those are stored; the first one holds `_offset`.
        self._members: deque[tuple[int, Place]] = deque()

    def records(self) -> Iterator[Record | Broken | Unreadable]:
        while True:
            yield from self._stretch()
            if self._fault is None:
                break
            fault, self._fault, self._over = self._fault, None, False
            if fault.last:
                yield Unreadable(self._place(), fault.reason, fault.detail)
                return
            self._forget(len(self._held))
            self._checked = self._offset
        if not self._any:
            none = ("wrong-format", "the file holds no WARC or ARC record")
            yield Unreadable(0, *(none if self._offset else ("truncated", "the file is empty")))

    def _stretch(self) -> Iterator[Record | Broken | Unreadable]:
        """Records up to a fault or the end. One is kept back until it is known to be good."""
        kept: Record | None = None
        kept_end = 0
        while True:
            self._skip_breaks()
            start, place = self._offset, self._place()
            if not self._fill(1):
                break
            place = self._place()
            head = self._head()
            if head is None:
                cut = self._over and self._held.startswith(b"WARC/")
                lost = self._to_next_start()
                if self._fault is None and cut:
                    yield from () if kept is None else (kept,)
                    why = f"the file ends within the head of a record at byte {start:,}"
                    yield Unreadable(place, "truncated", why)
                    return
                if self._fault is None and (self._any or self._held):
                    yield Broken(start, place, f"{lost:,} bytes that are no record")
                continue
            if kept is not None:
                yield kept
            self._any = True
            self._forget(head.size)
            kept, fate = self._body(start, place, head)
            kept_end = self._offset
            if fate is not None:
                yield fate
            if isinstance(fate, Unreadable):
                return
        if kept is not None and self._good(kept_end):
            yield kept
            kept = None
        if self._fault is not None and not self._fault.last:
            at = (start, place) if kept is None else (kept.offset, kept.place)
            yield Broken(*at, self._fault.detail)

    def _good(self, end: int) -> bool:
        return self._fault is None or end <= self._checked

    def _body(self, start: int, place: int, head: _Head) -> tuple[Record | None, Broken | Unreadable | None]:
        """`(record, what is wrong)` of the record whose head was just passed; both None if a fault cut it."""
        length = head.length
        if length is not None and length > self._longest:
            passed = self._discard(length)
            if passed < length:
                return None, self._short(start, place, length, passed)
            return Record(start, place, head.kind, head.fields, None, length, False), None
        repaired = length is None or not self._followed(length)
        if repaired:
            end = self._next_start()
            if end is None and length is not None and len(self._held) >= length:
                end, repaired = length, False  # something else follows, and it is looked at next
            elif end is None and length is None and self._over and self._fault is None:
                end = len(self._held)
            elif end is None:
                passed = self._discard(len(self._held))
                return None, self._short(start, place, length, passed)
            length = end
        assert length is not None
        body = bytes(memoryview(self._held)[:length])
        if repaired:
            body = _CLOSING.sub(b"", body)
        self._forget(length)
        if not head.kind:
            return None, Broken(start, place, "the record has no WARC-Type")
        return Record(start, place, head.kind, head.fields, body, len(body), repaired), None

    def _short(self, start: int, place: int, length: int | None, passed: int) -> Broken | Unreadable | None:
        """What is wrong with a record of which only `passed` bytes were found."""
        if self._fault is not None:
            return None  # said where the fault is
        if length is None:
            return Broken(start, place, f"the record states no length, and none follows within {passed:,} bytes")
        why = f"the record at byte {start:,} states {length:,} bytes; {passed:,} follow"
        return Unreadable(place, "truncated", why)

    def _followed(self, length: int) -> bool:
        """Whether what stands behind the block is what may: breaks and a record, or the end."""
        complete = self._fill(length + _LOOK_AHEAD)
        if len(self._held) < length:
            return False
        after = bytes(memoryview(self._held)[length : length + _LOOK_AHEAD])
        bare = after.lstrip(_BREAKS + b"\0")
        if not bare:
            return bool(after) or not complete
        return starts_record(bare) or after.startswith((b"\r\n\r\n", b"\n\n"))

    def _head(self) -> _Head | None:
        """The head of the record that starts here; None if none does."""
        self._fill(_LOOK_AHEAD)
        if (line := _ARC.match(self._held)) is not None:
            return _arc_head(line)
        version = _WARC.match(self._held)
        if version is None:
            return None
        while (end := _END_OF_HEAD.search(self._held, version.end() - 1)) is None:
            if len(self._held) > _LONGEST_HEAD or not self._fill(len(self._held) + 1):
                return None
        return _warc_head(bytes(memoryview(self._held)[version.end() : end.start()]), end.end())

    def _next_start(self) -> int | None:
        """Where in the window the next record starts, read for as far as bodies may be long; None if nowhere."""
        place = 0
        while (found := _START.search(self._held, place)) is None:
            place = max(len(self._held) - 2 * _LOOK_AHEAD, 0)
            if self._over or len(self._held) > self._longest + _LONGEST_HEAD:
                return None
            self._fill(len(self._held) + MIB)
        return found.end()

    def _to_next_start(self) -> int:
        """Drops bytes up to the next record, or all there are; returns how many."""
        lost = self._offset
        while (found := _START.search(self._held)) is None and not self._over:
            self._forget(max(len(self._held) - 2 * _LOOK_AHEAD, 0))
            self._fill(len(self._held) + MIB)
        self._forget(len(self._held) if found is None else found.end())
        return self._offset - lost

    def _skip_breaks(self) -> None:
        while self._fill(1) and self._held[0] in b"\r\n\0":
            self._forget(len(self._held) - len(self._held.lstrip(_BREAKS + b"\0")))

    def _discard(self, number: int) -> int:
        passed = 0
        while passed < number and self._fill(1):
            step = min(number - passed, len(self._held))
            self._forget(step)
            passed += step
        return passed

    def _place(self) -> int:
        """The place, as in `Record`, of what the window starts with."""
        while len(self._members) > 1 and self._members[1][0] <= self._offset:
            self._members.popleft()
        if not self._members:
            return 0
        begin, member = self._members[0]
        return member.stored + (self._offset - begin if member.plain else 0)

    def _forget(self, number: int) -> None:
        del self._held[:number]
        self._offset += number

    def _fill(self, number: int) -> bool:
        """Reads until the window holds `number` bytes; False if there are not so many before a fault or the end."""
        while len(self._held) < number and not self._over:
            event = next(self._events, None)
            if event is None:
                self._over = True
            elif isinstance(event, Fault):
                self._fault, self._over = event, True
            elif event is Seal.GOOD:
                self._checked = self._offset + len(self._held)
            elif isinstance(event, Place):
                self._members.append((self._offset + len(self._held), event))
            else:
                assert isinstance(event, bytes)
                self._held += event
        return len(self._held) >= number


def _warc_head(lines: bytes, size: int) -> _Head:
    fields = header_fields(lines)
    length = fields.get("content-length", "")
    number = int(length) if length.isascii() and length.isdigit() and len(length) < 16 else None
    return _Head(size, fields.get("warc-type", "").lower(), fields, number)


def header_fields(lines: bytes) -> dict[str, str]:
    """Names in lower case -> values, of the lines of a head; folded lines are joined, the first of a name wins."""
    fields: dict[str, str] = {}
    name = ""
    for line in lines.split(b"\n"):
        text = line.decode("utf-8", "replace").rstrip("\r")
        if text[:1] in (" ", "\t") and name:
            fields[name] = f"{fields[name]} {text.strip()}".strip()
            continue
        key, colon, value = text.partition(":")
        if not colon:
            continue
        name = key.strip().lower()
        if name in fields:
            name = ""
        else:
            fields[name] = value.strip()
    return fields


def _arc_head(line: re.Match[bytes]) -> _Head:
    url = line["url"].decode("utf-8", "replace")
    length = line["length"]
    fields = {
        "warc-target-uri": url,
        "warc-date": _arc_date(line["date"].decode()),
        "content-type": (line["type"] or b"").decode("utf-8", "replace"),
    }
    kind = "warcinfo" if url.startswith("filedesc:") else "response"
    return _Head(line.end(), kind, fields, int(length) if length.isdigit() and len(length) < 16 else None)


def _arc_date(digits: str) -> str:
    """`20140216050221` as `2014-02-16T05:02:21Z`; other lengths as they stand."""
    if len(digits) != 14:
        return digits
    day = f"{digits[:4]}-{digits[4:6]}-{digits[6:8]}"
    return f"{day}T{digits[8:10]}:{digits[10:12]}:{digits[12:]}Z"
