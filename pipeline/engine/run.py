"""One build, from the listing of inputs to the manifest.

Invariant: whatever line this is killed at, running it again ends with the same bytes as if it had never been killed,
because every step asks the journal first, does only what is missing, and the manifest is written last. Nothing here
depends on how many workers there are or in which order their results arrive: results are put in canonical order
(source, path, slice, part) before anything is derived from them.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import orjson

from pipeline.corpus import Corpus
from pipeline.engine.boundary import emit_key, run_global
from pipeline.engine.driver import Driver, Poisoned
from pipeline.engine.executor import Executor
from pipeline.engine.first import read_inputs
from pipeline.engine.intake import QUARANTINE, encoding_of, given_tokenizer, read_quarantine
from pipeline.engine.origin import PartOrigin
from pipeline.engine.passes import Pass, pass_digest, stage_digest
from pipeline.engine.plan import Plan
from pipeline.engine.records import EmitRecord, FileRef, PassRecord, StageCount
from pipeline.engine.state import BuildResult, BuildState
from pipeline.engine.store import Store
from pipeline.engine.tally import check_accounts, check_losses
from pipeline.engine.task import PassTask
from pipeline.engine.uses import StageUse
from pipeline.events import Events, Quarantined, RunDone, RunStarted, Warned
from pipeline.output.evidence import example_pairs
from pipeline.output.finish import finish, place_artifacts
from stages.contract.files import write_atomic
from stages.contract.names import digest
from stages.contract.problem import Problem, RunError


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
                read_inputs(self, state, plan)
            else:
                self._pass(state, plan)
            self._check(state, plan)
            self._remark(state, plan)
            if until is not None and until in [use.label for use in plan.rows]:
                return state, None
            for use in plan.after:
                run_global(self, state, plan, use)
                if until == use.label:
                    place_artifacts(self, state)
                    return state, None
        return state, finish(self, state)

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

        self.run_tasks(state, plan, tasks(), len(todo), len(keys) - len(todo))
        for part, key in zip(state.parts, keys, strict=True):
            record = self.store.get(key, PassRecord)
            assert record is not None
            part.book(record)
            state.ledger(part.source).book(plan.number, record)

    def _facts_of(self, state: BuildState, plan: Pass, index: int) -> list[tuple[StageUse, FileRef]]:
        """What the global stages before a pass say about one part."""
        found = [(b.use, b.facts.facts.get(index)) for b in state.boundaries if b.number == plan.number - 1]
        return [(use, file) for use, file in found if file is not None]

    def run_tasks(
        self,
        state: BuildState,
        plan: Pass,
        tasks: Iterable[PassTask],
        count: int,
        cached: int,
        note: Callable[[PassTask, PassRecord], None] | None = None,
    ) -> None:
        """Runs `count` tasks of a pass and journals what comes of them; `note` is told of each record."""
        numbers: dict[str, int] = {}  # of the next part of a task that has not come to its end
        digests = {use.label: stage_digest(use) for use in plan.after}

        def on_result(task: PassTask, result: tuple[PassRecord, dict[str, EmitRecord]]) -> None:
            record, emissions = result
            for label, emission in emissions.items():
                self.store.put(emit_key(digests[label], record.part), emission)
            number = numbers.pop(task.key, task.committed)
            self.store.put(task.key, record, number)
            if record.more:
                numbers[task.key] = number + 1
            if note is not None:
                note(task, record)

        state.ran[f"pass {plan.number}"] = count
        self.driver.run(plan.name, tasks, cached, on_result, count=count)

    def tokenizer(self, state: BuildState) -> tuple[Any, str]:
        """Path (or address) and digest of tokenizer.json: the user's own, or the one that this build trained."""
        given = given_tokenizer(self.corpus)
        if given is not None:
            return given
        file = next(b for b in state.boundaries if "tokenizer.json" in b.facts.artifact).facts.artifact["tokenizer.json"]
        return self.store.path(file), file.digest

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
        found = next((b for b in state.boundaries if b.use.label == label and b.facts.evidence.boxes), None)
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
