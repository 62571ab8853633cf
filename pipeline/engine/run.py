"""One build, from the listing of inputs to the manifest.

Invariant: whatever line this is killed at, running it again ends with the same bytes as if it had never been killed,
because every step asks the journal first, does only what is missing, and the manifest is written last. Nothing here
depends on how many workers there are or in which order their results arrive: results are put in canonical order
(source, path, slice, part) before anything is derived from them.
"""

from __future__ import annotations

import time
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import orjson

from pipeline.corpus import Corpus
from pipeline.engine.driver import Driver, Poisoned
from pipeline.engine.executor import Executor
from pipeline.engine.inputs import SourceInputs
from pipeline.engine.intake import (
    QUARANTINE,
    Reading,
    begun,
    encoding_of,
    given_tokenizer,
    parts_of,
    read_quarantine,
    recorded,
)
from pipeline.engine.origin import PartOrigin
from pipeline.engine.passes import Pass, pass_digest, stage_digest
from pipeline.engine.plan import Plan, priority_ranks
from pipeline.engine.records import EmitRecord, FactsRecord, FileRef, Part, PassRecord, StageCount, StepRecord
from pipeline.engine.rounds import EmitTask, Gathered, StepCommon, StepTask, gather_artifact, gather_facts
from pipeline.engine.state import BoundaryState, BuildResult, BuildState, Outcome, PartState
from pipeline.engine.store import Store
from pipeline.engine.tally import check_accounts, check_losses
from pipeline.engine.task import PassTask
from pipeline.engine.uses import StageUse
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
        """Reads the inputs. Of a million tasks only the key is kept; each is made when it is sent, and dropped when done."""
        readings = {
            source: Reading(self.corpus, plan, self.store.work, inputs, state.quarantine)
            for source, inputs in self.inputs.items()
        }
        work_of = [(source, work) for source, inputs in self.inputs.items() for work in inputs.tasks]
        keys = _Keys()
        open_tasks = array("q")  # numbers of works, each followed by the parts that an earlier build has left of it
        for number, (source, work) in enumerate(work_of):
            key = readings[source].task(work).key
            keys.append(key)
            if recorded(self.store, key, self.inputs[source], work) is None:
                open_tasks.extend((number, len(begun(self.store, key, work))))
        count = len(open_tasks) // 2
        self._run_passes(
            state,
            plan,
            (
                replace(readings[work_of[number][0]].task(work_of[number][1]), committed=left)
                for number, left in zip(open_tasks[::2], open_tasks[1::2], strict=True)
            ),
            count,
            len(work_of) - count,
        )
        self._collect(state, plan, keys)

    def _collect(self, state: BuildState, plan: Pass, keys: _Keys) -> None:
        """Puts the parts in canonical order and settles damaged files by the policy of their source.

        keys  of the tasks, source by source, in the order of the inputs
        """
        first_key = 0
        for source, inputs in self.inputs.items():
            mine = range(first_key, first_key + len(inputs.tasks))
            first_key = mine.stop
            lost = self._damage(state, source, inputs, map(keys.__getitem__, mine))
            files = state.input_files.setdefault(source, [])
            ledger = state.ledger(source)
            for work, number_of_key in zip(inputs.tasks, mine, strict=True):
                records = parts_of(self.store, keys[number_of_key])
                read = {(f.uri, f.start, f.end): bytes.fromhex(f.digest) for f in records[-1].inputs}
                files += [(s, read[s.slice.uri, s.slice.start, s.slice.end]) for s in work.slices]
                given_up = (
                    inputs.settings.on_damaged == "skip"
                    and len(work.slices) == 1
                    and work.slices[0].slice.uri in lost
                )
                first = work.slices[0].slice
                for number, record in enumerate(records):
                    part = PartState(source, (first.uri, first.start, number), Outcome.of(record))
                    booked = _given_up(record) if given_up else record
                    part.book(booked)
                    ledger.book(plan.number, booked)
                    (state.given_up if given_up else state.parts).append(part)

    def _damage(
        self, state: BuildState, source: str, inputs: SourceInputs, keys: Iterable[str]
    ) -> dict[str, tuple[str, int]]:
        """What was lost of each damaged file of a source, by uri. RunError where that ends the build."""
        lost: dict[str, tuple[str, int]] = {}
        for key in keys:
            for file in parts_of(self.store, key)[-1].damaged:
                lost[file.uri] = (file.detail, file.records)
                self.events(Damaged(source, file.uri, file.detail, inputs.settings.on_damaged))
        state.damaged += [
            {"source": source, "uri": u, "reason": d, "records": n} for u, (d, n) in sorted(lost.items())
        ]
        if lost and inputs.settings.on_damaged == "stop":
            raise RunError(*(_damage(source, uri, detail) for uri, (detail, _) in sorted(lost.items())))
        return lost

    # -- later passes: parts -----------------------------------------------------------------------

    def _pass(self, state: BuildState, plan: Pass) -> None:
        tokenizer = self.tokenizer(state) if plan.encodes else None
        encoding = encoding_of(self.corpus, tokenizer) if tokenizer else None
        settings = {
            source: pass_digest(plan, source, encoding, tokenizer[1] if tokenizer else None) for source in self.inputs
        }
        keys: list[str] = []
        todo: dict[str, int] = {}  # parts of equal content are worked on once
        for index, part in enumerate(state.parts):
            facts = [f.digest for _, f in self._facts_of(state, plan, index)]
            keys.append(digest(settings[part.source], part.source, part.record.part.digest(), *facts))
            if keys[-1] not in todo and self.store.get(keys[-1], PassRecord) is None:
                todo[keys[-1]] = index

        def tasks() -> Iterator[PassTask]:
            for key, index in todo.items():
                part = state.parts[index]
                yield PassTask(
                    key=key,
                    name=f"{part.source}: {part.place[0]}",
                    source=part.source,
                    folder=str(self.store.work),
                    origin=PartOrigin(part.record.part),
                    before=tuple(self._facts_of(state, plan, index)),
                    rows=plan.rows_for(part.source),
                    emits=plan.emits_for(part.source),
                    encoding=encoding,
                    overlay=not plan.changes_text() and encoding is None and part.record.part.overlay is None,
                )

        self._run_passes(state, plan, tasks(), len(todo), len(keys) - len(todo))
        for part, key in zip(state.parts, keys, strict=True):
            record = self.store.get(key, PassRecord)
            assert record is not None
            part.book(record)
            state.ledger(part.source).book(plan.number, record)

    def _facts_of(self, state: BuildState, plan: Pass, index: int) -> list[tuple[StageUse, FileRef]]:
        """What the global stages before a pass say about one part."""
        found = [(b.use, b.facts.facts.get(index)) for b in state.boundaries if b.number == plan.number - 1]
        return [(use, file) for use, file in found if file is not None]

    def _run_passes(
        self, state: BuildState, plan: Pass, tasks: Iterable[PassTask], count: int, cached: int
    ) -> None:
        """Runs tasks and journals what comes of them."""
        numbers: dict[str, int] = {}  # of the next part of a task that has not come to its end

        def on_result(task: PassTask, result: tuple[PassRecord, dict[str, EmitRecord]]) -> None:
            record, emissions = result
            for label, emission in emissions.items():
                use = next(u for u in plan.after if u.label == label)
                self.store.put(_emit_key(use, record.part), emission)
            number = numbers.pop(task.key, task.committed)
            self.store.put(task.key, record, number)
            if record.more:
                numbers[task.key] = number + 1

        state.ran[f"pass {plan.number}"] = count
        self.driver.run(plan.name, tasks, cached, on_result, count=count)

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
            removed = state.ledger(source).removed
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
        return state.ledger(source).counts(self.order(source))

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


