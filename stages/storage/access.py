"""How the places of a config are opened: its `storage_options`, by the place that they are for.

What reads a place says so first, in its own process: `Access.allow`. An address then finds the options of the longest
place that it begins with; one without a place is opened by the environment alone. Secrets stay `Secret` until here, so
no repr, log or error of what carries an `Access` shows one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stages.contract.scalars import Secret, StorageOptions, reveal

_WILD = re.compile(r"[*?\[{]")
_allowed: dict[str, dict[str, Any]] = {}  # place -> options as the library takes them
_secrets: set[str] = set()  # what must not stand in an error of the library


@dataclass(frozen=True)
class Access:
    """Options (of fsspec) for what lies below some places: addresses up to their first wildcard."""

    places: tuple[str, ...]
    options: StorageOptions

    @classmethod
    def to(cls, patterns: Sequence[str], options: StorageOptions) -> Access | None:
        """The access to the addresses among some patterns; None where the environment is enough."""
        places = tuple(place_of(pattern) for pattern in patterns if "://" in pattern)
        return cls(places, options) if places and options else None

    def allow(self) -> None:
        """From now on addresses below these places are opened with these options, in this process."""
        for place in self.places:
            _allowed[place] = reveal(dict(self.options))
        _secrets.update(_secrets_in(self.options))


def place_of(pattern: str) -> str:
    """The part of an address before its first wildcard, up to the last slash; all of it without one."""
    wild = _WILD.search(pattern)
    return pattern if wild is None else pattern[: pattern.rfind("/", 0, wild.start()) + 1]


def options_of(url: str) -> dict[str, Any]:
    """The options for an address, of the longest place that it begins with; none without one."""
    mine = max((place for place in _allowed if url.startswith(place)), key=len, default=None)
    return dict(_allowed[mine]) if mine is not None else {}


def known_secrets() -> frozenset[str]:
    """The texts of all secrets that places have been opened with in this process."""
    return frozenset(_secrets)


def _secrets_in(value: Any) -> Iterator[str]:
    if isinstance(value, Secret):
        yield value.reveal()
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _secrets_in(item)
    elif isinstance(value, list):
        for item in value:
            yield from _secrets_in(item)
