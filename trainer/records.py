"""What stands in a checkpoint's `complete.json`, and whether a checkpoint belongs to a run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from stages.contract.problem import Problem, SpecError

Name = Annotated[
    str, Field(pattern=r"^[A-Za-z0-9_-]+\.safetensors$")
]  # a plain file name: no path leads outside


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class File(_Record):
    """One file as it was written."""

    bytes: int
    sha256: str


class Piece(_Record):
    """Where one rank's part of a tensor lies: `start` is its first index along each dimension of the whole."""

    file: Name
    start: list[int]
    size: list[int]


class Whole(_Record):
    """A tensor and the pieces it was cut into."""

    dtype: str
    shape: list[int]
    pieces: list[Piece]


class State(_Record):
    """What the loop carries from step to step beside tensors. The place in the data is `step` and nothing else."""

    step: int = 0
    skipped: int = 0
    skipped_in_a_row: int = 0
    best_step: int | None = None
    best_loss: float | None = None
    evals_since_best: int = 0


class Identity(_Record):
    """What must be equal for a checkpoint to be this run's."""

    manifests: list[str]
    chain: list[str]  # of the plan, up to the phase of the last step done
    model: dict[str, int | float | bool]


class Complete(_Record):
    """`complete.json`."""

    format: Literal[1]
    state: State
    identity: Identity
    plan: str  # digest of the whole plan, for information
    world: int
    torch: str
    files: dict[Name, File]
    tensors: dict[str, Whole]


def check_identity(path: Path, found: Identity, mine: Identity) -> None:
    """SpecError with a table of differences when the checkpoint at `path` is of another corpus, order or model."""
    theirs = found.model_dump()
    rows = [row for key, value in mine.model_dump().items() for row in _differences(key, theirs[key], value)]
    if not rows:
        return
    width = max(len(row[0]) for row in rows)
    table = [f"{name:<{width}}  checkpoint {old:<12}  now {new}" for name, old, new in rows]
    message = f"{path} was written by another run: {len(rows)} values differ"
    repairs = ("give another run folder with --out", "or go back to the manifest and plan of this run")
    raise SpecError(Problem("P004", message, repairs=(*table, *repairs)))


#: How a row of the table is called; link 0 of the chain is the seed, link i the steps, sources and mix of phase i.
_ROWS = {"manifests": "manifest {}", "chain": "data order, link {}"}


def _differences(key: str, old: Any, new: Any) -> Iterator[tuple[str, str, str]]:
    if isinstance(old, dict):
        pairs = {f"{key}.{name}": (old.get(name), new.get(name)) for name in sorted(old.keys() | new.keys())}
    else:
        longest = max(len(old), len(new))
        pairs = {
            _ROWS[key].format(i): (old[i] if i < len(old) else None, new[i] if i < len(new) else None)
            for i in range(longest)
        }
    for name, (a, b) in pairs.items():
        if a != b:
            yield name, _short(a), _short(b)


def _short(value: Any) -> str:
    return "-" if value is None else value[:12] if isinstance(value, str) else str(value)
