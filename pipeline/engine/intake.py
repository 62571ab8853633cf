"""The first pass at the inputs: its tasks, their keys, and whether what an earlier build did is still good."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from pipeline.corpus import Corpus
from pipeline.engine.inputs import InputTask, SourceInputs
from pipeline.engine.origin import ReadOrigin, digest_slice
from pipeline.engine.passes import Pass, pass_digest
from pipeline.engine.plan import Plan
from pipeline.engine.records import PassRecord
from pipeline.engine.store import Journal
from pipeline.engine.task import PassTask
from pipeline.engine.uses import Encoding
from stages.contract.files import sha256_file
from stages.contract.names import canonical_json, digest
from stages.document import document_id
from stages.readers import compression_of, guess_format, recipe

QUARANTINE = "quarantine.jsonl"


def read_quarantine(out: Any) -> list[dict]:
    """Documents that kill their worker, found by earlier builds in this folder: they are an input."""
    try:
        lines = (out / QUARANTINE).read_bytes().splitlines()
    except FileNotFoundError:
        return []
    rows = [orjson.loads(line) for line in lines if line.strip()]
    return sorted(rows, key=lambda q: (q["source"], q["uri"], q["record"]))


def given_tokenizer(corpus: Corpus) -> tuple[Path, str] | None:
    """Path and SHA-256 of the user's own tokenizer.json, if there is one."""
    if corpus.tokenizer.path is None:
        return None
    path = Path(corpus.tokenizer.path)
    return path, sha256_file(path)


def encoding_of(corpus: Corpus, tokenizer: tuple[Any, str]) -> Encoding:
    """How a pass encodes with this tokenizer."""
    return Encoding(str(tokenizer[0]), corpus.tokenizer.eos, corpus.seed)


class Reading:
    """Makes the tasks of the first pass for one source; what they have in common is worked out once."""

    def __init__(
        self, corpus: Corpus, first: Pass, folder: Any, inputs: SourceInputs, quarantine: list[dict]
    ) -> None:
        self._inputs = inputs
        self._folder = str(folder)
        settings = {k: v for k, v in vars(inputs.settings).items() if k not in ("batch_bytes", "access")}
        self._settings = canonical_json(settings).decode()
        self._recipes: dict[tuple[str | None, str | None], bytes] = {}
        tokenizer = given_tokenizer(corpus) if first.encodes else None
        self._encoding = encoding_of(corpus, tokenizer) if tokenizer else None
        self._pass = pass_digest(first, inputs.source, self._encoding, tokenizer[1] if tokenizer else None)
        self._rows, self._emits = first.rows_for(inputs.source), first.emits_for(inputs.source)
        self._bad: dict[str, list[int]] = {}  # quarantined records by uri
        for one in quarantine:
            if one["source"] == inputs.source:
                self._bad.setdefault(one["uri"], []).append(one["record"])

    def key(self, work: InputTask) -> str:
        """The key of the task for a stretch of input files: where they are and what is done to them, not what they hold."""
        bad = (f"{uri}\0{record}" for uri, record in self._quarantined(work))
        return digest(work.key(self._settings), self._recipe(work.slices[0].slice.uri), self._pass, *bad)

    def task(self, work: InputTask, key: str, committed: int = 0) -> PassTask:
        """The task for a stretch of input files, whose key is known; it goes on behind so many parts."""
        source = self._inputs.source
        return PassTask(
            key=key,
            name=work.name,
            source=source,
            folder=self._folder,
            origin=ReadOrigin(self._inputs.settings, work.slices, work.long),
            rows=self._rows,
            emits=self._emits,
            encoding=self._encoding,
            quarantined=frozenset(document_id(source, uri, record) for uri, record in self._quarantined(work)),
            committed=committed,
        )

    def _quarantined(self, work: InputTask) -> list[tuple[str, int]]:
        """The places of records in these files that are not taken, in order."""
        if not self._bad:
            return []
        uris = {s.slice.uri for s in work.slices}
        return [(uri, record) for uri in sorted(uris & self._bad.keys()) for record in self._bad[uri]]

    def _recipe(self, uri: str) -> bytes:
        """What else reading a file of this kind depends on."""
        kind = guess_format(uri), compression_of(uri)
        if kind not in self._recipes:
            self._recipes[kind] = canonical_json(recipe(self._inputs.settings, uri))
        return self._recipes[kind]


def recorded(journal: Journal, key: str, inputs: SourceInputs, work: InputTask) -> list[PassRecord] | None:
    """The records of an input task if its files are still what they were: same size and mtime, or same content."""
    records = parts_of(journal, key)
    if not records or records[-1].more:
        return None
    now = {(s.slice.uri, s.slice.start, s.slice.end): s for s in work.slices}
    for file in records[-1].inputs:
        current = now[file.uri, file.start, file.end]
        if current.size != file.size:
            return None
        if (
            current.mtime_ns != file.mtime_ns
            and digest_slice(current.slice, inputs.settings.format) != file.digest
        ):
            return None
    return records


def done_before(plan: Plan, journal: Journal) -> tuple[int, int]:
    """`(tasks of the first pass that need not run again, all of its tasks)` if `plan` were built now."""
    quarantine = read_quarantine(plan.out)
    good = total = 0
    for inputs in plan.inputs.values():
        reading = Reading(plan.corpus, plan.passes[0], journal.work, inputs, quarantine)
        for work in inputs.tasks:
            key = reading.key(work)
            good += recorded(journal, key, inputs, work) is not None
            total += 1
    return good, total


def begun(journal: Journal, key: str, work: InputTask) -> list[PassRecord]:
    """The parts that an attempt cut short has left, if the file has not been touched since."""
    records = parts_of(journal, key)
    now = {s.slice.uri: (s.size, s.mtime_ns) for s in work.slices}
    untouched = all(now[f.uri] == (f.size, f.mtime_ns) for record in records for f in record.inputs)
    return records if records and records[-1].more and untouched else []


def parts_of(journal: Journal, key: str) -> list[PassRecord]:
    """The records under a key from part 0 on, up to the last part or the first that is missing."""
    records: list[PassRecord] = []
    while (record := journal.get(key, PassRecord, len(records))) is not None:
        records.append(record)
        if not record.more:
            break
    return records
