"""The first pass: input files become parts.

Of a million tasks only the key is kept; each is made when it is sent, and dropped when it is done. Their records are read
back from the journal once, in the order of the inputs, so nothing depends on the order in which results came.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from pipeline.engine.inputs import InputTask, SourceInputs
from pipeline.engine.intake import Reading, begun, parts_of, recorded
from pipeline.engine.passes import Pass
from pipeline.engine.records import Lost, PassRecord
from pipeline.engine.state import BuildState, Outcome, PartState
from pipeline.engine.task import PassTask
from pipeline.events import Damaged
from stages.contract.problem import Problem, RunError

if TYPE_CHECKING:
    from pipeline.engine.run import Build

#: By the key of a task: what was lost of the files it read. Most tasks lose nothing and are not in it.
Losses = dict[str, tuple[Lost, ...]]


def read_inputs(build: Build, state: BuildState, plan: Pass) -> None:
    """Runs what has not been done of the first pass, and puts all parts of it into the state."""
    readings = {
        source: Reading(build.corpus, plan, build.store.work, inputs, state.quarantine)
        for source, inputs in build.inputs.items()
    }
    works = _Works(build)
    keys = _Keys()
    losses: Losses = {}
    open_tasks = array("q")  # numbers of works, each followed by the parts that an earlier build has left of it
    for number, (source, work) in enumerate(works):
        key = readings[source].key(work)
        keys.append(key)
        records = recorded(build.store, key, build.inputs[source], work)
        if records is None:
            open_tasks.extend((number, len(begun(build.store, key, work))))
        elif records[-1].damaged:
            losses[key] = records[-1].damaged

    def note(task: PassTask, record: PassRecord) -> None:
        if record.damaged:
            losses[task.key] = record.damaged

    def open_ones() -> Iterator[PassTask]:
        for number, left in zip(open_tasks[::2], open_tasks[1::2], strict=True):
            source, work = works[number]
            yield readings[source].task(work, keys[number], left)

    count = len(open_tasks) // 2
    build.run_tasks(state, plan, open_ones(), count, len(works) - count, note)
    first = 0
    for source, inputs in build.inputs.items():
        mine = range(first, first + len(inputs.tasks))
        first = mine.stop
        found = (losses[key] for key in map(keys.__getitem__, mine if losses else ()) if key in losses)
        lost = _damage(build, state, source, found)
        for work, number in zip(inputs.tasks, mine, strict=True):
            _collect(state, plan, source, work, parts_of(build.store, keys[number]), _given_up(inputs, work, lost))


def _collect(
    state: BuildState, plan: Pass, source: str, work: InputTask, records: Sequence[PassRecord], given_up: bool
) -> None:
    """Puts the parts of one task into the state; those of a damaged file that is skipped count, but are not parts."""
    read = {(f.uri, f.start, f.end): bytes.fromhex(f.digest) for f in records[-1].inputs}
    digests = state.input_digests.setdefault(source, bytearray())
    for one in work.slices:
        digests += read[one.slice.uri, one.slice.start, one.slice.end]
    ledger = state.ledger(source)
    first = work.slices[0].slice
    for number, record in enumerate(records):
        part = PartState(source, (first.uri, first.start, number), Outcome.of(record))
        booked = _without_documents(record) if given_up else record
        part.book(booked)
        ledger.book(plan.number, booked)
        (state.given_up if given_up else state.parts).append(part)


def _given_up(inputs: SourceInputs, work: InputTask, lost: Mapping[str, Lost]) -> bool:
    """Whether a task is part of a damaged file that is skipped whole. In a bundle the reader has left it out already."""
    alone = len(work.slices) == 1 and work.slices[0].slice.uri in lost
    return alone and inputs.settings.on_damaged == "skip"


def _damage(build: Build, state: BuildState, source: str, losses: Iterable[tuple[Lost, ...]]) -> dict[str, Lost]:
    """What was lost of each damaged file of a source, by uri. RunError where that ends the build."""
    policy = build.inputs[source].settings.on_damaged
    lost: dict[str, Lost] = {}
    for file in (file for files in losses for file in files):
        lost[file.uri] = file
        build.events(Damaged(source, file.uri, file.detail, policy))
    ordered = sorted(lost.items())
    state.damaged += [
        {"source": source, "uri": uri, "reason": file.detail, "records": file.records} for uri, file in ordered
    ]
    if lost and policy == "stop":
        raise RunError(*(_problem(source, file) for _, file in ordered))
    return lost


def _without_documents(record: PassRecord) -> PassRecord:
    """The account of a damaged file that is skipped whole: what it gave counts as rejected."""
    read = record.counts[0]
    gone = dict(read.rejected)
    if read.documents_out:
        gone["damaged-file"] = gone.get("damaged-file", 0) + read.documents_out
    count = read.model_copy(update={"documents_out": 0, "bytes_out": 0, "rejected": gone})
    return record.model_copy(update={"counts": (count,), "dropped": None, "kept": (), "removed": (), "roundtrip": (0, 0)})


def _problem(source: str, file: Lost) -> Problem:
    return Problem(
        "D004",
        f"{source}: {file.uri} is damaged: {file.detail}",
        repairs=(
            "replace the file and run again",
            f"or set sources.{source}.on_damaged to skip or keep-good-part",
        ),
    )


class _Works:
    """The tasks of all sources, one behind the other, each with its source; made when asked for."""

    def __init__(self, build: Build) -> None:
        self._sources = list(build.inputs.items())
        self._ends = list(accumulate(len(inputs.tasks) for _, inputs in self._sources))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __iter__(self) -> Iterator[tuple[str, InputTask]]:
        return ((source, task) for source, inputs in self._sources for task in inputs.tasks)

    def __getitem__(self, number: int) -> tuple[str, InputTask]:
        place = bisect_right(self._ends, number)
        source, inputs = self._sources[place]
        return source, inputs.tasks[number - self._ends[place]]


class _Keys:
    """Keys of tasks (64 hex digits) in 32 bytes each, without an object for each."""

    def __init__(self) -> None:
        self._raw = bytearray()

    def append(self, key: str) -> None:
        self._raw += bytes.fromhex(key)

    def __getitem__(self, number: int) -> str:
        return self._raw[32 * number : 32 * (number + 1)].hex()
