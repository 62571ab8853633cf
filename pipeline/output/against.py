"""Deduplication against corpora that were built before: what a build leaves for later ones, and how it is taken up.

A build that deduplicates writes `work/reference.json`: for each stage the fingerprint of its settings, and for each part
the file of signatures, the rows that were dropped, and where the ids are. A later build with `against:` links those files
into its own work folder (names are digests of content, so nothing can clash) and gives the old documents the first
numbers and the best rank: they take part as survivors only. Of the old parts ids and places are read, text is not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
import pyarrow as pa

from pipeline.engine.records import AdoptRecord, FileRef, Part, Record
from pipeline.engine.rounds import dropped_rows
from pipeline.engine.sealed import ArrowFile, arrow_table
from pipeline.engine.uses import StageUse
from pipeline.engine.work import Work
from pipeline.output.shards import place
from stages.contract.files import on_disk, write_atomic
from stages.contract.manifest import FILE_NAME
from stages.contract.names import canonical_json, digest
from stages.contract.problem import Problem, SpecError
from stages.stage import GlobalStage, PartInfo
from stages.storage.address import located

if TYPE_CHECKING:
    from pipeline.engine.run import Build
    from pipeline.engine.state import BuildState

REFERENCE = "reference.json"
#: Indices of old parts begin here, far behind those of the build itself.
FIRST_INDEX = 1 << 30
#: What is kept of an old document.
_COLUMNS = ("id", "source", "uri", "record", "user_id")


class OldPart(Record):
    """A part of an earlier build as its reference names it."""

    part: Part
    emission: FileRef
    dropped: tuple[FileRef, ...]


def write_reference(build: Build, state: BuildState) -> None:
    """Leaves what later builds need; the files it names stay as long as the work folder does."""
    stages: list[dict[str, Any]] = []
    for boundary in state.boundaries:
        stage = boundary.use.stage
        print_of = stage.fingerprint() if isinstance(stage, GlobalStage) else None
        if print_of is None:
            continue
        earlier = [b for b in state.boundaries[: state.boundaries.index(boundary)] if b.number == boundary.number]
        parts = [
            OldPart(
                part=part,
                emission=boundary.emissions[index],
                dropped=tuple(f for b in (*earlier, boundary) if (f := b.facts.facts.get(index)) is not None),
            ).model_dump(mode="json")
            for index, part in sorted(boundary.parts.items())
            if index < FIRST_INDEX
        ]
        stages.append({"stage": stage.name, "fingerprint": print_of, "parts": parts})
    write_atomic(build.store.work / REFERENCE, canonical_json({"format": 1, "stages": stages}))


def read_reference(path: str, stage: GlobalStage) -> tuple[Any, list[OldPart]]:
    """`(work folder, parts)` of an earlier build for this stage. SpecError when it has none that fits."""
    place_of = located(path)
    work = (place_of.parent if place_of.name == FILE_NAME else place_of) / "work"
    try:
        stored = orjson.loads((work / REFERENCE).read_bytes())
    except (OSError, orjson.JSONDecodeError) as error:
        text = f"{stage.name}: against {path}: no signatures are left of that build: {work / REFERENCE} cannot be read"
        raise SpecError(Problem("D005", text, repairs=("build it once more; its work folder must stay",))) from error
    found = [one for one in stored["stages"] if one["stage"] == stage.name]
    if not found:
        text = f"{stage.name}: against {path}: that build did not run {stage.name}"
        raise SpecError(Problem("D005", text, repairs=(f"add {stage.name} to its stages and build it once more",)))
    mine, theirs = stage.fingerprint() or {}, found[-1]["fingerprint"]
    differ = [name for name in sorted({*mine, *theirs}) if mine.get(name) != theirs.get(name)]
    if differ:
        raise SpecError(
            *(
                Problem(
                    "C017",
                    f"{stage.name}: against {path}: {name} is {theirs.get(name)!r} there and {mine.get(name)!r} here, "
                    "so signatures cannot be compared",
                    repairs=(f"set {name} to {theirs.get(name)!r}", "or build that corpus once more with the new setting"),
                )
                for name in differ
            )
        )
    return work, [OldPart.model_validate(part) for part in found[-1]["parts"]]


def check_references(stages: Sequence[Any]) -> list[Problem]:
    """What is wrong with the earlier corpora that stages name."""
    problems: list[Problem] = []
    for stage in stages:
        for path in getattr(stage, "against", ()):
            try:
                read_reference(path, stage)
            except SpecError as error:
                problems += error.problems
    return problems


@dataclass(frozen=True)
class AdoptTask:
    """Takes up one old part: links its signatures, and writes ids and places of its documents."""

    key: str
    name: str
    folder: str
    old_work: str
    old: OldPart

    def run(self) -> Iterator[AdoptRecord]:
        """One record. The rows of the part are those of the signatures."""
        pa.set_cpu_count(1)
        work, theirs = Work(self.folder), Work(self.old_work).data
        place(theirs / self.old.emission.name, work.data / self.old.emission.name)
        gone = dropped_rows(theirs, self.old.dropped)
        with ArrowFile(work, "facts.arrow") as file:
            file.write(pa.RecordBatch.from_arrays([pa.array(gone, pa.uint32())], ["row"]))
            dropped = file.seal()
        with ArrowFile(work, "arrow", "lz4") as file:
            for batch in _places(theirs, self.old.part):
                file.write(batch)
            base = file.seal()
        part = Part(source=self.old.part.source, base=base, rows=self.old.part.rows, text_bytes=0)
        yield AdoptRecord(part=part, emission=self.old.emission, dropped=dropped)


def _places(data: Any, part: Part) -> Iterator[pa.RecordBatch]:
    """Ids and places of the documents of a part; its other columns, the text among them, are not read."""
    rows = None if part.overlay is None else arrow_table(data / part.overlay.name).column("row").to_numpy()
    with pa.memory_map(str(on_disk(data / part.base.name))) as source:
        names = pa.ipc.open_file(source).schema.names
        options = pa.ipc.IpcReadOptions(included_fields=[names.index(name) for name in _COLUMNS])
        reader = pa.ipc.open_file(source, options=options)
        first = 0
        for number in range(reader.num_record_batches):
            batch = reader.get_batch(number).select(list(_COLUMNS))
            low, high = (0, 0) if rows is None else np.searchsorted(rows, [first, first + batch.num_rows])
            first += batch.num_rows
            yield batch if rows is None else batch.take(pa.array(rows[low:high].astype(np.int64) - first + batch.num_rows))


def adopt(build: Build, state: BuildState, use: StageUse) -> list[tuple[PartInfo, AdoptRecord]]:
    """The old parts of a stage, in the order in which `against` names their corpora."""
    stage = use.stage
    assert isinstance(stage, GlobalStage)
    paths = getattr(stage, "against", ())
    olds = [(work, old) for path in paths for work, parts in [read_reference(path, stage)] for old in parts]
    records: dict[str, AdoptRecord] = {}
    tasks: dict[str, AdoptTask] = {}
    keys = []
    for work, old in olds:
        marks = [old.part.digest(), old.emission.digest, *(file.digest for file in old.dropped)]
        key = digest("adopt", use.label, canonical_json(marks))
        keys.append(key)
        record = build.store.get(key, AdoptRecord)
        if record is not None:
            records[key] = record
        else:
            name = f"{use.label}: {work.parent.name}, {old.part.source}"
            tasks[key] = AdoptTask(key, name, str(build.store.work), str(work), old)

    def book(task: AdoptTask, record: AdoptRecord) -> None:
        build.store.put(task.key, record)
        records[task.key] = record

    if tasks:
        state.ran[f"{use.label}: take up"] = len(tasks)
        build.driver.run(f"{use.label}: take up earlier corpora", list(tasks.values()), len(records), book)
    made, base = [], 0
    for number, key in enumerate(keys):
        record = records[key]
        info = PartInfo(FIRST_INDEX + number, record.part.source, 0, base, record.part.rows, fixed=True)
        made.append((info, record))
        base += record.part.rows
    return made
