"""Spans of personal details: which of them count when they overlap, and what stands in their place."""

from __future__ import annotations

import bisect
import functools
import hashlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa

from stages.document import text_buffers
from stages.pii import addresses, credentials, hits, numbers, phones
from stages.pii.windows import Window, find_windows

Kind = Literal["email", "phone", "id-card", "bank-card", "iban", "ip", "secret"]


@dataclass(frozen=True)
class Finder:
    """How one kind is found. `find(text)` yields `(start, stop)` in code points of the text; `bit` is its bit in `hits`."""

    bit: int
    find: Callable[[str], Iterator[tuple[int, int]]]
    tag: str


#: In order of trust: of two spans that overlap, the one of the earlier kind counts.
KINDS: dict[Kind, Finder] = {
    "secret": Finder(hits.SECRET, credentials.find_secrets, "SECRET"),
    "email": Finder(hits.EMAIL, addresses.find_emails, "EMAIL"),
    "iban": Finder(hits.IBAN, numbers.find_ibans, "IBAN"),
    "id-card": Finder(hits.ID_CARD, numbers.find_id_cards, "ID-CARD"),
    "bank-card": Finder(hits.BANK_CARD, numbers.find_bank_cards, "BANK-CARD"),
    "ip": Finder(hits.IP, addresses.find_ips, "IP"),
    "phone": Finder(hits.PHONE, phones.find_phones, "PHONE"),
}

#: Other forms of the characters that numbers and addresses are written with: full width, Arabic-Indic, Persian digits.
#: One character for one, so that indices stay those of the original.
_FORMS = {0xFF10 + d: 0x30 + d for d in range(10)} | {0x0660 + d: 0x30 + d for d in range(10)}
_FORMS |= {0x06F0 + d: 0x30 + d for d in range(10)} | {
    ord(w): ord(a) for w, a in zip("＠（）－＋．Ｘｘ", "@()-+.Xx", strict=True)
}
_FORMS |= dict.fromkeys(range(0x2010, 0x2014), 0x2D) | {0x2212: 0x2D, 0x00A0: 0x20, 0x202F: 0x20}

#: Scrubbing goes on until nothing is found: taking a value out can bring digits or words together.
MAX_PASSES = 8


@dataclass(frozen=True)
class Span:
    """Code points `start` to `stop` (exclusive) of the original text."""

    start: int
    stop: int
    kind: Kind


def find_spans(text: str, kinds: tuple[Kind, ...] = tuple(KINDS)) -> list[Span]:
    """All spans of these kinds, in order, none overlapping another."""
    view = text if text.isascii() else text.translate(_FORMS)
    taken: list[Span] = []
    for kind in KINDS:
        if kind in kinds:
            found = [Span(start, stop, kind) for start, stop in KINDS[kind].find(view)]
            taken = _merged(taken, found)
    return taken


def _merged(taken: list[Span], found: list[Span]) -> list[Span]:
    """Both, in order, without those of `found` that overlap one of `taken` or an earlier one of `found`."""
    result: list[Span] = []
    at = 0
    end = 0
    for span in sorted(found, key=lambda s: (s.start, -s.stop)):
        while at < len(taken) and taken[at].start < span.start:
            result.append(taken[at])
            end = max(end, taken[at].stop)
            at += 1
        blocked = at < len(taken) and taken[at].start < span.stop
        if span.start >= end and not blocked:
            result.append(span)
            end = span.stop
    return result + taken[at:]


