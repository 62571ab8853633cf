"""Values of a parsed record: dotted look-up, the id as text, the kept fields as JSON, surrogates repaired."""

from __future__ import annotations

import json
import math
import re
from collections.abc import MutableMapping, Sequence
from typing import Any, NamedTuple

import orjson

from stages.readers.record import Unfit

Counters = MutableMapping[str, int]

#: Counter of UTF-16 surrogates without a partner that became U+FFFD.
SURROGATES = "surrogates-replaced"

_SURROGATE = re.compile("[\ud800-\udfff]")
#: Depth of nesting of a kept field; what can be written as well as read.
MAX_KEPT_DEPTH = 100
_EXACT_BELOW = 2.0**53  # a float of JSON below this is at worst a rounded fraction, never a rounded integer


def count(counters: Counters, name: str, number: int = 1) -> None:
    """Add to a counter that need not exist yet."""
    if number:
        counters[name] = counters.get(name, 0) + number


def lookup(record: dict[str, Any], name: str) -> Any:
    """The value of a field. A key that is spelled exactly so comes before the dotted reading.

    Raises `Unfit("missing-field")`.
    """
    if name in record:
        return record[name]
    here: Any = record
    for step in name.split("."):
        if not isinstance(here, dict) or step not in here:
            raise Unfit("missing-field", f"no field {name!r}; fields are {_listed(record)}")
        here = here[step]
    return here


def _listed(record: dict[str, Any]) -> str:
    names = [repr(str(name)[:40]) for name in list(record)[:8]]
    return (", ".join(names) + (", …" if len(record) > 8 else "")) or "none"


def find(record: dict[str, Any], name: str) -> Any:
    """The value of a field, or None if it is not there."""
    try:
        return lookup(record, name)
    except Unfit:
        return None


def repair(text: str, counters: Counters) -> str:
    """The text with each lone surrogate as U+FFFD, counted: UTF-8 has no form for them."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        text, number = _SURROGATE.subn("\ufffd", text)
        count(counters, SURROGATES, number)
    return text


def id_text(value: Any) -> str | None:
    """The user's id as a string; null stays null, anything but a scalar becomes JSON."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return json_text(value)


class Shape(NamedTuple):
    """What has to be known of a value before it is written as JSON.

    exact   orjson, which reads integers over 64 bits as floats, cannot have lost digits
    finite  no NaN and no infinity, which orjson would write as null
    """

    exact: bool
    finite: bool


def shape(value: Any) -> Shape:
    """Raises `Unfit("too-deep")`. Not recursive, so that it does not depend on the stack."""
    exact = finite = True
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > MAX_KEPT_DEPTH:
            raise Unfit("too-deep", f"a kept field is nested deeper than {MAX_KEPT_DEPTH}")
        inner: list[Any] = []
        for item in level:
            if isinstance(item, float):
                exact = exact and abs(item) < _EXACT_BELOW
                finite = finite and math.isfinite(item)
            elif isinstance(item, dict):
                inner.extend(item.values())
            elif isinstance(item, list | tuple):
                inner.extend(item)
        level = inner
    return Shape(exact, finite)


def kept(record: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """The fields to carry along, those the record has; a dotted field under its dotted name."""
    found = {}
    for name in names:
        try:
            found[name] = lookup(record, name)
        except Unfit:
            continue
    return found


def json_text(value: Any) -> str:
    """Compact JSON with sorted keys. Big integers stay exact; NaN, dates, bytes and the like become strings.

    Raises `Unfit("too-deep")`.
    """
    if shape(value).finite:
        try:
            return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()
        except TypeError:  # integers over 64 bits, surrogates, keys that are not strings, Decimal, bytes …
            pass
    return json.dumps(_spelled(value), ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def _spelled(value: Any) -> Any:
    """The value in JSON's own types."""
    if isinstance(value, dict):
        return {str(key): _spelled(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_spelled(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return json.dumps(value)  # NaN, Infinity, as JSON lines spell them
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value.hex()
    return value if value is None or isinstance(value, str | int | float) else str(value)
