"""The gradient-noise scale: about the batch, in tokens, beyond which a larger one learns little more from a token.

McCandlish et al. 2018, appendix A.1. Of a step the loop knows |g|^2 of all its B tokens and, where it takes several
passes, of the b tokens of the first:

    G = (B |g_B|^2 - b |g_b|^2) / (B - b)              |true gradient|^2, without bias
    S = (|g_b|^2 - |g_B|^2) / (1 / b - 1 / B)          trace of the covariance
    noise scale = S / G                                 of running means: a single step says nothing
"""

from __future__ import annotations

from collections.abc import Sequence

#: Weight of a new value in the running means.
WEIGHT = 0.05


def followed(means: Sequence[float], big: tuple[float, float], small: tuple[float, float]) -> list[float]:
    """The running means [S, G, weight so far] with one more step; `big` and `small` are (|g|^2, tokens)."""
    (g_big, b_big), (g_small, b_small) = big, small
    if not 0 < b_small < b_big:
        return list(means)
    s = (g_small - g_big) / (1 / b_small - 1 / b_big)
    g = (b_big * g_big - b_small * g_small) / (b_big - b_small)
    old = list(means) or [0.0, 0.0, 0.0]
    return [m + WEIGHT * (x - m) for m, x in zip(old, (s, g, 1.0), strict=True)]


def scale_of(means: Sequence[float]) -> float | None:
    """Tokens; None before there are means, and where the gradient drowns in noise."""
    return means[0] / means[1] if means and means[0] > 0 and means[1] > 0 else None
