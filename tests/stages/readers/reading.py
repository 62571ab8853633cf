"""Reads a file to its end and sorts what came out."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from stages.document import DOCUMENT
from stages.readers import (
    DAMAGE_REASONS,
    REJECT_REASONS,
    Damaged,
    FileSlice,
    ReadSettings,
    Reject,
    read_slice,
)

SOURCE = "web"


@dataclass
class Outcome:
    """All that a reader yielded."""

    batches: list[pa.RecordBatch] = field(default_factory=list)
    rejects: list[Reject] = field(default_factory=list)
    damaged: Damaged | None = None
    counters: dict[str, int] = field(default_factory=dict)

    def column(self, name: str) -> list[Any]:
        """One column of all documents."""
        return [value for batch in self.batches for value in batch.column(name).to_pylist()]

    @property
    def texts(self) -> list[str]:
        return self.column("text")

    @property
    def reasons(self) -> list[str]:
        return [reject.reason for reject in self.rejects]


def read(
    path: Path | str, start: int = 0, end: int | None = None, uri: str | None = None, **settings: Any
) -> Outcome:
    """What reading a slice gives; each batch is checked on the way."""
    path = str(path)
    where = FileSlice(path, path.rsplit("/", 1)[-1] if uri is None else uri, start, end)
    wanted = ReadSettings(SOURCE, **settings)
    outcome = Outcome()
    for item in read_slice(where, wanted, outcome.counters):
        assert outcome.damaged is None, "nothing may come after Damaged"
        if isinstance(item, Reject):
            assert item.reason in REJECT_REASONS
            outcome.rejects.append(item)
        elif isinstance(item, Damaged):
            assert item.reason in DAMAGE_REASONS
            outcome.damaged = item
        else:
            assert item.schema == DOCUMENT
            item.validate(full=True)
            assert item.num_rows
            assert item.num_rows == 1 or item.column("text").nbytes <= wanted.batch_bytes + 8 * (
                item.num_rows + 1
            )
            outcome.batches.append(item)
    if outcome.damaged is not None:
        assert outcome.damaged.good_records == len(outcome.texts)
    return outcome