class _Keys:
    """Keys of tasks (64 hex digits) in 32 bytes each, without an object for each."""

    def __init__(self) -> None:
        self._raw = bytearray()

    def append(self, key: str) -> None:
        self._raw += bytes.fromhex(key)

    def __getitem__(self, number: int) -> str:
        return self._raw[32 * number : 32 * (number + 1)].hex()


def _emit_key(use: StageUse, part: Part) -> str:
    return digest("emit", stage_digest(use), part.source, part.digest())


def _given_up(record: PassRecord) -> PassRecord:
    """The account of a damaged file that is skipped whole: what it gave counts as rejected."""
    read = record.counts[0]
    gone = dict(read.rejected)
    if read.documents_out:
        gone["damaged-file"] = gone.get("damaged-file", 0) + read.documents_out
    count = read.model_copy(update={"documents_out": 0, "bytes_out": 0, "rejected": gone})
    return record.model_copy(update={"counts": (count,), "dropped": None, "kept": (), "removed": (), "roundtrip": (0, 0)})


def _damage(source: str, uri: str, detail: str) -> Problem:
    return Problem(
        "D004",
        f"{source}: {uri} is damaged: {detail}",
        repairs=(
            "replace the file and run again",
            f"or set sources.{source}.on_damaged to skip or keep-good-part",
        ),
    )
