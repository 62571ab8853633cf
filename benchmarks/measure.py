"""What all benchmarks share: one core, CPU seconds, one line per measure, results kept with machine and commit.

    python -m benchmarks.NAME [--quick] [--json]

A measure is a rate (`ours` and `peer` in `unit`, `ratio` = ours / peer, both null without a peer) or an accuracy
(`metric`, `value`, over `n` cases). A full run (without --quick) is written to benchmarks/results/NAME.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

RESULTS = Path(__file__).with_name("results")

T = TypeVar("T")


def one_core() -> None:
    """Keeps this process and its children on one core. Libraries read these variables when they are imported."""
    for name in ("RAYON_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


class Child:
    """A process that takes turns with others: it says a line when it is ready, and one more for each that it is sent."""

    def __init__(self, *command: str) -> None:
        self._process: Any = subprocess.Popen(
            [sys.executable, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def go(self) -> None:
        """Its turn."""
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def line(self) -> str:
        """What it says next. RuntimeError when it has ended."""
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"a process of the benchmark ended with exit code {self._process.wait()}")
        return line.strip()

    def last(self) -> str:
        """Ends it; what it says then, if anything."""
        return self._process.communicate()[0].strip()


def parser(description: str | None) -> argparse.ArgumentParser:
    """A parser that knows --quick and --json."""
    made = argparse.ArgumentParser(description=(description or "").split("\n")[0])
    made.add_argument(
        "--quick", action="store_true", help="less data, seconds instead of minutes; nothing is kept"
    )
    made.add_argument("--json", action="store_true", help="one JSON object per measure")
    return made


def labelled_parser(description: str | None, help: str) -> argparse.ArgumentParser:
    """The same with --data DIR, which is the shared data where the environment names it."""
    made = parser(description)
    place = os.environ.get("GRISTMILL_DATA")
    made.add_argument(
        "--data",
        type=Path,
        required=place is None,
        default=place and Path(place),
        help=f"{help}; default: $GRISTMILL_DATA",
    )
    return made


def cpu_seconds(work: Callable[[], T], repeat: int = 1) -> tuple[float, T]:
    """`(seconds, result)`: the least CPU time of some runs, which other programs on the machine disturb least."""
    best, result = float("inf"), None
    for _ in range(repeat):
        started = time.process_time()
        result = work()
        best = min(best, time.process_time() - started)
    return best, result  # type: ignore[return-value]


class Report:
    """The measures of one benchmark, printed as they come."""

    def __init__(self, name: str, options: argparse.Namespace) -> None:
        self._name = name
        self._options = options
        self._rows: list[dict[str, Any]] = []

    def rate(
        self, name: str, ours: float, unit: str, peer: float | None = None, peer_name: str | None = None
    ) -> None:
        """A rate of ours beside that of a peer in the same unit, both of this run."""
        name = self._dotted(name)
        ratio = round(ours / peer, 3) if peer else None
        row = {
            "name": name,
            "ours": _short(ours),
            "peer": _short(peer),
            "peer_name": peer_name,
            "ratio": ratio,
        }
        beside = f"   {peer_name} {_short(peer):,}   x {ratio:,}" if peer else ""
        self._add({**row, "unit": unit}, f"{name:28} {_short(ours):>12,} {unit}{beside}")

    def accuracy(self, name: str, metric: str, value: float, n: int) -> None:
        """Something measured over n cases."""
        name = self._dotted(name)
        row = {"name": name, "metric": metric, "value": round(value, 6), "n": n}
        self._add(row, f"{name:28} {metric} {value:.4g} (n = {n:,})")

    def _dotted(self, name: str) -> str:
        """`clean normalize, odd` as `clean.normalize.odd`; the family of the benchmark always comes first."""
        family = self._name.partition("_")[0].partition("-")[0]
        dotted = re.sub(r"[,:]? +", ".", name)
        return dotted if dotted.split(".")[0] == family else f"{family}.{dotted}"

    def _add(self, row: dict[str, Any], line: str) -> None:
        self._rows.append(row)
        print(json.dumps(row) if self._options.json else line, flush=True)

    def close(self, beside: bool = False) -> None:
        """Keeps the results of a full run; `beside` those of earlier runs that measured something else."""
        if self._options.quick:
            return
        RESULTS.mkdir(exist_ok=True)
        path = RESULTS / f"{self._name}.json"
        rows = self._rows
        if beside:
            mine = [{**row, "commit": commit()} for row in rows]
            known = {(row["name"], row.get("metric")) for row in rows}
            old = json.loads(path.read_text(encoding="utf-8"))["measures"] if path.exists() else []
            rows = sorted(
                [*(row for row in old if (row["name"], row.get("metric")) not in known), *mine], key=lambda row: row["name"]
            )
        kept = {"benchmark": self._name, "machine": machine(), "commit": commit(), "measures": rows}
        path.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")


def machine() -> dict[str, Any]:
    """Processor, cores, load and versions: enough to read the figures by."""
    try:
        cpu = next(
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").open()
            if line.startswith("model name")
        )
    except (OSError, StopIteration):
        cpu = platform.processor()
    load = round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "load": load,
        "system": platform.system(),
        "python": sys.version.split()[0],
    }


def commit() -> str:
    """The commit of the working tree, with `+` when it was changed since; `none` outside of a repository."""
    folder = Path(__file__).parent
    head = subprocess.run(
        ["git", "rev-parse", "--short=12", "HEAD"], cwd=folder, capture_output=True, text=True
    )
    if head.returncode:
        return "none"
    changed = subprocess.run(
        ["git", "status", "--porcelain"], cwd=folder, capture_output=True, text=True
    ).stdout
    return head.stdout.strip() + ("+" if changed.strip() else "")
