"""Stages that misbehave on purpose."""

from __future__ import annotations

import os
import signal
import threading
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


class Hungry(RowStage):
    """Asks for a petabyte on documents that hold the word HUNGRY."""

    name: ClassVar[str] = "hungry"

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if any("HUNGRY" in text for text in batch.column("text").to_pylist()):
            bytearray(1 << 50)
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


class RaisesAfter(RowStage):
    """Fails on whole batches once it has been called `calls` times in this process, and counts the texts it saw."""

    name: ClassVar[str] = "raises-after"
    calls: int
    called: ClassVar[int] = 0
    seen_texts: ClassVar[int] = 0
    extra: ClassVar[int] = 0

    @classmethod
    def reset(cls, extra: int = 0) -> None:
        """Starts counting anew; `extra` calls are forgiven."""
        cls.called, cls.seen_texts, cls.extra = 0, 0, extra

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch.num_rows:
            type(self).called += 1
            type(self).seen_texts += batch.num_rows
            if self.called > self.calls + self.extra:
                raise SystemError("gave up")
        return batch


class Waits(RowStage):
    """Never comes to an end."""

    name: ClassVar[str] = "waits"

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch.num_rows:
            threading.Event().wait()
        return batch


class Hangs(RowStage):
    """Never comes to an end with documents that hold the word HANG."""

    name: ClassVar[str] = "hangs"

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if any("HANG" in text for text in batch.column("text").to_pylist()):
            threading.Event().wait()
        return batch


class Heavy(RowStage):
    """Asks for much."""

    name: ClassVar[str] = "heavy"
    cpus: ClassVar[float] = 2.0
    gpus: ClassVar[float] = 0.5

    def memory(self) -> int:
        return 3 << 30

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch
