"""One build, from the listing of inputs to the manifest.

Invariant: whatever line this is killed at, running it again ends with the same bytes as if it had never been killed,
because every step asks the journal first, does only what is missing, and the manifest is written last. Nothing here
depends on how many workers there are or in which order their results arrive: results are put in canonical order
(source, path, slice, part) before anything is derived from them.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import orjson

from pipeline.corpus import Corpus
from pipeline.engine.driver import Driver, Poisoned
from pipeline.engine.executor import Executor
from pipeline.engine.inputs import InputTask
from pipeline.engine.intake import (
    QUARANTINE,
    begun,
    encoding_of,
    given_tokenizer,
    read_quarantine,
    read_task,
    recorded,
)
from pipeline.engine.origin import PartOrigin
from pipeline.engine.passes import Pass, pass_digest, stage_digest
from pipeline.engine.plan import Plan, priority_ranks
from pipeline.engine.records import EmitRecord, FactsRecord, FileRef, Part, PassRecord, StageCount, StepRecord
from pipeline.engine.rounds import EmitTask, Gathered, StepCommon, StepTask, gather_artifact, gather_facts
from pipeline.engine.state import BoundaryState, BuildResult, BuildState, PartState
from pipeline.engine.store import Store
from pipeline.engine.tally import check_accounts, check_losses, merge_counts
from pipeline.engine.task import PassTask, StageUse
from pipeline.engine.work import Work
from pipeline.events import Damaged, Events, Quarantined, RoundsDone, RunDone, RunStarted, Warned
from pipeline.output.against import adopt
from pipeline.output.evidence import example_pairs
from pipeline.output.finish import finish, place_artifacts
from stages.contract.files import write_atomic
from stages.contract.names import canonical_json, digest
from stages.contract.problem import Problem, RunError
from stages.stage import GlobalStage, PartInfo


class Build:
    """A build of one corpus in one locked output folder."""

    def __init__(
        self, plan: Plan, store: Store, executor: Executor, events: Events, patient: bool = True
    ) -> None:
        self.corpus: Corpus = plan.corpus
        self.passes = plan.passes
        self.inputs = plan.inputs
        self.store = store
        self.executor = executor
        self.events = events
        self.driver = Driver(store, executor, events, patient)

    def run(self, until: str | None = None) -> BuildResult:
        """Builds to the end, or to the stage `until`. Raises RunError, SpecError or driver.Stopped."""
        started = time.monotonic()
        self.store.clear_tmp()
        self.events(
            RunStarted(
                self.corpus.name,
                self.corpus.config_digest(),
                str(self.store.out),
                self.store.epoch,
                self.executor.workers,
            )
        )
        with self.driver.signals():
            while True:
                try:
                    state, manifest = self._once(until)
                    break
                except Poisoned as poison:
                    self._quarantine(poison)
        documents = sum(s.record.part.rows for s in state.parts)
        tokens = sum(s.record.token_count for s in state.parts)
        seconds = round(time.monotonic() - started, 3)
        self.events(RunDone(str(manifest) if manifest else None, documents, tokens, seconds))
        accounts = {source: self.accounts(state, source) for source in self.inputs}
        return BuildResult(manifest, state, accounts, documents, tokens, seconds)

    def _once(self, until: str | None) -> tuple[BuildState, Any]:
        state = BuildState(self.inputs, quarantine=read_quarantine(self.store.out))
        for plan in self.passes:
            if plan.number == 0:
                self._read(state, plan)
            else:
                self._pass(state, plan)
            self._check(state, plan)
            self._remark(state, plan)
            if until is not None and until in [use.label for use in plan.rows]:
                return state, None
            for use in plan.after:
                self._boundary(state, plan, use)
                if until == use.label:
                    place_artifacts(self, state)
                    return state, None
        return state, finish(self, state)

    # -- the first pass: input files ---------------------------------------------------------------

    def _read(self, state: BuildState, plan: Pass) -> None:
        done: dict[tuple[str, InputTask], list[PassRecord]] = {}
        tasks, owners = [], {}
        for source, inputs in self.inputs.items():
            for work in inputs.tasks:
                task = read_task(self.corpus, plan, self.store.work, inputs, work, state.quarantine)
                records = recorded(self.store, task.key, inputs, work)
                if records is not None:
                    done[source, work] = records
                else:
                    left = begun(self.store, task.key, work)
                    if left:
                        done[source, work] = left
                    tasks.append(replace(task, committed=len(left)))
                    owners[task.key] = (source, work)
        self._run_passes(
            state,
            plan,
            tasks,
            sum(not records[-1].more for records in done.values()),
            lambda task, record: done.setdefault(owners[task.key], []).append(record),
        )
        self._collect(state, plan, done)

    def _collect(
        self, state: BuildState, plan: Pass, done: dict[tuple[str, InputTask], list[PassRecord]]
    ) -> None:
        """Puts the parts in canonical order and settles damaged files by the policy of their source."""
        for source, inputs in self.inputs.items():
            lost: dict[str, tuple[str, int]] = {}
            for work in inputs.tasks:
                for file in done[source, work][-1].damaged:
                    lost[file.uri] = (file.detail, file.records)
                    self.events(Damaged(source, file.uri, file.detail, inputs.settings.on_damaged))
            state.damaged += [
                {"source": source, "uri": u, "reason": d, "records": n} for u, (d, n) in sorted(lost.items())
            ]
            if lost and inputs.settings.on_damaged == "stop":
                raise RunError(*(_damage(source, uri, detail) for uri, (detail, _) in sorted(lost.items())))
            files = state.input_files.setdefault(source, [])
            for work in inputs.tasks:
                records = done[source, work]
                files += records[-1].inputs
                given_up = (
                    inputs.settings.on_damaged == "skip"
                    and len(work.slices) == 1
                    and work.slices[0].slice.uri in lost
                )
                first = work.slices[0].slice
                for number, record in enumerate(records):
                    part = PartState(source, (first.uri, first.start, number), record)
                    part.book(plan.number, _given_up(record) if given_up else record)
                    (state.given_up if given_up else state.parts).append(part)

    # -- later passes: parts -----------------------------------------------------------------------

    def _pass(self, state: BuildState, plan: Pass) -> None:
        done: dict[int, PassRecord] = {}
        tasks: list[PassTask] = []
        owners: dict[str, list[int]] = {}
        tokenizer = self.tokenizer(state) if plan.encodes else None
        encoding = encoding_of(self.corpus, tokenizer) if tokenizer else None
        for index, part in enumerate(state.parts):
            facts = [
                (b.use, b.facts.facts.get(index)) for b in state.boundaries if b.number == plan.number - 1
            ]
            facts = [(use, file) for use, file in facts if file is not None]
            key = digest(
                pass_digest(plan, part.source, encoding, tokenizer[1] if tokenizer else None),
                part.source,
                part.record.part.digest(),
                *(file.digest for _, file in facts if file),
            )
            record = self.store.get(key, PassRecord)
            if record is not None:
                done[index] = record
                continue
            owners.setdefault(key, []).append(index)
            if len(owners[key]) > 1:
                continue  # parts of equal content are worked on once
            tasks.append(
                PassTask(
                    key=key,
                    name=f"{part.source}: {part.place[0]}",
                    source=part.source,
                    folder=str(self.store.work),
                    origin=PartOrigin(part.record.part),
                    before=tuple(facts),
                    rows=plan.rows_for(part.source),
                    emits=plan.emits_for(part.source),
                    encoding=encoding,
                    overlay=not plan.changes_text() and encoding is None and part.record.part.overlay is None,
                )
            )

        def book(task: PassTask, record: PassRecord) -> None:
            done.update((index, record) for index in owners[task.key])

        self._run_passes(state, plan, tasks, len(done), book)
        for index, part in enumerate(state.parts):
            part.book(plan.number, done[index])

    def _run_passes(
        self,
        state: BuildState,
        plan: Pass,
        tasks: list[PassTask],
        cached: int,
        book: Callable[[PassTask, PassRecord], None],
    ) -> None:
        numbers: dict[str, int] = {}

        def on_result(task: PassTask, result: tuple[PassRecord, dict[str, EmitRecord]]) -> None:
            record, emissions = result
            for label, emission in emissions.items():
                use = next(u for u in plan.after if u.label == label)
                self.store.put(_emit_key(use, record.part), emission)
            number = numbers.get(task.key, task.committed)
            self.store.put(task.key, record, number)
            numbers[task.key] = number + 1
            book(task, record)

        state.ran[f"pass {plan.number}"] = len(tasks)
        self.driver.run(plan.name, tasks, cached, on_result)

    def tokenizer(self, state: BuildState) -> tuple[Any, str]:
        """Path (or address) and digest of tokenizer.json: the user's own, or the one that this build trained."""
        given = given_tokenizer(self.corpus)
        if given is not None:
            return given
        file = next(b for b in state.boundaries if "tokenizer.json" in b.facts.artifact).facts.artifact["tokenizer.json"]
        return self.store.path(file), file.digest

    # -- global stages -----------------------------------------------------------------------------

    def _boundary(self, state: BuildState, plan: Pass, use: StageUse) -> None:
        stage = use.stage
        assert isinstance(stage, GlobalStage)
        members = [(i, p) for i, p in enumerate(state.parts) if stage.runs_on(p.source)]
        emissions = self._emissions(state, use, members)
        ranks = priority_ranks(self.corpus)
        old = adopt(self, state, use)
        infos = [info for info, _ in old]
        base = sum(info.rows for info in infos)
        for index, part in members:
            rank = ranks[part.source] + bool(old)
            infos.append(PartInfo(index, part.source, rank, base, part.record.part.rows))
            base += part.record.part.rows
        earlier = [b for b in state.boundaries if b.number == plan.number]
        dropped = {
            i: tuple(f for b in earlier if (f := b.facts.facts.get(i)) is not None) for i, _ in members
        }
        dropped |= {info.index: (record.dropped,) for info, record in old}
        emissions |= {info.index: record.emission for info, record in old}
        parts = {i: p.record.part for i, p in members} | {info.index: record.part for info, record in old}
        gathered = Gathered(tuple(infos), parts, emissions, dropped)
        key = digest(
            "boundary",
            stage_digest(use),
            str(self.corpus.seed),
            canonical_json([(p.index, p.source, p.rank, p.rows, emissions[p.index].digest) for p in infos]),
            canonical_json([[f.digest for f in dropped[p.index]] for p in infos]),
        )
        facts = self.store.get(key, FactsRecord)
        if facts is None:
            facts = self._supersteps(state, use, key, gathered)
        state.boundaries.append(BoundaryState(use, plan.number, facts, parts, emissions))
        for name, count in sorted(facts.counters.items()):
            if name.startswith("warn:"):
                self.events(Warned("W001", f"{use.label}: {name[5:]} ({count:,})"))

    def _emissions(
        self, state: BuildState, use: StageUse, members: list[tuple[int, PartState]]
    ) -> dict[int, FileRef]:
        found: dict[int, FileRef] = {}
        tasks: list[EmitTask] = []
        owners: dict[str, list[int]] = {}
        for index, part in members:
            key = _emit_key(use, part.record.part)
            record = self.store.get(key, EmitRecord)
            if record is not None:
                found[index] = record.file
                continue
            owners.setdefault(key, []).append(index)
            if len(owners[key]) == 1:
                tasks.append(
                    EmitTask(
                        key, f"{part.source}: {part.place[0]}", str(self.store.work), use, part.record.part
                    )
                )

        def book(task: EmitTask, record: EmitRecord) -> None:
            self.store.put(task.key, record)
            found.update((index, record.file) for index in owners[task.key])

        if tasks:
            state.ran[f"{use.label}: collect"] = len(tasks)
            self.driver.run(f"{use.label}: collect", tasks, len(found), book)
        return found

    def _supersteps(self, state: BuildState, use: StageUse, key: str, gathered: Gathered) -> FactsRecord:
        stage = use.stage
        assert isinstance(stage, GlobalStage)
        outboxes: list[FileRef] = []
        counters: dict[str, int] = {}
        started = time.monotonic()
        steps = stage.supersteps(gathered.infos)
        for step in steps:
            indices = [p.index for p in gathered.infos] if step.over is None else list(range(step.over))
            done: dict[int, StepRecord] = {}
            tasks = []
            common = StepCommon(str(self.store.work), use, step, gathered, tuple(outboxes), self.corpus.seed)
            all_of_it = digest(key, step.name, *(f.digest for f in outboxes))
            for index in indices:
                task_key = digest(all_of_it, str(index))
                record = self.store.get(task_key, StepRecord)
                if record is not None:
                    done[index] = record
                    continue
                tasks.append(StepTask(task_key, f"{use.label}: {step.name} {index}", index, common))

            def book(task: StepTask, record: StepRecord, done: dict[int, StepRecord] = done) -> None:
                self.store.put(task.key, record)
                done[task.index] = record

            state.ran[f"{use.label}: {step.name}"] = len(tasks)
            self.driver.run(f"{use.label}: {step.name}", tasks, len(done), book, minor=True)
            outboxes += [done[index].file for index in indices]
            for index in indices:
                for name, count in done[index].counters.items():
                    counters[name] = counters.get(name, 0) + count
        boxes = tuple(outboxes)
        result = FactsRecord(
            facts=gather_facts(Work(self.store.work), boxes, gathered.infos) if stage.has_facts else {},
            evidence=boxes if stage.drops_only else (),
            artifact=gather_artifact(Work(self.store.work), boxes),
            counters=counters,
        )
        self.store.put(key, result)
        self.events(RoundsDone(use.label, len(steps), round(time.monotonic() - started, 3), counters))
        return result

    # -- accounts, quarantine ----------------------------------------------------------------------

    def _check(self, state: BuildState, plan: Pass) -> None:
        """The books of every source must balance after every pass, and no stage may take more than it was allowed."""
        for source in self.inputs:
            counts = self.accounts(state, source)
            check_accounts(source, counts)
            removed = [e for p in state.parts if p.source == source for e in p.removed]
            uses = (*plan.before, *plan.rows)
            check_losses(source, counts, uses, removed, partial(self._pairs, state, source))

    def _pairs(self, state: BuildState, source: str, label: str) -> list[str]:
        """Documents of a source that a global stage dropped, each with its survivor, for people."""
        found = next((b for b in state.boundaries if b.use.label == label and b.facts.evidence), None)
        mine = [index for index, part in enumerate(state.parts) if part.source == source]
        return example_pairs(self.store.data, found, mine) if found is not None else []

    def _remark(self, state: BuildState, plan: Pass) -> None:
        """Says what a stage finds odd about its account over all sources: that it never fired, for one."""
        counts = [count for source in self.inputs for count in self.accounts(state, source)]
        for use in (*plan.before, *plan.rows):
            mine = [count for count in counts if count.stage == use.label]
            totals: Counter[str] = Counter()
            for count in mine:
                totals.update(count.totals)
            documents = sum(count.documents_in for count in mine)
            dropped = sum(sum(count.dropped.values()) for count in mine)
            for remark in use.stage.remarks(documents, dropped, totals):
                self.events(Warned("W001", f"{use.label}: {remark}"))

    def accounts(self, state: BuildState, source: str) -> list[StageCount]:
        """The sums of what was booked for a source, stage by stage."""
        booked = [c for p in (*state.parts, *state.given_up) if p.source == source for c in p.counts]
        return merge_counts(booked, self.order(source))

    def order(self, source: str) -> list[str]:
        """The labels of the stages that a document of this source passes, in order."""
        labels = ["read"]
        for plan in self.passes:
            labels += [use.label for use in (*plan.before, *plan.rows) if use.stage.runs_on(source)]
        return [*labels, "tokenize"]

    def _quarantine(self, poison: Poisoned) -> None:
        rows = read_quarantine(self.store.out)
        row = {
            "source": poison.source,
            "uri": poison.uri,
            "record": poison.record,
            "reason": "killed its worker repeatedly",
        }
        if row in rows:
            raise RunError(
                Problem(
                    "R001",
                    f"{poison.source}: {poison.uri}, record {poison.record} kills its worker although it is quarantined",
                )
            )
        rows = sorted([*rows, row], key=lambda q: (q["source"], q["uri"], q["record"]))
        write_atomic(self.store.out / QUARANTINE, b"".join(orjson.dumps(r) + b"\n" for r in rows))
        self.events(Quarantined(poison.source, poison.uri, poison.record, "", poison.detail))


def _emit_key(use: StageUse, part: Part) -> str:
    return digest("emit", stage_digest(use), part.source, part.digest())


def _given_up(record: PassRecord) -> PassRecord:
    """The account of a damaged file that is skipped whole: what it gave counts as rejected."""
    read = record.counts[0]
    gone = dict(read.rejected)
    if read.documents_out:
        gone["damaged-file"] = gone.get("damaged-file", 0) + read.documents_out
    count = read.model_copy(update={"documents_out": 0, "bytes_out": 0, "rejected": gone})
    return record.model_copy(update={"counts": (count,), "dropped": None, "kept": (), "removed": ()})


def _damage(source: str, uri: str, detail: str) -> Problem:
    return Problem(
        "D004",
        f"{source}: {uri} is damaged: {detail}",
        repairs=(
            "replace the file and run again",
            f"or set sources.{source}.on_damaged to skip or keep-good-part",
        ),
    )
