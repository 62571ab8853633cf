"""Bytes of a page -> text, whatever they are encoded in.

In order: a byte-order mark; UTF-8 that is valid (no other encoding is so by chance); what the header, the page
itself and the XML declaration say, where the bytes can be that; statistics. What servers say by default
(ISO-8859-1, ASCII) counts as nothing said. Labels mean what the WHATWG Encoding Standard says they mean.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence
from typing import NamedTuple

#: Byte-order marks; UTF-32 first, because its mark begins with that of UTF-16.
MARKS = (
    (b"\xef\xbb\xbf", "utf-8"),
    (b"\xff\xfe\0\0", "utf-32-le"),
    (b"\0\0\xfe\xff", "utf-32-be"),
    (b"\xff\xfe", "utf-16-le"),
    (b"\xfe\xff", "utf-16-be"),
)
#: Codec -> the codecs to try for it, widest first: what browsers read under that name.
_WIDER = {
    "gb2312": ("gb18030",), "gbk": ("gb18030",), "cp936": ("gb18030",),
    "big5": ("cp950", "big5hkscs"), "cp950": ("cp950", "big5hkscs"), "big5hkscs": ("big5hkscs", "cp950"),
    "shift_jis": ("cp932", "shift_jis_2004"), "cp932": ("cp932", "shift_jis_2004"),
    "euc_jp": ("euc_jp", "euc_jis_2004"), "euc_kr": ("cp949",), "cp949": ("cp949",), "johab": ("johab",),
    "iso2022_jp": ("iso2022_jp", "iso2022_jp_ext", "iso2022_jp_2004"),
    "iso8859-1": ("cp1252",), "ascii": ("cp1252",), "iso8859-9": ("cp1254",), "tis-620": ("cp874",),
    "iso8859-11": ("cp874",),
}  # fmt: skip
#: Labels that Python does not know, or knows as something else.
_LABELS = {
    "x-sjis": "cp932", "windows-31j": "cp932", "ms_kanji": "cp932", "sjis": "cp932", "x-euc-jp": "euc_jp",
    "x-gbk": "gbk", "gb_2312-80": "gbk", "chinese": "gbk", "x-euc-cn": "gbk", "euc-cn": "gbk",
    "big5-hkscs": "big5hkscs", "x-x-big5": "big5", "cn-big5": "big5", "x-big5": "big5",
    "ks_c_5601-1987": "cp949", "ksc5601": "cp949", "windows-949": "cp949", "x-windows-949": "cp949",
    "unicode": "utf-16-le", "utf8": "utf-8", "x-utf-8": "utf-8", "unicode-1-1-utf-8": "utf-8",
    "iso-8859-8-i": "iso8859-8", "logical": "iso8859-8", "x-cp1251": "cp1251", "x-cp1252": "cp1252", "win-1251": "cp1251",
    "windows1251": "cp1251", "windows-874": "cp874", "dos-874": "cp874", "koi8-ru": "koi8-u", "koi": "koi8-r",
    "x-mac-cyrillic": "mac-cyrillic", "x-mac-roman": "mac-roman", "macintosh": "mac-roman",
}  # fmt: skip
#: What is said when nobody thought about it.
_DEFAULTS = {"cp1252", "iso8859-1", "ascii", "iso8859-15"}
#: Codecs of Python that are no encodings of text for documents.
_NOT_TEXT = {"idna", "punycode", "unicode-escape", "raw-unicode-escape", "undefined", "mbcs", "oem", "utf-7"}

_META = re.compile(rb"""<meta\b[^>]{0,1024}?charset\s*=\s*["']?\s*([A-Za-z0-9_:.+-]{2,40})""", re.IGNORECASE)
_XML = re.compile(rb"""\s*<\?xml\b[^>]{0,200}?encoding\s*=\s*["']([A-Za-z0-9_:.+-]{2,40})["']""")
_PARAMETER = re.compile(r"""charset\s*=\s*["']?\s*([A-Za-z0-9_:.+-]{2,40})""", re.IGNORECASE)
_META_WITHIN = 8192  # WHATWG: 1024; real pages put scripts first
_ESCAPES = re.compile(rb"\x1b[$(]|\x1b\x2e|~\{")
_MARKUP = re.compile(rb"<(script|style)\b.*?</\1\s*>|<[^>]*>", re.IGNORECASE | re.DOTALL)
#: Words with bytes beyond ASCII. No byte of a character of several bytes is one of those that end a word.
_FOREIGN = re.compile(rb"[^\s<>]*[\x80-\xff][^\s<>]*")
#: What is a letter and not a quote, a dash or a sign: by its number, by standing between letters, or in a run that only
#: encodings of several bytes have.
_EVIDENCE = re.compile(
    rb"[\xc0-\xff]|(?<=[A-Za-z])[\x8a\x8c-\x8f\x9a\x9c-\x9f\xa1-\xac\xae-\xb6\xb8-\xbf](?=[a-z])|[\x80-\xff]{4}"
)
_SAMPLE = 65_536
#: Wrong sequences that an encoding may have, as a share of the bytes beyond ASCII.
_FEW = 0.02
#: Statistics over fewer bytes beyond ASCII than this say nothing.
_LEAST_EVIDENCE = 4
#: An accented capital alpha, and what the same byte is in ISO-8859-7: an apostrophe behind a letter.
_GREEK_ISO = re.compile(rb"(?<![\xc1-\xfe])\xb6[\xd9-\xfe]|[A-Za-z\xc1-\xfe]\xa2")
_GREEK_WINDOWS = re.compile(rb"(?<![A-Za-z\xc1-\xfe])\xa2[\xd9-\xfe]")
#: ISO encoding -> the one of Windows that has characters where it has controls.
_WINDOWS = {"iso8859-2": "cp1250", "iso8859-7": "cp1253", "iso8859-9": "cp1254", "iso8859-6": "cp1256", "iso8859-13": "cp1257"}
_CONTROLS = re.compile(rb"[\x80-\x9f]")
_UTF7 = re.compile(rb"\+[A-Za-z0-9/+]{2,}")


