"""`trainer plan --fit-runs`: the loss law of runs of one's own, and what it means for the budget.

    loss = floor + a / parameters^alpha + b / tokens^beta        (Hoffmann et al. 2022, eq. 10)

Runs of one size give the part of the tokens alone. The holdout loss is taken where a run has one, else the mean of the
training loss over a window. Exponents are searched on a grid that is refined; for each pair the rest is linear and comes
from least squares with no negative part, weighted by 1 / loss^2. No random numbers: the same runs give the same law.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np

from stages.contract.problem import Problem, SpecError
from trainer.planning.suggest import LossLaw

#: Of a run, points before this share of its tokens are left out: there the warm-up decides, not the data.
SKIPPED = 0.1

#: Points of a run, evenly spread over the logarithm of its tokens.
POINTS = 24

#: Fewest points that a law is fitted to.
LEAST = 6

#: The knee: where twice the tokens lower the loss by less than this share.
KNEE = 0.01

EXPONENTS = (0.05, 1.2)


@dataclass(frozen=True)
class Run:
    """What a run folder says: its size, its curve, and the gradient-noise scale where it was logged.

    tokens, losses  float64 (P,), positions consumed and loss there, nats a token
    kind            `holdout` or `training`
    """

    path: Path
    parameters: int
    tokens: np.ndarray
    losses: np.ndarray
    kind: str
    done: bool
    noise_scale: float | None


@dataclass(frozen=True)
class Fitted:
    """A law, and how well it meets the points: the root of the mean squared relative difference."""

    law: LossLaw
    error: float
    points: int
    sizes: int

    @property
    def of_size(self) -> bool:
        """Whether the runs differ in size enough to say anything about it."""
        return self.sizes > 1


def read_run(path: Path) -> Run:
    """A run folder with plan.json and metrics.jsonl. SpecError where one is missing or has too little."""
    plan_path, metrics_path = path / "plan.json", path / "metrics.jsonl"
    for file in (plan_path, metrics_path):
        if not file.is_file():
            raise SpecError(Problem("D005", f"{path} is no run folder: it has no {file.name}", repairs=("name the folder given to fit --out",)))
    plan = json.loads(plan_path.read_bytes())
    lines = metrics_path.read_bytes().split(b"\n")
    records = [json.loads(line) for line in lines[:-1]]  # a last line that a kill cut short is left out
    steps = [one for one in records if one.get("kind") == "step" and one.get("loss") is not None]
    consumed = {one["step"]: one["tokens"] for one in steps}
    evals = [one for one in records if one.get("kind") == "eval" and one.get("loss") is not None and one["step"] in consumed]
    noise = [one["noise_scale"] for one in steps if isinstance(one.get("noise_scale"), int | float)]
    total = max(consumed.values(), default=0)
    late = [one for one in evals if consumed[one["step"]] >= SKIPPED * total]
    if len(late) >= LEAST:
        points = [(float(consumed[one["step"]]), float(one["loss"])) for one in late]
        kind = "holdout"
    else:
        points, kind = _windows([(float(one["tokens"]), float(one["loss"])) for one in steps], SKIPPED * total), "training"
    if len(points) < LEAST:
        message = f"{path} has {len(points)} usable points of its loss; a law needs {LEAST}"
        raise SpecError(Problem("D005", message, repairs=("let the run go on", "or give a longer run")))
    tokens, losses = np.array(points).T
    parameters = int(plan["model"]["parameters"])
    scale = float(np.median(noise[len(noise) // 2 :])) if noise else None
    return Run(path, parameters, tokens, losses, kind, bool(steps) and steps[-1]["step"] >= plan["steps"], scale)


def _windows(points: Sequence[tuple[float, float]], first: float) -> list[tuple[float, float]]:
    """Means of the curve over windows that are equal on the logarithm of the tokens."""
    kept = [one for one in points if one[0] >= first]
    if not kept:
        return []
    edges = np.geomspace(kept[0][0], kept[-1][0] * (1 + 1e-9), POINTS + 1)
    windows = [[one for one in kept if low <= one[0] < high] for low, high in pairwise(edges)]
    return [
        (sum(t for t, _ in inside) / len(inside), sum(loss for _, loss in inside) / len(inside))
        for inside in windows
        if inside
    ]


def fit(runs: Sequence[Run]) -> Fitted:
    """The law that meets all points best."""
    parameters = np.concatenate([np.full(len(run.tokens), float(run.parameters)) for run in runs])
    tokens, losses = np.concatenate([run.tokens for run in runs]), np.concatenate([run.losses for run in runs])
    sizes = len({run.parameters for run in runs})
    best = (math.inf, LossLaw(0.0, 0.0, 0.0, 0.0, 0.0))
    alphas, betas = _grid(EXPONENTS) if sizes > 1 else np.array([0.0]), _grid(EXPONENTS)
    for _ in range(6):
        for alpha in alphas:
            for beta in betas:
                best = min(best, _linear(parameters, tokens, losses, float(alpha), float(beta)), key=lambda one: one[0])
        alphas = _around(best[1].alpha, alphas) if sizes > 1 else alphas
        betas = _around(best[1].beta, betas)
    return Fitted(best[1], math.sqrt(best[0] / len(tokens)), len(tokens), sizes)


def _grid(bounds: tuple[float, float]) -> np.ndarray:
    return np.linspace(*bounds, 24)


def _around(value: float, grid: np.ndarray) -> np.ndarray:
    step = grid[1] - grid[0]
    return np.linspace(max(EXPONENTS[0], value - step), min(EXPONENTS[1], value + step), 9)


def _linear(
    parameters: np.ndarray, tokens: np.ndarray, losses: np.ndarray, alpha: float, beta: float
) -> tuple[float, LossLaw]:
    """Floor, a and b of least squares, none below 0, for two exponents; and the squared relative difference."""
    columns = [np.ones_like(tokens), tokens**-beta]
    if alpha:
        columns.append(parameters**-alpha)
    matrix_PC, wanted_P = np.stack(columns, 1) / losses[:, None], np.ones_like(losses)
    best, chosen = math.inf, np.zeros(len(columns))
    for size in range(1, len(columns) + 1):
        for used in combinations(range(len(columns)), size):
            # Columns are scaled to one: tokens^-beta and parameters^-alpha differ by many powers of ten.
            part = matrix_PC[:, used]
            scale = np.linalg.norm(part, axis=0)
            solved = np.linalg.lstsq(part / scale, wanted_P, rcond=None)[0] / scale
            error = float(((part @ solved - wanted_P) ** 2).sum())
            if (solved >= 0).all() and error < best:
                best, chosen = error, np.zeros(len(columns))
                chosen[list(used)] = solved
    a = float(chosen[2]) if alpha else 0.0
    return best, LossLaw(float(chosen[0]), a, alpha, float(chosen[1]), beta)


# ---- what it means ---------------------------------------------------------------------------------------------


def knee(law: LossLaw, parameters: float) -> float | None:
    """Tokens from where on twice as many lower the loss by less than `KNEE` of it; None where it never does so."""
    if law.b <= 0:
        return None
    low, high = 1.0, 1e18
    if _doubling(law, parameters, high) >= KNEE:
        return None
    for _ in range(200):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if _doubling(law, parameters, middle) >= KNEE else (low, middle)
    return high


def _doubling(law: LossLaw, parameters: float, tokens: float) -> float:
    """The share by which the loss falls when the tokens are doubled."""
    return 1 - law.loss(parameters, 2 * tokens) / law.loss(parameters, tokens)


def meaning(fitted: Fitted, parameters: float, tokens: float) -> list[tuple[str, float | None, str]]:
    """What the law says of a planned run: name, number, and a sentence."""
    law = fitted.law
    loss = law.loss(parameters, tokens)
    gain = law.gain(tokens)
    found: list[tuple[str, float | None, str]] = [
        ("loss", loss, f"loss {loss:.4f} after the planned tokens"),
        ("gain", gain, f"a token more lowers it by {gain:.3g} there (beta b / tokens^(beta + 1)), one percent more by "
                       f"{gain * tokens / 100:.3g}"),
        ("doubling", _doubling(law, parameters, tokens), f"twice the tokens would lower it by {_doubling(law, parameters, tokens):.2%}"),
    ]  # fmt: skip
    turn = knee(law, parameters)
    if turn is None:
        found.append(("knee", None, f"no knee: twice the tokens always lower it by over {KNEE:.0%}"))
    else:
        side = "behind" if tokens > turn else "before"
        found.append(("knee", turn, f"the knee, from where twice the tokens lower it by under {KNEE:.0%}, is at {turn:.3g} tokens; the plan ends {side} it"))
    if fitted.of_size and law.a > 0:
        ratio = (law.beta * law.b * tokens**-law.beta) / (law.alpha * law.a * parameters**-law.alpha)
        word = "more parameters" if ratio < 0.8 else "more tokens" if ratio > 1.25 else "neither: both are in balance"
        found.append(("balance", ratio, f"for the same compute {word} would help more (gain by tokens / gain by parameters {ratio:.2f})"))
    return found


def reach(runs: Iterable[Run], tokens: float) -> float:
    """How many times the planned tokens are those of the longest run."""
    return tokens / max(float(run.tokens.max()) for run in runs)
