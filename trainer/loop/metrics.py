"""What a run says about itself: metrics.jsonl, one line on the terminal, a loss curve.

metrics.jsonl holds one JSON object a line, in step order; `kind` is `step` or `eval`. After a resume the lines
beyond the checkpoint are cut, so the file is that of a run that was never stopped, apart from the fields in
`TIMING`. `step` counts steps done: the checkpoint `step-00000010` follows the line with `"step": 10`.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np

from stages.contract.files import write_atomic
from stages.contract.names import canonical_json
from stages.contract.problem import printable
from trainer.loader import Batch
from trainer.loop.curves import loss_svg, page, thinned
from trainer.loop.flops import token_flops
from trainer.loop.schedule import rate_at
from trainer.loop.sinks import Sink
from trainer.planned import Plan

if TYPE_CHECKING:
    from trainer.loop.step import Numbers

#: Fields that differ between two runs of the same plan.
TIMING = ("seconds", "tokens_per_second", "data_wait", "flops_per_second", "mfu", "memory")

#: Seconds between two lines where nobody watches.
HEARTBEAT = 30.0


class Metrics:
    """The file metrics.jsonl of a run folder, its pictures and other sinks; one process writes them."""

    def __init__(self, folder: Path, step: int, name: str, sinks: Sequence[Sink] = ()) -> None:
        """Open it behind the lines of the first `step` steps; later ones are cut."""
        self.path = folder / "metrics.jsonl"
        self.name = name
        kept = [record for record in read(self.path) if record["step"] <= step]
        write_atomic(self.path, b"".join(canonical_json(record) + b"\n" for record in kept))
        self._file = open(self.path, "ab")
        self._sinks = sinks

    def write(self, record: dict[str, Any], due: bool = True) -> None:
        """One line, visible to readers at once; to the other sinks too, if it is `due`."""
        self._file.write(canonical_json(record) + b"\n")
        self._file.flush()
        for sink in self._sinks if due else ():
            sink.write(record)

    def sync(self) -> None:
        """Put all lines on disk: a checkpoint must not outlive the lines before it."""
        os.fsync(self._file.fileno())

    def draw(self) -> None:
        """Write loss.svg and loss.html next to metrics.jsonl."""
        records = thinned(self.path.read_bytes().split(b"\n"))
        write_atomic(self.path.with_name("loss.svg"), loss_svg(records).encode())
        write_atomic(self.path.with_name("loss.html"), page(records, self.name).encode())

    def close(self) -> None:
        """Close everything."""
        self._file.close()
        for sink in self._sinks:
            sink.close()


def step_record(
    plan: Plan, numbers: Numbers, step: int, seconds: float, waited: float, context: float
) -> dict[str, Any]:
    """The metrics line of a step (0-based) that took so many seconds, `waited` of them for its batch.

    context  mean length of the documents that its tokens stand in
    """
    phase = plan.phase_at(step)
    speed = phase.tokens_per_step / seconds
    return {
        "kind": "step",
        "step": step + 1,
        "phase": phase.name,
        "loss": finite_or_none(numbers.loss),
        "losses": {name: finite_or_none(loss) for name, loss in numbers.losses.items()},
        "lr": rate_at(plan, step),
        "grad_norm": finite_or_none(numbers.norm),
        "tokens": plan.tokens_at(step + 1),
        "targets": numbers.targets,
        "digest": numbers.digest,
        "skipped": numbers.skipped,
        "seconds": round(seconds, 6),
        "tokens_per_second": round(speed, 3),
        "data_wait": round(waited, 6),
        "flops_per_second": round(speed * token_flops(plan.model, context)),
    }


def read(path: Path) -> list[dict[str, Any]]:
    """The records of a metrics file; none if there is no file. A last line that a kill cut short is left out."""
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")
    return [json.loads(line) for line in lines[:-1]]


def summary(records: Sequence[Mapping[str, Any]]) -> str | None:
    """`loss 9.0150 at step 1, 6.3792 at step 195; holdout 6.3810, 2.4110 bits per byte`; None before there was a step."""
    steps = [record for record in records if record["kind"] == "step" and record["loss"] is not None]
    if not steps:
        return None
    first, last = steps[0], steps[-1]
    said = f"loss {first['loss']:.4f} at step {first['step']:,}, {last['loss']:.4f} at step {last['step']:,}"
    held = [record for record in records if record["kind"] == "eval" and record["loss"] is not None]
    if held:
        bits = held[-1].get("bits_per_byte")
        said += f"; holdout {held[-1]['loss']:.4f}" + (f", {bits:.4f} bits per byte" if bits else "")
    return said


class Ticker:
    """One line about the run: live on a terminal, else one every `HEARTBEAT` seconds."""

    def __init__(self, steps: int, stream: TextIO | None = None) -> None:
        self.steps = steps
        self.stream = stream or sys.stderr
        self._next = time.monotonic() + HEARTBEAT
        self._first: tuple[int, float] | None = None  # step and moment at which this start began to train
        self._live: Any = None
        if self.stream.isatty():
            from rich.console import Console
            from rich.status import Status

            self._live = Status("", console=Console(file=self.stream), spinner_style="dim")
            self._live.start()

    def tick(self, record: dict[str, Any]) -> None:
        """Show this step, if it is time to."""
        self._first = self._first or (record["step"] - 1, time.monotonic() - record["seconds"])
        if self._live is not None:
            from rich.text import Text

            self._live.update(Text(self.line(record), no_wrap=True, overflow="ellipsis"))
        elif time.monotonic() >= self._next:
            self.say(self.line(record))
            self._next = time.monotonic() + HEARTBEAT

    def line(self, record: dict[str, Any]) -> str:
        """`step 40/200  phase warm  loss 3.2107  lr 2.0e-04  norm 1.31  81,920 tokens  12,345 tokens/s  2m10s left`."""
        now, step = time.monotonic(), record["step"]
        first, since = self._first or (step - 1, now - record["seconds"])
        left = (self.steps - step) * (now - since) / (step - first)
        loss, norm = (
            f"{v:.4f}" if v is not None else "not finite" for v in (record["loss"], record["grad_norm"])
        )
        return printable(
            f"step {step:,}/{self.steps:,}  phase {record['phase']}  loss {loss}  lr {record['lr']:.2e}  "
            f"norm {norm}  {record['tokens']:,} tokens  {record['tokens_per_second']:,.0f} tokens/s  "
            f"{duration(left)} left"
        )

    def say(self, text: str) -> None:
        """A line that stays."""
        if self._live is not None:
            self._live.console.print(text, markup=False, highlight=False)
        else:
            print(text, file=self.stream, flush=True)

    def close(self) -> None:
        """Take the live line away."""
        if self._live is not None:
            self._live.stop()


def duration(seconds: float) -> str:
    """`2d03h`, `1h05m`, `2m10s`, `7s`."""
    total = int(seconds)
    for unit, size, small, part in (("d", 86400, "h", 3600), ("h", 3600, "m", 60), ("m", 60, "s", 1)):
        if total >= size:
            return f"{total // size}{unit}{total % size // part:02d}{small}"
    return f"{total}s"


def digest_parts(batch: Batch, first_slot: int) -> list[int]:
    """Four sums, one per 32 bits of a 128-bit hash over each real row (its place in the step, its token ids).

    Added up over ranks, each modulo 2**32, they are a digest of the whole step that does not depend on how the
    rows were dealt. `first_slot` is the place of this rank's first row.
    """
    sums, slot = np.zeros(4, np.int64), first_slot
    for micro in batch.micros:
        for ids_L, weight in zip(np.asarray(micro["input_ids"]), np.asarray(micro["weight"]), strict=True):
            if weight == 0:  # a filler row
                continue
            row = slot.to_bytes(8, "little") + np.ascontiguousarray(ids_L, dtype="<u4").tobytes()
            sums += np.frombuffer(hashlib.blake2b(row, digest_size=16).digest(), "<u4")
            slot += 1
    return [int(part) for part in sums]


def batch_rows(batch: Batch, sources: Sequence[str]) -> list[dict[str, Any]]:
    """Source and document ids of each real row of a batch, in the order of the step."""
    rows = []
    for micro in batch.micros:
        length = np.asarray(micro["input_ids"]).shape[1]
        starts = np.asarray(micro["cu_seqlens"])[:-1]
        for i, weight in enumerate(np.asarray(micro["weight"])):
            if weight == 0:
                continue
            inside = (starts >= i * length) & (starts < (i + 1) * length)
            spans = np.flatnonzero(inside & (np.asarray(micro["span_document"]) >= 0))  # without padding
            documents = [bytes(micro["span_id"][span]).hex() for span in spans]
            rows.append({"source": sources[int(micro["source"][i])], "documents": documents})
    return rows


def finite_or_none(value: float) -> float | None:
    """JSON has no NaN."""
    return value if math.isfinite(value) else None
