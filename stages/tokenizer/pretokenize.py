r"""Cuts text into the pieces inside which BPE merges, exactly as the regex in tokenizer.json would.

A pattern is a family of alternatives tried in order at each place; every code point is a letter, a number, white
space or other, so the alternatives cover the text and no search is needed: one look at the class of a character
decides which alternative matches. Classes come from the regex engine that runs the exported file
(`make_unicode_classes.py`). Buffers are Arrow's: `data` is UTF-8, text i is data[offsets[i]:offsets[i + 1]].

    gpt2     ' ?' before a run of letters, numbers or others; contractions in lower case
    gpt4     any one character but a line break before letters; up to 3 digits; line breaks end a run of others
    llama3   the same as gpt4
    qwen2    the same with single digits
    deepseek numbers of 3 digits and runs of Han and kana first; in what is left, one ASCII sign with the ASCII letters
             behind it, any one sign that is neither before letters and marks, ' ?' before signs (DeepSeek V3)

The default is llama3: tools that run exported models know it by name, and numbers of three digits keep the length
of a number visible while they cost a third of the tokens. `split_han` adds `\p{Han}+` in front, so that no piece
mixes Han with Latin or kana letters or takes a punctuation mark before it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numba import njit, types

from stages.text.vectors import load8

PatternName = Literal["gpt2", "gpt4", "llama3", "qwen2", "deepseek"]

LETTER, NUMBER, SPACE, HAN, NFC_UNSAFE, MARK, SIGN = 1, 2, 4, 8, 16, 32, 64

#: Families of patterns.
GPT2, GPT4, DEEPSEEK = 0, 1, 2

#: Pieces per kernel call: boundaries and indices of so many stay in the second-level cache.
CHUNK = 16_384

_TABLE = Path(__file__).with_name("unicode_classes.npz")
_BYTES = types.Array(types.uint8, 1, "C", readonly=True)
_OFFSETS = types.Array(types.int64, 1, "C", readonly=True)
_GPT2_REGEX = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_DEEPSEEK_REGEXES = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^""" + "\r\n" + r"""\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+["""
    + "\r\n" + r"""]*|\s*[""" + "\r\n" + r"""]+|\s+(?!\S)|\s+""",
)  # fmt: skip


@dataclass(frozen=True)
class Pattern:
    """How text is cut. `digits` is the longest run of numbers in one piece, 0 for any length (gpt2 only)."""

    family: int = GPT4
    digits: int = 3
    split_han: bool = False

    @property
    def regexes(self) -> tuple[str, ...]:
        """The same cutting as regular expressions (Oniguruma syntax, as `tokenizers` reads it).

        Each cuts what the one before it left: matches, and what lies between them, are pieces of their own.
        """
        if self.family == GPT2:
            return (_GPT2_REGEX,)
        if self.family == DEEPSEEK:
            return _DEEPSEEK_REGEXES
        han = r"\p{Han}+|" if self.split_han else ""
        letters = r"[\p{L}&&[^\p{Han}]]+" if self.split_han else r"\p{L}+"
        numbers = r"\p{N}" if self.digits == 1 else rf"\p{{N}}{{1,{self.digits}}}"
        return (
            rf"(?i:'s|'t|'re|'ve|'m|'ll|'d)|{han}[^\r\n\p{{L}}\p{{N}}]?{letters}|{numbers}"
            r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        )

    def pre_tokenizer(self) -> dict[str, Any]:
        """The `pre_tokenizer` of a tokenizer.json that cuts like this."""
        byte_level = {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": True,
            "use_regex": self.family == GPT2,
        }
        if self.family == GPT2:
            return byte_level
        splits = [
            {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}
            for regex in self.regexes
        ]
        return {"type": "Sequence", "pretokenizers": [*splits, byte_level]}


def named_pattern(name: PatternName, digits: int | None = None, split_han: bool = False) -> Pattern:
    """The pattern of that name, with another limit for digits or with Han apart. ValueError where it has neither."""
    if name in ("gpt2", "deepseek"):
        if digits is not None or split_han:
            raise ValueError(f"the pattern {name} is fixed: it takes neither `digits` nor `split_han`")
        return Pattern(GPT2, digits=0) if name == "gpt2" else Pattern(DEEPSEEK)
    return Pattern(digits=digits or (1 if name == "qwen2" else 3), split_han=split_han)


_KNOWN = {
    p.regexes: p
    for p in (
        Pattern(GPT2, digits=0),
        Pattern(DEEPSEEK),
        *(Pattern(GPT4, d, han) for d in (1, 2, 3) for han in (False, True)),
    )
}


