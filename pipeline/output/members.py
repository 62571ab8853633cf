"""What the manifest calls sources: the sources of the config, or the quality tiers that a source is written in.

Here they are cut into shards and written, in the layout and with the packed rows that the config asks for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.corpus import Buckets
from pipeline.engine.passes import ENGINE_VERSION
from pipeline.engine.records import FileRef, RowsRecord, ShardRecord
from pipeline.output.shards import Cut, Numbers, RowsTask, ShardTask, Tier
from stages.contract.manifest import Bucket, FileEntry, ShardEntry
from stages.contract.names import canonical_json, digest
from stages.contract.problem import Problem, RunError
from stages.contract.rows import rows_kind
from stages.shards.pack import VERSION as PACK_VERSION
from stages.tokenizer.encode import Encoder

if TYPE_CHECKING:
    from pipeline.engine.run import Build
    from pipeline.engine.state import BuildState


@dataclass
class Member:
    """One entry of the manifest's `sources`, its shards and holdout written or to be written.

    lengths  tokens of each training document
    rows     for each length, the packed rows of each training shard
    """

    name: str
    source: str
    license: str | None
    tier: Tier | None
    cuts: dict[str, list[Cut]]  # by `shards` and `holdout`
    lengths: np.ndarray
    shards: list[ShardRecord] = field(default_factory=list)
    holdout: list[ShardRecord] = field(default_factory=list)
    rows: dict[int, list[RowsRecord]] = field(default_factory=dict)

    def without_shards(self) -> Member:
        """The member as it stands beside mixed shards: its holdout and accounts alone."""
        return replace(self, shards=[], rows={}, lengths=np.empty(0, np.uint32))

    @property
    def bucket(self) -> Bucket | None:
        """What the manifest says of the tier."""
        if self.tier is None:
            return None
        return Bucket(of=self.source, by=self.tier.column, low=self.tier.low, high=self.tier.high)

    def entries(self, layout: str) -> tuple[tuple[ShardEntry, ...], tuple[ShardEntry, ...]]:
        """What the manifest says of its shards and of its holdout."""
        rows = [{length: found[i] for length, found in self.rows.items()} for i in range(len(self.shards))]
        train = [shard_entry("shards", self.name, i, r, layout, rows[i]) for i, r in enumerate(self.shards)]
        held = [shard_entry("holdout", self.name, i, r, layout, {}) for i, r in enumerate(self.holdout)]
        return tuple(train), tuple(held)

    def files(self, layout: str) -> dict[str, FileRef]:
        """Path in the output folder -> sealed file."""
        found: dict[str, FileRef] = {}
        for kind, records in (("shards", self.shards), ("holdout", self.holdout)):
            for number, record in enumerate(records):
                found |= shard_files(kind, self.name, number, record, layout)
        for length, packed in self.rows.items():
            for number, one in enumerate(packed):
                found[f"shards/{self.name}/{number:05d}.{rows_kind(length)}"] = one.file
        return found


def shard_files(kind: str, name: str, number: int, record: ShardRecord, layout: str) -> dict[str, FileRef]:
    """Path in the output folder -> file, for one shard."""
    base = f"{kind}/{name}"
    token_kind = "arrow" if layout == "arrow" else "tok"
    return {
        f"{base}/{number:05d}.{token_kind}": record.tok,
        f"{base}/{number:05d}.idx": record.idx,
        f"{base}/{number:05d}.crc": record.crc,
        f"{base}/docs-{number:05d}.arrow": record.docs,
    }


def shard_entry(
    kind: str, member: str, number: int, record: ShardRecord, layout: str, rows: dict[int, RowsRecord]
) -> ShardEntry:
    """What the manifest says of one shard."""
    docs = f"{kind}/{member}/docs-{number:05d}.arrow"
    files = {
        "arrow" if layout == "arrow" else "tok": FileEntry(bytes=record.tok.bytes, sha256=record.tok.digest),
        "idx": FileEntry(bytes=record.idx.bytes, sha256=record.idx.digest),
        "crc": FileEntry(bytes=record.crc.bytes, sha256=record.crc.digest),
        "docs": FileEntry(bytes=record.docs.bytes, sha256=record.docs.digest, name=docs),
    }
    for length, packed in rows.items():
        files[rows_kind(length)] = FileEntry(bytes=packed.file.bytes, sha256=packed.file.digest)
    return ShardEntry(
        name=f"{kind}/{member}/{number:05d}",
        documents=record.documents,
        tokens=record.tokens,
        files=files,
        segments=record.segments,
        rows={str(length): packed.groups for length, packed in rows.items()},
    )


def cut_members(build: Build, state: BuildState) -> list[Member]:
    """All members with their shards cut. RunError when nothing is left, or a bucket is empty."""
    corpus = build.corpus
    found: list[Member] = []
    for source in build.inputs:
        records = [p.record for p in state.parts if p.source == source]
        buckets = corpus.buckets.get(source)
        column = buckets.by if buckets is not None else None
        share, most = corpus.holdout.share, corpus.holdout.max_documents
        numbers = Numbers.of(records, build.store.data, share, most, column)
        tiers = [None] if buckets is None else _tiers(source, buckets, numbers)
        for i, tier in enumerate(tiers):
            cuts = {
                kind: numbers.cut(corpus.output.shard_tokens, kind == "holdout", tier) for kind in ("shards", "holdout")
            }
            name = source if tier is None else f"{source}.{i}"
            found.append(Member(name, source, corpus.sources[source].license, tier, cuts, numbers.lengths_of(tier)))
            if tier is not None and not cuts["shards"]:
                raise _empty(name, tier, numbers)
    if not any(member.cuts["shards"] for member in found):
        raise RunError(
            Problem(
                "R003",
                "nothing is left to train on: every document of every source was dropped or rejected",
                repairs=("see the counts above, and dropped/ and rejects.jsonl for the reasons",),
            )
        )
    return found


def _tiers(source: str, buckets: Buckets, numbers: Numbers) -> list[Tier]:
    """The tiers of a source, lowest first. Quantiles are shares of its tokens; equal values stay together."""
    values = np.concatenate(numbers.values) if numbers.values else np.empty(0)
    lengths = np.concatenate(numbers.lengths).astype(np.int64) if numbers.lengths else np.empty(0, np.int64)
    without = int(np.isnan(values).sum())
    if without:
        message = f"{without:,} of {len(values):,} documents of {source} have no value of `{buckets.by}` to be put in buckets by"
        repairs = (f"let the stage that makes `{buckets.by}` run on {source}", f"remove buckets.{source}")
        raise RunError(Problem("R003", message, repairs=repairs))
    edges = list(buckets.edges or ())
    if buckets.quantiles is not None and len(values):
        order = np.argsort(values, kind="stable")
        before = np.cumsum(lengths[order]) - lengths[order]
        places = [int(np.searchsorted(before, share * int(lengths.sum()))) for share in buckets.quantiles]
        edges = [float(values[order][min(place, len(values) - 1)]) for place in places]
    bounds: list[float | None] = [None, *edges, None]
    return [Tier(buckets.by, low, high) for low, high in pairwise(bounds)]


def _empty(name: str, tier: Tier, numbers: Numbers) -> RunError:
    values = np.concatenate(numbers.values) if numbers.values else np.empty(0)
    between = f"from {'the lowest' if tier.low is None else f'{tier.low:g}'} to {'the highest' if tier.high is None else f'{tier.high:g}'}"
    seen = f"values lie between {values.min():g} and {values.max():g}" if len(values) else "there are no documents"
    message = f"the bucket {name} is empty: no document for training has a `{tier.column}` {between}; {seen}"
    return RunError(Problem("R003", message, repairs=("choose other edges or quantiles, or fewer of them",)))


def write_members(build: Build, state: BuildState, members: Sequence[Member], sha: str, encoder: Encoder) -> None:
    """Writes the shards of all members and puts the records into them."""
    layout = build.corpus.output.layout
    jobs: list[tuple[str, Callable[[str], Any], Callable[[Any], None]]] = []
    for member in members:
        for kind, records in (("shards", member.shards), ("holdout", member.holdout)):
            for number, cut in enumerate(member.cuts[kind]):
                records.append(None)  # type: ignore[arg-type]
                name = f"{kind}/{member.name}/{number:05d}"
                key = _shard_key(cut, sha, encoder, layout)
                make = _shard_task(name, str(build.store.work), cut, encoder, layout)
                jobs.append((key, make, _setter(records, number)))
    run_jobs(build, state, "shards", "write shards", ShardRecord, jobs)


def pack_members(build: Build, state: BuildState, members: Sequence[Member]) -> None:
    """Packs the shards of all members for the lengths of the config."""
    jobs: list[tuple[str, Callable[[str], Any], Callable[[Any], None]]] = []
    for member in members:
        for length in build.corpus.output.packing.lengths:
            packed = member.rows.setdefault(length, [None] * len(member.shards))  # type: ignore[list-item]
            for number, record in enumerate(member.shards):
                key = digest("rows", str(PACK_VERSION), str(length), record.idx.digest)
                name = f"shards/{member.name}/{number:05d}, rows of {length:,}"
                make = _rows_task(name, str(build.store.work), record, length)
                jobs.append((key, make, _setter(packed, number)))
    if jobs:
        run_jobs(build, state, "rows", "pack rows", RowsRecord, jobs)


def _shard_key(cut: Cut, sha: str, encoder: Encoder, layout: str) -> str:
    contents = [(s.documents.digest, s.tokens.digest, s.first, s.last) for s in cut.segments]
    tier = None if cut.tier is None else [cut.tier.column, cut.tier.low, cut.tier.high]
    choice = canonical_json([contents, cut.threshold, cut.holdout, tier])
    return digest("shard", str(ENGINE_VERSION), "crc", layout, sha, str(encoder.eos_id), choice)


def _shard_task(name: str, folder: str, cut: Cut, encoder: Encoder, layout: str) -> Callable[[str], ShardTask]:
    return lambda key: ShardTask(key, name, folder, cut, encoder.vocab_size, encoder.eos_id, layout)


def _rows_task(name: str, folder: str, record: ShardRecord, length: int) -> Callable[[str], RowsTask]:
    return lambda key: RowsTask(key, name, folder, record.idx, record.tokens, length)


def _setter(records: list[Any], number: int) -> Callable[[Any], None]:
    return lambda record: records.__setitem__(number, record)


def run_jobs(
    build: Build,
    state: BuildState,
    word: str,
    title: str,
    kind: type,
    jobs: Sequence[tuple[str, Callable[[str], Any], Callable[[Any], None]]],
) -> None:
    """Runs the tasks whose records the journal does not have; `(key, task for it, what takes its record)` each.

    Tasks of equal keys run once. `word` counts those that ran, in the state.
    """
    takers: dict[str, list[Callable[[Any], None]]] = {}
    tasks = []
    cached = 0
    for key, make, take in jobs:
        record = build.store.get(key, kind)
        if record is not None:
            take(record)
            cached += 1
            continue
        takers.setdefault(key, []).append(take)
        if len(takers[key]) == 1:
            tasks.append(make(key))

    def book(task: Any, record: Any) -> None:
        build.store.put(task.key, record)
        for take in takers[task.key]:
            take(record)

    state.ran[word] = len(tasks)
    build.driver.run(title, tasks, cached, book)