class Decoded(NamedTuple):
    """The text, the name of its encoding, and how many wrong sequences became U+FFFD."""

    text: str
    charset: str
    replaced: int


def _c1(error: UnicodeError) -> tuple[str, int]:
    """Bytes that a single-byte encoding leaves out are the controls of that number, as browsers have it."""
    assert isinstance(error, UnicodeDecodeError)
    return "".join(map(chr, error.object[error.start : error.end])), error.end


codecs.register_error("gristmill-c1", _c1)


def label_of_header(content_type: str) -> str | None:
    """The charset parameter of a Content-Type field."""
    found = _PARAMETER.search(content_type)
    return found[1] if found else None


def labels_of_page(data: bytes) -> list[str]:
    """What the page says of itself: the XML declaration, then the first meta element with a charset."""
    found = [_XML.match(data[:512]), _META.search(data[:_META_WITHIN])]
    return [match[1].decode("ascii") for match in found if match]


def decode(data: bytes, labels: Sequence[str | None] = ()) -> Decoded | None:
    """The text of the bytes; `labels` are what was said about them, most trusted first.

    None if nothing is said and statistics are needed but not installed (`web` extra).
    """
    for mark, marked in MARKS:
        if data.startswith(mark):
            return _replacing(data[len(mark) :], marked)
    codecs_said = [codec for label in labels if label and (codec := codec_of(label))]
    if (found := _seven_bit(data, codecs_said)) is not None:
        return found
    if b"\0" not in data[:_SAMPLE] and (text := _strict(data, "utf-8")) is not None:
        return Decoded(text, "utf-8", 0)
    for codec in codecs_said:
        if codec not in _DEFAULTS and (found := _declared(data, codec)) is not None:
            return found
    if b"\0" not in data[:_SAMPLE] and (found := _declared(data, "utf-8", _FEW / 2)) is not None:
        return found
    return _guessed(data, codecs_said)


def codec_of(label: str) -> str | None:
    """Python's name of the encoding that a label means; None if it means none."""
    label = label.strip().lower()
    try:
        name = codecs.lookup(_LABELS.get(label, label)).name
    except (LookupError, ValueError):
        return None
    info = codecs.lookup(name)
    return name if info._is_text_encoding and name not in _NOT_TEXT else None  # type: ignore[attr-defined]


def _seven_bit(data: bytes, said: Sequence[str]) -> Decoded | None:
    """Text in ASCII bytes whose escapes mean another encoding (ISO-2022-JP, HZ)."""
    if not data.isascii():
        return None
    sample = data[:_SAMPLE]
    if 5 * sum(map(len, _UTF7.findall(sample))) > len(sample):
        try:
            text = _strict(data, "utf-7") if _guess(sample) == "utf-7" else None
        except ImportError:
            text = None
        if text is not None:
            return Decoded(text, "utf-7", 0)
    if not _ESCAPES.search(data):
        return None
    kinds = [codec for codec in said if codec.startswith(("iso2022", "hz"))]
    if b"\x1b" in data:
        kinds += ["iso2022_jp", "iso2022_kr"]
    for kind in kinds:
        for codec in _WIDER.get(kind, (kind,)):
            text = _strict(data, codec)
            if text is not None and not text.isascii() and "\x1b" not in text:
                return Decoded(text, _name(codec), 0)
    return None


