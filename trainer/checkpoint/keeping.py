"""Which checkpoints of a run stay, and which go: the last few, the best, the last sound one, every so many steps."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from trainer.checkpoint import COMPLETE, UNFINISHED, folders, remove
from trainer.checkpoint.records import Complete


def outdated(steps: Sequence[int], keep_last: int, spared: set[int], every: int | None = None) -> list[int]:
    """Which of these steps rotation deletes: all but the last `keep_last` (at least one) by number, those of `spared`,
    and the multiples of `every`."""
    rising = sorted(steps)
    kept = set(rising[-max(1, keep_last) :]) | spared
    return [step for step in rising if step not in kept and not (every and step % every == 0)]


def rotate(root: Path, keep_last: int, spared: set[int], every: int | None = None) -> list[int]:
    """Delete outdated checkpoints; called after a newer one is complete. The steps deleted."""
    present = folders(root)
    deleted = outdated(list(present), keep_last, spared, every)
    for step in deleted:
        remove(present[step])
    return deleted


def newest_healthy(root: Path, most: int, distance: int) -> int | None:
    """The newest step, `most` at most, whose checkpoint no bad step is near; see `State.healthy`."""
    for step, path in reversed(folders(root).items()):
        if step <= most:
            try:
                record = Complete.model_validate_json((path / COMPLETE).read_bytes())
            except (OSError, ValidationError):
                continue
            if record.state.healthy(distance):
                return step
    return None


def remove_behind(root: Path, step: int) -> None:
    """Delete the checkpoints of later steps: the run has gone back, and they are none of it any more."""
    for other, path in reversed(folders(root).items()):
        if other > step:
            remove(path)


def clear_unfinished(root: Path) -> None:
    """Delete what killed saves and killed deletions left."""
    for path in root.glob(f"step-*{UNFINISHED}"):
        shutil.rmtree(path)
