"""Training a byte-level BPE tokenizer on a sample of the kept documents, as a global stage.

    choose   one task      sizes of all documents -> per source the largest document hash that is still in the sample
    count    per part      the pieces of the chosen documents, counted
    merge    partitions    the counts of all parts added up; rare pieces thinned if there are too many
    learn    one task      merges, files, and a report on a part of the sample

The sample of a source is its documents with the smallest keyed hashes of their ids, until its share of `train_on` is
full; the document that fills it is in, however long it is, and no document is skipped for its length. So neither the
number of workers nor the order of files or documents has a say.

Ids: the 256 bytes in order of value, then merges in order of learning, then special tokens. So ids of text are the
ranks in the .tiktoken file, and a special token never moves an ordinary one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numba import njit, types
from pydantic import Field, model_validator

from stages.contract.config import Count, Size
from stages.document import text_buffers
from stages.exchange import column_values
from stages.numbering import partition_bits, top_bits
from stages.stage import GlobalStage, Outbox, PartInfo, StepContext, Superstep
from stages.tokenizer.encode import Encoder
from stages.tokenizer.learn import learn_merges
from stages.tokenizer.patterns import Pattern, PatternName, named_pattern
from stages.tokenizer.pieces import PieceTable
from stages.tokenizer.pretokenize import cut_long, pieces
from stages.tokenizer.report import MEASURED, SAMPLE, as_html, report
from stages.tokenizer.sampling import keys_of, limit_of, profile_of
from stages.tokenizer.tokenizer_json import byte_alphabet, tokenizer_files

#: A merge must be worth it twice.
MIN_COUNT = 2
#: Distinct pieces that a task counts before it sends them: about 150 MB of memory.
FULL_TABLE = 1 << 20

_STATS = ("documents", "bytes", "pieces", "cut")


class TrainTokenizer(GlobalStage):
    """Learns the tokenizer; documents go through unchanged.

    Emission per document: `key` (uint64, start of its id) and `bytes` (int64, of its text).
    Artifacts: tokenizer.json, tokenizer.tiktoken, tokenizer-card.json, tokenizer-report.json, report.html.
    """

    name: ClassVar[str] = "train-tokenizer"
    version: ClassVar[int] = 2
    drops_only: ClassVar[bool] = False
    #: Documents of the corpus per partition of the counts, up to 16 partitions.
    rows_per_task: ClassVar[int] = 100_000

    vocab_size: Annotated[
        Count, Field(description="Tokens wanted, special tokens and the 256 bytes included.")
    ] = 32_768
    train_on: Annotated[Size, Field(description="How much text to learn from.", gt=0)] = 4 << 30
    train_mix: Annotated[
        dict[str, float] | None,
        Field(
            description="Weight of each source in that text, by bytes; a source left out has none. Null: as they are."
        ),
    ] = None
    pattern: Annotated[PatternName, Field(description="How text is cut before merging.")] = "llama3"
    digits: Annotated[
        int | None, Field(description="Most digits in one token; null: as the pattern has it.", ge=1, le=3)
    ] = None
    split_han: Annotated[
        bool, Field(description="Whether Han characters never share a token with others.")
    ] = False
    special_tokens: Annotated[
        tuple[str, ...],
        Field(description="Tokens that text never becomes; the first ends documents.", min_length=1),
    ] = ("<|endoftext|>",)
    max_piece: Annotated[
        int,
        Field(
            description="Characters after which a piece is cut for counting (text without spaces).",
            ge=4,
            le=256,
        ),
    ] = 32
    max_counted: Annotated[
        Size,
        Field(
            description="Bytes of distinct pieces to learn from; up to 20 times that is the memory it takes.",
            gt=0,
        ),
    ] = 48 << 20
    seed: Annotated[int, Field(description="Chooses the sample.", ge=0)] = 0

    @model_validator(mode="after")
    def _consistent(self) -> TrainTokenizer:
        floor = 256 + len(self.special_tokens)
        if self.vocab_size < floor:
            raise ValueError(
                f"vocab_size {self.vocab_size:,} is below the floor of {floor}: "
                f"256 bytes and {len(self.special_tokens)} special tokens"
            )
        if self.train_mix is not None and (
            min(self.train_mix.values(), default=0) < 0 or not sum(self.train_mix.values())
        ):
            raise ValueError("train_mix needs weights of 0 or more, and one above 0")
        pattern = self.cutting()
        if len(set(self.special_tokens)) < len(self.special_tokens):
            raise ValueError("a special token stands twice in special_tokens")
        for token in self.special_tokens:
            if not _cannot_be_learned(token, pattern):
                raise ValueError(
                    f"the special token {token!r} could be an ordinary one: write it like <|name|>"
                )
        return self

    def cutting(self) -> Pattern:
        """The pattern that the settings name. ValueError if they contradict each other."""
        return named_pattern(self.pattern, self.digits, self.split_han)

    def recipe(self) -> dict[str, str]:
        """The table of character classes decides where text is cut."""
        table = Path(__file__).with_name("characters.npz").read_bytes()
        return {"characters": hashlib.sha256(table).hexdigest()}

    def emit(self, batch: pa.RecordBatch, first_row: int) -> pa.RecordBatch:  # noqa: ARG002
        """Key and text bytes of each document."""
        lengths = pc.fill_null(pc.binary_length(batch.column("text")), 0).cast(pa.int64())
        return pa.RecordBatch.from_arrays([pa.array(keys_of(batch, self.seed)), lengths], ["key", "bytes"])

    def supersteps(self, parts: tuple[PartInfo, ...]) -> tuple[Superstep, ...]:
        """Choose, count, merge, learn."""
        return (
            Superstep("choose", over=1),
            Superstep("count", reads=("limits",)),
            Superstep("merge", over=1 << self._bits(parts), reads=("pieces",)),
            Superstep("learn", over=1, reads=("counts", "budgets", "stats", "thinning", "sample")),
        )

    def _bits(self, parts: tuple[PartInfo, ...]) -> int:
        return min(4, partition_bits(sum(part.rows for part in parts), self.rows_per_task))

    def choose(self, context: StepContext) -> dict[str, Outbox]:
        """The largest keys in the sample and in what the report reads of it, to every part that gives any.

        Budgets by source go to the learner.
        """
        by_source: dict[str, list[PartInfo]] = {}
        for part in context.parts:
            by_source.setdefault(part.source, []).append(part)
        profiles = {source: profile_of(context, parts) for source, parts in sorted(by_source.items())}
        available = {source: int(profile.sum()) for source, profile in profiles.items()}
        budgets = self._budgets(available)
        address: list[int] = []
        limits: list[int] = []
        measured: list[int] = []
        for source, parts in by_source.items():
            if budgets[source] == 0:
                continue
            limit = limit_of(context, parts, profiles[source], budgets[source])
            address += [part.index for part in parts]
            limits += [limit] * len(parts)
            measured += [limit_of(context, parts, profiles[source], min(budgets[source], MEASURED))] * len(
                parts
            )
            if budgets[source] > available[source]:
                context.counters[f"{source}.bytes_missing"] = budgets[source] - available[source]
        rows = {
            "source": list(budgets),
            "wanted": list(budgets.values()),
            "available": [available[s] for s in budgets],
        }
        return {
            "limits": Outbox(
                np.array(address, np.uint32),
                pa.table(
                    {"limit": pa.array(limits, pa.uint64()), "measured": pa.array(measured, pa.uint64())}
                ),
            ),
            "budgets": Outbox(0, pa.table(rows, schema=_BUDGETS)),
        }

    def _budgets(self, available: Mapping[str, int]) -> dict[str, int]:
        """Bytes wanted of each source."""
        total = sum(available.values())
        if self.train_mix is None:
            wanted = min(self.train_on, total)
            return {source: wanted * size // total if total else 0 for source, size in available.items()}
        whole = sum(self.train_mix.values())
        return {source: int(self.train_on * (self.train_mix.get(source, 0) / whole)) for source in available}

    def count(self, context: StepContext) -> dict[str, Outbox]:
        """The pieces of the chosen documents of a part with their counts, to the partition of each piece.

        A full table is sent and begun anew, so a piece may be sent more than once.
        """
        inbox = context.inbox["limits"]
        limit, measured = (
            int(column_values(inbox, name)[0]) if len(inbox) else -1 for name in ("limit", "measured")
        )
        table = PieceTable()
        sample = [SAMPLE.empty_table()]
        sent: list[tuple[np.ndarray, pa.Table]] = []
        stats = dict.fromkeys(_STATS, 0)
        for batch, keys in self._chosen(context, limit) if len(inbox) else ():
            texts = batch.column("text")
            sample.append(_sample(batch.filter(pa.array(keys <= np.uint64(measured)))))
            data, offsets = text_buffers(texts)
            stats["documents"] += len(texts)
            stats["bytes"] += int(offsets[-1] - offsets[0])
            for start, piece_ends in pieces(self.cutting(), data, offsets):
                ends, cut = cut_long(data, start, piece_ends, self.max_piece)
                table.tally(data, start, ends)
                stats["pieces"] += len(piece_ends)
                stats["cut"] += cut
                if table.count > FULL_TABLE:
                    sent.append(self._counted(table, context.parts))
                    table.clear()
        sent.append(self._counted(table, context.parts))
        for name, value in stats.items():
            context.counters[name] = value
        row = {"source": [context.part.source], **{name: [value] for name, value in stats.items()}}
        addresses, tables = zip(*sent, strict=True)
        return {
            "pieces": Outbox(np.concatenate(addresses), pa.concat_tables(tables)),
            "sample": Outbox(0, pa.concat_tables(sample)),
            "stats": Outbox(0, pa.table(row, schema=_STATS_SCHEMA)),
        }

    def _counted(self, table: PieceTable, parts: tuple[PartInfo, ...]) -> tuple[np.ndarray, pa.Table]:
        """`(partition of each piece, pieces with their counts)`; nothing of it is shared with the table."""
        return top_bits(table.hashes(), self._bits(parts)), _counted(table, table.tallied())

    def _chosen(self, context: StepContext, limit: int) -> Iterator[tuple[pa.RecordBatch, np.ndarray]]:
        """The documents of a part that are alive and whose key is at most `limit`, with their keys, batch by batch."""
        dead = context.dropped(context.index)
        row = 0
        for batch in context.documents(context.index):
            keys = keys_of(batch, self.seed)
            mask = (keys <= np.uint64(limit)) & pc.is_null(batch.column("drop")).to_numpy(False)
            first, last = np.searchsorted(dead, [row, row + batch.num_rows])
            mask[dead[first:last].astype(np.int64) - row] = False
            row += batch.num_rows
            if mask.any():
                yield batch if mask.all() else batch.filter(pa.array(mask)), keys[mask]

    def merge(self, context: StepContext) -> dict[str, Outbox]:
        """The counts of all parts added up and thinned to this partition's share of `max_counted`, to the learner."""
        table, counts = PieceTable(), np.zeros(1 << 12, np.int64)
        inbox = context.inbox["pieces"]
        for batch in inbox.to_batches() if inbox.num_columns else ():
            data, offsets = text_buffers(batch.column("piece").view(pa.large_string()))
            numbers = table.intern(data, int(offsets[0]), offsets[1:])
            counts = _room(counts, table.count)
            _tally_all(numbers, batch.column("count").to_numpy(), counts)
        counts = counts[: table.count]
        share = self.max_counted >> self._bits(context.parts)
        weights, floor = thin(np.diff(table.offsets[: table.count + 1]), counts, table.hashes(), share)
        kept = _counted(table, weights).filter(pa.array(weights > 0))
        context.counters["distinct_pieces"] = table.count
        context.counters["thinned_pieces"] = table.count - len(kept)
        row = {"distinct": [table.count], "kept": [len(kept)], "floor": [floor]}
        return {"counts": Outbox(0, kept), "thinning": Outbox(0, pa.table(row, schema=_THINNING))}

    def learn(self, context: StepContext) -> dict[str, Outbox]:
        """The files of the tokenizer, on the channel `artifact`."""
        inbox = context.inbox["counts"]
        flat, offsets = np.empty(0, np.uint8), np.zeros(1, np.int64)
        if len(inbox):
            flat, offsets = text_buffers(inbox.column("piece").combine_chunks().view(pa.large_string()))
        wanted = self.vocab_size - len(self.special_tokens)
        merges = learn_merges(
            flat, offsets, column_values(inbox, "count").astype(np.int64), wanted, MIN_COUNT
        )
        files = tokenizer_files(merges, self.special_tokens, self.cutting())
        real = 256 + len(merges) + len(self.special_tokens)
        context.counters["vocab_size"] = real
        context.counters["vocab_missing"] = self.vocab_size - real
        sample = context.inbox["sample"]
        measured = report(
            "tokenizer",
            Encoder.load(files["tokenizer.json"], self.special_tokens[0]),
            sample.select(SAMPLE.names) if sample.num_columns else SAMPLE.empty_table(),
        )
        files["tokenizer-report.json"] = (json.dumps(measured, ensure_ascii=False, indent=1) + "\n").encode()
        files["report.html"] = as_html(measured)
        card = self._card(context.inbox, real, files)
        files["tokenizer-card.json"] = (json.dumps(card, ensure_ascii=False, indent=1) + "\n").encode()
        names, contents = (
            pa.array(list(files), pa.string()),
            pa.array(list(files.values()), pa.large_binary()),
        )
        return {"artifact": Outbox(0, pa.table({"name": names, "content": contents}))}

    def _card(self, inbox: Mapping[str, pa.Table], real: int, files: Mapping[str, bytes]) -> dict[str, Any]:
        """What the tokenizer was made of: sizes, sources, cuts, digests, and what did not come out as asked."""
        sources: dict[str, dict[str, int]] = {}
        for row in inbox["budgets"].to_pylist():
            sources[row["source"]] = {"bytes_available": row["available"], "bytes_wanted": row["wanted"]}
        for name in _STATS:
            for row in inbox["stats"].to_pylist():
                source = sources[row["source"]]
                source[name] = source.get(name, 0) + row[name]
        thinning = inbox["thinning"].to_pylist()
        warnings = [
            f"{source} has {numbers['bytes_available']:,} bytes, {numbers['bytes_wanted']:,} were wanted"
            for source, numbers in sources.items()
            if numbers["bytes_available"] < numbers["bytes_wanted"]
        ]
        if real < self.vocab_size:
            warnings.append(
                f"{self.vocab_size:,} tokens were asked for, the text gave {real:,}: "
                f"no further pair of tokens occurs {MIN_COUNT} times"
            )
        return {
            "vocab_size": {"asked": self.vocab_size, "real": real},
            "special_tokens": {
                t: real - len(self.special_tokens) + i for i, t in enumerate(self.special_tokens)
            },
            "eos": self.special_tokens[0],
            "pattern": {"name": self.pattern, "regexes": self.cutting().regexes},
            "trained_on": {name: sum(s.get(name, 0) for s in sources.values()) for name in _STATS},
            "sources": sources,
            "pieces": {
                "distinct": sum(row["distinct"] for row in thinning),
                "learned_from": sum(row["kept"] for row in thinning),
                "thinned_below_count": max((row["floor"] for row in thinning), default=1),
                "longest": self.max_piece,
            },
            "sha256": {name: hashlib.sha256(content).hexdigest() for name, content in files.items()},
            "warnings": warnings,
        }

    def apply(self, batch: pa.RecordBatch, facts: pa.Table, first_row: int) -> pa.RecordBatch:  # noqa: ARG002
        """The batch as it is."""
        return batch


