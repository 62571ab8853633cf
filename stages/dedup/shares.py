"""Shares that were measured on a sample, for people: with the interval that the sample allows."""

from __future__ import annotations

import math
from collections.abc import Mapping


def audit_text(counters: Mapping[str, int]) -> str | None:
    """What the audit found, for people, with 95 % intervals (Wilson 1927); None when there was none."""
    if "audit_removals" not in counters:
        return None
    removals, pairs = counters["audit_removals"], counters["audit_pairs"]
    said = [
        _share("of removals reach the threshold by exact similarity", counters["audit_removals_similar"], removals),
        f"{counters['audit_removals_far']:,} are more than 0.15 below it" if removals else "",
        _share("of similar pairs have a side removed", counters["audit_pairs_found"], pairs),
    ]
    return "audit: " + "; ".join(text for text in said if text)


def interval(successes: int, n: int) -> tuple[float, float]:
    """The Wilson score interval of 95 % for a share; (0, 1) without cases."""
    if n == 0:
        return 0.0, 1.0
    z, share = 1.959964, successes / n
    middle = share + z * z / (2 * n)
    half = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return (middle - half) / (1 + z * z / n), (middle + half) / (1 + z * z / n)


def _share(what: str, successes: int, n: int) -> str:
    if n == 0:
        return f"no case: {what}"
    low, high = interval(successes, n)
    return f"{100 * successes / n:.1f} % ({100 * low:.1f} to {100 * high:.1f}, n = {n:,}) {what}"
