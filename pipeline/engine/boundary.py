"""A global stage in a build: what was collected of every part, its rounds, and the facts that they come to."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pipeline.engine import rounds
from pipeline.engine.passes import Pass, stage_digest
from pipeline.engine.plan import priority_ranks
from pipeline.engine.records import EmitRecord, FactsRecord, FileRef, Part, Routes, StepRecord
from pipeline.engine.rounds import (
    EmitTask,
    FactsTask,
    Gathered,
    Mail,
    StepCommon,
    StepTask,
    gather_artifact,
)
from pipeline.engine.state import BoundaryState, BuildState, PartState
from pipeline.engine.uses import StageUse
from pipeline.engine.work import Work
from pipeline.events import RoundsDone, Warned
from pipeline.output.against import adopt
from stages.contract.names import canonical_json, digest
from stages.stage import GlobalStage, PartInfo, Superstep

if TYPE_CHECKING:
    from pipeline.engine.run import Build


def emit_key(stage: str, part: Part) -> str:
    """The key of what a stage (by its digest) collects of a part."""
    return digest("emit", stage, part.source, part.digest())


def run_global(build: Build, state: BuildState, plan: Pass, use: StageUse) -> None:
    """Runs what has not been done of a global stage behind a pass; puts what it decided into the state."""
    stage = use.stage
    assert isinstance(stage, GlobalStage)
    mark = stage_digest(use)
    members = [(i, p) for i, p in enumerate(state.parts) if stage.runs_on(p.source)]
    emissions = _emissions(build, state, use, mark, members)
    ranks = priority_ranks(build.corpus)
    old = adopt(build, state, use)
    infos = [info for info, _ in old]
    base = sum(info.rows for info in infos)
    for index, part in members:
        rank = ranks[part.source] + bool(old)
        infos.append(PartInfo(index, part.source, rank, base, part.record.part.rows))
        base += part.record.part.rows
    earlier = [b for b in state.boundaries if b.number == plan.number]
    dropped = {i: tuple(f for b in earlier if (f := b.facts.facts.get(i)) is not None) for i, _ in members}
    dropped |= {info.index: (record.dropped,) for info, record in old}
    emissions |= {info.index: record.emission for info, record in old}
    parts = {i: p.record.part for i, p in members} | {info.index: record.part for info, record in old}
    gathered = Gathered(tuple(infos), parts, emissions, dropped)
    key = digest(
        "boundary",
        mark,
        str(build.corpus.seed),
        canonical_json([(p.index, p.source, p.rank, p.rows, emissions[p.index].digest) for p in infos]),
        canonical_json([[f.digest for f in dropped[p.index]] for p in infos]),
    )
    facts = build.store.get(key, FactsRecord)
    if facts is None:
        facts = _Rounds(build, state, use, key, gathered).run()
    state.boundaries.append(BoundaryState(use, plan.number, facts, parts, emissions))
    for name, count in sorted(facts.counters.items()):
        if name.startswith("warn:"):
            build.events(Warned("W001", f"{use.label}: {name[5:]} ({count:,})"))


def _emissions(
    build: Build, state: BuildState, use: StageUse, mark: str, members: list[tuple[int, PartState]]
) -> dict[int, FileRef]:
    """What the stage collected of each part, by index; collects where the pass before has not done so."""
    found: dict[int, FileRef] = {}
    tasks: list[EmitTask] = []
    owners: dict[str, list[int]] = {}
    for index, part in members:
        key = emit_key(mark, part.record.part)
        record = build.store.get(key, EmitRecord)
        if record is not None:
            found[index] = record.file
            continue
        owners.setdefault(key, []).append(index)
        if len(owners[key]) == 1:
            name = f"{part.source}: {part.place[0]}"
            tasks.append(EmitTask(key, name, str(build.store.work), use, part.record.part))

    def book(task: EmitTask, record: EmitRecord) -> None:
        build.store.put(task.key, record)
        found.update((index, record.file) for index in owners[task.key])

    if tasks:
        state.ran[f"{use.label}: collect"] = len(tasks)
        build.driver.run(f"{use.label}: collect", tasks, len(found), book)
    return found


class _Rounds:
    """The supersteps of one global stage, one behind the other."""

    def __init__(self, build: Build, state: BuildState, use: StageUse, key: str, gathered: Gathered) -> None:
        assert isinstance(use.stage, GlobalStage)
        self.build = build
        self.state = state
        self.use = use
        self.stage: GlobalStage = use.stage
        self.gathered = gathered
        self.folder = str(build.store.work)
        self.mail = Mail()
        self.mark = key  # of all that has been done so far
        self.key = key

    def run(self) -> FactsRecord:
        """Runs what has not been done; journals and returns what came of it."""
        started = time.monotonic()
        counters: Counter[str] = Counter()
        steps = self.stage.supersteps(self.gathered.infos)
        for number, step in enumerate(steps):
            for record in self._step(step):
                self.mail.add(record)
                counters.update(record.counters)
            for channel, readers in self._read_by(steps[number + 1 :]).items():
                rounds.merge(self.build, self.state, self.use.label, self.mail, channel, readers)
        work = Work(self.build.store.work)
        result = FactsRecord(
            facts=self._facts() if self.stage.has_facts else {},
            evidence=self.mail.routes("evidence") if self.stage.drops_only else Routes(),
            artifact=gather_artifact(work, self.mail.routes("artifact")),
            counters=dict(counters),
        )
        self.build.store.put(self.key, result)
        seconds = round(time.monotonic() - started, 3)
        self.build.events(RoundsDone(self.use.label, len(steps), seconds, result.counters))
        return result

    def _step(self, step: Superstep) -> list[StepRecord]:
        """The records of all tasks of one superstep, in their order."""
        indices = self._tasks_of(step)
        channels = {channel for channel, _ in step.inbox(0).values()}
        routes = {channel: self.mail.routes(channel) for channel in channels}
        common = StepCommon(self.folder, self.use, step, self.gathered, routes, self.build.corpus.seed)
        label = f"{self.use.label}: {step.name}"
        keys = [digest(self.mark, step.name, str(index)) for index in indices]
        tasks = [StepTask(key, f"{label} {index}", index, common) for key, index in zip(keys, indices, strict=True)]
        records = rounds.run_round(self.build, self.state, label, tasks, StepRecord)
        self.mark = digest(self.mark, step.name, *(record.file.digest for record in records))
        return records

    def _tasks_of(self, step: Superstep) -> Sequence[int]:
        return range(step.over) if step.over is not None else [part.index for part in self.gathered.infos]

    def _read_by(self, steps: Sequence[Superstep]) -> dict[str, int]:
        """Channel -> the most readers that it has in these steps, or behind them."""
        found = {"facts": len(self.gathered.infos), "evidence": len(self.gathered.infos)}
        for step in steps:
            for channel, _ in step.inbox(0).values():
                found[channel] = max(found.get(channel, 0), len(self._tasks_of(step)))
        return found

    def _facts(self) -> dict[int, FileRef]:
        """The facts of each part of this corpus, as sealed files."""
        routes = self.mail.routes("facts")
        parts = [part.index for part in self.gathered.infos if not part.fixed]
        tasks = []
        label = f"{self.use.label}: facts"
        for first in range(0, len(parts), rounds.FACTS):
            mine = tuple(parts[first : first + rounds.FACTS])
            key = digest(self.mark, "facts", str(first))
            tasks.append(FactsTask(key, f"{label} {first}", self.folder, mine, routes))
        found: dict[int, FileRef] = {}
        for record in rounds.run_round(self.build, self.state, label, tasks, FactsRecord):
            found |= record.facts
        return found
