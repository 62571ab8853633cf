"""What a person sees: progress while a build runs, tables when it is done. Reads events and results, decides nothing.

On a terminal one live line per pass; elsewhere a line when a pass begins and ends and every 30 seconds between, so
that a log stays readable and nothing looks dead. stderr only: stdout carries results.
"""

from __future__ import annotations

import resource
import shutil
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from pipeline import events
from pipeline.engine.epochs import BYTES_A_TOKEN, MANY_EPOCHS, reading
from stages.contract.problem import display_width, printable
from stages.dedup.shares import audit_text
from stages.storage.address import Address

if TYPE_CHECKING:
    from pipeline.engine.plan import Plan
    from pipeline.engine.records import StageCount

HEARTBEAT_SECONDS = 30.0

#: Bytes in `work/` for each byte of text, about: text is stored lz4-compressed once per pass that changes it, and
#: tokens, signatures and exchanges come on top. Measured on 82 MB of mixed text with all stages on: 2.9.
SCRATCH_PER_BYTE = 3


class Display:
    """A listener of events that draws."""

    def __init__(
        self, out: TextIO | None = None, live: bool | None = None, quiet: bool = False, verbose: bool = False
    ) -> None:
        self._out = out or sys.stderr
        self._live = self._out.isatty() if live is None else live
        self._quiet = quiet
        self._verbose = verbose
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._progress: Any = None
        self._bar: Any = None
        self._reset("", 0, 0)
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        if not quiet and not self._live:
            self._thread.start()

    def _reset(self, name: str, total: int, done: int) -> None:
        self._name, self._total, self._done, self._last = name, total, done, ""
        self._documents = self._bytes = 0
        self._cached = done
        self._started = time.monotonic()

    def __call__(self, event: events.Event) -> None:
        """Draws an event."""
        with self._lock:
            if isinstance(event, events.PassStarted):
                self._begin(event)
            elif isinstance(event, events.TaskDone):
                self._done += 1
                self._last = event.task
                self._documents += event.documents
                self._bytes += event.text_bytes
                if self._bar is not None:
                    self._progress.update(
                        self._bar, completed=min(self._done, self._total), rate=self._rate()
                    )
            elif isinstance(event, events.PassDone):
                self._end(event)
            elif isinstance(event, events.RoundsDone):
                said = counted(event.counters)
                self._say(
                    f"  {event.name}: {event.rounds} rounds in {span(event.seconds)}"
                    + (f"  {said}" if said else "")
                )
            elif isinstance(event, events.Warned):
                self._say(f"warning[{event.code}]: {event.message}", always=True)
            elif isinstance(event, events.WorkerDied):
                self._say(
                    f"a worker died (attempt {event.attempt}): {event.task}: {event.detail}", always=True
                )
            elif isinstance(event, events.Quarantined):
                self._say(
                    f"quarantined: {event.source}: {event.uri}, record {event.record_number}: {event.reason}",
                    always=True,
                )
            elif isinstance(event, events.Damaged):
                self._say(
                    f"damaged ({event.policy}): {event.source}: {event.uri}: {event.detail}", always=True
                )
            elif isinstance(event, events.Interrupted):
                self._say(
                    f"{event.signal}: finishing {event.running} running tasks; once more stops now",
                    always=True,
                )

    def _begin(self, event: events.PassStarted) -> None:
        self._reset(event.name, event.tasks, event.cached)
        if event.cached == event.tasks or (event.minor and not self._live):
            return
        if self._live and not self._quiet:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            self._progress = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=20),
                TextColumn("{task.completed}/{task.total} tasks"),
                TextColumn("{task.fields[rate]}"),
                TimeRemainingColumn(),
                console=Console(file=self._out),
                transient=True,
            )
            self._progress.start()
            self._bar = self._progress.add_task(
                event.name, total=event.tasks, completed=event.cached, rate=""
            )
        elif not event.minor:
            cached = f", {event.cached} done before" if event.cached else ""
            self._say(f"{event.name}: {event.tasks} tasks{cached}")

    def _end(self, event: events.PassDone) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = self._bar = None
        what = f"{event.ran} tasks" if event.ran else f"{event.tasks} tasks, all done before"
        if (event.ran and not event.minor) or self._verbose:
            self._say(f"  {event.name}: {what} in {span(event.seconds)}{self._rate(event.seconds)}")
        self._name = ""

    def _rate(self, seconds: float | None = None) -> str:
        elapsed = max(seconds if seconds is not None else time.monotonic() - self._started, 1e-3)
        if not self._documents:
            return ""
        return f"  {self._documents / elapsed:,.0f} documents/s  {size(self._bytes / elapsed)}/s"

    def _beat(self) -> None:
        while not self._stop.wait(HEARTBEAT_SECONDS):
            with self._lock:
                if self._name:
                    elapsed = time.monotonic() - self._started
                    fresh = self._done - self._cached
                    left = (
                        f", about {span(elapsed / fresh * (self._total - self._done))} left" if fresh else ""
                    )
                    memory = size(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
                    last = f"; last: {self._last}" if self._last else ""
                    self._say(
                        f"  {self._name}: {self._done}/{self._total} tasks after {span(elapsed)}{left}{self._rate()}, "
                        f"driver {memory}{last}"
                    )

    def _say(self, text: str, always: bool = False) -> None:
        if self._quiet and not always:
            return
        line = printable(text)
        if self._progress is not None:
            self._progress.console.print(line, markup=False, highlight=False)
        else:
            print(line, file=self._out, flush=True)

    def close(self) -> None:
        """Ends the live line and the heartbeat."""
        self._stop.set()
        if self._progress is not None:
            self._progress.stop()
            self._progress = None


def counted(counters: Mapping[str, int]) -> str:
    """The counters of a global stage for people, without warnings, which are told apart; the audit in words."""
    plain = [
        f"{name.replace('_', ' ')} {n:,}"
        for name, n in counters.items()
        if ":" not in name and not name.startswith("audit_")
    ]
    audit = audit_text(counters)
    return ", ".join(plain) + (f"; {audit}" if audit else "")


def span(seconds: float) -> str:
    """Seconds for people: `0.4 s`, `3 m 10 s`, `2 h 5 m`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} m {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} m"


def size(number: float) -> str:
    """Bytes for people, in binary units."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} TiB"


def table(head: Sequence[str], rows: Iterable[Sequence[object]], left: Sequence[int] = (0,)) -> str:
    """Rows as aligned columns; columns numbered in `left` to the left, the others (numbers) to the right; CJK counts as two cells."""
    cells = [list(head), *([printable(str(c)) for c in row] for row in rows)]
    widths = [max(display_width(row[i]) for row in cells) for i in range(len(head))]
    lines = []
    for row in cells:
        padded = []
        for i, cell in enumerate(row):
            fill = " " * (widths[i] - display_width(cell))
            padded.append(cell + fill if i in left else fill + cell)
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)


