"""Stages that misbehave on purpose."""

from __future__ import annotations

import os
import signal
from typing import ClassVar

import pyarrow as pa

from stages.stage import RowStage


class Raises(RowStage):
    """Raises on documents that hold the word RAISE."""

    name: ClassVar[str] = "raises"

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if any("RAISE" in text for text in batch.column("text").to_pylist()):
            raise ValueError("this text is too much for me")
        return batch


class Kills(RowStage):
    """Kills its process on documents that hold the word KILL."""

    name: ClassVar[str] = "kills"

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if any("KILL" in text for text in batch.column("text").to_pylist()):
            os.kill(os.getpid(), signal.SIGKILL)
        return batch


class DiesOnce(RowStage):
    """Kills its process until the file `marker` exists, which it makes."""

    name: ClassVar[str] = "dies-once"
    marker: str

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch.num_rows and not os.path.exists(self.marker):
            open(self.marker, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return batch
