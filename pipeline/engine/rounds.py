"""The rounds of a global stage: collecting, supersteps through files, and the facts that come out.

A global stage runs over parts. Its supersteps are tasks like any other: values that a worker turns into one sealed
outbox. The keys of all of them hang on what was collected of every part, so a changed input runs the rounds again,
and facts that come out equal keep everything behind them.

A reader opens only the outboxes that have something for it: each record says whom its channels are for. Where many
producers each send to many readers, neighbours are merged first.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from pipeline.engine.records import EmitRecord, FactsRecord, FileRef, Part, Routes, StepRecord
from pipeline.engine.sealed import ArrowFile, SealedFile, arrow_table, part_batches
from pipeline.engine.uses import StageUse
from pipeline.engine.work import Work
from stages.contract.files import sha256_file
from stages.contract.names import digest
from stages.exchange import MANY, NOBODY, merge_outboxes, read_inbox, write_outbox
from stages.stage import GlobalStage, Outbox, PartInfo, StepContext, Superstep

if TYPE_CHECKING:
    from pipeline.engine.run import Build
    from pipeline.engine.state import BuildState

#: Above so many pairs of an outbox and a reader of it, neighbouring outboxes are merged, `MERGED` into one.
PAIRS = 1_000_000
MERGED = 512
#: Parts whose facts one task writes.
FACTS = 64
#: The facts of a part of which nobody has said anything.
NO_FACTS = pa.table({"row": pa.array([], pa.uint32())})


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
    routes: dict[str, Routes]  # of the channels that the step reads
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
        context = StepContext(
            index=self.index,
            parts=gathered.infos,
            inbox={
                name: received(data, common.routes[channel], channel, address)
                for name, (channel, address) in common.step.inbox(self.index).items()
            },
            emission=lambda i: arrow_table(data / gathered.emissions[i].name),
            dropped=lambda i: dropped_rows(data, gathered.dropped.get(i, ())),
            documents=lambda i: part_batches(data, gathered.parts[i]),
            seed=common.seed,
        )
        boxes = getattr(common.use.stage, common.step.name)(context)
        file, sends = seal_outbox(work, boxes)
        yield StepRecord(file=file, sends=sends, counters=dict(sorted(context.counters.items())))


@dataclass(frozen=True)
class MergeTask:
    """Makes one outbox of the rows that some neighbouring producers have on a channel."""

    key: str
    name: str
    folder: str
    channel: str
    boxes: tuple[FileRef, ...]

    def run(self) -> Iterator[StepRecord]:
        """One record: the outbox."""
        pa.set_cpu_count(1)
        work = Work(self.folder)
        paths = [work.data / file.name for file in self.boxes]
        file, sends = _seal(work, lambda path: merge_outboxes(path, paths, self.channel))
        yield StepRecord(file=file, sends=sends)


@dataclass(frozen=True)
class FactsTask:
    """Writes the facts of some parts, each into a sealed file of its own: every part gets one, if only an empty one."""

    key: str
    name: str
    folder: str
    parts: tuple[int, ...]
    common: Routes | None

    def run(self) -> Iterator[FactsRecord]:
        """One record: the files, by part."""
        pa.set_cpu_count(1)
        work, facts = Work(self.folder), {}
        assert self.common is not None
        for index in self.parts:
            table = received(work.data, self.common, "facts", index)
            table = (table if table.num_columns else NO_FACTS).combine_chunks()
            with ArrowFile(work, "facts.arrow") as file:
                file.write((table.to_batches() or [pa.RecordBatch.from_pylist([], schema=table.schema)])[0])
                facts[index] = file.seal()
        yield FactsRecord(facts=facts)


class Mail:
    """What the supersteps of a stage have sent so far: where the rows of each channel lie, and for whom."""

    def __init__(self) -> None:
        self._boxes: dict[str, list[FileRef]] = {}
        self._to_one: dict[str, dict[int, tuple[int, ...]]] = {}
        self._to_many: dict[str, list[int]] = {}

    def add(self, record: StepRecord) -> None:
        """Takes up the outbox of one task; of a step they come in the order of its tasks."""
        for channel, address in record.sends.items():
            boxes = self._boxes.setdefault(channel, [])
            if address == NOBODY and boxes:
                continue  # one is enough to know the schema
            boxes.append(record.file)
            if address == MANY:
                self._to_many.setdefault(channel, []).append(len(boxes) - 1)
            elif address != NOBODY:
                mine = self._to_one.setdefault(channel, {})
                mine[address] = (*mine.get(address, ()), len(boxes) - 1)

    def routes(self, channel: str) -> Routes:
        """Where the rows of a channel lie; no boxes if nobody has it."""
        return Routes.model_construct(
            boxes=tuple(self._boxes.get(channel, ())),
            to_one=dict(self._to_one.get(channel, {})),
            to_many=tuple(self._to_many.get(channel, ())),
        )

    def crowded(self, channel: str, readers: int) -> bool:
        """Whether so many readers would open too many boxes of a channel, one by one."""
        many = len(self._to_many.get(channel, ()))
        return many > MERGED and many * readers > PAIRS

    def replace(self, channel: str, records: Sequence[StepRecord]) -> None:
        """Puts merged outboxes in the place of those that a channel had."""
        for table in (self._boxes, self._to_one, self._to_many):
            table.pop(channel, None)  # type: ignore[attr-defined]
        for record in records:
            self.add(record)


def received(data: Any, routes: Routes, channel: str, address: int) -> pa.Table:
    """The rows of a channel for one address, as `exchange.read_inbox` gives them."""
    return read_inbox([data / file.name for file in routes.of(address)], channel, address)


def run_round(build: Build, state: BuildState, label: str, tasks: Sequence[Any], kind: type[Any]) -> list[Any]:
    """The records of tasks of one record each, in their order; runs those that have not been done."""
    store = build.store
    done = {task.key: record for task in tasks if (record := store.get(task.key, kind)) is not None}
    left = [task for task in tasks if task.key not in done]

    def book(task: Any, record: Any) -> None:
        store.put(task.key, record)
        done[task.key] = record

    state.ran[label] = len(left)
    build.driver.run(label, left, len(done), book, minor=True)
    return [done[task.key] for task in tasks]


def merge(build: Build, state: BuildState, stage: str, mail: Mail, channel: str, readers: int) -> None:
    """Merges neighbouring outboxes of a channel until so many readers have few enough to open."""
    while mail.crowded(channel, readers):
        label = f"{stage}: merge {channel}"
        boxes = mail.routes(channel).boxes
        groups = [boxes[i : i + MERGED] for i in range(0, len(boxes), MERGED)]
        keys = [digest("merge", channel, *(file.digest for file in group)) for group in groups]
        tasks = [
            MergeTask(key, f"{label} {i}", str(build.store.work), channel, group)
            for i, (key, group) in enumerate(zip(keys, groups, strict=True))
        ]
        mail.replace(channel, run_round(build, state, label, tasks, StepRecord))


def seal_outbox(work: Work, boxes: Mapping[str, Outbox]) -> tuple[FileRef, dict[str, int]]:
    """The sealed file of what a task sends, and whom its channels are for."""
    return _seal(work, lambda path: write_outbox(path, boxes))


def _seal(work: Work, write: Callable[[Path], dict[str, int]]) -> tuple[FileRef, dict[str, int]]:
    """The sealed file of an outbox, and whom its channels are for."""
    raw = work.tmp / f"outbox-{secrets.token_hex(8)}"
    sends = write(raw)
    sha = sha256_file(raw)
    file = FileRef(name=f"{sha[:32]}.outbox", bytes=raw.stat().st_size, digest=sha)
    work.seal(raw, file.name)
    return file, sends


def dropped_rows(data: Any, facts: tuple[FileRef, ...]) -> np.ndarray:
    """Rows (uint32, sorted) that the facts of earlier stages drop."""
    rows = [arrow_table(data / file.name).column("row").to_numpy() for file in facts]
    return np.unique(np.concatenate(rows)).astype(np.uint32) if rows else np.empty(0, np.uint32)


def gather_artifact(work: Work, routes: Routes) -> dict[str, FileRef]:
    """The files that a stage made for the whole corpus (a tokenizer), by name."""
    table = received(work.data, routes, "artifact", 0)
    refs = {}
    for row in table.to_pylist() if table.num_columns else []:
        file = SealedFile(work, row["name"].rsplit(".", 1)[-1])
        file.write(row["content"])
        refs[row["name"]] = file.seal()
    return refs
