"""Where personal details may stand, by one compiled pass over the bytes of all texts.

A hit is a place that a finder has to look at: no finder finds anything that does not touch a hit of its kind. What makes
a hit is a little less than what the finder asks, and so cheap that nearly all of the text is passed over at once.
"""

from __future__ import annotations

import numpy as np
from numba import njit, types

from stages.pii.numbers import IBAN_LENGTHS
from stages.text.kernels import BYTES, OFFSETS, decode
from stages.text.vectors import OVERREAD, lowest, number_masks

#: Bits of the kinds, in the order of `spans.KINDS`.
SECRET, EMAIL, IBAN, ID_CARD, BANK_CARD, IP, PHONE = (1 << bit for bit in range(7))

#: Characters that the finders look at in front of a hit and behind it.
_EMAIL_FRONT, _EMAIL_BEHIND = 160, 272
_NUMBER_FRONT, _NUMBER_BEHIND = 56, 80
_SECRET_FRONT, _SECRET_BEHIND = 72, 160
_BLOCK_BEHIND = 28_000
#: Characters of the longest key that has a known prefix.
_KEY_MAX = 17_000

#: Classes of bytes: nothing begins at a dull one.
_DULL, _LETTER, _SIGN, _HIGH = range(4)
#: Columns of the tables of hits and windows: bytes of the hit; how many characters count in front of it and behind it,
#: and which those are; the hits of a window. For a window, START and FRONT are those of the hit that reaches farthest.
ROW, KINDS, START, STOP, FRONT, BEHIND, FROM, TO, FIRST, LAST = range(10)
COLUMNS = 10
TABLE = types.Array(types.int64, 2, "C")


def _byte_classes(secrets: bool) -> np.ndarray:
    classes = np.full(256, _DULL, np.uint8)
    classes[[ord(c) for c in ("0123456789@:=-" if secrets else "0123456789@:")]] = _SIGN
    if secrets:
        classes[0x41:0x5B] = classes[0x61:0x7B] = _LETTER
    classes[0x80:] = _HIGH
    return classes


def _countries() -> np.ndarray:
    table = np.zeros(26 * 26, np.uint8)
    for code in IBAN_LENGTHS:
        table[(ord(code[0]) - 65) * 26 + ord(code[1]) - 65] = 1
    return table


