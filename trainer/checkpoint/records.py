"""What stands in a checkpoint's `complete.json`, and whether a checkpoint belongs to a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
    """What the loop carries from step to step beside tensors. The place in the data is `step` and nothing else.

    Random numbers are functions of (seed, step, rank), so there is no generator state; a step that has begun is done
    or not done, so there are no gradients.
    """

    step: int = 0
    skipped: int = 0
    skipped_in_a_row: int = 0
    last_bad: int | None = None  # the last step that was skipped, or looked like a spike, counted from 1
    rollbacks: int = 0
    jumped: list[list[int]] = []  # ranges [a, b) of data steps that the guard passes over
    window: list[list[float]] = []  # loss and log of the gradient norm of the last steps that were taken
    phase: str | None = None  # that the window is of
    scale: float | None = None  # of the loss, with fp16
    scale_good: int = 0  # steps since it last changed
    noise: list[float] = []  # running means behind the gradient-noise scale
    best_step: int | None = None
    best_loss: float | None = None
    evals_since_best: int = 0

    def healthy(self, distance: int) -> bool:
        """Whether no bad step lies less than `distance` steps back."""
        return self.last_bad is None or self.step - self.last_bad >= distance


class Stretched(_Record):
    """A stretch of the data order with the name and mix of its phase; `samples` by uid of the source."""

    name: str
    steps: int
    batch: int
    seq_len: int
    samples: dict[str, int]
    used: int | None
    mix: dict[str, float]
    lr_factor: float


class History(_Record):
    """The order that was followed so far and was to be followed: what a later edit of the plan goes on from.

    asked      the stretches that plan.yaml asked for
    followed   those of the run, cut where plan.yaml was edited
    skip       ranges [a, b) of data steps that are passed over
    data_step  steps of the data before the next one, skipped ones too
    schedule   the learning rate at that time
    """

    asked: list[Stretched]
    followed: list[Stretched]
    skip: list[list[int]]
    data_step: int
    schedule: dict[str, float | int | str]


class Identity(_Record):
    """What must be equal for a checkpoint to be this run's. `manifests` is said, not compared: a source that is
    added, or rows that are packed, change the manifest and nothing that was read."""

    manifests: list[str]
    chain: list[str]  # of the plan, up to the phase of the last step done
    model: dict[str, int | float | bool]
    packing: str
    optimizer: str


class Complete(_Record):
    """`complete.json`."""

    format: Literal[2]
    state: State
    identity: Identity
    history: History
    plan: str  # digest of the whole plan, for information
    world: int
    made_with: dict[str, str]  # versions and device, for information
    files: dict[Name, File]
    tensors: dict[str, Whole]

    def inventory(self) -> dict[str, list[str]]:
        """Everything saved, by component: names of tensors, and of the numbers of `state`."""
        found: dict[str, list[str]] = {}
        for name in self.tensors:
            group, _, rest = name.partition("/")
            found.setdefault(group if group == "model" else f"{group} {rest.rpartition('.')[2]}", []).append(rest)
        return found | {"state": list(State.model_fields), "history": list(History.model_fields)}


def check_identity(path: Path, found: Identity, mine: Identity) -> None:
    """SpecError with a table of differences when the checkpoint at `path` is of another corpus, order or model."""
    old, new = (one.model_dump(exclude={"manifests"}) for one in (found, mine))
    rows = [row for key in new for row in _differences(key, old[key], new[key])]
    if not rows:
        return
    width = max(len(row[0]) for row in rows)
    table = [f"{name:<{width}}  checkpoint {a:<12}  now {b}" for name, a, b in rows]
    message = f"{path} was written by another run: {len(rows)} values differ"
    repairs = ["give another run folder with --out", "or go back to the manifest and plan of this run"]
    if found.packing != mine.packing:
        repairs.insert(0, f"write data.packing: {found.packing}, as the run began")
    if found.model == mine.model:
        repairs.append(f"or, to take the weights alone into a new run, write checkpoint.weights_only: {path}")
    raise SpecError(Problem("P004", message, repairs=(*table, *repairs)))


#: How a row of the table is called; link 0 of the chain is the seed, link i the steps, sources and mix of phase i.
_ROWS = {"chain": "data order, link {}"}


def _differences(key: str, old: Any, new: Any) -> Iterator[tuple[str, str, str]]:
    pairs: Mapping[str, tuple[Any, Any]]
    if isinstance(old, dict):
        pairs = {f"{key}.{name}": (old.get(name), new.get(name)) for name in sorted(old.keys() | new.keys())}
    elif isinstance(old, list):
        longest = max(len(old), len(new))
        pairs = {
            _ROWS[key].format(i): (old[i] if i < len(old) else None, new[i] if i < len(new) else None)
            for i in range(longest)
        }
    else:
        pairs = {key: (old, new)}
    for name, (a, b) in pairs.items():
        if a != b:
            yield name, _short(a), _short(b)


def _short(value: Any) -> str:
    return "-" if value is None else value[:12] if isinstance(value, str) else str(value)
