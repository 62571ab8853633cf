"""How a row-local stage says which documents go, and why."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stages.document import drop_rows, with_column
from stages.stage import Stage


def mark_column(stage: Stage) -> dict[str, pa.DataType]:
    """The column that holds verdicts when the stage only marks; none when it drops."""
    return {f"mark.{stage.name}": pa.string()} if stage.mark else {}


def give_verdict(
    stage: Stage,
    batch: pa.RecordBatch,
    mask: np.ndarray,
    reason: str | Sequence[str | None],
    value: str | Sequence[str | None],
) -> pa.RecordBatch:
    """The batch with the rows of `mask` (bool, one per row) dropped, or marked when the stage only marks.

    `reason` (with the stage's name in front) and `value` (what was measured against what) are one string for all rows,
    or one per row. A mark is the reason; an earlier mark of a stage of this name stays.
    """
    if not stage.mark:
        return drop_rows(batch, mask, reason, value)  # type: ignore[arg-type]
    name = f"mark.{stage.name}"
    reasons = pa.scalar(reason, pa.string()) if isinstance(reason, str) else pa.array(reason, pa.string())
    marks = pc.if_else(pa.array(np.asarray(mask, bool)), reasons, pa.nulls(len(batch), pa.string()))
    if name in batch.schema.names:
        marks = pc.coalesce(batch.column(name), marks)
    return with_column(batch, name, marks)
