"""What went wrong, as a value: code, one sentence, place, repairs.

    GristmillError
      SpecError   exit 2   the file or the command line is wrong; nothing was started
      RunError    exit 1   the world is wrong: disk, cluster, a record; what is done stays

A third kind, a plain `assert`, is for mistakes of our own. Every problem found is raised at once, so an error
holds a tuple of them. All text that may come from data is made printable before it reaches a terminal.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal

#: Every code with what it means. C config, P plan, M mixture, D data on disk, R run, T training, W warning.
CODES: dict[str, str] = {
    "C001": "a key that the file format does not have",
    "C002": "a key that must be there is missing",
    "C003": "the same key twice in one mapping",
    "C004": "a value of the wrong type",
    "C005": "a value outside of what is allowed",
    "C006": "a source that does not exist is named",
    "C007": "shares that do not add up to 1",
    "C008": "there is no stage of that name",
    "C009": "part of the design, not built yet",
    "C010": "a config file that cannot be read: missing, empty, or not UTF-8",
    "C011": "not valid YAML",
    "C012": "the top of a config file is not a mapping",
    "C013": "`extends` cannot be followed",
    "C014": "`--set` cannot be applied",
    "C015": "a stage says its settings cannot work",
    "C016": "a name that cannot be used for a source",
    "C017": "keys that contradict each other",
    "C018": "a source without a weight in a mix",
    "C019": "a Ray client address (`ray://`), which is refused",
    "C020": "a file that would be overwritten is there already",
    "C021": "a secret in a config that would be sent to a cluster",
    "C022": "more files than a job may take to a cluster",
    "P001": "the equations of the plan do not agree",
    "P002": "the plan lacks a value that cannot be derived",
    "P003": "the plan does not fit the hardware",
    "P004": "the plan and the checkpoint, or its chain of phases, differ",
    "M001": "a source cannot give the tokens that the mixture asks for",
    "M002": "the mixture and the average of its phases differ",
    "M003": "the mixture names a source that the manifest does not have",
    "D001": "a manifest that cannot be read",
    "D002": "a file that differs from what the manifest says",
    "D003": "tokens that the vocabulary does not have",
    "D004": "an input that cannot be read",
    "D005": "no input where one is named",
    "R001": "a task failed",
    "R002": "rows in differ from rows out plus rows dropped",
    "R003": "a stage removed more than its max_loss",
    "R004": "the output folder is in use by another build",
    "R005": "no room on the disk",
    "R006": "Ray cannot be started or reached",
    "R007": "a package that this needs is not installed",
    "R008": "the run folder holds something that cannot be read",
    "R009": "a self-test of the program failed",
    "R010": "a job on a cluster failed, or is not known there",
    "R011": "a store that gives no answer",
    "T001": "no checkpoint can be loaded",
    "T002": "a checkpoint could not be written",
    "T003": "the loss or a gradient is not a finite number",
    "T004": "a rank of the training ended or hangs",
    "T005": "out of memory on a device",
    "T006": "a checkpoint does not bring back the state that it was made of",
    "W001": "something that works but is rarely meant",
}


@dataclass(frozen=True)
class Where:
    """A place in a file. Lines and columns count from 1, columns in characters; `text` is the line to show."""

    file: str
    line: int
    column: int
    text: str
    width: int = 1


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong: what is true, where, and what would make it right."""

    code: str
    message: str
    where: Where | None = None
    repairs: tuple[str, ...] = ()
    severity: Literal["error", "warning"] = "error"


class GristmillError(Exception):
    """An error that a user can act on. `problems` holds everything found, in the order to show."""

    exit_code: ClassVar[int] = 1

    def __init__(self, *problems: Problem) -> None:
        super().__init__(*problems)  # the arguments are kept, so the error can cross a process border
        self.problems: tuple[Problem, ...] = problems

    def __str__(self) -> str:
        return "\n\n".join(render(problem) for problem in self.problems)