def recognise(pre_tokenizer: Mapping[str, Any] | None) -> Pattern | None:
    """The pattern that the `pre_tokenizer` of a tokenizer.json cuts by, or None if it is none of ours."""
    steps = [pre_tokenizer] if pre_tokenizer else []
    if steps and steps[0].get("type") == "Sequence":
        steps = list(steps[0]["pretokenizers"])
    if not steps or steps[-1].get("type") != "ByteLevel" or steps[-1].get("add_prefix_space", True):
        return None
    own_regex = steps.pop().get("use_regex", True)
    if not steps:
        return _KNOWN[(_GPT2_REGEX,)] if own_regex else None
    known = None if own_regex else _KNOWN.get(tuple(step.get("pattern", {}).get("Regex") for step in steps))
    # "Removed" with `invert` removes what the pattern does not match: the same, where a pattern matches everything.
    ways = {(step.get("type"), step.get("behavior"), step.get("invert", False)) for step in steps}
    allowed = {("Split", "Isolated", False)} | ({("Split", "Removed", True)} if len(steps) == 1 else set())
    return known if ways <= allowed else None


@functools.cache
def classes() -> np.ndarray:
    """uint8[0x110000], read-only: the class bits of every code point."""
    with np.load(_TABLE, allow_pickle=False) as stored:
        starts, values = stored["starts"], stored["classes"]
    table = np.repeat(values, np.diff(np.r_[starts, 0x110000]))
    table.flags.writeable = False
    return table


