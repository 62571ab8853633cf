"""Secrets: keys and tokens with a known beginning, private keys, passwords in addresses and assignments."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator

_BEFORE = r"(?<![A-Za-z0-9_\-])"
_AFTER = r"(?![A-Za-z0-9_\-])"
#: Issuers' own prefixes: nothing else looks like these.
_KNOWN = re.compile(
    _BEFORE
    + r"(?:gh[pousr]_[A-Za-z0-9]{36,255}|github_pat_[A-Za-z0-9_]{22,255}|glpat-[A-Za-z0-9_\-]{20,64}|(?:AKIA|ASIA)[A-Z0-9]{16}"
    r"|AIza[A-Za-z0-9_\-]{32,40}|xox[abeoprs]-[A-Za-z0-9\-]{10,250}|hf_[A-Za-z]{30,64}|npm_[A-Za-z0-9]{36}"
    r"|pypi-[A-Za-z0-9_\-]{50,255}|SG\.[A-Za-z0-9_\-]{16,32}\.[A-Za-z0-9_\-]{30,64}|[rs]k_(?:live|test)_[A-Za-z0-9]{16,128}"
    r"|dop_v1_[a-f0-9]{64}|shp(?:at|ca|pa|ss)_[A-Fa-f0-9]{32}|GOCSPX-[A-Za-z0-9_\-]{28}|dckr_pat_[A-Za-z0-9_\-]{20,64}"
    r"|gsk_[A-Za-z0-9]{40,64}|nvapi-[A-Za-z0-9_\-]{60,80}|glsa_[A-Za-z0-9]{32}_[A-Fa-f0-9]{8}"
    r"|eyJ[A-Za-z0-9_\-]{8,4096}\.eyJ[A-Za-z0-9_\-]{4,8192}\.[A-Za-z0-9_\-]{8,4096})" + _AFTER
)
#: A prefix that words can have too ("sk-learn"): the rest has to look drawn at random.
_SHORT_PREFIX = re.compile(_BEFORE + r"sk-(?:proj-|ant-|or-)?[A-Za-z0-9_\-]{20,255}" + _AFTER)
_BEARER = re.compile(r"\bbearer\s{1,3}([A-Za-z0-9._~+/\-]{20,4096}={0,2})", re.IGNORECASE)
_ASSIGNED = re.compile(
    r"(?:password|passwd|passwort|pwd|secret|token|api[_-]?key|access[_-]?key|密码|密碼|口令)[\"']?\s{0,3}(?:[:=：]|是|为)\s{0,3}[\"']?"
    r"([^\s\"'<>,;，。；、(){}]{8,128})",
    re.IGNORECASE,
)
_IN_ADDRESS = re.compile(r"(?<=://)[^/\s:@\"'<>]{0,64}:([^/\s@\"'<>]{4,128})@(?=[A-Za-z0-9\[])")
_KEY_BEGIN = re.compile(r"-----BEGIN [A-Z0-9 ]{0,30}PRIVATE KEY-----")
_KEY_END = re.compile(r"-----END [A-Z0-9 ]{0,30}PRIVATE KEY-----")
_KEY_LINES = re.compile(r"(?:\s{0,4}[A-Za-z0-9+/=]{16,128}){0,200}")
_KEY_MAX = 16_384

#: Bits a character (Shannon) from which 20 characters and more look drawn at random; English words have about 3.
_RANDOM_BITS = 3.0


def find_secrets(text: str) -> Iterator[tuple[int, int]]:
    """Private key blocks, tokens by prefix, bearer tokens, passwords in URLs and random-looking assigned values."""
    for match in _KEY_BEGIN.finditer(text):
        end = _KEY_END.search(text, match.end(), match.end() + _KEY_MAX)
        cut = _KEY_LINES.match(text, match.end())
        yield match.start(), end.end() if end else cut.end() if cut else match.end()
    for match in _KNOWN.finditer(text):
        yield match.span()
    for match in _SHORT_PREFIX.finditer(text):
        if _looks_random(match[0][3:]):
            yield match.span()
    for match in _BEARER.finditer(text):
        if _looks_random(match[1]):
            yield match.span(1)
    for match in _IN_ADDRESS.finditer(text):
        named = match[1].startswith(("$", "{", "[", "*"))  # a variable; a plain word is an example
        if _classes(match[1]) >= (3 if named else 2):
            yield match.span(1)
    for match in _ASSIGNED.finditer(text):
        value = match[1]
        if (
            not value.startswith(("$", "{", "[", "%", "*"))
            and _classes(value) >= 3
            and _bits(value) >= _RANDOM_BITS
        ):
            yield match.span(1)


def _looks_random(value: str) -> bool:
    letters = sum(c.isalpha() for c in value)
    digits = sum(c.isdigit() for c in value)
    return letters > 0 and digits > 0 and _bits(value) >= _RANDOM_BITS


def _bits(value: str) -> float:
    """Shannon entropy of the characters, bits per character."""
    return -sum(n / len(value) * math.log2(n / len(value)) for n in sorted(Counter(value).values()))


def _classes(value: str) -> int:
    """How many of lower case, upper case, digits and other characters it has."""
    other = any(not c.isalnum() for c in value)
    return (
        any(c.islower() for c in value)
        + any(c.isupper() for c in value)
        + any(c.isdigit() for c in value)
        + other
    )