def funnel(accounts: dict[str, list[StageCount]]) -> str:
    """Documents and text per source and stage, with the reasons of what went away."""
    rows = []
    for source, counts in accounts.items():
        for i, count in enumerate(counts):
            reasons = {**count.dropped, **{f"rejected {k}": v for k, v in count.rejected.items()}}
            said = ", ".join(
                f"{_short(reason, count.stage)} {n:,}"
                for reason, n in sorted(reasons.items(), key=lambda p: (-p[1], p[0]))[:4]
            )
            more = f", {len(reasons) - 4} more reasons" if len(reasons) > 4 else ""
            notes = ", ".join(f"{k} {v:,}" for k, v in count.totals.items() if v)
            gone = count.documents_in - count.documents_out
            rows.append(
                (
                    source if i == 0 else "",
                    count.stage,
                    f"{count.documents_in:,}",
                    f"-{gone:,}" if gone else "",
                    f"{count.documents_out:,}",
                    size(count.bytes_out),
                    "; ".join(x for x in (said + more, notes) if x),
                )
            )
    return table(("source", "stage", "in", "gone", "out", "text", "why"), rows, left=(0, 1, 6))


def _short(reason: str, stage: str) -> str:
    name = stage.rsplit("-", 1)[0] if stage.rsplit("-", 1)[-1].isdigit() else stage
    return reason.removeprefix(f"{name}.")