class Scrubber:
    """Replaces spans. `scrub(scrub(x)) == scrub(x)`: the tags hold nothing that any finder takes for its kind."""

    def __init__(
        self, kinds: tuple[Kind, ...], replace: Literal["tag", "pseudonym", "remove"], key: bytes
    ) -> None:
        self.kinds = kinds
        self.replace = replace
        self.key = key
        self._bits = sum(KINDS[kind].bit for kind in kinds)

    def scrub(self, texts: pa.Array) -> tuple[dict[int, str], np.ndarray]:
        """`(clean text by row, for the rows that change; how many of each kind, int32 [N, kinds])`."""
        counts_NK = np.zeros((len(texts), len(self.kinds)), np.int32)
        clean: dict[int, str] = {}
        rows = list(range(len(texts)))
        replaced: list[list[int]] | None = None
        for _ in range(MAX_PASSES):
            edits = self._edits(*text_buffers(texts), rows, replaced, counts_NK)
            if not edits:
                break
            replaced, fresh = [], []
            for row, found in edits.items():
                text, at = _edited(texts[row].as_py().encode(), found)
                clean[rows[row]] = text
                fresh.append(text)
                replaced.append(at)
            rows = [rows[row] for row in edits]
            texts = pa.array(fresh, pa.large_string())
        return clean, counts_NK

    def _edits(
        self,
        data_U8: np.ndarray,
        offsets_N1: np.ndarray,
        rows: list[int],
        replaced: list[list[int]] | None,
        counts_NK: np.ndarray,
    ) -> dict[int, list[tuple[int, int, str]]]:
        """What to put where: `(first byte of the text, end, substitute)` by index into `rows`; counts them.

        replaced  bytes of each text at which something was replaced before: only there can be something new
        """
        edits: dict[int, list[tuple[int, int, str]]] = {}
        content = memoryview(data_U8)  # type: ignore[arg-type]
        starts = offsets_N1.tolist()
        for window in find_windows(data_U8, offsets_N1, self._bits):
            begin = starts[window.row]
            if replaced is not None and not _holds(
                replaced[window.row], window.start - begin, window.stop - begin
            ):
                continue
            text = str(content[window.start : window.stop], "utf-8")
            reach: dict[int, tuple[list[int], list[int]]] = {}
            for span in find_spans(text, _kinds_of(window.kinds)):
                start, stop = _bytes_of(text, window, span)
                bit = KINDS[span.kind].bit
                if bit not in reach:
                    reach[bit] = _reach(window, bit)
                if _touches(*reach[bit], start, stop):
                    counts_NK[rows[window.row], self.kinds.index(span.kind)] += 1
                    substitute = self._substitute(text[span.start : span.stop], span.kind)
                    edits.setdefault(window.row, []).append((start - begin, stop - begin, substitute))
        return edits

    def _substitute(self, value: str, kind: Kind) -> str:
        if self.replace == "remove":
            return ""
        if self.replace == "tag":
            return f"<{KINDS[kind].tag}>"
        digest = hashlib.blake2b(
            f"{kind}\0{value}".encode("utf-8", "surrogatepass"), key=self.key, digest_size=8
        ).digest()
        number = int.from_bytes(digest, "big")
        letters = "".join(chr(0x61 + number // 26**place % 26) for place in range(8))
        return f"<{KINDS[kind].tag}-{letters}>"


@functools.lru_cache(maxsize=128)
def _kinds_of(bits: int) -> tuple[Kind, ...]:
    return tuple(kind for kind, finder in KINDS.items() if finder.bit & bits)


def _bytes_of(text: str, window: Window, span: Span) -> tuple[int, int]:
    """First byte and end of a span of a window, in the buffer of all texts."""
    if len(text) == window.stop - window.start:  # ASCII
        return window.start + span.start, window.start + span.stop
    start = window.start + len(text[: span.start].encode())
    return start, start + len(text[span.start : span.stop].encode())


def _reach(window: Window, bit: int) -> tuple[list[int], list[int]]:
    """First bytes of the hits of a kind, ascending, and how far any of the hits up to there goes."""
    found = sorted((first, end) for kinds, first, end in window.hits if kinds & bit)
    return [first for first, _ in found], list(itertools.accumulate((end for _, end in found), max))


def _touches(firsts: list[int], ends: list[int], start: int, stop: int) -> bool:
    """Whether a span touches a hit of its kind: what does not is there only because the window ends where it does."""
    at = bisect.bisect_left(firsts, stop)
    return at > 0 and ends[at - 1] > start


def _holds(places: list[int], start: int, stop: int) -> bool:
    """Whether one of the ascending places lies between start and stop, both included."""
    at = bisect.bisect_left(places, start)
    return at < len(places) and places[at] <= stop


def _edited(content: bytes, edits: list[tuple[int, int, str]]) -> tuple[str, list[int]]:
    """The text with these pieces replaced, and the bytes where the substitutes end in it."""
    pieces: list[bytes] = []
    places: list[int] = []
    end = size = 0
    for start, stop, substitute in edits:
        pieces += (content[end:start], substitute.encode())
        size += len(pieces[-1]) + len(pieces[-2])
        places.append(size)
        end = stop
    return b"".join([*pieces, content[end:]]).decode(), places
