"""The tables of dropped documents: each with its reason, and the id of the document that was kept instead, if one was.

A table is of `PARTS` neighbouring parts of a source, so that no task grows with the corpus. Whom a document was dropped
for is known as a row of a part, and its id lies in a file of that part, which may be anywhere. So ids travel as the rows
of a global stage do:

    ask      the evidence of a group of parts, to the groups of the survivors
    answer   the ids of these, to the groups that asked
    table    what was dropped of a group, with the answers
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.engine.records import FileRef, Part, Routes, StepRecord, TableRecord
from pipeline.engine.rounds import Mail, merge, received, run_round, seal_outbox
from pipeline.engine.sealed import ArrowFile, arrow_batches, part_column
from pipeline.engine.state import BoundaryState, BuildState
from pipeline.engine.work import Work
from pipeline.engine.writer import DROPPED, DROPPED_TEXTS
from pipeline.output.against import FIRST_INDEX
from stages.contract.names import canonical_json, digest
from stages.document import with_column
from stages.exchange import column_values
from stages.numbering import EVIDENCE
from stages.stage import Outbox

if TYPE_CHECKING:
    from pipeline.engine.run import Build

#: Parts of a table: of a corpus of one source some 4 GB of stored input.
PARTS = 64

_ASKED = EVIDENCE.append(pa.field("part", pa.uint32(), nullable=False))
_ANSWERED = pa.schema(
    [("part", pa.uint32()), ("row", pa.uint32()), ("survivor", pa.binary(16)), ("similarity", pa.float32())]
)


def write_dropped(build: Build, state: BuildState) -> dict[str, FileRef]:
    """Writes the tables: path in the output folder -> sealed file. A table without a row is left out."""
    groups = _groups(build, state)
    answers = {b.use.label: _survivors(build, state, b, groups) for b in state.boundaries if b.facts.evidence.boxes}
    common = tuple(answers.items())  # one value: it travels once
    done: dict[str, TableRecord] = {}
    tasks, paths = [], {}
    for number, (path, indices) in enumerate(groups):
        files = tuple((file, index) for index in indices for file in state.parts[index].dropped)
        marks = [[f.digest for f, _ in files], [[f.digest for f in routes.of(number)] for routes in answers.values()]]
        key = digest("dropped", path, canonical_json(marks))
        record = build.store.get(key, TableRecord)
        if record is not None:
            done[path] = record
        else:
            paths[key] = path
            tasks.append(TableTask(key, path, str(build.store.work), number, files, common))

    def book(task: TableTask, record: TableRecord) -> None:
        build.store.put(task.key, record)
        done[paths[task.key]] = record

    state.ran["dropped"] = len(tasks)
    build.driver.run("write the tables of dropped documents", tasks, len(done), book)
    return {path: done[path].file for path, _ in groups if done[path].rows}


def _groups(build: Build, state: BuildState) -> list[tuple[str, tuple[int, ...]]]:
    """`(path of the table, indices of its parts)`, the parts of each source in their order."""
    of_source: dict[str, list[int]] = {source: [] for source in build.inputs}
    for index, part in enumerate(state.parts):
        of_source[part.source].append(index)
    return [
        (f"dropped/{source}/{number:05d}.arrow", indices)
        for source, mine in of_source.items()
        for number, indices in enumerate(_cut(mine))
    ]


def _cut(indices: Sequence[int]) -> list[tuple[int, ...]]:
    return [tuple(indices[first : first + PARTS]) for first in range(0, len(indices), PARTS)]


def _survivors(
    build: Build, state: BuildState, boundary: BoundaryState, tables: Sequence[tuple[str, tuple[int, ...]]]
) -> Routes:
    """Where the ids of the survivors of a stage lie, by group: rows of `_ANSWERED` on the channel `answered`."""
    own = [tuple(index for index in indices if index in boundary.parts) for _, indices in tables]
    fixed = _cut(sorted(index for index in boundary.parts if index >= FIRST_INDEX))
    groups = tuple(own + fixed)
    routes, label, mail = boundary.facts.evidence, boundary.use.label, Mail()
    parts = [part.digest() for _, part in sorted(boundary.parts.items())]
    mark = digest("survivors", canonical_json([groups, parts, [file.digest for file in routes.boxes]]))
    for name, send, channel, count, readers in (
        ("ask for survivors", ask, "asked", len(own), len(groups)),
        ("name survivors", answer, "answered", len(groups), len(own)),
    ):
        common = Common(str(build.store.work), send, groups, boundary.parts, routes)
        tasks = [SurvivorTask(digest(mark, channel, str(n)), f"{label}: {name} {n}", n, common) for n in range(count)]
        for record in run_round(build, state, f"{label}: {name}", tasks, StepRecord):
            mail.add(record)
        merge(build, state, label, mail, channel, readers)
        routes = mail.routes(channel)
    return routes


@dataclass(frozen=True)
class Common:
    """What all tasks of a round have in common.

    send    what each does: `(data, this, number of its group)` -> what it sends, by channel
    groups  the parts of each group
    parts   as the stage saw them
    routes  where the rows lie that the round reads
    """

    folder: str
    send: Callable[[Any, Common, int], dict[str, Outbox]]
    groups: tuple[tuple[int, ...], ...]
    parts: dict[int, Part]
    routes: Routes

    def group_of(self, parts_N: np.ndarray) -> np.ndarray:
        """The group, uint32, of each part."""
        parts_P = np.concatenate([np.array(group, np.int64) for group in self.groups])
        owner_P = np.repeat(np.arange(len(self.groups), dtype=np.uint32), [len(group) for group in self.groups])
        order = np.argsort(parts_P)
        return owner_P[order[np.searchsorted(parts_P[order], parts_N)]]


@dataclass(frozen=True)
class SurvivorTask:
    """A group's part in a round."""

    key: str
    name: str
    index: int
    common: Common | None

    def run(self) -> Iterator[StepRecord]:
        """One record: the outbox."""
        pa.set_cpu_count(1)
        assert self.common is not None
        work = Work(self.common.folder)
        file, sends = seal_outbox(work, self.common.send(work.data, self.common, self.index))
        yield StepRecord(file=file, sends=sends)


