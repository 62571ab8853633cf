"""Numbers as people read them, by unit; and as they are written into plan.yaml."""

from __future__ import annotations

from trainer.planning.equations import COUNTED, FIELDS

_SIZES = (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))
_POWERS = (("E", 1e18), ("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6))


def shown(name: str, number: float | str) -> str:
    """The value of a field for a table."""
    if isinstance(number, str):
        return number
    return in_unit(FIELDS[name].unit, number)


def in_unit(unit: str, number: float) -> str:
    """A number in its unit."""
    if unit in COUNTED:
        return f"{number:,.0f}" if float(number).is_integer() else f"{number:,.1f}"
    if unit == "share":
        return f"{number:.4g}" if number > 1 else f"{100 * number:.4g} %"
    if unit == "bytes" or unit == "bytes/s":
        return size(number) + ("/s" if unit == "bytes/s" else "")
    if unit == "seconds":
        return span(number)
    if unit == "hours":
        return f"{number:,.1f} h" if number < 1000 else f"{number:,.0f} h"
    if unit in ("FLOP", "FLOP/s"):
        prefix, power = next(((p, v) for p, v in _POWERS if number >= v), ("", 1.0))
        return f"{number / power:.4g} {prefix}{unit}"
    if unit == "tokens/s":
        return f"{number:,.0f}"
    if unit == "money":
        return f"{number:,.2f}"
    return f"{number:.6g}"


def size(number: float) -> str:
    """Bytes in binary units: `61.9 GiB`."""
    unit, factor = next(((u, f) for u, f in _SIZES if number >= f), ("bytes", 1))
    return f"{number / factor:,.3g} {unit}" if number / factor < 100 else f"{number / factor:,.0f} {unit}"


def span(seconds: float) -> str:
    """A time in the unit that suits it: `108 days`, `2.31 hours`, `8.4 s`."""
    year = 365.25 * 86400
    for unit, factor in (("years", year), ("days", 86400.0), ("hours", 3600.0), ("min", 60.0)):
        if seconds >= 2 * factor:
            return f"{seconds / factor:,.3g} {unit}" if seconds / factor < 1000 else f"{seconds / factor:,.0f} {unit}"
    return f"{seconds:.3g} s"


def billions(tokens: float) -> str:
    """Tokens in words of a thousand: `279.8 B`."""
    for unit, factor in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if tokens >= factor:
            return f"{tokens / factor:.3g} {unit}"
    return f"{tokens:.0f}"


def written(name: str, number: float | str) -> str:
    """The value as plan.yaml takes it."""
    if isinstance(number, str):
        return number
    if FIELDS[name].unit in COUNTED and float(number).is_integer():
        return f"{int(number):_}"
    if FIELDS[name].unit == "share":
        return f"{100 * number:.6g}%"
    return f"{number:.6g}"
