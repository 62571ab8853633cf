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
from pipeline.engine.task import Encoding, PassTask
from stages.contract.files import sha256_file
from stages.contract.names import canonical_json, digest
from stages.document import document_id
from stages.readers import recipe

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


def read_task(
    corpus: Corpus, first: Pass, folder: Any, inputs: SourceInputs, work: InputTask, quarantine: list[dict]
) -> PassTask:
    """The task for a stretch of input files. Its key says where they are and what is done to them, not what they hold."""
    source = inputs.source
    uris = {s.slice.uri for s in work.slices}
    bad = [q for q in quarantine if q["source"] == source and q["uri"] in uris]
    settings = canonical_json({k: v for k, v in vars(inputs.settings).items() if k != "batch_bytes"}).decode()
    tokenizer = given_tokenizer(corpus) if first.encodes else None
    encoding = encoding_of(corpus, tokenizer) if tokenizer else None
    return PassTask(
        key=digest(
            work.key(settings),
            canonical_json(recipe(inputs.settings, work.slices[0].slice.uri)),
            pass_digest(first, source, encoding, tokenizer[1] if tokenizer else None),
            *(f"{q['uri']}\0{q['record']}" for q in bad),
        ),
        name=work.name,
        source=source,
        folder=str(folder),
        origin=ReadOrigin(inputs.settings, work.slices, work.unsplittable),
        rows=first.rows_for(source),
        emits=first.emits_for(source),
        encoding=encoding,
        quarantined=frozenset(document_id(source, q["uri"], q["record"]) for q in bad),
    )


def recorded(journal: Journal, key: str, inputs: SourceInputs, work: InputTask) -> list[PassRecord] | None:
    """The records of an input task if its files are still what they were: same size and mtime, or same content."""
    records = _parts_of(journal, key)
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
        for work in inputs.tasks:
            key = read_task(plan.corpus, plan.passes[0], journal.work, inputs, work, quarantine).key
            good += recorded(journal, key, inputs, work) is not None
            total += 1
    return good, total


def begun(journal: Journal, key: str, work: InputTask) -> list[PassRecord]:
    """The parts that an attempt cut short has left, if the file has not been touched since."""
    records = _parts_of(journal, key)
    now = {s.slice.uri: (s.size, s.mtime_ns) for s in work.slices}
    untouched = all(now[f.uri] == (f.size, f.mtime_ns) for record in records for f in record.inputs)
    return records if records and records[-1].more and untouched else []


def _parts_of(journal: Journal, key: str) -> list[PassRecord]:
    """The records under a key from part 0 on, up to the last part or the first that is missing."""
    records: list[PassRecord] = []
    while (record := journal.get(key, PassRecord, len(records))) is not None:
        records.append(record)
        if not record.more:
            break
    return records