def ask(data: Any, common: Common, group: int) -> dict[str, Outbox]:
    """Whom the dropped documents of a group stand behind, to the groups of these."""
    tables = [_ASKED.empty_table()]
    for index in common.groups[group]:
        mine = received(data, common.routes, "evidence", index)
        if mine.num_columns:
            tables.append(mine.append_column(_ASKED.field("part"), pa.array(np.full(len(mine), index, np.uint32))))
    asked = pa.concat_tables(tables)
    return {"asked": Outbox(common.group_of(column_values(asked, "survivor_part")), asked)}


def answer(data: Any, common: Common, group: int) -> dict[str, Outbox]:
    """The ids that others asked a group for, to them; of each part they are read once."""
    asked = received(data, common.routes, "asked", group)
    asked = asked.sort_by("survivor_part") if asked.num_columns else _ASKED.empty_table()
    parts, counts = np.unique(column_values(asked, "survivor_part"), return_counts=True)
    ids, first = [pa.array([], pa.binary(16))], 0
    for part, count in zip(parts.tolist(), counts.tolist(), strict=True):
        rows = asked.column("survivor_row").slice(first, count).combine_chunks()
        first += count
        ids.append(part_column(data, common.parts[part], "id").cast(pa.binary(16)).take(rows))
    answered = pa.table([asked["part"], asked["row"], pa.chunked_array(ids), asked["similarity"]], schema=_ANSWERED)
    return {"answered": Outbox(common.group_of(column_values(asked, "part")), answered)}


@dataclass(frozen=True)
class TableTask:
    """Writes the table of a group of parts.

    files   per pass and part: the rows, and the index of the part they were in
    common  stage -> where its answers lie
    """

    key: str
    name: str
    folder: str
    index: int
    files: tuple[tuple[FileRef, int], ...]
    common: tuple[tuple[str, Routes], ...] | None

    def run(self) -> Iterator[TableRecord]:
        """One record: the table."""
        pa.set_cpu_count(1)
        assert self.common is not None
        work = Work(self.folder)
        survivors = Survivors(
            {label: received(work.data, routes, "answered", self.index) for label, routes in self.common}
        )
        texts: dict[str, int] = {}
        rows = 0
        with ArrowFile(work, "table.arrow", "lz4") as out:
            out.write(survivors.join(pa.RecordBatch.from_pylist([], schema=DROPPED), 0))
            for file, index in self.files:
                for batch in arrow_batches(work.data / file.name):
                    out.write(survivors.join(_cap_texts(batch, texts), index))
                    rows += batch.num_rows
            yield TableRecord(file=out.seal(), rows=rows)


class Survivors:
    """Who was kept for which row of which part, by the stage that dropped it."""

    def __init__(self, answered: dict[str, pa.Table]) -> None:
        tables = [(label, table) for label, table in answered.items() if table.num_columns]
        whole = pa.concat_tables([_ANSWERED.empty_table(), *(table for _, table in tables)])
        self._ids, self._similarity = (whole.column(name).combine_chunks() for name in ("survivor", "similarity"))
        self._of_stage: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        first = 0
        for label, table in tables:
            codes = _code(column_values(table, "part"), column_values(table, "row"))
            order = np.argsort(codes)
            self._of_stage[label] = codes[order], order + first
            first += len(table)

    def join(self, batch: pa.RecordBatch, part: int) -> pa.RecordBatch:
        """The dropped rows of a part with `survivor` and `similarity` (both null where nobody was kept), without `row`."""
        stage, row = batch.column("stage"), batch.column("row").to_numpy()
        place = np.full(len(row), -1, np.int64)
        for label, (codes, at) in self._of_stage.items():
            mine = np.flatnonzero(pc.equal(stage, label).to_numpy(zero_copy_only=False) & (row >= 0))
            wanted = _code(np.full(len(mine), part), row[mine])
            found = np.searchsorted(codes, wanted)
            found[found == len(codes)] = 0
            known = codes[found] == wanted if len(codes) else np.zeros(len(mine), bool)
            place[mine[known]] = at[found[known]]
        taken = pa.array(place, mask=place < 0)
        batch = batch.drop_columns(["row"])
        batch = with_column(batch, "survivor", self._ids.take(taken))
        return with_column(batch, "similarity", self._similarity.take(taken))


def _code(part_N: np.ndarray, row_N: np.ndarray) -> np.ndarray:
    return part_N.astype(np.int64) << 32 | row_N.astype(np.int64)


def _cap_texts(batch: pa.RecordBatch, seen: dict[str, int]) -> pa.RecordBatch:
    """The batch without the texts of all but the first `DROPPED_TEXTS` that a stage dropped for a reason."""
    why = pc.binary_join_element_wise(batch.column("stage"), batch.column("reason"), "\n").dictionary_encode()
    which, keep = why.indices.to_numpy(), np.zeros(batch.num_rows, bool)
    for number, name in enumerate(why.dictionary.to_pylist()):
        mine = np.flatnonzero(which == number)
        keep[mine[: max(0, DROPPED_TEXTS - seen.get(name, 0))]] = True
        seen[name] = seen.get(name, 0) + len(mine)
    texts = pc.if_else(pa.array(keep), batch.column("text"), pa.scalar(None, pa.large_string()))
    return with_column(batch, "text", texts)
