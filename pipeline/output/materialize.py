"""`output.mixture: materialized`: the documents of all sources in the order of training, for trainers that cannot mix.

Phases, weights, repeat limits and the order within sources are those that our own trainer would use. What is mixed is
a unit: documents of one source of about 4,096 tokens together (fewer where the mixture is small), packed as rows are,
but none is cut. A weight is a share of tokens, so a source whose units are longer gives fewer of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from pipeline.corpus import Materialized
from pipeline.engine.passes import ENGINE_VERSION
from pipeline.engine.records import RowsRecord, ShardRecord
from pipeline.engine.sealed import ArrowFile, arrow_table
from pipeline.engine.work import Work
from pipeline.output.members import Member, run_jobs
from pipeline.output.shards import RowsTask, write_record
from stages.contract.epochs import Rows
from stages.contract.manifest import FileEntry, ShardEntry
from stages.contract.mixture import Request, resolve_mixture
from stages.contract.names import digest, source_uid
from stages.contract.order import Order, Source, Stretch
from stages.contract.rows import read_rows, rows_kind
from stages.contract.shard import Documents, token_dtype
from stages.shards.pack import VERSION as PACK_VERSION
from stages.shards.stream import Shelf, Stream, ids_of
from stages.tokenizer.encode import Encoder

if TYPE_CHECKING:
    from pipeline.engine.run import Build
    from pipeline.engine.state import BuildState

NAME = "mixed"

#: Tokens of a unit, about: a mixture has a thousand of them, if they are not shorter or longer than this.
SHORTEST, LONGEST, UNITS = 64, 4096, 1024

#: Units that are looked up, or read, at once.
CHUNK = 1 << 16
READ = 1 << 10


def unit_of(tokens: int) -> int:
    """Tokens of a unit for a mixture of this many: a power of two."""
    return min(LONGEST, max(SHORTEST, 1 << max(0, (tokens // UNITS).bit_length() - 1)))


def mix(build: Build, state: BuildState, members: Sequence[Member], encoder: Encoder) -> Member:
    """The member that holds the mixed shards, written. SpecError when the limits do not allow the mixture."""
    used = [member for member in members if member.shards]
    assert isinstance(build.corpus.output.mixture, Materialized)
    unit = unit_of(build.corpus.output.mixture.materialized.tokens)
    units = _units(build, state, used, unit)
    order = _order(build, used, units, unit)
    tokens = [np.concatenate([_tokens_of(build, one, unit) for one in found]) for found in units]
    result = Member(NAME, NAME, _licences(used), None, {}, _lengths(build, units, order, unit))
    books = tuple(_books(member, found, unit) for member, found in zip(used, units, strict=True))
    origins = digest(*(shard.docs.digest for member in used for shard in member.shards))
    jobs: list[Any] = []
    for number, samples in enumerate(_cuts(order, tokens, build.corpus.output.shard_tokens)):
        result.shards.append(None)  # type: ignore[arg-type]
        key = digest("mixed", str(ENGINE_VERSION), build.corpus.output.layout, str(encoder.eos_id),
                     order.chain[-1], origins, samples.tobytes())  # fmt: skip
        task = MixTask(key, f"shards/{NAME}/{number:05d}", str(build.store.work), books, samples, unit,
                       encoder.vocab_size, encoder.eos_id, build.corpus.output.layout)  # fmt: skip
        jobs.append((key, lambda _key, task=task: task, _taker(result.shards, number)))
    run_jobs(build, state, "mixed", "write the mixture", ShardRecord, jobs)
    return result


def _taker(records: list[ShardRecord], number: int) -> Any:
    return lambda record: records.__setitem__(number, record)


def _units(build: Build, state: BuildState, members: Sequence[Member], unit: int) -> list[list[RowsRecord]]:
    """The units of each shard of each member, packed from its index."""
    found: list[list[Any]] = [[None] * len(member.shards) for member in members]
    jobs: list[Any] = []
    for records, member in zip(found, members, strict=True):
        for number, shard in enumerate(member.shards):
            key = digest("units", str(PACK_VERSION), str(unit), shard.idx.digest)
            name = f"{member.name}/{number:05d}, units"
            task = RowsTask(key, name, str(build.store.work), shard.idx, shard.tokens, unit, whole=True)
            jobs.append((key, lambda _key, task=task: task, _taker(records, number)))
    run_jobs(build, state, "units", "cut units for the mixture", RowsRecord, jobs)
    return found


def _order(build: Build, members: Sequence[Member], units: Sequence[Sequence[RowsRecord]], unit: int) -> Order:
    """The order of units that gives each source its share of tokens in each phase."""
    corpus = build.corpus
    wanted = corpus.output.mixture
    assert isinstance(wanted, Materialized)
    size = wanted.materialized
    held = {member.name: sum(shard.tokens for shard in member.shards) for member in members}
    sources = {
        member.name: Source(
            source_uid(member.name),
            digest(*(shard.idx.digest for shard in member.shards), *(shard.tok.digest for shard in member.shards)),
            0,
            {unit: Rows(np.array([n for one in found for n in one.groups], np.int64), digest(*(r.file.digest for r in found)))},
        )
        for member, found in zip(members, units, strict=True)
    }
    plain = {"seq_len": None, "global_tokens": None, "lr": None, "until": None}
    request = Request(
        sources=held,
        seq_len=unit,
        global_tokens=unit,
        total_tokens=size.tokens,
        mix=corpus.mix or (None if corpus.phases else {name: float(tokens) for name, tokens in held.items()}),
        phases=tuple(phase.model_copy(update=plain) for phase in corpus.phases),
        limit=size.repeat_limit,
        limits=size.repeat_limits,
        mix_is_default=True,
        rows={name: {unit: -(-tokens // unit)} for name, tokens in held.items()},
    )
    mixture = resolve_mixture(request, corpus.where)
    stretches = []
    room = {name: None if (limit := request.limit_of(name)) is None else int(limit * sources[name].rows[unit].total)
            for name in held}  # fmt: skip
    for phase in mixture.phases:
        counts = []
        for name in held:
            each = held[name] / sources[name].rows[unit].total  # tokens of a unit of this source
            count, left = round(phase.samples[name] * unit / each), room[name]
            count = count if left is None else min(count, left)
            room[name] = None if left is None else left - count
            counts.append(count)
        if sum(counts):
            stretches.append(Stretch(sum(counts), 1, unit, tuple(counts)))
    return Order(corpus.seed, unit, list(sources.values()), stretches)


def _samples(order: Order) -> Iterator[np.ndarray]:
    """All units in order: `source` and `offset` (number of the unit in it) of dtype order.SAMPLE."""
    for piece in order.pieces:
        for first in range(piece.first, piece.first + piece.steps, CHUNK):
            yield order.samples(first, min(first + CHUNK, piece.first + piece.steps))


def _cuts(order: Order, tokens: Sequence[np.ndarray], shard_tokens: int) -> Iterator[np.ndarray]:
    """The units of each shard, int64 (units, 2) of member and number: as many as fit, at least one."""
    open_units: list[np.ndarray] = []
    filled = 0
    for samples in _samples(order):
        pairs = np.stack([samples["source"].astype(np.int64), samples["offset"]], axis=1)
        sizes = np.zeros(len(pairs), np.int64)
        for source, mine in enumerate(tokens):
            here = pairs[:, 0] == source
            sizes[here] = mine[pairs[here, 1]]
        total = np.cumsum(sizes)
        start = before = 0
        while start < len(pairs):
            end = int(np.searchsorted(total, before + shard_tokens - filled, side="right"))
            end = max(end, start + 1) if not filled else end
            if end > start:
                open_units.append(pairs[start:end])
                filled += int(total[end - 1]) - before
                start, before = end, int(total[end - 1])
            if start < len(pairs):
                yield np.concatenate(open_units)
                open_units, filled = [], 0
    if open_units:
        yield np.concatenate(open_units)


def _tokens_of(build: Build, record: RowsRecord, unit: int) -> np.ndarray:
    """Tokens of each unit of a shard."""
    packed = read_rows(build.store.path(record.file), unit)
    sizes = packed.spans["length"].astype(np.int64)
    return np.add.reduceat(sizes, packed.first[:-1].astype(np.int64)) if packed.rows else np.empty(0, np.int64)


def _lengths(build: Build, units: Sequence[Sequence[RowsRecord]], order: Order, unit: int) -> np.ndarray:
    """Tokens of each document of the mixture, as often as it stands there, in no order of meaning."""
    counts = [np.zeros(source.rows[unit].total, np.int64) for source in order.sources]
    for samples in _samples(order):
        for source, mine in enumerate(counts):
            mine += np.bincount(samples["offset"][samples["source"] == source], minlength=len(mine))
    found = []
    for source, records in enumerate(units):
        first = 0
        for record in records:
            packed = read_rows(build.store.path(record.file), unit)
            times = counts[source][first : first + packed.rows]
            borders = packed.first.astype(np.int64)
            spans = borders[1:] - borders[:-1]
            found.append(np.repeat(packed.spans["length"], np.repeat(times, spans)))
            first += packed.rows
    return np.concatenate(found) if found else np.empty(0, np.uint32)


def _licences(members: Sequence[Member]) -> str | None:
    return ", ".join(sorted({member.license for member in members if member.license})) or None


def _books(member: Member, units: Sequence[RowsRecord], unit: int) -> tuple[ShardEntry, ...]:
    """The shards of a member as they lie in the work folder, units as packed rows."""
    entries = []
    for number, (shard, rows) in enumerate(zip(member.shards, units, strict=True)):
        files = {"arrow" if shard.segments else "tok": shard.tok, "idx": shard.idx, "docs": shard.docs}
        files[rows_kind(unit)] = rows.file
        named = {kind: FileEntry(bytes=ref.bytes, sha256=ref.digest, name=ref.name) for kind, ref in files.items()}
        entries.append(
            ShardEntry(name=f"{member.name}/{number}", documents=shard.documents, tokens=shard.tokens, files=named,
                       segments=shard.segments, rows={str(unit): rows.groups})
        )  # fmt: skip
    return tuple(entries)


@dataclass(frozen=True)
class MixTask:
    """Writes one mixed shard.

    members  the shards of each member
    units    int64 (units, 2): member, and number of the unit in it, in the order of the shard
    unit     tokens of one, about
    """

    key: str
    name: str
    folder: str
    members: tuple[tuple[ShardEntry, ...], ...]
    units: np.ndarray = field(compare=False)
    unit: int
    vocab_size: int
    eos_id: int
    layout: str

    def run(self) -> Iterator[ShardRecord]:
        """One record: the shard's files under content names."""
        pa.set_cpu_count(1)
        work = Work(self.folder)
        shelf = Shelf(token_dtype(self.vocab_size))
        streams = [Stream(shelf, work.data, shards) for shards in self.members]
        try:
            with ArrowFile(work, "docs.arrow", "lz4") as docs:
                yield write_record(work, self._content(shelf, streams), docs, self.vocab_size, self.eos_id, self.layout)
        finally:
            shelf.close()

    def _content(self, shelf: Shelf, streams: Sequence[Stream]) -> Iterator[tuple[Documents, pa.RecordBatch]]:
        """The documents in order, and where they came from."""
        spans = np.concatenate([self._spans(streams, first) for first in range(0, len(self.units), READ)])
        table = _provenance(shelf, spans)
        for first in range(0, len(spans), READ):
            mine = spans[first : first + READ]
            tokens, at = shelf.gather(mine)
            pieces = [tokens[a : a + n] for a, n in zip(at.tolist(), mine["count"].tolist(), strict=True)]
            batch = table.slice(first, READ).combine_chunks().to_batches()[0]
            yield Documents(np.concatenate(pieces), mine["count"], ids_of(shelf, mine)), batch

    def _spans(self, streams: Sequence[Stream], first: int) -> np.ndarray:
        """The documents of some units, dtype stream.SPAN, in the order of the units."""
        members, numbers = self.units[first : first + READ].T
        found = []
        for member in np.unique(members).tolist():
            mine = np.flatnonzero(members == member)
            spans = streams[member].packed(numbers[mine], self.unit)
            spans["row"] = mine[spans["row"]]
            found.append(spans)
        spans = np.concatenate(found)
        return spans[np.lexsort((spans["place"], spans["row"]))]


def _provenance(shelf: Shelf, spans: np.ndarray) -> pa.Table:
    """The rows of provenance of these documents; each shard's table is read once."""
    order = np.argsort(spans["shard"], kind="stable")
    tables = []
    for shard in np.unique(spans["shard"]).tolist():
        documents = spans["document"][order][spans["shard"][order] == shard]
        tables.append(arrow_table(shelf.books[shard].path("docs")).take(pa.array(documents)))
    place = np.empty(len(spans), np.int64)
    place[order] = np.arange(len(spans))
    return pa.concat_tables(tables, promote_options="default").take(pa.array(place))
