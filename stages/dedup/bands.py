"""How many bands of how many rows: the collision curve of MinHash LSH, and the choice for a threshold.

Two documents with Jaccard similarity J share the key of at least one of B bands of R rows with
P(J) = 1 - (1 - J**R)**B (Leskovec, Rajaraman, Ullman, Mining of Massive Datasets, 3.4).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np

#: What the default choice promises: the chance to be proposed at the threshold, and 0.1 above it. A proposal is verified
#: afterwards and costs nanoseconds; a duplicate that never meets its partner is lost.
AT_THRESHOLD, ABOVE = 0.90, 0.99
#: Weights of (documents proposed in vain, duplicates not proposed) where that promise cannot be kept.
VERIFIED = (0.1, 0.9)
#: The weights datasketch takes by default.
DATASKETCH = (0.5, 0.5)

_STEP = 0.001


def collision_probability(similarity: float, bands: int, rows: int) -> float:
    """P(J): the chance that two documents of this similarity are proposed."""
    return 1.0 - (1.0 - similarity**rows) ** bands


def collision_curve(bands: int, rows: int) -> dict[float, float]:
    """P(J) at J = 0.5, 0.6, 0.7, 0.8, 0.9."""
    return {j / 10: collision_probability(j / 10, bands, rows) for j in range(5, 10)}


@lru_cache
def selective_bands(
    threshold: float, permutations: int, bands: int | None = None, rows: int | None = None
) -> tuple[int, int]:
    """`(bands, rows)` with the fewest proposals below the threshold of those that find enough from it on.

    Enough: P(threshold) >= AT_THRESHOLD and P(threshold + 0.1) >= ABOVE, with bands * rows <= permutations. Proposals
    below are the integral of P up to the threshold. A given `bands` or `rows` is kept; where nothing finds enough,
    `choose_bands` with VERIFIED decides. ValueError when nothing fits.
    """
    below = _midpoints(0.0, threshold)
    best: tuple[float, int, int] | None = None
    for b, r in _fitting(permutations, bands, rows):
        if collision_probability(threshold, b, r) < AT_THRESHOLD:
            continue
        if collision_probability(min(threshold + 0.1, 1.0), b, r) < ABOVE:
            continue
        proposed = float((1.0 - (1.0 - below**r) ** b).sum())
        if best is None or proposed < best[0]:
            best = (proposed, b, r)
    return best[1:] if best is not None else choose_bands(threshold, permutations, VERIFIED, bands, rows)


def _fitting(permutations: int, bands: int | None, rows: int | None) -> Iterator[tuple[int, int]]:
    for b in range(1, permutations + 1) if bands is None else (bands,):
        for r in range(1, permutations // b + 1) if rows is None else (rows,):
            if b * r <= permutations:
                yield b, r


@lru_cache
def choose_bands(
    threshold: float,
    permutations: int,
    weights: tuple[float, float],
    bands: int | None = None,
    rows: int | None = None,
) -> tuple[int, int]:
    """`(bands, rows)` with bands * rows <= permutations and the least weighted error around the threshold.

    The error is w0 * integral of P below the threshold + w1 * integral of 1 - P above it, by the midpoint
    rule with step 0.001, as in datasketch. A given `bands` or `rows` is kept. Of equal choices the first in order
    of (bands, rows) is taken. ValueError when nothing fits.
    """
    below = _midpoints(0.0, threshold)
    above = _midpoints(threshold, 1.0)
    best: tuple[float, int, int] | None = None
    for b, r in _fitting(permutations, bands, rows):
        proposed = (1.0 - (1.0 - below**r) ** b).sum() * _STEP
        missed = ((1.0 - above**r) ** b).sum() * _STEP
        error = float(weights[0] * proposed + weights[1] * missed)
        if best is None or error < best[0]:
            best = (error, b, r)
    if best is None:
        raise ValueError(f"{bands or 1} bands of {rows or 1} rows need more than {permutations} permutations")
    return best[1], best[2]


def _midpoints(start: float, stop: float) -> np.ndarray:
    return np.arange(start + _STEP / 2, stop, _STEP)
