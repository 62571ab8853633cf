"""What a task makes of its batches: the part, its tokens, dropped documents with their reasons, rejects, excerpts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.engine.origin import PartOrigin, ReadOrigin
from pipeline.engine.records import EmitRecord, Excerpt, FileRef, InputFile, Lost, Part, PassRecord
from pipeline.engine.sealed import ArrowFile, SealedFile, arrow_table, kept_rows
from pipeline.engine.tally import Tally
from pipeline.engine.uses import Encoding, StageUse
from pipeline.engine.work import Work
from stages.contract.files import on_disk
from stages.document import DOCUMENT, drop_rows, text_buffers, with_column
from stages.stage import GlobalStage, RowStage, Stage
from stages.storage.address import located
from stages.text import folded_hashes
from stages.tokenizer.encode import Encoder

if TYPE_CHECKING:
    from pipeline.engine.task import PassTask

DROPPED_TEXTS = 1000  # dropped documents whose text is kept, per reason and part
EXCERPTS = 5
EXCERPT_CHARACTERS = 600
STAGE_ERRORS = 20  # documents of one part on which stages may raise before the task gives up
ROUNDTRIP_EVERY = 64  # one document in so many, by id, is decoded again
TOKENIZE = "tokenize"  # the account of the last pass

DROPPED = pa.schema(
    [
        *(DOCUMENT.field(name) for name in ("id", "source", "uri", "record", "user_id")),
        pa.field("stage", pa.string()),
        pa.field("reason", pa.string()),
        pa.field("value", pa.string()),
        pa.field("text", pa.large_string()),
        pa.field("row", pa.int64()),  # its row in the part that the pass read, if a global stage dropped it
    ]
)
REJECTS = pa.schema(
    [
        ("source", pa.string()),
        ("uri", pa.string()),
        ("record", pa.int64()),
        ("reason", pa.string()),
        ("detail", pa.string()),
    ]
)


class PartWriter:
    """The part in the making: stages run as batches come, so memory holds one batch."""

    def __init__(self, task: PassTask) -> None:
        self.task = task
        self.work = Work(task.folder)
        self.tally = Tally()
        self._rows_in = 0
        self._rows_out = 0
        self._text_out = 0
        self._documents = ArrowFile(self.work, "arrow", "lz4")
        self._dropped = ArrowFile(self.work, "dropped.arrow", "lz4")
        self._emissions = {use.label: ArrowFile(self.work, "emit.arrow") for use in task.emits}
        self._stage_errors = 0
        self._texts_kept: dict[tuple[str, str], int] = {}
        self._kept: list[Excerpt] = []
        self._removed: list[Excerpt] = []
        self._rejects: list[tuple[str, int, str, str]] = []
        self._facts = [
            (use, arrow_table(self.work.data / file.name)) for use, file in task.before if file
        ]
        self._tokens = TokenWriter(task.encoding, self.work) if task.encoding else None

    def add(self, batch: pa.RecordBatch) -> None:
        """Runs the stages over a batch and writes what is left."""
        first, self._rows_in = self._rows_in, self._rows_in + batch.num_rows
        rows = np.arange(first, first + batch.num_rows, dtype=np.int64)
        batch, rows = self._reject_quarantined(batch, rows)
        batch, rows = self._apply_facts(batch, rows, first)
        for use in self.task.rows:
            batch, rows = self._apply(use, batch, rows)
        self._write(batch, rows)

    def _apply_facts(
        self, batch: pa.RecordBatch, rows: np.ndarray, first: int
    ) -> tuple[pa.RecordBatch, np.ndarray]:
        for use, facts in self._facts:
            assert isinstance(use.stage, GlobalStage)
            batch, rows = self._settle(use, batch, use.stage.apply(batch, facts, first), rows, final=False)
        return self._split(batch, rows)

    def _apply(
        self, use: StageUse, batch: pa.RecordBatch, rows: np.ndarray
    ) -> tuple[pa.RecordBatch, np.ndarray]:
        assert isinstance(use.stage, RowStage)
        try:
            after = use.stage.apply(batch)
        except Exception as error:
            batch, rows, after = self._isolate(use, use.stage, batch, rows, error)
        batch, rows = self._settle(use, batch, after, rows, final=True)
        return self._split(batch, rows)

    def _settle(
        self, use: StageUse, batch: pa.RecordBatch, after: pa.RecordBatch, rows: np.ndarray, final: bool
    ) -> tuple[pa.RecordBatch, np.ndarray]:
        """Books what a stage did; with `mark` its verdict becomes a column and nothing is dropped."""
        assert after.num_rows == batch.num_rows, f"{use.label} changed the number of rows"
        if use.stage.mark and f"mark.{use.stage.name}" not in use.stage.adds():  # most stages mark by themselves
            verdict = pc.if_else(pc.is_null(batch.column("drop")), after.column("drop"), None)
            for name in ("drop", "drop_value"):
                after = with_column(after, name, batch.column(name))
            after = with_column(after, f"mark.{use.label}", verdict)
        self.tally.stage(use, batch, after)
        fresh = pc.and_(pc.is_null(batch.column("drop")), pc.is_valid(after.column("drop")))
        self._note_dropped(use, after, rows if not final else np.full(len(rows), -1), fresh)
        return after, rows

    def _split(self, batch: pa.RecordBatch, rows: np.ndarray) -> tuple[pa.RecordBatch, np.ndarray]:
        kept, dropped = kept_rows(batch)
        if dropped.num_rows:
            rows = rows[pc.is_null(batch.column("drop")).to_numpy(zero_copy_only=False)]
        return kept, rows

    def _note_dropped(self, use: StageUse, batch: pa.RecordBatch, rows: np.ndarray, fresh: pa.Array) -> None:
        if not pc.any(fresh).as_py():
            return
        gone, rows = batch.filter(fresh), rows[fresh.to_numpy(zero_copy_only=False)]
        reasons = gone.column("drop").to_pylist()
        keep_text = []
        for reason in reasons:
            seen = self._texts_kept.get((use.label, reason), 0)
            keep_text.append(seen < DROPPED_TEXTS)
            self._texts_kept[use.label, reason] = seen + 1
        columns = {name: gone.column(name) for name in ("id", "source", "uri", "record", "user_id")}
        columns["stage"] = pa.array([use.label] * len(reasons), pa.string())
        columns["reason"] = gone.column("drop")
        columns["value"] = gone.column("drop_value")
        columns["text"] = pc.if_else(
            pa.array(keep_text), gone.column("text"), pa.scalar(None, pa.large_string())
        )
        columns["row"] = pa.array(rows, pa.int64())
        self._dropped.write(pa.RecordBatch.from_arrays([columns[f.name] for f in DROPPED], schema=DROPPED))
        self._removed = smallest(self._removed, gone)

    def _reject_quarantined(
        self, batch: pa.RecordBatch, rows: np.ndarray
    ) -> tuple[pa.RecordBatch, np.ndarray]:
        if not self.task.quarantined or not batch.num_rows:
            return batch, rows
        bad = np.array([i in self.task.quarantined for i in batch.column("id").to_pylist()], bool)
        if bad.any():
            self._reject(batch.filter(pa.array(bad)), "quarantined", "killed its worker repeatedly")
            self.tally.rejected("read", batch, bad, "quarantined", passed=True)
            batch, rows = batch.filter(pa.array(~bad)), rows[~bad]
        return batch, rows

    def _isolate(
        self, use: StageUse, stage: RowStage, batch: pa.RecordBatch, rows: np.ndarray, error: Exception
    ) -> tuple[pa.RecordBatch, np.ndarray, pa.RecordBatch]:
        """Finds the documents on which a stage raises and rejects them; if there are many, the stage is wrong, not they."""
        pieces, bad = [], np.zeros(batch.num_rows, bool)
        for i in range(batch.num_rows):
            try:
                pieces.append(stage.apply(batch.slice(i, 1)))
            except Exception as own:
                bad[i] = True
                error = own
                self._reject(
                    batch.slice(i, 1), "stage-error", f"{use.label}: {type(own).__name__}: {own}"[:500]
                )
                if self._stage_errors + bad.sum() > STAGE_ERRORS:
                    break
        self._stage_errors += int(bad.sum())
        most = batch.num_rows >= 4 and bad.sum() * 2 > batch.num_rows
        if not bad.any() or most or self._stage_errors > STAGE_ERRORS:
            raise _stage_error(use.label, batch, int(bad.sum()), error) from error
        self.tally.rejected(use.label, batch, bad, "stage-error", passed=False)
        kept = batch.filter(pa.array(~bad))
        after = pa.Table.from_batches(pieces or [stage.apply(kept)]).combine_chunks().to_batches()
        return kept, rows[~bad], after[0] if after else stage.apply(kept)

    def _reject(self, batch: pa.RecordBatch, reason: str, detail: str) -> None:
        for row in batch.select(["uri", "record"]).to_pylist():
            self._rejects.append((row["uri"], row["record"], reason, detail))

    def _drop_empty(self, batch: pa.RecordBatch, rows: np.ndarray) -> tuple[pa.RecordBatch, np.ndarray]:
        """An empty document would be a lone EOS in the shards: it is dropped, with or without `normalize`."""
        bare = pc.equal(pc.binary_length(pc.utf8_trim_whitespace(batch.column("text"))), 0)
        after = drop_rows(batch, bare.to_numpy(zero_copy_only=False), f"{TOKENIZE}.empty")
        batch, rows = self._settle(StageUse(TOKENIZE, Stage()), batch, after, rows, final=True)
        return self._split(batch, rows)

    def _write(self, batch: pa.RecordBatch, rows: np.ndarray) -> None:
        if self._tokens is not None:
            batch, rows = self._drop_empty(batch, rows)
        if batch.num_rows == 0 and self._documents.started:
            return
        for use in self.task.emits:
            if use.stage.runs_on(self.task.source):
                assert isinstance(use.stage, GlobalStage)
                self._emissions[use.label].write(use.stage.emit(batch, self._rows_out))
        self._text_out += text_size(batch)
        if self._tokens is not None:
            self._kept = smallest(self._kept, batch)
            batch = self._tokens.add(batch)
        elif self.task.overlay:
            names = [n for n in batch.schema.names if n not in DOCUMENT.names or n in ("drop", "drop_value")]
            changed = [n for n in names if n not in ("drop", "drop_value")]
            batch = pa.RecordBatch.from_arrays(
                [pa.array(rows.astype(np.uint32)), *(batch.column(n) for n in changed)],
                names=["row", *changed],
            )
        self._documents.write(batch)
        self._rows_out += batch.num_rows

    def seal(self, more: bool) -> tuple[PassRecord, dict[str, EmitRecord]]:
        """The finished part. An empty one still has its schema: the stages run over an empty batch."""
        if not self._documents.started:
            self.add(self.task.origin.empty(self.work))
        origin = self.task.origin
        lost: Sequence[Lost] = ()
        inputs: Sequence[InputFile] = ()
        if isinstance(origin, ReadOrigin):
            lost, inputs = origin.lost, origin.inputs(complete=not more)
            self._rejects.extend(origin.take_rejects())
            self.tally.read(origin.take_counts())
        documents = self._documents.seal()
        if isinstance(origin, PartOrigin) and self.task.overlay:
            part = Part(
                source=self.task.source,
                base=origin.part.base,
                overlay=documents,
                rows=self._rows_out,
                text_bytes=self._text_out,
            )
        else:
            part = Part(
                source=self.task.source, base=documents, rows=self._rows_out, text_bytes=self._text_out
            )
        record = PassRecord(
            part=part,
            dropped=_seal_or_drop(self._dropped),
            rejects=self._seal_rejects(),
            counts=tuple(self.tally.counts()),
            kept=tuple(self._kept),
            removed=tuple(self._removed),
            inputs=tuple(inputs),
            damaged=tuple(lost),
            more=more,
            **(self._tokens.seal() if self._tokens else {}),
        )
        emitted = {
            label: EmitRecord(file=file.seal()) for label, file in self._emissions.items() if file.started
        }
        for file in self._emissions.values():
            if not file.started:
                file.discard()
        return record, emitted

    def _seal_rejects(self) -> FileRef | None:
        if not self._rejects:
            return None
        uris, records, reasons, details = zip(*self._rejects, strict=True)
        with ArrowFile(self.work, "rejects.arrow") as file:
            columns = [[self.task.source] * len(uris), uris, records, reasons, details]
            file.write(
                pa.RecordBatch.from_arrays(
                    [pa.array(c, f.type) for c, f in zip(columns, REJECTS, strict=True)], schema=REJECTS
                )
            )
            return file.seal()

    def discard(self) -> None:
        """Forgets all files in the making."""
        for file in (self._documents, self._dropped, *self._emissions.values()):
            file.discard()
        if self._tokens is not None:
            self._tokens.discard()


class StageError(Exception):
    """A stage raised on many documents of one batch: the stage is wrong, or its settings are."""


def _stage_error(label: str, batch: pa.RecordBatch, failures: int, error: Exception) -> StageError:
    first = batch.slice(0, 1).select(["source", "uri", "record"]).to_pylist()[0]
    return StageError(
        f"stage `{label}` failed on {failures or 'all'} of {batch.num_rows} documents of a batch that begins at "
        f"{first['source']}: {first['uri']}, record {first['record']}: {type(error).__name__}: {error}"
    )


class TokenWriter:
    """Ids of the documents, back to back, each ending with one EOS: the only place where EOS is added."""

    def __init__(self, encoding: Encoding, work: Work) -> None:
        self.encoder = Encoder.load(str(on_disk(located(encoding.tokenizer))), eos=encoding.eos)
        self._seed = encoding.holdout_seed
        self._file = SealedFile(work, "tok")
        self._dtype = np.dtype("<u2") if self.encoder.vocab_size <= 65536 else np.dtype("<u4")
        self._count = 0
        self._largest = -1
        self._checked = 0
        self._different = 0

    def add(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Writes the ids; returns the documents with `length` (EOS counted) and `text_bytes` instead of their text."""
        texts = batch.column("text")
        ids, offsets = self.encoder.encode_batch(texts)
        lengths = np.diff(offsets) + 1
        flat = np.empty(len(ids) + len(lengths), np.uint32)
        ends = np.cumsum(lengths) - 1
        mask = np.ones(len(flat), bool)
        mask[ends] = False
        flat[mask] = ids
        flat[ends] = self.encoder.eos_id
        if len(flat):
            self._largest = max(self._largest, int(flat.max()))
            if self._largest >= self.encoder.vocab_size:
                raise ValueError(
                    f"token id {self._largest} is not below the vocabulary size {self.encoder.vocab_size}"
                )
        self._file.write(flat.astype(self._dtype))
        self._count += len(flat)
        self._check_roundtrip(batch, ids, offsets)
        data, starts = text_buffers(texts)
        keys = folded_hashes(data, starts, self._seed)  # equal texts of any spelling stay on one side of the holdout
        out = batch.drop_columns(["text", "drop", "drop_value"])
        out = with_column(out, "text_bytes", pa.array(np.diff(starts), pa.int64()))
        out = with_column(out, "length", pa.array(lengths.astype(np.uint32)))
        return with_column(out, "holdout_key", pa.array(keys))

    def _check_roundtrip(self, batch: pa.RecordBatch, ids: np.ndarray, offsets: np.ndarray) -> None:
        for i, identity in enumerate(batch.column("id").to_pylist()):
            if identity[0] % ROUNDTRIP_EVERY == 0:
                text = batch.column("text")[i].as_py() or ""
                self._checked += 1
                self._different += self.encoder.decode(ids[offsets[i] : offsets[i + 1]]) != text

    def seal(self) -> dict:
        """The token fields of the pass record."""
        return {
            "tokens": self._file.seal(),
            "token_count": self._count,
            "largest_id": self._largest,
            "roundtrip": (self._checked, self._different),
        }

    def discard(self) -> None:
        """Forgets the file."""
        self._file.discard()