def _phrases(phrases: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
    content = [phrase.encode() for phrase in phrases]
    return np.frombuffer(b"".join(content), np.uint8), np.cumsum([0, *map(len, content)]).astype(np.int64)


_CLASSES, _CLASSES_WITH_SECRETS = _byte_classes(False), _byte_classes(True)
_BEARER = np.frombuffer(b"bearer", np.uint8)
_COUNTRIES = _countries()
_PREFIXES = _phrases(
    ("sk-", "sk_live_", "sk_test_", "rk_live_", "rk_test_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-",
     "AKIA", "ASIA", "AIza", "xox", "hf_", "npm_", "pypi-", "SG.", "eyJ",
     "dop_v1_", "shpat_", "shpca_", "shppa_", "shpss_", "GOCSPX-", "dckr_pat_", "gsk_", "nvapi-", "glsa_")
)  # fmt: skip
#: Words before an assigned secret; in either case.
_NAMES = _phrases(
    ("password", "passwd", "passwort", "pwd", "secret", "token", "apikey", "api-key", "api_key", "accesskey", "access-key",
     "access_key", "密码", "密碼", "口令")
)  # fmt: skip


@njit(inline="always")
def _view(code):
    """The ASCII character that a finder sees for a code point beyond ASCII (`spans._FORMS`); 0 for the others."""
    if 0xFF10 <= code <= 0xFF19:
        return code - 0xFF10 + 0x30
    if 0x0660 <= code <= 0x0669:
        return code - 0x0660 + 0x30
    if 0x06F0 <= code <= 0x06F9:
        return code - 0x06F0 + 0x30
    if 0x2010 <= code <= 0x2013 or code == 0x2212 or code == 0xFF0D:
        return np.int64(0x2D)
    if code == 0xA0 or code == 0x202F:
        return np.int64(0x20)
    if code == 0xFF08 or code == 0xFF09 or code == 0xFF0B or code == 0xFF0E:
        return code - 0xFF08 + 0x28
    if code == 0xFF38 or code == 0xFF58:
        return code - 0xFEE0
    return np.int64(0x40) if code == 0xFF20 else np.int64(0)


@njit(inline="always")
def _assigns(code):
    """Whether it stands between a name and a secret: full-width colon, or "is" in Chinese."""
    return code == 0xFF1A or code == 0x662F or code == 0x4E3A


@njit(inline="always")
def _three_bytes(data, i):
    """The code point of the three bytes of UTF-8 at byte i."""
    return (
        (np.int64(data[i]) & 0x0F) << 12
        | (np.int64(data[i + 1]) & 0x3F) << 6
        | (np.int64(data[i + 2]) & 0x3F)
    )


@njit(inline="always")
def _seen(data, i, end):
    """`(what a finder sees at byte i: ASCII, or 0 for any other character; index behind it)`."""
    if data[i] < 0x80:
        return np.int64(data[i]), i + 1
    code, after = decode(data, i, end)
    return _view(code), after


@njit(inline="always")
def _is_digit(byte):
    return 0x30 <= byte <= 0x39


@njit(inline="always")
def _is_alnum(byte):
    return 0x30 <= byte <= 0x39 or 0x41 <= byte <= 0x5A or 0x61 <= byte <= 0x7A


@njit(inline="always")
def _in_token(byte):
    """A character of keys and tokens."""
    return _is_alnum(byte) or 0x2B <= byte <= 0x2F or byte == 0x5F or byte == 0x7E or byte == 0x3D


@njit(cache=True, nogil=True)
def _same(data, i, phrase, first, last):
    """Whether phrase[first:last] stands at byte i, ASCII letters in either case."""
    for k in range(first, last):
        byte = data[i + k - first]
        if 0x41 <= byte <= 0x5A:
            byte += 0x20
        if byte != phrase[k]:
            return False
    return True


@njit(cache=True, nogil=True)
def _known_prefix(data, i, end, prefixes, ends):
    """Whether a prefix of an issuer of keys stands at byte i."""
    for number in range(len(ends) - 1):
        first, last = ends[number], ends[number + 1]
        if i + last - first <= end:
            same = True
            for k in range(first, last):
                same = same and data[i + k - first] == prefixes[k]
            if same:
                return True
    return False


@njit(inline="always")
def _may_begin_prefix(first, second):
    """The first two letters of a prefix or of "bearer": a quick look."""
    if first == 0x73 or first == 0x72:  # s r
        return second == 0x6B or (first == 0x73 and second == 0x68)
    if first == 0x67:  # g
        return second == 0x68 or second == 0x69 or second == 0x6C or second == 0x73
    if first == 0x41:  # A
        return second == 0x4B or second == 0x53 or second == 0x49
    if first == 0x42 or first == 0x62:  # B b
        return second == 0x45 or second == 0x65
    if first == 0x65 or first == 0x70:  # e p
        return second == 0x79
    return (
        (first == 0x78 and second == 0x6F)
        or (first == 0x68 and second == 0x66)
        or (first == 0x6E and (second == 0x70 or second == 0x76))
        or (first == 0x64 and (second == 0x6F or second == 0x63))
        or (first == 0x47 and second == 0x4F)
        or (first == 0x53 and second == 0x47)
    )


@njit(cache=True, nogil=True)
def _is_named(data, begin, i, names, ends):
    """Whether the name of a secret ends before byte i, with up to three spaces and a quote between."""
    for _ in range(3):
        if i - 1 >= begin and data[i - 1] <= 0x20:
            i -= 1
        elif i - 3 >= begin and data[i - 3] == 0xE3 and data[i - 2] == 0x80 and data[i - 1] == 0x80:
            i -= 3
        elif i - 2 >= begin and data[i - 2] == 0xC2 and (data[i - 1] == 0xA0 or data[i - 1] == 0x85):
            i -= 2
        elif i - 3 >= begin and (data[i - 3] == 0xE2 or data[i - 3] == 0xE1) and data[i - 2] <= 0x9A:
            i -= 3  # one of the other spaces of Unicode, or nearly
    if i - 1 >= begin and (data[i - 1] == 0x22 or data[i - 1] == 0x27):
        i -= 1
    if i - 1 < begin:
        return False
    last = data[i - 1] | 0x20
    if not (last == 0x64 or last == 0x74 or last == 0x6E or last == 0x79 or data[i - 1] >= 0x80):  # d t n y
        return False
    for number in range(len(ends) - 1):
        first, last = ends[number], ends[number + 1]
        if i - (last - first) >= begin and _same(data, i - (last - first), names, first, last):
            return True
    return False


@njit(cache=True, nogil=True)
def _is_address(data, begin, i, after, end):
    """Whether an e-mail address may stand around the @ in data[i:after]."""
    if i == begin:
        return False
    before = data[i - 1]
    if not (_is_alnum(before) or before == 0x5F or before == 0x2B or before == 0x2D or before >= 0x80):
        return False
    i = after
    for k in range(66):
        if i >= end:
            return False
        byte, after = _seen(data, i, end)
        if byte == 0x2E:
            return k > 0
        if not (byte == 0 or _is_alnum(byte) or byte == 0x2D):
            return False
        i = after
    return False


@njit(cache=True, nogil=True)
def _user_of_address(data, begin, i):
    """Where `://` stands before `user:password` and the @ at byte i; -1 if it does not."""
    stop = max(begin + 2, i - 800)
    colon = False
    while i > stop:
        i -= 1
        byte = data[i]
        if byte == 0x2F:
            return i - 2 if colon and data[i - 1] == 0x2F and data[i - 2] == 0x3A else -1
        if byte <= 0x20 or byte == 0x40:
            return -1
        colon = colon or byte == 0x3A
    return -1


@njit(cache=True, nogil=True)
def _address_6(data, begin, i, end):
    """`(start, end)` of what may be an IPv6 address whose first colon stands at byte i; start -1 if it may not."""
    start = i
    while start > begin and i - start < 5 and _is_alnum(data[start - 1]):
        start -= 1
    if start > begin:
        before = data[start - 1]
        if _is_alnum(before) or before == 0x3A or before == 0x2E or before == 0x5F:
            return np.int64(-1), i
    first = data[start] | 0x20
    if not (_is_digit(first) or 0x61 <= first <= 0x66 or data[start] == 0x3A):
        return np.int64(-1), i
    colons = 0
    double = False
    while i < end:
        byte, after = _seen(data, i, end)
        if byte == 0x3A:
            colons += 1
            double = double or (after < end and data[after] == 0x3A)
        elif not (_is_digit(byte) or 0x41 <= byte <= 0x46 or 0x61 <= byte <= 0x66 or byte == 0x2E):
            break
        i = after
    return (start if double or colons >= 6 else np.int64(-1)), i


@njit(cache=True, nogil=True)
def _number(data, begin, i, end):
    """`(kinds, end)` of the digits from byte i on, with the gaps of phone numbers between them."""
    digits = said = before = two_before = dots = most_dots = kinds = 0
    fine = i == begin or not (_is_alnum(data[i - 1]) or data[i - 1] == 0x5F)  # where a phone number may begin
    stop = i
    while True:
        group = 0
        while i < end:
            byte, after = _seen(data, i, end)
            if not _is_digit(byte):
                break
            group += 1
            i = after
        stop = i
        digits += group
        said += group if fine else 0
        if group == 15 or group == 18 or group == 9:
            kinds |= ID_CARD
        elif group == 17:
            kinds |= ID_CARD if i < end and _seen(data, i, end)[0] | 0x20 == 0x78 else 0
        elif group == 4:
            kinds |= ID_CARD if before == 5 or (before == 2 and two_before == 3) else 0
        elif group == 6:
            kinds |= ID_CARD if before == 3 else 0
        elif group == 8:
            kinds |= ID_CARD if before == 6 else 0
        two_before, before = before, group
        gap = 0
        byte = np.int64(0)
        only_dot = True
        while i < end and gap < 4:
            byte, after = _seen(data, i, end)
            if not (byte == 0x20 or byte == 0x28 or byte == 0x29 or 0x2D <= byte <= 0x2F):
                break
            only_dot = only_dot and byte == 0x2E
            gap += 1
            i = after
        if gap == 0 or gap > 3 or i >= end or not _is_digit(byte):
            break
        dots = dots + 1 if gap == 1 and only_dot else 0
        most_dots = max(most_dots, dots)
        fine = True
    if 6 <= said <= 32:
        kinds |= PHONE
    if digits >= 12:
        kinds |= BANK_CARD
    if most_dots >= 3:
        kinds |= IP
    return kinds, stop


@njit(cache=True, nogil=True)
def _prefix(data, begin, i, end, token_end, prefixes, ends):
    """`(whether a key may begin at the letter at byte i, end of its token)`; token_end of the hit before, if it goes on."""
    if i > begin and (_is_alnum(data[i - 1]) or data[i - 1] == 0x5F):
        return False, token_end
    start = i
    if data[i] | 0x20 == 0x62:
        if i + 7 > end or not _same(data, i, _BEARER, 0, len(_BEARER)):
            return False, token_end
        start = i + len(_BEARER)
        while start < end and start < i + 16 and not _in_token(data[start]):
            start += 1
    elif not _known_prefix(data, i, end, prefixes, ends):
        return False, token_end
    if start + _KEY_MAX > token_end:  # not yet known how far it goes
        stop = min(end, start + 2 * _KEY_MAX)
        token_end = max(token_end, start)
        while token_end < stop and _in_token(data[token_end]):
            token_end += 1
    return True, token_end


@njit(cache=True, nogil=True)
def _at_sign(data, begin, i, after, end, wanted):
    """`(kinds, first byte)` of a hit at an @."""
    kinds = EMAIL if wanted & EMAIL and _is_address(data, begin, i, after, end) else 0
    if wanted & SECRET:
        start = _user_of_address(data, begin, i)
        if start >= 0:
            return kinds | SECRET, start
    return kinds, i


@njit(cache=True, nogil=True)
def _at_number(data, begin, i, end, wanted, countries):
    """`(kinds, first byte, end)` of a hit at a digit."""
    kinds, stop = _number(data, begin, i, end)
    kinds &= wanted
    if wanted & IBAN and i - 2 >= begin and (i - 2 == begin or not _is_alnum(data[i - 3])):
        one, two = np.int64(data[i - 2] & 0xDF) - 0x41, np.int64(data[i - 1] & 0xDF) - 0x41
        if 0 <= one < 26 and 0 <= two < 26 and countries[one * 26 + two]:
            return kinds | IBAN, i - 2, stop
    return kinds, i, stop


@njit(cache=True, nogil=True)
def _continuations(data, i, end):
    """Bytes of data[i:end] that begin no character."""
    count = 0
    while i < end:
        count += data[i] & 0xC0 == 0x80
        i += 1
    return count


@njit(cache=True, nogil=True)
def _note(found, count, row, kinds, start, stop, front, behind, first, last):
    """The table with one more hit: bytes start to stop, characters first to last."""
    if count == len(found):
        longer = np.empty((2 * count, found.shape[1]), np.int64)
        longer[:count] = found
        found = longer
    hit = found[count]
    hit[ROW], hit[KINDS], hit[START], hit[STOP] = row, kinds, start, stop
    hit[FRONT], hit[BEHIND], hit[FROM], hit[TO] = front, behind, first - front, last + behind
    return found


@njit(
    types.Tuple((TABLE, types.int64))(BYTES, OFFSETS, types.int64, BYTES, BYTES, BYTES, OFFSETS, BYTES, OFFSETS),
    cache=True, nogil=True,
)  # fmt: skip
def _hits(data, offsets, wanted, classes, countries, prefixes, prefix_ends, names, name_ends):
    """`(table, how many)`: the hits of all texts, in the order in which they are met."""
    found = np.empty((1024, COLUMNS), np.int64)
    count = 0
    for row in range(len(offsets) - 1):
        begin, end = offsets[row], offsets[row + 1]
        extra = begin + np.int64(0)  # what is taken from the index of a byte to get that of its character
        token_end = begin
        i = begin
        while i < end:
            byte = np.int64(data[i])
            kind = classes[byte]
            if kind == _DULL:
                i += 1
                if not wanted & SECRET and i + OVERREAD <= len(data):  # the mask is of what is not dull then
                    i = min(end, i + lowest(number_masks(data, i)[0]))
                continue
            if (
                0xE4 <= byte <= 0xE9 and i + 3 <= end and not _assigns(_three_bytes(data, i))
            ):  # U+4000 to U+9FFF
                extra += 2
                i += 3
                continue
            seen, after = byte, i + 1
            if kind == _HIGH:
                code, after = decode(data, i, end)
                seen = np.int64(0x3D) if _assigns(code) else _view(code)
            kinds, start, stop = 0, i, after
            front, behind = _SECRET_FRONT, _SECRET_BEHIND
            if kind == _LETTER:
                if wanted & SECRET and after < end and _may_begin_prefix(byte, data[after]):
                    is_key, token_end = _prefix(data, begin, i, end, token_end, prefixes, prefix_ends)
                    if is_key:
                        kinds, stop = SECRET, max(token_end, after)
                while after < end and classes[data[after]] == _LETTER:
                    after += 1
            elif _is_digit(seen):
                kinds, start, after = _at_number(data, begin, i, end, wanted, countries)
                stop, front, behind = after, _NUMBER_FRONT, _NUMBER_BEHIND
            elif seen == 0x40:
                kinds, start = _at_sign(data, begin, i, after, end, wanted)
                front, behind = _EMAIL_FRONT, _EMAIL_BEHIND
            elif seen == 0x3D or seen == 0x3A:
                if wanted & SECRET and _is_named(data, begin, i, names, name_ends):
                    kinds, stop = SECRET, min(end, after + 20)
                elif byte == 0x3A and wanted & IP and after < end:
                    start, stop = _address_6(data, begin, i, end)
                    kinds, front, behind = (IP if start >= 0 else 0), _NUMBER_FRONT, _NUMBER_BEHIND
            elif seen == 0x2D:
                while after < end and data[after] == 0x2D:
                    after += 1
                if (
                    wanted & SECRET
                    and after - i >= 5
                    and after + 1 < end
                    and data[after] == 0x42
                    and data[after + 1] == 0x45
                ):
                    kinds, start, stop, behind = SECRET, after - 5, after + 2, _BLOCK_BEHIND
            if kinds:
                first = start - extra + (_continuations(data, start, i) if start < i else 0)
                last = stop - extra - (0 if kind == _LETTER else _continuations(data, i, stop))
                found = _note(found, count, row, kinds, start, stop, front, behind, first, last)
                count += 1
            if kind != _LETTER:
                extra += _continuations(data, i, after)
            i = after
    return found, count


def find_hits(data_U8: np.ndarray, offsets_N1: np.ndarray, kinds: int) -> np.ndarray:
    """int64 [H, COLUMNS]: the hits of these kinds (bits) in all texts, text after text, in the order in which they end."""
    classes = _CLASSES_WITH_SECRETS if kinds & SECRET else _CLASSES
    found, count = _hits(data_U8, offsets_N1, kinds, classes, _COUNTRIES, *_PREFIXES, *_NAMES)
    return found[:count]
