"""The rounds of a global stage: collecting, supersteps through files, and the facts that come out.

A global stage runs over parts. Its supersteps are tasks like any other: values that a worker turns into one sealed
outbox. The keys of all of them hang on what was collected of every part, so a changed input runs the rounds again,
and facts that come out equal keep everything behind them.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.engine.records import EmitRecord, FileRef, Part, StepRecord
from pipeline.engine.sealed import ArrowFile, SealedFile, arrow_table, part_batches
from pipeline.engine.uses import StageUse
from pipeline.engine.work import Work
from stages.contract.files import sha256_file
from stages.exchange import read_inbox, write_outbox
from stages.stage import GlobalStage, Outbox, PartInfo, StepContext, Superstep


@dataclass(frozen=True)
class EmitTask:
    """Collects for a global stage from a part that was written before (its settings changed since)."""

    key: str
    name: str
    folder: str
    use: StageUse
    part: Part

    def run(self) -> Iterator[EmitRecord]:
        """One record: the emission."""
        pa.set_cpu_count(1)
        work, row = Work(self.folder), 0
        assert isinstance(self.use.stage, GlobalStage)
        with ArrowFile(work, "emit.arrow") as file:
            for batch in part_batches(work.data, self.part):
                file.write(self.use.stage.emit(batch, row))
                row += batch.num_rows
            if not file.started:
                empty = next(
                    part_batches(
                        work.data,
                        Part(source=self.part.source, base=self.part.base, rows=0, text_bytes=0),
                    )
                )
                file.write(self.use.stage.emit(empty.slice(0, 0), 0))
            yield EmitRecord(file=file.seal())


@dataclass(frozen=True)
class Gathered:
    """All that a global stage may look at, as file references: the same for each task of its rounds."""

    infos: tuple[PartInfo, ...]
    parts: dict[int, Part]
    emissions: dict[int, FileRef]
    dropped: dict[int, tuple[FileRef, ...]]  # facts of earlier stages of the same boundary


@dataclass(frozen=True)
class StepCommon:
    """What all tasks of one superstep have in common. It grows with the corpus, so it travels once, not in each task."""

    folder: str
    use: StageUse
    step: Superstep
    gathered: Gathered
    outboxes: tuple[FileRef, ...]  # of all earlier supersteps, in order of step and task
    seed: int


@dataclass(frozen=True)
class StepTask:
    """One task of one superstep."""

    key: str
    name: str
    index: int
    common: StepCommon | None

    def run(self) -> Iterator[StepRecord]:
        """One record: the outbox."""
        pa.set_cpu_count(1)
        common = self.common
        assert common is not None
        work, gathered = Work(common.folder), common.gathered
        data = work.data
        paths = [data / file.name for file in common.outboxes]
        context = StepContext(
            index=self.index,
            parts=gathered.infos,
            inbox={name: read_inbox(paths, *place) for name, place in common.step.inbox(self.index).items()},
            emission=lambda i: arrow_table(data / gathered.emissions[i].name),
            dropped=lambda i: dropped_rows(data, gathered.dropped.get(i, ())),
            documents=lambda i: part_batches(data, gathered.parts[i]),
            seed=common.seed,
        )
        boxes = getattr(common.use.stage, common.step.name)(context)
        file = seal_outbox(work, boxes)
        yield StepRecord(file=file, counters=dict(sorted(context.counters.items())))


def seal_outbox(work: Work, boxes: dict[str, Outbox]) -> FileRef:
    """The sealed file of an outbox."""
    raw = work.tmp / f"outbox-{secrets.token_hex(8)}"
    write_outbox(raw, boxes)
    digest = sha256_file(raw)
    file = FileRef(name=f"{digest[:32]}.outbox", bytes=raw.stat().st_size, digest=digest)
    work.seal(raw, file.name)
    return file


def dropped_rows(data: Any, facts: tuple[FileRef, ...]) -> np.ndarray:
    """Rows (uint32, sorted) that the facts of earlier stages drop."""
    rows = [arrow_table(data / file.name).column("row").to_numpy() for file in facts]
    return np.unique(np.concatenate(rows)).astype(np.uint32) if rows else np.empty(0, np.uint32)


def gather_facts(
    work: Work, outboxes: tuple[FileRef, ...], parts: tuple[PartInfo, ...]
) -> dict[int, FileRef]:
    """The facts addressed to each part of this corpus, as sealed files; every part gets one, if only an empty one."""
    paths = [work.data / file.name for file in outboxes]
    tables = {part.index: read_inbox(paths, "facts", part.index) for part in parts if not part.fixed}
    schema = next((t.schema for t in tables.values() if t.num_columns), pa.schema([("row", pa.uint32())]))
    refs = {}
    for index, table in tables.items():
        with ArrowFile(work, "facts.arrow") as file:
            batches = (table if table.num_columns else schema.empty_table()).combine_chunks().to_batches()
            file.write(batches[0] if batches else pa.RecordBatch.from_pylist([], schema=schema))
            refs[index] = file.seal()
    return refs


def gather_artifact(work: Work, outboxes: tuple[FileRef, ...]) -> dict[str, FileRef]:
    """The files that a stage made for the whole corpus (a tokenizer), by name."""
    table = read_inbox([work.data / file.name for file in outboxes], "artifact", 0)
    refs = {}
    for row in table.to_pylist() if table.num_columns else []:
        file = SealedFile(work, row["name"].rsplit(".", 1)[-1])
        file.write(row["content"])
        refs[row["name"]] = file.seal()
    return refs