def pieces(pattern: Pattern, data: np.ndarray, offsets: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Yields `(start, ends)`: byte positions in `data` where the first piece begins and where each piece ends.

    ends is int64, at most CHUNK of them, ascending, and is overwritten by the next step. Pieces follow each other
    without gaps from offsets[0] to offsets[-1] and never cross the border of a text.
    """
    table = classes()
    ends = np.empty(CHUNK, np.int64)
    position, text = int(offsets[0]), 0
    while position < offsets[-1]:
        count, text, end = _split(
            data, offsets, text, position, table, pattern.family, pattern.digits, pattern.split_han, ends
        )
        yield position, ends[:count]
        position = end


def cut_long(data: np.ndarray, start: int, ends: np.ndarray, limit: int) -> tuple[np.ndarray, int]:
    """`(ends, cut)`: the same pieces with those of more than `limit` code points cut every `limit`; how many were.

    For counting only: it bounds the work on text without spaces, and is not part of how text is encoded.
    """
    room = len(ends) + (int(ends[-1]) - start) // limit + 1
    result = np.empty(room, np.int64)
    count, cut = _cut(data, start, ends, limit, result)
    return result[:count], cut


def nfc_unsafe(data: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """bool per text: whether it holds a character that NFC might change. False means: it is its own NFC."""
    return _any_of_class(data, offsets, classes(), NFC_UNSAFE)


@njit(inline="always", cache=True, nogil=True)
def _character(data, at, end):  # type: ignore[no-untyped-def]
    """`(code point, bytes)` at data[at]; a malformed sequence is one byte of no class, never a read past `end`."""
    first = np.int64(data[at])
    if first < 0x80:
        return first, 1
    if first >= 0xF0 and at + 3 < end:
        code = (
            (first & 7) << 18
            | (data[at + 1] & 0x3F) << 12
            | (data[at + 2] & 0x3F) << 6
            | (data[at + 3] & 0x3F)
        )
        return (code, 4) if code < 0x110000 else (np.int64(0xFFFF), 4)
    if first >= 0xE0 and first < 0xF0 and at + 2 < end:
        return (first & 15) << 12 | (data[at + 1] & 0x3F) << 6 | (data[at + 2] & 0x3F), 3
    if first >= 0xC0 and first < 0xE0 and at + 1 < end:
        return (first & 31) << 6 | (data[at + 1] & 0x3F), 2
    return np.int64(0xFFFF), 1


@njit(inline="always", cache=True, nogil=True)
def _run(data, at, end, table, mask, wanted):  # type: ignore[no-untyped-def]
    """Where the run of characters with `class & mask == wanted` that begins at `at` ends."""
    while at < end:
        code, width = _character(data, at, end)
        if table[code] & mask != wanted:
            break
        at += width
    return at


@njit(cache=True, nogil=True)
def _contraction(data, at, end, any_case):  # type: ignore[no-untyped-def]
    """Bytes of 's 't 're 've 'm 'll 'd at `at` (an apostrophe), or 0. Without regard to case, U+017F is an s."""
    if at + 1 >= end:
        return 0
    fold = np.uint8(0x20) if any_case else np.uint8(0)
    a = data[at + 1]
    a = a | fold if a < 0x80 else a
    if a == 115 or a == 116 or a == 109 or a == 100:  # s t m d
        return 2
    if any_case and a == 0xC5 and at + 2 < end and data[at + 2] == 0xBF:
        return 3
    if at + 2 >= end:
        return 0
    b = data[at + 2]
    b = b | fold if b < 0x80 else b
    if (b == 101 and (a == 114 or a == 118)) or (a == 108 and b == 108):  # re ve ll
        return 3
    return 0


@njit(cache=True, nogil=True)
def _space_end(data, at, end, table, breaks):  # type: ignore[no-untyped-def]
    r"""End of the piece of white space at `at`: `\s*[\r\n]+` (if `breaks`), else `\s+(?!\S)`, else `\s+`."""
    first, after_break, last = at, at, at
    while at < end:
        code, width = _character(data, at, end)
        if table[code] & SPACE == 0:
            break
        last = at
        at += width
        if code == 10 or code == 13:
            after_break = at
    if breaks and after_break > first:
        return after_break
    return last if at < end and last > first else at


@njit(inline="always", cache=True, nogil=True)
def _gpt2_end(data, at, end, table):  # type: ignore[no-untyped-def]
    """End of the piece that begins at `at` under the gpt2 pattern."""
    if data[at] == 39:
        width = _contraction(data, at, end, False)
        if width > 0:
            return at + width
    body = at + 1 if data[at] == 32 and at + 1 < end else at
    code, width = _character(data, body, end)
    kind = table[code] & (LETTER | NUMBER | SPACE)
    if kind & SPACE:
        return _space_end(data, at, end, table, False)
    return _run(data, body + width, end, table, LETTER | NUMBER | SPACE, kind)


@njit(inline="always", cache=True, nogil=True)
def _gpt4_end(data, at, end, table, digits, split_han):  # type: ignore[no-untyped-def]
    """End of the piece that begins at `at` under the gpt4 family."""
    first = data[at]
    if first == 39:
        width = _contraction(data, at, end, True)
        if width > 0:
            return at + width
    code, width = _character(data, at, end)
    kind = table[code]
    letter = np.uint8(LETTER | HAN) if split_han else np.uint8(LETTER)
    if split_han and kind & HAN:
        return _run(data, at + width, end, table, HAN, HAN)
    if kind & letter == LETTER:
        return _run(data, at + width, end, table, letter, LETTER)
    if kind & NUMBER:
        at += width
        for _ in range(digits - 1):
            if at >= end:
                break
            code, width = _character(data, at, end)
            if table[code] & NUMBER == 0:
                break
            at += width
        return at
    body = at + width
    if body < end and kind & LETTER == 0 and first != 10 and first != 13:
        code, width = _character(data, body, end)
        following = table[code]
        if following & letter == LETTER:
            return _run(data, body + width, end, table, letter, LETTER)
        if first == 32 and following & (LETTER | NUMBER | SPACE) == 0:
            kind = following
    if kind & SPACE:
        return _space_end(data, at, end, table, True)
    at = _run(data, body, end, table, LETTER | NUMBER | SPACE, 0)
    while at < end and (data[at] == 10 or data[at] == 13):
        at += 1
    return at


@njit(inline="always", cache=True, nogil=True)
def _apart(code, kind):  # type: ignore[no-untyped-def]
    """Whether the first two deepseek patterns take the character, so that the third never sees it or past it."""
    return kind & NUMBER != 0 or (0x4E00 <= code <= 0x9FA5) or (0x3040 <= code <= 0x30FF)


@njit(inline="always", cache=True, nogil=True)
def _run_left(data, at, end, table, wanted):  # type: ignore[no-untyped-def]
    """Where the run of characters of a class in `wanted`, none of them apart, that begins at `at` ends."""
    while at < end:
        code, width = _character(data, at, end)
        if table[code] & wanted == 0 or _apart(code, table[code]):
            break
        at += width
    return at


@njit(cache=True, nogil=True)
def _matches_nothing(data, at, end, table):  # type: ignore[no-untyped-def]
    """Width of the character at `at` if no deepseek pattern matches there, else 0: a sign of no class before no letter."""
    code, width = _character(data, at, end)
    kind = table[code]
    if kind & (LETTER | MARK | SIGN | SPACE) or _apart(code, kind):
        return 0
    return 0 if _run_left(data, at + width, min(at + width + 4, end), table, LETTER | MARK) > at + width else width


@njit(cache=True, nogil=True)
def _deepseek_end(data, at, end, table):  # type: ignore[no-untyped-def]
    """End of the piece that begins at `at` under the deepseek patterns."""
    code, width = _character(data, at, end)
    kind, body = table[code], at + width
    if kind & NUMBER:
        for _ in range(2):
            if body < end:
                code, width = _character(data, body, end)
                body += width if table[code] & NUMBER else 0
        return body
    if _apart(code, kind):
        while body < end:
            code, width = _character(data, body, end)
            if not _apart(code, table[code]) or table[code] & NUMBER:
                break
            body += width
        return body
    if kind & SIGN and code < 0x80 and body < end and 97 <= (data[body] | 0x20) <= 122:
        while body < end and data[body] < 0x80 and 97 <= (data[body] | 0x20) <= 122:
            body += 1
        return body
    if kind & LETTER or (kind & SIGN == 0 and code != 10 and code != 13):
        stop = _run_left(data, body, end, table, LETTER | MARK)
        if stop > body or kind & (LETTER | MARK):
            return stop
    signs = _run_left(data, body, end, table, SIGN) if kind & SIGN or code == 32 else body
    if kind & SIGN or signs > body:
        while signs < end and (data[signs] == 10 or data[signs] == 13):
            signs += 1
        return signs
    if kind & SPACE:
        stop = _run(data, at, end, table, SPACE, SPACE)
        if stop < end:
            code, width = _character(data, stop, end)
            if _apart(code, table[code]):
                end = stop  # the third pattern sees the end of what is left there
        return _space_end(data, at, end, table, True)
    while body < end:
        width = _matches_nothing(data, body, end, table)
        if width == 0:
            break
        body += width
    return body


@njit(cache=True, nogil=True)
def piece_end(data, at, end, table, family, digits, split_han):  # type: ignore[no-untyped-def]
    """Where the piece that begins at `at` in a text that ends at `end` is over. table: `classes()`; the rest: `Pattern`."""
    if family == GPT2:
        return _gpt2_end(data, at, end, table)
    if family == DEEPSEEK:
        return _deepseek_end(data, at, end, table)
    return _gpt4_end(data, at, end, table, digits, split_han)


@njit(
    types.UniTuple(types.int64, 3)(
        _BYTES,
        _OFFSETS,
        types.int64,
        types.int64,
        _BYTES,
        types.int64,
        types.int64,
        types.boolean,
        types.int64[::1],
    ),
    cache=True,
    nogil=True,
)
def _split(data, offsets, text, at, table, family, digits, split_han, ends):  # type: ignore[no-untyped-def]
    """Fills `ends` from position `at` of text number `text` on; `(filled, text, position)` where it stopped."""
    count = 0
    texts = len(offsets) - 1
    while text < texts:
        end = offsets[text + 1]
        while at < end:
            if count == len(ends):
                return count, text, at
            if family == GPT4:
                at = _gpt4_end(data, at, end, table, digits, split_han)
            elif family == GPT2:
                at = _gpt2_end(data, at, end, table)
            else:
                at = _deepseek_end(data, at, end, table)
            ends[count] = at
            count += 1
        text += 1
    return count, text, at


@njit(
    types.UniTuple(types.int64, 2)(_BYTES, types.int64, _OFFSETS, types.int64, types.int64[::1]),
    cache=True,
    nogil=True,
)
def _cut(data, start, ends, limit, result):  # type: ignore[no-untyped-def]
    """Fills `result`; `(filled, pieces that were cut)`."""
    count = 0
    cut = 0
    for i in range(len(ends)):
        end = ends[i]
        if end - start > limit:
            characters = 0
            was_cut = False
            for at in range(start, end):
                if data[at] & 0xC0 != 0x80:
                    if characters == limit:
                        result[count] = at
                        count += 1
                        characters = 0
                        was_cut = True
                    characters += 1
            cut += was_cut
        result[count] = end
        count += 1
        start = end
    return count, cut


@njit(types.boolean[::1](_BYTES, _OFFSETS, _BYTES, types.int64), cache=True, nogil=True)
def _any_of_class(data, offsets, table, bit):  # type: ignore[no-untyped-def]
    """bool per text: whether any character has the class bit, which no ASCII character has."""
    found = np.zeros(len(offsets) - 1, np.bool_)
    for text in range(len(offsets) - 1):
        at, end = offsets[text], offsets[text + 1]
        while at < end:
            if at + 8 <= end and load8(data, at) & np.uint64(0x8080808080808080) == 0:
                at += 8
                continue
            code, width = _character(data, at, end)
            if table[code] & bit:
                found[text] = True
                break
            at += width
    return found