def _guess(text: bytes) -> str | None:
    """Python's name of the likeliest encoding, which the text need not be valid in.

    A page with little in its own language (a menu, names) looks English as a whole, and English needs nothing beyond
    ASCII: there the foreign words alone are asked about, if they have letters in them and not just quotes.
    """
    import chardet

    sample = text[:_SAMPLE]
    if (wide := _wide(sample)) is not None:
        return wide
    guess = chardet.detect(sample)
    if guess["language"] == "en" and b"\0" not in sample:
        words = b" ".join(_FOREIGN.findall(text))[:_SAMPLE]
        if _count(_EVIDENCE, words) < _LEAST_EVIDENCE:
            return None
        guess = chardet.detect(words, encoding_era=chardet.EncodingEra.MODERN_WEB | chardet.EncodingEra.LEGACY_ISO)
    name = guess["encoding"]
    if name is None or name.lower() == "utf-7":
        return name
    codec = codec_of(name)
    if codec == "cp1253" and _count(_GREEK_ISO, sample) > _count(_GREEK_WINDOWS, sample):
        return "iso8859-7"
    if codec is not None and codec.startswith("iso8859") and _CONTROLS.search(text):
        return _WINDOWS.get(codec, "cp1252")
    return codec


def _wide(sample: bytes) -> str | None:
    """UTF-16 without a mark, where it has no NUL bytes to know it by: Han and kana, with their punctuation among them."""
    for codec in ("utf-16-le", "utf-16-be"):
        text = _strict(sample[:4096], codec) or ""
        marks = sum("\u3000" <= c <= "\u30ff" for c in text)
        han = sum("\u4e00" <= c <= "\u9fff" for c in text)
        if text and marks * 50 >= len(text) and (marks + han) * 10 >= len(text) * 9:
            return codec
    return None


def _strict(data: bytes, codec: str) -> str | None:
    try:
        return data.decode(codec)
    except (UnicodeDecodeError, ValueError):
        return None


def _declared(data: bytes, codec: str, few: float = _FEW) -> Decoded | None:
    """The text in an encoding, if the bytes are that but for a share of `few` wrong sequences."""
    for wider in _WIDER.get(codec, (codec,)):
        text = _strict(data, wider)
        if text is not None:
            return Decoded(text, _name(wider), 0)
    wider = _WIDER.get(codec, (codec,))[0]
    if wider.startswith(("cp125", "iso8859", "koi8", "mac", "cp8", "ptcp", "kz")):
        return Decoded(data.decode(wider, "gristmill-c1"), _name(wider), 0)
    found = _replacing(data, wider)
    return found if found.replaced <= _beyond(data) * few else None


def _replacing(data: bytes, codec: str) -> Decoded:
    text = data.decode(codec, "replace")
    return Decoded(text, _name(codec), text.count("\ufffd") - data.count(b"\xef\xbf\xbd") * (codec == "utf-8"))


def _guessed(data: bytes, said: Sequence[str]) -> Decoded | None:
    """The text by statistics over the bytes outside of markup."""
    text = data if b"\0" in data[:_SAMPLE] else _MARKUP.sub(b" ", data)
    if text.isascii():  # all that is foreign is in scripts and attributes
        text = data
    default = said[0] if said and said[0] in _DEFAULTS else "cp1252"
    if b"\0" not in text[:_SAMPLE] and not text.isascii() and _beyond(text) < _LEAST_EVIDENCE:
        return _declared(data, default)
    try:
        codec = _guess(text) or default
    except ImportError:
        return _declared(data, said[0]) if said else None
    return _declared(data, default if codec in _DEFAULTS else codec) or _declared(data, "cp1252")


def _beyond(data: bytes) -> int:
    """Bytes beyond ASCII."""
    return len(data) - len(data.translate(None, bytes(range(128, 256))))


def _count(pattern: re.Pattern[bytes], data: bytes) -> int:
    return sum(1 for _ in pattern.finditer(data))


def _name(codec: str) -> str:
    """The name that HTML has for a codec."""
    if codec.startswith("cp125") or codec == "cp874":
        return f"windows-{codec[2:]}"
    names = {"cp932": "shift_jis", "cp949": "euc-kr", "cp950": "big5", "big5hkscs": "big5", "euc_jp": "euc-jp",
             "iso2022_jp": "iso-2022-jp", "euc_jis_2004": "euc-jp", "shift_jis_2004": "shift_jis"}  # fmt: skip
    return names.get(codec, codec.replace("iso8859", "iso-8859").replace("_", "-"))
