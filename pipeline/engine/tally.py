"""Bookkeeping: at every stage and source, in = out + dropped + rejected, or the run fails."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.engine.records import Excerpt, StageCount
from stages.contract.problem import Problem, RunError

if TYPE_CHECKING:
    from pipeline.engine.uses import StageUse


class Tally:
    """The accounts of the stages of one part."""

    def __init__(self) -> None:
        self._rows: dict[str, dict[str, Any]] = {}

    def _row(self, stage: str) -> dict[str, Any]:
        empty = {
            "in": 0,
            "out": 0,
            "bytes_in": 0,
            "bytes_out": 0,
            "dropped": {},
            "rejected": {},
            "totals": {},
        }
        return self._rows.setdefault(stage, empty)

    def read(self, counts: tuple[int, int, dict[str, int], dict[str, int]]) -> None:
        """Books `(documents, their text bytes, rejects by reason, notes)` of the reader."""
        documents, size, rejected, notes = counts
        row = self._row("read")
        row["in"] += documents + sum(rejected.values())
        row["out"] += documents
        row["bytes_in"] += size
        row["bytes_out"] += size
        for reason, n in rejected.items():
            row["rejected"][reason] = row["rejected"].get(reason, 0) + n
        for note, n in notes.items():
            row["totals"][note] = row["totals"].get(note, 0) + n

    def stage(self, use: StageUse, before: pa.RecordBatch, after: pa.RecordBatch) -> None:
        """Books one stage over one batch; rows dropped before do not count as its input."""
        row = self._row(use.label)
        alive = pc.is_null(before.column("drop"))
        left = pc.is_null(after.column("drop"))
        row["in"] += _true(alive)
        row["out"] += _true(left)
        row["bytes_in"] += _bytes(before, alive)
        row["bytes_out"] += _bytes(after, left)
        fresh = after.filter(pc.and_(alive, pc.invert(left)))
        for reason, n in zip(
            *np.unique(np.array(fresh.column("drop").to_pylist(), str), return_counts=True), strict=True
        ):
            row["dropped"][str(reason)] = row["dropped"].get(str(reason), 0) + int(n)
        for name, kind in use.stage.adds().items():
            if pa.types.is_integer(kind):
                row["totals"][name] = row["totals"].get(name, 0) + int(
                    pc.sum(after.column(name)).as_py() or 0
                )

    def rejected(self, stage: str, batch: pa.RecordBatch, bad: np.ndarray, reason: str, passed: bool) -> None:
        """Books documents that could not be taken, under `stage`: one that let them pass, or one that had them as input."""
        row = self._row(stage)
        n, size = int(bad.sum()), _bytes(batch, pa.array(bad))
        row["out" if passed else "in"] += -n if passed else n
        row["bytes_out" if passed else "bytes_in"] += -size if passed else size
        row["rejected"][reason] = row["rejected"].get(reason, 0) + n

    def add(self, count: StageCount) -> None:
        """Books a finished account on top."""
        row = self._row(count.stage)
        for mine, theirs in (
            ("in", count.documents_in),
            ("out", count.documents_out),
            ("bytes_in", count.bytes_in),
            ("bytes_out", count.bytes_out),
        ):
            row[mine] += theirs
        for mine, table in (
            ("dropped", count.dropped),
            ("rejected", count.rejected),
            ("totals", count.totals),
        ):
            for key, n in table.items():
                row[mine][key] = row[mine].get(key, 0) + n

    def counts(self) -> Iterator[StageCount]:
        """The accounts, the reader first, then the stages in order."""
        order = sorted(self._rows, key=lambda s: s != "read")
        for stage in order:
            row = self._rows[stage]
            yield StageCount(
                stage=stage,
                documents_in=row["in"],
                documents_out=row["out"],
                bytes_in=row["bytes_in"],
                bytes_out=row["bytes_out"],
                dropped=dict(sorted(row["dropped"].items())),
                rejected=dict(sorted(row["rejected"].items())),
                totals=dict(sorted(row["totals"].items())),
            )


#: A limit that nobody wrote down, the default of a stage, is for losses of at least so many documents.
DEFAULT_LIMIT_FROM = 20


def check_losses(
    source: str,
    counts: Iterable[StageCount],
    uses: Sequence[StageUse],
    removed: Sequence[Excerpt],
    pairs: Callable[[str], Sequence[str]],
) -> None:
    """Raises RunError if a stage took more of a source than its `max_loss`, with examples and the way to go on.

    pairs  of a label: lines that show what was dropped and what was kept instead; empty if the stage has no survivors
    """
    limits = {use.label: use.stage.max_loss for use in uses if use.stage.max_loss is not None}
    written = {use.label for use in uses if "max_loss" in use.stage.model_fields_set}
    problems = []
    for count in counts:
        limit = limits.get(count.stage)
        gone = sum(count.dropped.values())
        if limit is None or not count.documents_in or gone / count.documents_in <= limit:
            continue
        if count.stage not in written and gone < DEFAULT_LIMIT_FROM:
            continue
        examples = [
            e
            for e in removed
            if (e.reason and e.reason.split(".")[0] == count.stage.rsplit("-", 1)[0])
            or e.reason in count.dropped
        ]
        shown = [
            f"dropped: {e.uri}, record {e.record} ({e.reason}{', ' + e.value if e.value else ''}): {e.text[:80]!r}"
            for e in examples[:3]
        ]
        problems.append(
            Problem(
                "R003",
                f"{count.stage} dropped {gone:,} of {count.documents_in:,} documents of {source} "
                f"({100 * gone / count.documents_in:.1f} %), more than its max_loss of {100 * limit:g} %",
                repairs=(
                    *(pairs(count.stage) or shown),
                    f"to go on all the same: --set stages.{count.stage}.max_loss={math.ceil(100 * gone / count.documents_in)}%",
                ),
            )
        )
    if problems:
        raise RunError(*problems)


def check_accounts(source: str, counts: Iterable[StageCount]) -> None:
    """Raises RunError unless each stage balances and takes exactly what the one before left."""
    problems = []
    left: int | None = None
    for count in counts:
        if not count.balanced():
            gone = sum(count.dropped.values()) + sum(count.rejected.values())
            problems.append(
                f"{source}, {count.stage}: {count.documents_in} documents in, but {count.documents_out} out and {gone} dropped or rejected"
            )
        if left is not None and count.documents_in != left:
            problems.append(
                f"{source}, {count.stage}: took {count.documents_in} documents where the stage before left {left}"
            )
        left = count.documents_out
    if problems:
        raise RunError(
            *(
                Problem("R002", text, repairs=("this is a fault of the program; please report it",))
                for text in problems
            )
        )


def _true(mask: pa.Array) -> int:
    return int(pc.sum(mask).as_py() or 0)


def _bytes(batch: pa.RecordBatch, mask: pa.Array) -> int:
    return int(pc.sum(pc.if_else(mask, pc.binary_length(batch.column("text")), 0)).as_py() or 0)
