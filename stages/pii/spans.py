"""Spans of personal details: which of them count when they overlap, and what stands in their place."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from stages.pii import addresses, credentials, numbers, phones

Kind = Literal["email", "phone", "id-card", "bank-card", "iban", "ip", "secret"]


@dataclass(frozen=True)
class Finder:
    """How one kind is found. `find(text)` yields `(start, stop)` in code points of the text.

    screen  RE2: a text that it does not match has none of the kind
    """

    screen: str
    find: Callable[[str], Iterator[tuple[int, int]]]
    tag: str


#: In order of trust: of two spans that overlap, the one of the earlier kind counts.
KINDS: dict[Kind, Finder] = {
    "secret": Finder(credentials.SCREEN, credentials.find_secrets, "SECRET"),
    "email": Finder(addresses.EMAIL_SCREEN, addresses.find_emails, "EMAIL"),
    "iban": Finder(numbers.IBAN_SCREEN, numbers.find_ibans, "IBAN"),
    "id-card": Finder(numbers.ID_SCREEN, numbers.find_id_cards, "ID-CARD"),
    "bank-card": Finder(numbers.CARD_SCREEN, numbers.find_bank_cards, "BANK-CARD"),
    "ip": Finder(addresses.IP_SCREEN, addresses.find_ips, "IP"),
    "phone": Finder(phones.SCREEN, phones.find_phones, "PHONE"),
}

#: Other forms of the characters that numbers and addresses are written with: full width, Arabic-Indic, Persian digits.
#: One character for one, so that indices stay those of the original.
_FORMS = {0xFF10 + d: 0x30 + d for d in range(10)} | {0x0660 + d: 0x30 + d for d in range(10)}
_FORMS |= {0x06F0 + d: 0x30 + d for d in range(10)} | {
    ord(w): ord(a) for w, a in zip("＠（）－＋．", "@()-+.", strict=True)
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

    def scrub(self, text: str, screened: tuple[Kind, ...]) -> tuple[str, list[int]]:
        """`(clean text, how many of each kind)`; the text itself where there are none.

        screened  the kinds whose screen matches the text; once a value is out, all kinds are looked for
        """
        counts = dict.fromkeys(self.kinds, 0)
        for passed in range(MAX_PASSES):
            spans = find_spans(text, self.kinds if passed else screened)
            if not spans:
                break
            pieces: list[str] = []
            end = 0
            for span in spans:
                counts[span.kind] += 1
                pieces += (text[end : span.start], self._substitute(text[span.start : span.stop], span.kind))
                end = span.stop
            text = "".join(pieces) + text[end:]
        return text, list(counts.values())

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