def plan_text(plan: Plan) -> str:
    """What `pipeline plan` prints."""
    corpus = plan.corpus
    files = sum(i.files for i in plan.inputs.values())
    total = sum(i.bytes for i in plan.inputs.values())
    tasks = sum(len(i.tasks) for i in plan.inputs.values())
    lines = [
        f"{printable(corpus.name)}   {files:,} files, {size(total)}   config {corpus.config_digest()[:8]}   {len(plan.passes)} passes, {tasks:,} tasks"
    ]
    if corpus.default_stages:
        lines.append("stages   the default ones, since the file names none")
    rows = [
        (n, f"{i.files:,}", size(i.bytes), f"{len(i.tasks):,}", _left_out(i.skipped))
        for n, i in plan.inputs.items()
    ]
    lines += ["", table(("source", "files", "bytes", "tasks", "left out"), rows, left=(0, 4)), ""]
    for step in plan.passes:
        lines.append(f"pass {step.number + 1}   {step.name}")
        for use in (*step.rows, *step.after):
            lines += [f"         {use.label}: {printable(note)}" for note in _notes(use.stage)]
    lines.append(
        f"needs    scratch about {size(_scratch(plan))} in {plan.out / 'work'}{_free(plan.out)}"
    )
    lines += _epochs(plan)
    for name, inputs in plan.inputs.items():
        lines += [
            f"warning  {name}: {printable(uri)} ({size(n)}) cannot be split: one worker reads it from front to back"
            for uri, n in inputs.unsplittable
        ]
    return "\n".join(lines)


def _epochs(plan: Plan) -> list[str]:
    """What training by the weights of the config reads: shares of each phase, and epochs."""
    read = reading(plan)
    if read is None:
        return []
    about = "" if read.measured else "about "
    length = "as the config says" if read.asked else "as long as the corpus"
    source = "of the corpus in the output folder" if read.measured else f"from {BYTES_A_TOKEN} bytes a token"
    rows = [
        (printable(name), f"{about}{tokens:,}", *(f"{100 * s[name]:.1f} %" for s in read.shares.values()), f"{read.epochs[name]:.2f}")
        for name, tokens in read.tokens.items()
    ]
    head = ("mix", "tokens", *(printable(name) for name in read.shares), "epochs")
    lines = ["", table(head, rows), f"epochs   of a run of {about}{read.total:,} tokens, {length}; tokens {source}"]
    many = [name for name, epochs in read.epochs.items() if epochs > MANY_EPOCHS]
    if many:
        lines.append(
            f"warning  {', '.join(map(printable, many))}: read more than {MANY_EPOCHS:.0f} times; above that, repeated text is "
            "worth clearly less than new text"
        )
    return lines


def _scratch(plan: Plan) -> int:
    return SCRATCH_PER_BYTE * sum(inputs.text_bytes for inputs in plan.inputs.values())


def _free(path: Path | Address) -> str:
    if isinstance(path, Address):
        return ""
    while not path.exists() and path != path.parent:
        path = path.parent
    return f" (free {size(shutil.disk_usage(path).free)})"


def _notes(stage: Any) -> list[str]:
    return list(stage.notes()) if hasattr(stage, "notes") else []


def _left_out(skipped: dict[str, int]) -> str:
    return ", ".join(f"{reason} {n:,}" for reason, n in skipped.items()) or "-"
