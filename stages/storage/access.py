"""How the places of a config are opened: its `storage_options`, by the place that they are for.

What reads a place says so first, in its own process: `Access.allow`. An address then finds the options of the longest
place that it begins with; one without a place is opened by the environment alone. Secrets stay `Secret` until here, so
no repr, log or error of what carries an `Access` shows one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stages.contract.scalars import StorageOptions, reveal

_WILD = re.compile(r"[*?\[{]")
_allowed: dict[str, dict[str, Any]] = {}  # place -> options as the library takes them


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


def place_of(pattern: str) -> str:
    """The part of an address before its first wildcard, up to the last slash; all of it without one."""
    wild = _WILD.search(pattern)
    return pattern if wild is None else pattern[: pattern.rfind("/", 0, wild.start()) + 1]


def options_of(url: str) -> dict[str, Any]:
    """The options for an address, of the longest place that it begins with; none without one."""
    mine = max((place for place in _allowed if url.startswith(place)), key=len, default=None)
    return dict(_allowed[mine]) if mine is not None else {}
