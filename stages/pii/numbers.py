"""Numbers with a check digit or a fixed form: identity cards, bank cards, IBANs."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator

# --- identity cards ------------------------------------------------------------------------------------------------

_CN_ID = re.compile(
    r"(?<![0-9A-Za-z])[1-9][0-9]{5}(?:[0-9]{11}|[ \-][0-9]{8}[ \-][0-9]{3})[0-9Xx](?![0-9A-Za-z])"
)
_CN_PROVINCES = frozenset(
    str(code)
    for code in (
        *range(11, 16),
        *range(21, 24),
        *range(31, 38),
        *range(41, 47),
        *range(50, 55),
        *range(61, 66),
        71,
        81,
        82,
        83,
    )
)
_CN_WEIGHTS = (7, 9, 10, 5, 8, 4, 2, 1, 6, 3, 7, 9, 10, 5, 8, 4, 2)  # GB 11643-1999: 2^(17-i) mod 11
_CN_CHECK = "10X98765432"
_CN_OLD_ID = re.compile(r"(?:身份证|身份證|身份号码)[^0-9A-Za-z]{0,12}([1-9][0-9]{14})(?![0-9A-Za-z])")

_SSN = re.compile(r"(?<![0-9A-Za-z\-.])([0-9]{3})-([0-9]{2})-([0-9]{4})(?![0-9A-Za-z]|-[0-9])")
_SSN_SPOKEN = re.compile(
    r"(?:\bssn|social security(?: number| no\.?)?)[\s:#]{0,3}(?:is |of )?\s?(([0-9]{3})[ -]?([0-9]{2})[ -]?([0-9]{4}))(?![0-9])",
    re.IGNORECASE,
)


def find_id_cards(text: str) -> Iterator[tuple[int, int]]:
    """Chinese resident identity numbers (check digit, province, date of birth) and US social security numbers."""
    for match in _CN_ID.finditer(text):
        if is_chinese_id(match[0].replace(" ", "").replace("-", "")):
            yield match.span()
    for match in _CN_OLD_ID.finditer(text):  # 15 digits, no check digit: only after its name
        if match[1][:2] in _CN_PROVINCES and _is_date("19" + match[1][6:12]):
            yield match.span(1)
    for match in _SSN.finditer(text):
        if _is_ssn(match[1], match[2], match[3]):
            yield match.span()
    for match in _SSN_SPOKEN.finditer(text):
        if _is_ssn(match[2], match[3], match[4]):
            yield match.span(1)


def is_chinese_id(value: str) -> bool:
    """Whether 18 characters are a resident identity number by GB 11643-1999."""
    if value[:2] not in _CN_PROVINCES or not _is_date(value[6:14]):
        return False
    total = sum(weight * int(digit) for weight, digit in zip(_CN_WEIGHTS, value[:17], strict=True))
    return _CN_CHECK[total % 11] == value[17].upper()


def _is_date(digits: str) -> bool:
    year, month, day = int(digits[:4]), int(digits[4:6]), int(digits[6:])
    if not 1880 <= year <= 2100:
        return False
    try:
        datetime.date(year, month, day)
    except ValueError:
        return False
    return True


def _is_ssn(area: str, group: str, serial: str) -> bool:
    """Numbers that the Social Security Administration gives out: no 000, 666 or 9xx area, no zero group or serial."""
    return area not in {"000", "666"} and area[0] != "9" and group != "00" and serial != "0000"


# --- bank cards ----------------------------------------------------------------------------------------------------

_CARD = re.compile(r"(?<![0-9A-Za-z.,\-])[0-9](?:[ \-]?[0-9]){11,22}(?![0-9A-Za-z])")
_SEPARATORS = re.compile(r"[ \-]")
#: How the digits of a card are grouped in print: the lengths of the groups.
_GROUPS = frozenset(
    [(4, 4, 4, 4), (4, 4, 4, 4, 3), (4, 4, 4, 4, 2), (4, 4, 4, 4, 1), (4, 4, 4, 3), (4, 4, 4, 1), (4, 6, 5), (4, 6, 4), (6, 13),
     (4, 4, 5), (8, 8), (4, 4, 4, 6), (4, 4, 4, 7)]
)  # fmt: skip
#: First digits (as a range of numbers with as many digits) and the lengths that issuers use with them.
_ISSUERS: tuple[tuple[int, int, tuple[int, ...]], ...] = (
    (4, 4, (16, 19)),  # Visa
    (51, 55, (16,)), (2221, 2720, (16,)),  # Mastercard
    (34, 34, (15,)), (37, 37, (15,)),  # American Express
    (300, 305, (14, 16, 19)), (3095, 3095, (14,)), (36, 36, (14, 16, 19)), (38, 39, (14, 16, 19)),  # Diners Club
    (6011, 6011, (16, 19)), (644, 649, (16, 19)), (65, 65, (16, 19)),  # Discover
    (62, 62, (14, 15, 16, 17, 18, 19)), (81, 81, (16, 17, 18, 19)),  # UnionPay
    (3528, 3589, (16, 17, 18, 19)), (1800, 1800, (15,)), (2131, 2131, (15,)),  # JCB
    (50, 50, (16, 17, 18, 19)), (56, 58, (16, 17, 18, 19)), (60, 60, (16, 19)), (63, 63, (16, 17, 18, 19)),  # Maestro, Elo, RuPay
    (67, 67, (16, 17, 18, 19)),
    (2200, 2204, (16, 17, 18, 19)),  # Mir
    (9792, 9792, (16,)),  # Troy
)  # fmt: skip
_CARD_WORD = re.compile(
    r"(?:card|cc|visa|tarjeta|karte|carte|卡|カード|账号|帳號)[^0-9]{0,16}\Z", re.IGNORECASE
)


def find_bank_cards(text: str) -> Iterator[tuple[int, int]]:
    """Runs of digits, grouped as cards are, with a right Luhn digit and either an issuer's prefix and length (14 to 19
    digits) or, behind a word such as "card", any 12 to 19 digits."""
    for match in _CARD.finditer(text):
        spoken = _CARD_WORD.search(text[max(0, match.start() - 32) : match.start()]) is not None
        stop = _card_end(match[0], spoken)
        if stop:
            yield match.start(), match.start() + stop


def _card_end(run: str, spoken: bool) -> int:
    """Where the longest card at the beginning of the run ends; 0 if there is none."""
    for stop in range(len(run), 11, -1):
        if stop < len(run) and run[stop] not in " -":
            continue
        groups = _SEPARATORS.split(run[:stop])
        digits = "".join(groups)
        if not 12 <= len(digits) <= 19 or (len(groups) > 1 and tuple(map(len, groups)) not in _GROUPS):
            continue
        if (spoken or _has_issuer(digits)) and is_luhn(digits):
            return stop
    return 0


def _has_issuer(digits: str) -> bool:
    return any(
        low <= int(digits[: len(str(low))]) <= high and len(digits) in lengths
        for low, high, lengths in _ISSUERS
    )


def is_luhn(digits: str) -> bool:
    """Whether the last digit is right by ISO/IEC 7812-1 (Luhn), and the digits are not all the same."""
    total = 0
    for place, digit in enumerate(reversed(digits)):
        value = int(digit) * (1 + place % 2)
        total += value - 9 if value > 9 else value
    return total % 10 == 0 and len(set(digits)) > 1


# --- IBAN ----------------------------------------------------------------------------------------------------------

#: Length of an IBAN by country (ISO 13616 registry).
IBAN_LENGTHS = {
    "AD": 24, "AE": 23, "AL": 28, "AT": 20, "AZ": 28, "BA": 20, "BE": 16, "BG": 22, "BH": 22, "BI": 27, "BR": 29, "BY": 28,
    "CH": 21, "CR": 22, "CY": 28, "CZ": 24, "DE": 22, "DJ": 27, "DK": 18, "DO": 28, "EE": 20, "EG": 29, "ES": 24, "FI": 18,
    "FK": 18, "FO": 18, "FR": 27, "GB": 22, "GE": 22, "GI": 23, "GL": 18, "GR": 27, "GT": 28, "HN": 28, "HR": 21, "HU": 28,
    "IE": 22, "IL": 23, "IQ": 23, "IS": 26, "IT": 27, "JO": 30, "KW": 30, "KZ": 20, "LB": 28, "LC": 32, "LI": 21, "LT": 20,
    "LU": 20, "LV": 21, "LY": 25, "MC": 27, "MD": 24, "ME": 22, "MK": 19, "MN": 20, "MR": 27, "MT": 31, "MU": 30, "NI": 28,
    "NL": 18, "NO": 15, "OM": 23, "PK": 24, "PL": 28, "PS": 29, "PT": 25, "QA": 29, "RO": 24, "RS": 22, "RU": 33, "SA": 24,
    "SC": 31, "SD": 18, "SE": 24, "SI": 19, "SK": 24, "SM": 27, "SO": 23, "ST": 25, "SV": 28, "TL": 23, "TN": 24, "TR": 26,
    "UA": 29, "VA": 22, "VG": 24, "XK": 20, "YE": 30,
}  # fmt: skip
_IBAN_START = re.compile(r"(?<![0-9A-Za-z])[A-Za-z]{2}[0-9]{2}(?=[ \-]?[0-9A-Za-z])")


def find_ibans(text: str) -> Iterator[tuple[int, int]]:
    """International bank account numbers with the length of their country and right check digits, spaced or not."""
    for match in _IBAN_START.finditer(text):
        length = IBAN_LENGTHS.get(match[0][:2].upper(), 0)
        value, stop = _gather(text, match.start(), length)
        behind = text[stop : stop + 1]
        if length and len(value) == length and not (behind.isascii() and behind.isalnum()) and is_iban(value):
            yield match.start(), stop


def _gather(text: str, start: int, length: int) -> tuple[str, int]:
    """`length` letters and digits from `start` on and where they end; in one piece, or in fours with a space or hyphen.

    Fewer come back where the text is neither.
    """
    value = ""
    at = start
    spaced = text[start + 4 : start + 5] in {" ", "-"}
    while len(value) < length and at < len(text):
        if spaced and value and len(value) % 4 == 0:
            if text[at] not in " -":
                break
            at += 1
        character = text[at : at + 1]
        if not (character.isascii() and character.isalnum()):
            break
        value += character
        at += 1
    return value, at


def is_iban(value: str) -> bool:
    """Whether the check digits are right by ISO 7064 MOD 97-10."""
    moved = value[4:] + value[:4]
    return int("".join(str(int(character, 36)) for character in moved)) % 97 == 1
