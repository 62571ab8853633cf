"""The command `pipeline train-quality`: texts in files to a model, its card, and what to say about it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stages.contract.problem import Problem, RunError, SpecError
from stages.quality.scoring import card_path
from stages.quality.train import Settings, read_texts, train


def train_classifier(
    good: Sequence[str],
    bad: Sequence[str],
    target: Path,
    text: str | None,
    limit: int,
    epochs: int,
    seed: int,
) -> tuple[str, dict[str, Any]]:
    """`(text for people, card)`. SpecError where the inputs are wrong, RunError where training fails."""
    try:
        yes, no = (read_texts(patterns, text, limit) for patterns in (good, bad))
        card = train(yes, no, target, Settings(epoch=epochs, seed=seed), (*good, *bad))
    except (OSError, ValueError) as error:
        raise SpecError(Problem("C015", str(error))) from error
    except RuntimeError as error:
        raise RunError(Problem("R001", str(error))) from error
    rows = [
        f"  {row['threshold']:9g}  {row['precision']:9.3f}  {row['recall']:6.3f}" for row in card["curve"]
    ]
    trained, tested = card["trained_on"], card["tested_on"]
    return "\n".join(
        [
            f"trained on {trained['good']:,} good and {trained['bad']:,} bad texts,"
            f" tested on {tested['good']:,} and {tested['bad']:,} others",
            "  threshold  precision  recall   (of good)",
            *rows,
            f"model {target}",
            f"card  {card_path(str(target))}",
        ]
    ), card
