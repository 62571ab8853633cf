"""Batches as numpy arrays: the samples of the data order, read, labelled and cut into documents.

A batch is a pure function of (manifest, plan, step); rank, world size and micro-batch only cut it. Windows: the label
of a position is the token behind it, also at the end of a window, where that token belongs to the next window. Packed
rows: the same inside of a document, also where a document longer than a row goes on in another one. So in one epoch
every token except the first of a document is predicted exactly once. The last token of a document (its EOS) predicts
nothing when documents are masked; pads, and documents with a tombstone, never do.

For a trainer of your own: `TokenDataset` is a torch IterableDataset over the same batches (see `dataset.py`).
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from stages.contract.manifest import Manifest, load_manifest, verify_manifest
from stages.contract.order import READING
from stages.contract.problem import Problem, RunError, SpecError
from stages.contract.shard import token_dtype
from stages.shards.assemble import IGNORE, fill_rows
from stages.shards.stream import SPAN, Shelf, Stream, ids_of
from trainer.ahead import Ahead, Waits
from trainer.planned import Plan

__all__ = ["IGNORE", "Batch", "Loader", "Micro", "Waits"]

#: Samples of steps that follow each other are looked up together, about so many at a time.
LOOK_AHEAD = 4096

Micro = dict[str, Any]

#: Makes an array of a shape and dtype, in pinned memory for example.
Allocate = Callable[[tuple[int, ...], Any], np.ndarray]


@dataclass(frozen=True)
class Batch:
    """The part of a step that one rank reads.

    micros   one dict for each forward pass, all of B rows of L tokens, real rows first:
             input_ids, labels (IGNORE = no prediction), position_ids   int64 (B, L)
             cu_seqlens     int32 (spans + 1,), borders of documents in the flattened B * L
             max_seqlen     int, length of the longest span
             span_source    int32 (spans,), index into plan.sources; -1 for filler
             span_document  int64 (spans,), number of the document in its source; -1 for filler and pads
             span_id        V16 (spans,), id of the document; zeros for filler and pads
             source         int32 (B,), index into plan.sources; 0 for a filler row
             weight         float32 (B,), 0 for a filler row, which evens out the passes of ranks; else 1
    digest   SHA-256 (hex) over the token ids of the real rows, as u32
    tokens   positions of the real rows, by source
    targets  positions that predict something
    """

    step: int
    micros: list[Micro]
    digest: str
    tokens: dict[str, int]
    targets: int


@dataclass(frozen=True)
class _Rows:
    """Real and filler rows of one length with their spans: what micro-batches are cut from.

    sources    int64 (N,), index into plan.sources; -1 for filler
    spans      dtype SPAN (S,), those of documents;  ids  V16 (S,);  documents  int64 (S,)
    """

    input_ids: np.ndarray
    labels: np.ndarray
    position_ids: np.ndarray
    sources: np.ndarray
    spans: np.ndarray
    ids: np.ndarray
    documents: np.ndarray


class Loader:
    """Reads the batches of a plan from the folders of its manifests.

    folders    of the manifests (or the files), in the order that the plan was resolved with
    deep       read and hash everything first, not just sizes and the ends of shards
    prefetch   batches made ahead by `batches`
    allocate   makes the arrays of token ids, labels and positions; left out: numpy
    Raises SpecError when a manifest is not the one that was planned with, and RunError with every file that is
    missing, cut short, foreign or damaged, before a single batch is made. Damage inside of a shard raises RunError
    when it is read for the first time.
    """

    def __init__(
        self,
        folders: Sequence[Path],
        plan: Plan,
        manifests: Sequence[Manifest] | None = None,
        deep: bool = False,
        prefetch: int = 4,
        allocate: Allocate = np.empty,
    ) -> None:
        manifests = [load_manifest(folder) for folder in folders] if manifests is None else manifests
        _check(folders, plan, manifests, deep)
        self.plan = plan
        self.manifests = manifests
        self.folders = [_folder(path) for path in folders]
        self._prefetch = prefetch
        self.allocate = allocate
        self._eos = manifests[0].tokenizer.eos_id
        self._shelf = Shelf(token_dtype(manifests[0].tokenizer.vocab_size))
        at = {
            name: (_folder(path), entry)
            for path, manifest in zip(folders, manifests, strict=True)
            for name, entry in manifest.sources.items()
        }
        self._streams = [Stream(self._shelf, at[s.name][0], at[s.name][1].shards) for s in plan.sources]
        self._holdout = {s.name: Stream(self._shelf, at[s.name][0], at[s.name][1].holdout) for s in plan.sources}
        dead = b"".join(bytes.fromhex(one) for one in plan.tombstones)
        self._tombstones = np.frombuffer(dead, "V16")
        self._ahead: tuple[range, tuple[int, int], np.ndarray] | None = None
        self._last_step = -2
        self._lock = threading.Lock()
        self._workers: list[Ahead] = []
        self.waits = Waits()

    def follow(self, plan: Plan) -> None:
        """Read by another plan over the same manifests and sources from now on; iterators of the old one must be closed."""
        assert [s.uid for s in plan.sources] == [s.uid for s in self.plan.sources]
        with self._lock:
            self.plan, self._ahead, self._last_step = plan, None, -2

    def batch(self, step: int, rank: int = 0, world: int = 1, micro: int = 1) -> Batch:
        """What `rank` of `world` reads in a step (0-based), at most `micro` rows in a forward pass.

        All ranks get the same number of forward passes of the same shape; where a rank has fewer rows than
        others, filler rows of weight 0 stand in. IndexError outside of the run.
        """
        began = time.perf_counter()
        phase = self.plan.phase_at(step)
        passes = self.plan.accumulation(step, world, micro)
        fullest = -(-phase.batch // world)
        size = -(-fullest // passes)
        with self._lock:
            samples = self._samples(step, rank, world)
            rows = self._rows(samples, phase.seq_len, passes * size)
            self.waits.bytes_read, self.waits.reads = self._shelf.bytes_read, self._shelf.reads
        real = len(samples)
        token_ids = rows.input_ids[:real].astype("<u4")
        names = [source.name for source in self.plan.sources]
        tokens = np.bincount(samples["source"], samples["length"], len(names)).astype(np.int64)
        made = Batch(
            step,
            self._micros(rows, size),
            hashlib.sha256(token_ids.data).hexdigest(),
            {name: int(count) for name, count in zip(names, tokens, strict=True) if count},
            int(np.count_nonzero(rows.labels != IGNORE)),
        )
        self.waits.made += 1
        self.waits.making += time.perf_counter() - began
        return made

    def batches(self, first_step: int, rank: int = 0, world: int = 1, micro: int = 1) -> Iterator[Batch]:
        """The batches from `first_step` to the end of the run, made ahead by one thread.

        An error in the thread is raised here, at its batch. Closing the iterator, or the loader, ends the thread.
        """
        steps = range(first_step, self.plan.steps)
        ahead = Ahead(lambda step: self.batch(step, rank, world, micro), steps, self._prefetch, self.waits)
        self._workers.append(ahead)
        try:
            yield from ahead
        finally:
            ahead.close()
            self._workers.remove(ahead)

    def holdout(self, source: str, seq_len: int, rows: int, limit: int | None = None) -> Iterator[Micro]:
        """The holdout of a source in windows of `seq_len`, `rows` at a time, in order, at most `limit` windows.

        Dicts as in `Batch.micros`. The last window is filled up with EOS that predict nothing and that no document
        holds. Nothing is yielded for a source without holdout.
        """
        stream = self._holdout[source]
        number = [one.name for one in self.plan.sources].index(source)
        starts = np.arange(0, stream.tokens, seq_len)[:limit]
        for first in range(0, len(starts), rows):
            with self._lock:
                mine = starts[first : first + rows]
                spans = self._cut(stream.windows(mine, seq_len + 1), seq_len)
                made = self._assemble(spans, stream.numbers(spans), np.full(len(mine), number), seq_len)
            yield from self._micros(made, len(mine))

    def readings(self, document_id: bytes) -> list[tuple[str, np.ndarray]]:
        """`(source, readings)` of a document: every step and slot that reads a token of it (dtype `order.READING`).

        Empty when no source holds it. Reads every `.idx`, so it takes seconds for a large corpus.
        """
        found = []
        with self._lock:
            for number, (source, stream) in enumerate(zip(self.plan.sources, self._streams, strict=True)):
                places = [self._places(number, stream, *place) for place in stream.find(document_id)]
                if places:
                    readings = np.concatenate([np.empty(0, READING), *places])
                    found.append((source.name, readings[np.lexsort((readings["slot"], readings["step"]))]))
        return found

    def _places(self, number: int, stream: Stream, shard: int, document: int, start: int, end: int) -> np.ndarray:
        """The readings of one document."""
        order = self.plan.order
        if not order.packed:
            return order.locate(number, start, end)
        found = [np.empty(0, READING)]
        for length in sorted({stretch.seq_len for stretch in order.stretches} & set(order.sources[number].rows)):
            rows = self._shelf.rows(stream.base + shard, length).holding(document)
            found.append(order.locate_rows(number, length, rows + stream.first_row(length)[shard]))
        return np.concatenate(found)

    def close(self) -> None:
        """Ends threads and closes files."""
        for worker in list(self._workers):
            worker.close()
        with self._lock:
            self._shelf.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _samples(self, step: int, rank: int, world: int) -> np.ndarray:
        """The samples of a step; those of many steps are looked up at once when steps follow each other."""
        order = self.plan.order
        if self._ahead is None or step not in self._ahead[0] or self._ahead[1] != (rank, world):
            piece = order.piece_of(step)
            batch = order.stretches[piece.stretch].batch
            many = max(1, LOOK_AHEAD // batch) if step == self._last_step + 1 else 1
            steps = range(step, min(step + many, piece.first + piece.steps))
            self._ahead = steps, (rank, world), order.samples(steps.start, steps.stop, rank, world)
        steps, _, found = self._ahead
        self._last_step = step
        each = len(found) // len(steps)
        return found[(step - steps.start) * each : (step - steps.start + 1) * each]

    def _rows(self, samples: np.ndarray, length: int, count: int) -> _Rows:
        """The rows of these samples, and filler up to `count`."""
        parts, documents = [np.empty(0, SPAN)], [np.empty(0, np.int64)]
        for source in np.unique(samples["source"]).tolist():
            stream = self._streams[source]
            mine = np.flatnonzero(samples["source"] == source)
            offsets = samples["offset"][mine]
            packed = self.plan.order.packed
            spans = stream.packed(offsets, length) if packed else self._cut(stream.windows(offsets, length + 1), length)
            documents.append(stream.numbers(spans))
            spans["row"] = mine[spans["row"]]
            parts.append(spans)
        spans, numbers = np.concatenate(parts), np.concatenate(documents)
        order = np.argsort(spans["row"], kind="stable")
        source_N = np.full(count, -1, np.int64)
        source_N[: len(samples)] = samples["source"]
        return self._assemble(spans[order], numbers[order], source_N, length)

    def _cut(self, spans: np.ndarray, length: int) -> np.ndarray:
        """Spans of windows of one token more than a row, without those of documents that begin with that token."""
        return spans[spans["place"] < length] if self.plan.mask_documents else spans

    def _assemble(self, spans: np.ndarray, documents_S: np.ndarray, source_N: np.ndarray, length: int) -> _Rows:
        tokens, at = self._shelf.gather(spans)
        # One large array: its pages are given, and taken back, at once.
        input_ids, labels, positions = self.allocate((3, len(source_N), length), np.int64)
        masked = self.plan.mask_documents
        row_S, place_S, count_S = (spans[name].copy() for name in ("row", "place", "count"))
        fill_rows(tokens, at, row_S, place_S, count_S, self._eos, masked, input_ids, labels, positions)
        ids = ids_of(self._shelf, spans)
        if len(self._tombstones):
            self._silence(labels, spans, ids)
        real = spans["place"] < length
        return _Rows(input_ids, labels, positions, source_N, spans[real], ids[real], documents_S[real])

    def _silence(self, labels: np.ndarray, spans: np.ndarray, ids: np.ndarray) -> None:
        """Takes the labels of documents with a tombstone away, and those that predict their first token."""
        for span in spans[np.isin(ids, self._tombstones)]:
            low = max(0, span["place"] - 1) if not self.plan.mask_documents else span["place"]
            labels[span["row"], low : span["place"] + span["count"]] = IGNORE

    def _micros(self, rows: _Rows, size: int) -> list[Micro]:
        """Each `size` rows as the arrays that `Batch` names."""
        count, length = rows.input_ids.shape
        spans, ids, documents = rows.spans, rows.ids, rows.documents
        filled = np.zeros(count, np.int64)
        np.maximum.at(filled, spans["row"], np.minimum(spans["place"] + spans["count"], length))
        if not self.plan.mask_documents:
            heads = spans["place"] == 0
            spans, ids, documents = spans[heads], ids[heads], documents[heads]
        open_rows = np.flatnonzero(filled < length)  # with pads at their end
        pads = len(open_rows)
        row = np.concatenate([spans["row"], open_rows])
        starts = np.concatenate([spans["row"] * length + spans["place"], open_rows * length + filled[open_rows]])
        order = np.argsort(starts, kind="stable")
        row, starts = row[order], starts[order]
        span_source = rows.sources[row].astype(np.int32)
        span_document = np.append(documents, np.full(pads, -1))[order]
        span_id = np.append(ids, np.zeros(pads, "V16"))[order]
        source, weight = np.maximum(rows.sources, 0).astype(np.int32), (rows.sources >= 0).astype(np.float32)
        edges = np.searchsorted(row, np.arange(0, count + 1, size)).tolist()
        micros: list[Micro] = []
        for low, (a, b) in zip(range(0, count, size), pairwise(edges), strict=True):
            high = low + size
            borders = np.empty(b - a + 1, np.int32)
            borders[:-1] = starts[a:b] - low * length
            borders[-1] = size * length
            micros.append({
                "input_ids": rows.input_ids[low:high],
                "labels": rows.labels[low:high],
                "position_ids": rows.position_ids[low:high],
                "cu_seqlens": borders,
                "max_seqlen": int((borders[1:] - borders[:-1]).max()),
                "span_source": span_source[a:b],
                "span_document": span_document[a:b],
                "span_id": span_id[a:b],
                "source": source[low:high],
                "weight": weight[low:high],
            })  # fmt: skip
        return micros


def _check(folders: Sequence[Path], plan: Plan, manifests: Sequence[Manifest], deep: bool) -> None:
    """Raises where the corpus is not the planned one, or not whole."""
    real = tuple(manifest.digest for manifest in manifests)
    if real != plan.manifests:
        message = f"the plan was made for manifests {_short(plan.manifests)}, but these are {_short(real)}"
        raise SpecError(Problem("P004", message))
    problems = [
        problem
        for path, manifest in zip(folders, manifests, strict=True)
        for problem in verify_manifest(_folder(path), manifest, deep)
    ]
    if problems:
        raise RunError(*problems)


def _folder(path: Path) -> Path:
    """The folder of a corpus, from itself or from its manifest.json."""
    return path if path.is_dir() else path.parent


def _short(digests: Sequence[str]) -> str:
    return ", ".join(digest[:12] for digest in digests)


def __getattr__(name: str) -> Any:
    """`TokenDataset`, which needs torch, only when it is asked for."""
    if name == "TokenDataset":
        from trainer.dataset import TokenDataset

        return TokenDataset
    raise AttributeError(f"module {__name__} has no attribute {name}")