_BUDGETS = pa.schema([("source", pa.string()), ("wanted", pa.int64()), ("available", pa.int64())])
_STATS_SCHEMA = pa.schema([("source", pa.string()), *((name, pa.int64()) for name in _STATS)])
_THINNING = pa.schema([("distinct", pa.int64()), ("kept", pa.int64()), ("floor", pa.int64())])


def thin(lengths: np.ndarray, counts: np.ndarray, hashes: np.ndarray, room: int) -> tuple[np.ndarray, int]:
    """`(weights, floor)`: counts to learn from, 0 for pieces left out, so that kept pieces have `room` bytes at most.

    Threshold sampling (Duffield, Lund, Thorup 2007): with the floor f, a piece of count c < f is kept with
    probability c / f, decided by its own hash, and then counts f. So every count is right in expectation, and text
    whose pieces are long and rare (Chinese without spaces) loses nothing to text with short and frequent ones. f is
    the smallest power of two that makes room; 1 means that nothing is left out.
    """
    floor = 1
    # Mixed again, for the top bits of the hash chose the partition; 53 bits are exact as float64.
    draws = (hashes * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(11)
    keep = np.ones(len(counts), bool)
    while lengths[keep].sum() > room and floor < 1 << 62:
        floor *= 2
        keep = draws.astype(np.float64) * (floor / 2.0**53) < counts
    return np.where(keep, np.maximum(counts, floor), 0), floor


def _sample(batch: pa.RecordBatch) -> pa.Table:
    """The columns of SAMPLE of some documents."""
    known = "lang" in batch.schema.names
    language = (
        pc.fill_null(batch.column("lang").cast(pa.string()), "") if known else pa.array([""] * len(batch))
    )
    return pa.table([batch.column("source"), language, batch.column("text")], schema=SAMPLE)


def _cannot_be_learned(token: str, pattern: Pattern) -> bool:
    """Whether no merge can spell the token: it has only characters that stand for themselves, in several pieces."""
    if not token or any(not char.isascii() and char in byte_alphabet() for char in token):
        return False
    data, offsets = text_buffers(pa.array([token], pa.large_string()))
    return sum(len(ends) for _, ends in pieces(pattern, data, offsets)) > 1


def _counted(table: PieceTable, counts: np.ndarray) -> pa.Table:
    """A copy of the pieces (large_binary) with their counts (int64)."""
    offsets = pa.py_buffer(table.offsets[: table.count + 1].copy())
    pool = pa.py_buffer(table.pool[: table.used].copy())
    column = pa.Array.from_buffers(pa.large_binary(), table.count, [None, offsets, pool])
    return pa.table({"piece": column, "count": pa.array(counts)})


def _room(counts: np.ndarray, needed: int) -> np.ndarray:
    """The counts, with room for `needed` of them."""
    if needed <= len(counts):
        return counts
    return np.concatenate([counts, np.zeros(max(needed, 2 * len(counts)) - len(counts), np.int64)])


@njit(
    types.void(types.int32[::1], types.Array(types.int64, 1, "C", readonly=True), types.int64[::1]),
    cache=True,
    nogil=True,
)
def _tally_all(numbers, weights, counts):  # type: ignore[no-untyped-def]
    """Adds each number's own weight."""
    for i in range(len(numbers)):
        counts[numbers[i]] += weights[i]