class SpecError(GristmillError):
    """The file or the command line is wrong; nothing was started."""

    exit_code = 2


class RunError(GristmillError):
    """The world is wrong: a disk, a cluster, a record. What is done stays."""

    exit_code = 1


def render(problem: Problem, color: bool = False) -> str:
    """The problem as lines of text, without a final newline: head, place, the line with carets, repairs."""
    paint = _paint if color else _plain
    tone = "31" if problem.severity == "error" else "33"
    head = paint(f"{problem.severity}[{problem.code}]", f"1;{tone}")
    lines = [f"{head}: {paint(printable(problem.message), '1')}"]
    indent = " "
    if problem.where is not None:
        place = problem.where
        digits = len(str(place.line))
        indent = " " * digits
        bar = paint("|", "34")
        text, before, width = _window(place)
        caret = paint("^" * width, f"1;{tone}")
        lines += [
            f"{indent}{paint('-->', '34')} {printable(place.file)}:{place.line}:{place.column}",
            f"{indent}  {bar}",
            f" {paint(str(place.line), '34')} {bar} {text}".rstrip(),
            f"{indent}  {bar} {' ' * before}{caret}",
        ]
    lines += [f"{indent} {paint('=', '34')} {printable(repair)}" for repair in problem.repairs]
    return "\n".join(lines)


def problem_json(problem: Problem) -> dict[str, Any]:
    """The problem as plain JSON values, for `--json` and logs."""
    return {
        "code": problem.code,
        "severity": problem.severity,
        "message": problem.message,
        "where": None if problem.where is None else asdict(problem.where),
        "repairs": list(problem.repairs),
    }


def in_order(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """The problems by file in order of first appearance, then line and column; those without a place last."""
    files: dict[str, int] = {}
    found = list(dict.fromkeys(problems))
    for problem in found:
        if problem.where is not None:
            files.setdefault(problem.where.file, len(files))

    def key(problem: Problem) -> tuple[int, int, int]:
        if problem.where is None:
            return len(files), 0, 0
        return files[problem.where.file], problem.where.line, problem.where.column

    return tuple(sorted(found, key=key))


def printable(text: str) -> str:
    """The text with control, direction and other invisible characters as escapes, so it cannot steer a terminal."""
    return "".join(c if _shows(c) else c.encode("unicode_escape").decode("ascii") for c in text)


def display_width(text: str) -> int:
    """How many terminal cells the text takes: 2 for wide (CJK) characters, 0 for combining marks."""
    return sum(_cells(c) for c in text)


LONGEST_LINE = 120


def _window(place: Where) -> tuple[str, int, int]:
    """The line to show, cut around the column if long; cells before the caret; cells of the caret (at least 1)."""
    text = "".join(c if _shows(c) else " " if c == "\t" else "\N{REPLACEMENT CHARACTER}" for c in place.text)
    start = max(0, place.column - 1)
    shift, prefix = 0, ""
    if len(text) > LONGEST_LINE and start > LONGEST_LINE // 2:
        shift, prefix = start - LONGEST_LINE // 3, "..."
    shown = text[shift : shift + LONGEST_LINE]
    suffix = "..." if shift + LONGEST_LINE < len(text) else ""
    marked = shown[start - shift : start - shift + place.width]
    before = len(prefix) + display_width(shown[: start - shift]) + max(0, start - shift - len(shown))
    return prefix + shown + suffix, before, max(1, display_width(marked))


def _shows(c: str) -> bool:
    return unicodedata.category(c) not in {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


def _cells(c: str) -> int:
    if unicodedata.category(c) in {"Mn", "Me"}:
        return 0
    return 2 if unicodedata.east_asian_width(c) in {"W", "F"} else 1


def _plain(text: str, _style: str) -> str:
    return text


def _paint(text: str, style: str) -> str:
    return f"\x1b[{style}m{text}\x1b[0m"
