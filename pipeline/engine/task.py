"""One task of a pass: documents in (from input files or from a part), stages, a part out. No Ray in it.

A task is a value: everything it needs stands in its fields, so any process can run it, again and again, with the
same bytes as the result. It yields one `PassRecord` per part; only the driver writes those down.

If a worker dies, nobody can ask it what it was doing. So a task leaves a breadcrumb before each batch; after
repeated deaths the driver runs it with `careful` = that batch, cut into single documents with a breadcrumb each,
and then knows the document that kills.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import orjson
import pyarrow as pa

from pipeline.engine.executor import Needs
from pipeline.engine.origin import PartOrigin, ReadOrigin
from pipeline.engine.records import EmitRecord, FileRef, PassRecord
from pipeline.engine.uses import Encoding, StageUse
from pipeline.engine.work import Work
from pipeline.engine.writer import PartWriter, singles, text_size

PART_BYTES = 256 << 20  # of text: a long stretch becomes parts of about this size
WORKER_BYTES = 350 << 20  # an interpreter with libraries and compiled kernels
BATCH_BYTES = 16 << 20  # of text, where a part is read again
BATCH_COPIES = 8  # of its text that a batch is at most, on its way through the stages


@dataclass(frozen=True)
class PassTask:
    """Read, apply, write. `overlay` = write only what changed beside the part that was read."""

    key: str
    name: str  # for people
    source: str
    folder: str  # the work folder
    origin: ReadOrigin | PartOrigin
    before: tuple[tuple[StageUse, FileRef | None], ...] = ()  # global stages and the facts of this part
    rows: tuple[StageUse, ...] = ()
    emits: tuple[StageUse, ...] = ()
    encoding: Encoding | None = None
    overlay: bool = False
    quarantined: frozenset[bytes] = frozenset()  # ids that are not taken; only where input files are read
    careful: int | None = None
    committed: int = 0  # parts of an earlier attempt: read past, not done again
    attempt: str = field(default="", compare=False)  # name of the breadcrumb

    @property
    def needs(self) -> Needs:
        """The most that any of its stages asks for, and the memory of a batch and of all their models."""
        uses = (*(use for use, _ in self.before), *self.rows, *self.emits)
        models = sum(use.stage.memory() for use in uses)
        batch = BATCH_COPIES * (self.origin.settings.batch_bytes if isinstance(self.origin, ReadOrigin) else BATCH_BYTES)
        return Needs(
            cpus=max([1.0, *(use.stage.cpus for use in uses)]),
            gpus=max([0.0, *(use.stage.gpus for use in uses)]),
            memory=WORKER_BYTES + batch + models,
        )

    @property
    def bytes(self) -> int:
        """How much there is to read, about: what a measured rate is applied to."""
        if isinstance(self.origin, ReadOrigin):
            return sum(min(s.size, (s.slice.end or s.size) - s.slice.start) for s in self.origin.slices)
        return self.origin.part.text_bytes

    def run(self) -> Iterator[tuple[PassRecord, dict[str, EmitRecord]]]:
        """One record per part, with what the next global stages collected of it."""
        pa.set_cpu_count(1)
        work = Work(self.folder)
        crumb = Breadcrumb(work.place / "tmp" / self.attempt if self.attempt else None)
        number, filled = 0, 0
        part = None if self.committed else PartWriter(self)
        try:
            for index, batch in enumerate(self.origin.batches(work)):
                if part is not None:
                    for piece in [batch] if index != self.careful else singles(batch):
                        crumb.write(index, piece)
                        part.add(piece)
                filled += text_size(batch)
                if filled >= PART_BYTES and self.origin.long:
                    if part is not None:
                        yield part.seal(more=True)
                    else:
                        self.origin.forget()
                    number, filled = number + 1, 0
                    part = PartWriter(self) if number >= self.committed else None
            yield (part or PartWriter(self)).seal(more=False)
        except BaseException:
            if part is not None:
                part.discard()
            raise
        crumb.clear()


class Breadcrumb:
    """A tiny file that says which batch is being worked on: what is left of a worker that died."""

    def __init__(self, path: Any) -> None:
        self._path = path  # a path, an address, or None: no crumbs

    def write(self, index: int, batch: pa.RecordBatch) -> None:
        """Notes the batch number and, when it is a single document, its place."""
        if self._path is not None:
            place = batch.select(["source", "uri", "record"]).to_pylist() if batch.num_rows == 1 else []
            self._path.write_bytes(orjson.dumps({"batch": index, "document": place[0] if place else None}))

    def clear(self) -> None:
        """The task ended well."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)