def smallest(so_far: list[Excerpt], batch: pa.RecordBatch) -> list[Excerpt]:
    """The excerpts of the smallest ids of both: a choice that no cut of the corpus can change."""
    ids = batch.column("id").to_pylist()
    order = sorted(range(len(ids)), key=ids.__getitem__)[:EXCERPTS]
    fresh = []
    for i in order:
        row = {
            name: batch.column(name)[i].as_py() for name in ("uri", "record", "drop", "drop_value", "text")
        }
        head = (row["text"] or "")[:EXCERPT_CHARACTERS]
        fresh.append(
            Excerpt(
                id=ids[i].hex(),
                uri=row["uri"],
                record=row["record"],
                reason=row["drop"],
                value=row["drop_value"],
                text=head,
            )
        )
    return sorted([*so_far, *fresh], key=lambda e: e.id)[:EXCERPTS]


def _seal_or_drop(file: ArrowFile) -> FileRef | None:
    if file.started:
        return file.seal()
    file.discard()
    return None


def singles(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The documents of a batch one by one."""
    for i in range(batch.num_rows):
        yield batch.slice(i, 1)


def text_size(batch: pa.RecordBatch) -> int:
    """Bytes of UTF-8 of the texts, however the batch is cut."""
    return int(pc.sum(pc.binary_length(batch.column("text"))).as_py() or 0)
