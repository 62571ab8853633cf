"""HTML as bytes and text before a parser sees it: its size in tags and depth, and spaces that nobody meant.

Limits on pages are counted here, not timed: a page that would take a parser minutes is the same page on every machine.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
from numba import njit, types

from stages.text.kernels import BYTES

#: Deeper stacks are not followed; no `max_depth` may be larger.
DEEPEST = 4096

_LETTERS = 8  # of a tag name, packed into a uint64; longer names count by their first eight letters
#: Elements that make no depth: they hold nothing, or a parser closes them when the next of their kind comes, or they
#: are formatting, which nests without end where nobody closes it but costs the engines nothing.
_FLAT = """
    area base br col embed hr img input link meta param source track wbr
    p li dt dd option optgroup tr td th thead tbody tfoot colgroup rb rt rp rtc html head body
    a b big code em font i nobr s small strike strong tt u
"""
_RAW = "script style textarea title xmp noembed noframes iframe"
_FOREIGN = "svg math"


def _packed(names: str) -> np.ndarray:
    values = [int.from_bytes(name[:_LETTERS].encode(), "big") for name in names.split()]
    return np.array(sorted(set(values)), np.uint64)


_FLAT_NAMES, _RAW_NAMES, _FOREIGN_NAMES = _packed(_FLAT), _packed(_RAW), _packed(_FOREIGN)
_NAMES = types.Array(types.uint64, 1, "C", readonly=True)


class Shape(NamedTuple):
    """What a page asks of a parser: start tags, depth of open blocks (at most `DEEPEST` + 1), most attributes of one tag."""

    tags: int
    depth: int
    attributes: int


@njit(cache=True, nogil=True)
def _in(names, name):
    found = False
    for known in names:
        found |= known == name
    return found


@njit(cache=True, nogil=True)
def _name(data, i):
    """`(name, index behind it)`: up to eight letters in lower case as one number."""
    name = np.uint64(0)
    size = 0
    while i < len(data):
        c = data[i]
        if c >= 65 and c <= 90:
            c += 32
        if not ((c >= 97 and c <= 122) or (size > 0 and ((c >= 48 and c <= 57) or c == 45 or c == 58))):
            break
        if size < 8:
            name = (name << np.uint64(8)) | np.uint64(c)
        size += 1
        i += 1
    return name, i


@njit(cache=True, nogil=True)
def _past_tag(data, i):
    """`(index behind the tag, attributes, whether it ends in "/>")` from a place behind the name."""
    attributes = 0
    between = True  # behind a space, where an attribute may start
    closed = False
    while i < len(data):
        c = data[i]
        if c == 62:  # >
            return i + 1, attributes, closed
        closed = c == 47
        if c == 61:  # =, and what it may open
            i += 1
            while i < len(data) and (data[i] == 32 or (data[i] >= 9 and data[i] <= 13)):
                i += 1
            if i < len(data) and (data[i] == 34 or data[i] == 39):
                quote = data[i]
                i += 1
                while i < len(data) and data[i] != quote:
                    i += 1
                i += 1
                between = True
                continue
            between = False
            continue
        if c == 32 or (c >= 9 and c <= 13) or c == 47:
            between = True
        elif between:
            attributes += 1
            between = False
        i += 1
    return i, attributes, closed


@njit(cache=True, nogil=True)
def _past_raw(data, i, name):
    """The index of the end tag that closes raw text (a script), or the end."""
    while i < len(data):
        if data[i] == 60 and i + 1 < len(data) and data[i + 1] == 47:
            closing, _ = _name(data, i + 2)
            if closing == name:
                return i
        i += 1
    return i


@njit(cache=True, nogil=True)
def _past_comment(data, i):
    while i < len(data) and not (data[i] == 62 and data[i - 1] == 45 and data[i - 2] == 45):
        i += 1
    return i + 1


@njit(types.void(BYTES, _NAMES, _NAMES, _NAMES, types.uint64[::1], types.int64[::1]), cache=True, nogil=True)
def _measure(data, flat, raw, foreign, stack, out):
    tags = depth = deepest = most = strange = 0
    i = 0
    while i + 1 < len(data):
        if data[i] != 60:  # <
            i += 1
            continue
        if i + 3 < len(data) and data[i + 1] == 33 and data[i + 2] == 45 and data[i + 3] == 45:
            i = _past_comment(data, i + 4)
            continue
        ends = data[i + 1] == 47
        name, behind = _name(data, i + (2 if ends else 1))
        if name == 0:
            i += 1
            continue
        i, attributes, closed = _past_tag(data, behind)
        if ends:
            at = depth - 1
            while at >= 0 and stack[at] != name:
                at -= 1
            while depth > at and at >= 0:
                depth -= 1
                strange -= _in(foreign, stack[depth])
            continue
        tags += 1
        most = max(most, attributes)
        if _in(raw, name):
            i = _past_raw(data, i, name)
        elif not _in(flat, name) and not (closed and strange > 0):
            if depth < len(stack):
                stack[depth] = name
                depth += 1
                strange += _in(foreign, name)
            else:
                deepest = len(stack) + 1
        deepest = max(deepest, depth)
    out[0], out[1], out[2] = tags, deepest, most


def shape_of(page: np.ndarray) -> Shape:
    """The shape of one page (uint8, UTF-8). Linear in its bytes, but for end tags without a start tag."""
    out = np.empty(3, np.int64)
    _measure(page, _FLAT_NAMES, _RAW_NAMES, _FOREIGN_NAMES, np.empty(DEEPEST, np.uint64), out)
    return Shape(*out.tolist())


#: Scripts written without spaces, where a line break in the source is no space (CSS Text 3, section 4.1.3): Han, kana,
#: bopomofo, Yi, their punctuation and full-width forms. Hangul has spaces.
_WIDE = "[\u2e80-\u312f\u3190-\u4dbf\u4e00-\ua4cf\uf900-\ufaff\ufe30-\ufe4f\uff01-\uff60\uffe0-\uffe6\U00020000-\U0003ffff]"
_INLINE = r"(?:</?(?:a|abbr|b|big|cite|code|del|em|font|i|ins|kbd|mark|s|small|span|strong|sub|sup|u|var)\b[^<>]{0,512}>)"
_BROKEN = re.compile(rf"(?<={_WIDE})({_INLINE}{{0,8}})[ \t]*\r?\n\s*({_INLINE}{{0,8}})(?={_WIDE})")
_KEPT = re.compile(r"<(pre|textarea|script|style|listing)\b.*?</\1\s*>", re.IGNORECASE | re.DOTALL)
_ANY_BREAK = re.compile(rf"{_WIDE}[^\n]{{0,64}}\n")


def join_wide_lines(page: str) -> str:
    """The page without the line breaks between two characters of scripts that know no space; `<pre>` is left alone."""
    if page.isascii() or not _ANY_BREAK.search(page):
        return page
    pieces = []
    place = 0
    for kept in _KEPT.finditer(page):
        pieces += [_BROKEN.sub(r"\1\2", page[place : kept.start()]), kept[0]]
        place = kept.end()
    pieces.append(_BROKEN.sub(r"\1\2", page[place:]))
    return "".join(pieces)
