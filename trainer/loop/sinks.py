"""Where curves go beside metrics.jsonl: TensorBoard and Weights & Biases, imported when a plan asks for them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from stages.contract.problem import Problem, RunError

#: Numbers of a record that become curves; numbers by source become `<name>/<source>`.
CURVES = ("loss", "lr", "grad_norm", "tokens_per_second", "bits_per_byte", "noise_scale", "mfu", "loss_scale")
BY_SOURCE = ("losses", "bits_per_byte_of")


class Sink(Protocol):
    """Takes the records that are due."""

    def write(self, record: Mapping[str, Any]) -> None:
        """One record of metrics.jsonl."""

    def close(self) -> None:
        """Let go."""


def numbers_of(record: Mapping[str, Any]) -> dict[str, float]:
    """The curves of a record by name, `<kind>/<curve>`."""
    kind = record["kind"]
    found = {f"{kind}/{name}": record[name] for name in CURVES if record.get(name) is not None}
    for field in BY_SOURCE:
        values = record.get(field) or {}
        found |= {f"{kind}/{field}/{source}": value for source, value in values.items() if value is not None}
    return found


def opened(names: Sequence[str], folder: Path, step: int, name: str, config: Mapping[str, Any]) -> list[Sink]:
    """The sinks of a run folder behind step `step`. RunError when one needs a package that is not installed."""
    known: dict[str, Callable[[Path, int, str, Mapping[str, Any]], Sink]] = {"tensorboard": _TensorBoard, "wandb": _Wandb}
    found: list[Sink] = []
    for one in names:
        if one not in known:
            continue
        try:
            found.append(known[one](folder, step, name, config))
        except ImportError as error:
            message = f"monitoring.sinks names {one}, but {error.name} is not installed"
            repairs = (f"pip install {one}", f"take {one} out of monitoring.sinks; metrics.jsonl is always written")
            raise RunError(Problem("R007", message, repairs=repairs)) from error
    return found


class _TensorBoard:
    def __init__(self, folder: Path, step: int, name: str, config: Mapping[str, Any]) -> None:  # noqa: ARG002
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)

    def write(self, record: Mapping[str, Any]) -> None:
        for name, value in numbers_of(record).items():
            self._writer.add_scalar(name, value, record["step"])

    def close(self) -> None:
        self._writer.close()


class _Wandb:
    def __init__(self, folder: Path, step: int, name: str, config: Mapping[str, Any]) -> None:  # noqa: ARG002
        import wandb

        # A run folder is one run there too, however often it is started.
        identity = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]
        self._run = wandb.init(
            project="gristmill", name=name, id=identity, resume="allow", dir=str(folder), config=dict(config)
        )

    def write(self, record: Mapping[str, Any]) -> None:
        self._run.log(numbers_of(record), step=record["step"])

    def close(self) -> None:
        self._run.finish()
