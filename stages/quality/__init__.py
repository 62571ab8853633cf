"""Quality scores by a trained classifier: a column to sort, weigh and cut by, per document and per paragraph.

With a model that is there and a threshold, each document is judged alone (`LocalQuality`). What has to see all of them is
done in rounds: training from sources of the corpus (`learn.py`), and keeping the best share of each source:

    send      each part: bytes of text by score, per source
    choose    where the best share of a source ends: a score, and bytes of the documents that have just this score
    ties      the documents that have it
    divide    which of them stay, by id
    settle    the facts of each part

Scores are made once: where documents are collected, or in a round of their own behind the training.
"""

from __future__ import annotations

import os
from typing import Annotated, ClassVar

import numpy as np
import pyarrow as pa
from pydantic import Field, model_validator

from stages.contract.config import FilePath, Share, Size
from stages.contract.files import sha256_file
from stages.document import ID_BYTES, text_array, text_buffers, with_column
from stages.exchange import column_values, fixed_words
from stages.quality import learn
from stages.quality.learn import STEPS_OF_LEARNING, Train, text_keys
from stages.quality.scoring import STEPS, Form, Scorer, fasttext_version, load_scorer, read_card
from stages.stage import GlobalStage, Outbox, PartInfo, RowStage, Stage, StepContext, Superstep
from stages.text import VERSION
from stages.text.cutting import cut_lines, line_bounds
from stages.verdict import give_verdict, mark_column

#: What is known of each document after scoring: `low` are the numbers of the lines that go.
SCORED = pa.schema(
    [("id", pa.binary(ID_BYTES)), ("score", pa.uint16()), ("bytes", pa.int64()), ("low", pa.list_(pa.int32()))]
)


class _Judge(Stage):
    """What scoring needs, whichever kind of stage it is done in."""

    name: ClassVar[str] = "quality"
    version: ClassVar[int] = 3

    model: Annotated[
        FilePath | None,
        Field(description="A fastText model (.bin or .ftz), such as `pipeline train-quality` makes."),
    ] = None
    column: Annotated[
        str, Field(pattern=r"^[A-Za-z0-9_-]+$", description="The score is the column `quality.<column>`.")
    ] = "score"
    label: Annotated[
        str | None, Field(description="The label that means good. Default: of its card, or good, hq, 1 …")
    ] = None
    form: Annotated[
        Form | None,
        Field(
            description="How the model gets a text. plain: as it is; words: cut into words; shaped: and with words that say how it"
            " repeats itself. Default: as the card says, else plain."
        ),
    ] = None
    min_score: Annotated[Share | None, Field(description="Documents with a lower score are dropped.")] = None
    min_paragraph: Annotated[
        Share | None,
        Field(description="Paragraphs (lines) with a lower score are cut before the document is scored."),
    ] = None
    paragraph_bytes: Annotated[
        Size, Field(ge=1, description="Shorter paragraphs are not judged, and stay.")
    ] = 100

    @property
    def changes_text(self) -> bool:  # type: ignore[override]
        """Whether paragraphs are cut."""
        return self.min_paragraph is not None

    def adds(self) -> dict[str, pa.DataType]:
        added: dict[str, pa.DataType] = {f"quality.{self.column}": pa.float32()}
        if self.min_paragraph is not None:
            added[f"quality.{self.column}.cut"] = pa.int32()
        return added | mark_column(self)

    def memory(self) -> int:
        """The model is held in memory."""
        return 0 if self.model is None else os.path.getsize(self.model)

    def recipe(self) -> dict[str, str]:
        if self.model is None:
            return {"fasttext": fasttext_version(), "text": VERSION}
        form = self.form or read_card(str(self.model)).get("form", "plain")
        return {"model": sha256_file(self.model), "form": form, "text": VERSION}

    def problems(self) -> list[str]:
        if self.model is None:
            return []
        if not os.path.isfile(self.model):
            return [f"there is no model file `{self.model.written}`"]
        try:
            self.scorer()
        except ValueError as error:
            return [str(error)]
        return []

    def scorer(self) -> Scorer:
        """The model, loaded once a process."""
        return load_scorer(str(self.model), self.label, self.form)

    def scored(self, batch: pa.RecordBatch, scorer: Scorer) -> pa.RecordBatch:
        """Scores of documents and, where asked for, of their lines: a row of SCORED for each."""
        data_U8, offsets_N1 = text_buffers(batch.column("text"))
        low = pa.nulls(len(batch), pa.list_(pa.int32()))
        if self.min_paragraph is not None and len(batch) and self.judges(batch.column("source")[0].as_py()):
            bounds_N1, starts, stops = line_bounds(data_U8, offsets_N1)
            judged = np.flatnonzero(stops - starts >= self.paragraph_bytes)
            gone = np.zeros(len(starts), bool)
            gone[judged] = (
                scorer.score(*_pieces(data_U8, starts[judged], stops[judged]), whole=False)
                < self.min_paragraph * STEPS
            )
            numbers = np.arange(len(starts)) - np.repeat(bounds_N1[:-1], np.diff(bounds_N1))
            ends = np.concatenate([[0], np.cumsum(gone)])[bounds_N1].astype(np.int32)
            low = pa.ListArray.from_arrays(pa.array(ends), pa.array(numbers[gone].astype(np.int32)))
            data_U8, offsets_N1 = cut_lines(data_U8, offsets_N1, bounds_N1, starts, stops, gone)
        scores = scorer.score(data_U8, offsets_N1)
        columns = [batch.column("id"), pa.array(scores), pa.array(np.diff(offsets_N1)), low]
        return pa.RecordBatch.from_arrays(columns, schema=SCORED)

    def judges(self, source: str) -> bool:
        """Whether documents of this source may be dropped or cut."""
        return Stage.runs_on(self, source)

    def verdict(self, batch: pa.RecordBatch, score_N: np.ndarray, low: list, cut_N: np.ndarray) -> pa.RecordBatch:
        """The batch with the column, without low paragraphs, and with `drop` on what scores too low.

        score_N  uint16, in steps; low: the numbers of the lines of each document that go
        cut_N    int32: the score at which the best share ends, for documents that it leaves out; else -1
        """
        if self.min_paragraph is not None:
            batch = self._without_low(batch, low)
        batch = with_column(batch, f"quality.{self.column}", pa.array((score_N / STEPS).astype(np.float32)))
        low_N = score_N < self.min_score * STEPS if self.min_score is not None else np.zeros(len(batch), bool)
        if len(batch) and not self.judges(batch.column("source")[0].as_py()):
            low_N[:] = False
        values = [
            f"{score / STEPS:.4f} < {self.min_score:g}"
            if low
            else f"{score / STEPS:.4f}, the best share ends at {cut / STEPS:.4f}"
            for score, low, cut in zip(score_N.tolist(), low_N.tolist(), cut_N.tolist(), strict=True)
        ]
        reasons = ["quality.low" if low else "quality.below-top" for low in low_N.tolist()]
        return give_verdict(self, batch, low_N | (cut_N >= 0), reasons, values)

    def _without_low(self, batch: pa.RecordBatch, low: list) -> pa.RecordBatch:
        if any(low) and not self.mark:
            data_U8, offsets_N1 = text_buffers(batch.column("text"))
            bounds_N1, starts, stops = line_bounds(data_U8, offsets_N1)
            gone = np.zeros(len(starts), bool)
            for row, numbers in enumerate(low):
                gone[bounds_N1[row] + np.array(numbers or [], np.int64)] = True
            data_U8, offsets_N1 = cut_lines(data_U8, offsets_N1, bounds_N1, starts, stops, gone)
            batch = with_column(batch, "text", text_array(data_U8, offsets_N1))
        counts = pa.array([len(numbers or []) for numbers in low], pa.int32())
        return with_column(batch, f"quality.{self.column}.cut", counts)


class LocalQuality(RowStage, _Judge):
    """Scores with a model that is there, and thresholds that look at one document alone: one pass with its neighbours."""

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        scored = self.scored(batch, self.scorer())
        score_N = scored.column("score").to_numpy()
        return self.verdict(batch, score_N, scored.column("low").to_pylist(), np.full(len(batch), -1, np.int32))

    def explain(self, batch: pa.RecordBatch) -> list[str]:
        scored = self.scored(batch, self.scorer()).to_pylist()[0]
        low = (
            f", {len(scored['low'])} of its paragraphs below {self.min_paragraph:g}" if scored["low"] else ""
        )
        return [f"score {scored['score'] / STEPS:.4f}{low}"]


class Quality(GlobalStage, _Judge):
    """Adds `quality.<column>` (0 to 1); drops `quality.low` below `min_score`, and what is not in the best `keep_top`.

    Emission per document: a row of SCORED; where a model is trained first, `id`, `key` and `bytes`.
    Facts per part, a row for each of its rows: `score`, `low`, and `cut`, the score at which the best share ends (or null).
    """

    drops_only: ClassVar[bool] = False

    train: Annotated[
        Train | None, Field(description="In place of a model: sources to learn from, {good: [books], bad: [web]}.")
    ] = None
    keep_top: Annotated[
        Share | None,
        Field(
            gt=0, description="Of each source, only this share of its bytes of text stays: the best of it."
        ),
    ] = None

    @model_validator(mode="after")
    def _one_model(self) -> Quality:
        if (self.model is None) == (self.train is None):
            raise ValueError("either `model` or `train` says what is good: give one of the two")
        if self.train is not None and (self.label or self.form):
            raise ValueError("`label` and `form` belong to a `model`; what is trained here has its own")
        return self

    def simplest(self) -> Stage:
        """Row-local, if nothing is trained and no document is compared with another."""
        if self.train is not None or self.keep_top is not None:
            return self
        return LocalQuality.model_construct(**{name: getattr(self, name) for name in LocalQuality.model_fields})

    @property
    def has_facts(self) -> bool:
        """Always: the scores."""
        return True

    def runs_on(self, source: str) -> bool:
        return self.judges(source) or (self.train is not None and self.train.side(source) is not None)

    def emit(self, batch: pa.RecordBatch, first_row: int) -> pa.RecordBatch:  # noqa: ARG002
        """The scores, or what training wants to know of each document."""
        if self.train is None:
            return self.scored(batch, self.scorer())
        texts = batch.column("text")
        sizes = np.diff(text_buffers(texts)[1])
        columns = {"id": batch.column("id"), "key": pa.array(text_keys(texts)), "bytes": pa.array(sizes)}
        return pa.RecordBatch.from_arrays(list(columns.values()), list(columns))

    # ------------------------------------------------------------------------------------------ supersteps

    def supersteps(self, parts: tuple[PartInfo, ...]) -> tuple[Superstep, ...]:  # noqa: ARG002
        """The rounds."""
        first, scored = (STEPS_OF_LEARNING, ("scored",)) if self.train is not None else ((), ())
        if self.keep_top is None:
            return (*first, Superstep("settle", reads=scored))
        return (
            *first,
            Superstep("send", reads=scored),
            Superstep("choose", 1, ("bytes",)),
            Superstep("ties", reads=("cuts", *scored)),
            Superstep("divide", 1, ("ties",)),
            Superstep("settle", reads=("cuts", "stay", *scored)),
        )

    def offer(self, context: StepContext) -> dict[str, Outbox]:
        """See `learn.py`."""
        assert self.train is not None
        return learn.offer(self.train, context)

    def pick(self, context: StepContext) -> dict[str, Outbox]:
        """See `learn.py`."""
        assert self.train is not None
        return learn.pick(self.train, context)

    def bring(self, context: StepContext) -> dict[str, Outbox]:
        """See `learn.py`."""
        assert self.train is not None
        return learn.bring(self.train, context)

    def learn(self, context: StepContext) -> dict[str, Outbox]:
        """See `learn.py`."""
        assert self.train is not None
        return learn.learn(self.train, self.column, context)

    def score(self, context: StepContext) -> dict[str, Outbox]:
        """Scores of the documents of a part, by the model that was trained."""
        scorer = learn.scorer_of(context)
        batches = [self.scored(batch, scorer) for batch in context.documents(context.index)]
        return {"scored": Outbox(context.index, pa.Table.from_batches(batches, SCORED))}

    def _table(self, context: StepContext) -> pa.Table:
        """The scores of this part."""
        return context.emission(context.index) if self.train is None else context.inbox["scored"]

    def _counted(self, context: StepContext) -> tuple[pa.Table, np.ndarray]:
        """The scores of this part, and which of its documents count: those that `min_score` leaves."""
        table = self._table(context)
        counts = np.full(table.num_rows, self.judges(context.part.source))
        counts[context.dropped(context.index)] = False
        if self.min_score is not None:
            counts &= column_values(table, "score") >= self.min_score * STEPS
        return table, counts

    def send(self, context: StepContext) -> dict[str, Outbox]:
        """Bytes of the part by score."""
        table, counts = self._counted(context)
        scores, sizes = column_values(table, "score")[counts], column_values(table, "bytes")[counts]
        total = np.bincount(scores, sizes, STEPS + 1).astype(np.int64)
        used = np.flatnonzero(total)
        part = np.full(len(used), context.index, np.uint32)
        return {
            "bytes": Outbox(
                0, pa.table({"part": part, "score": used.astype(np.uint16), "bytes": total[used]})
            )
        }

    def choose(self, context: StepContext) -> dict[str, Outbox]:
        """The score at which the best share of each source ends, and how many bytes of that score stay."""
        assert self.keep_top is not None
        inbox = context.inbox["bytes"]
        part, score, size = (column_values(inbox, name) for name in ("part", "score", "bytes"))
        rows: list[tuple[int, int, int]] = []
        for source in dict.fromkeys(p.source for p in context.parts):
            members = [p.index for p in context.parts if p.source == source]
            mine = np.isin(part, members)
            total = np.bincount(score[mine].astype(np.int64), size[mine], STEPS + 1)[::-1]
            better = np.concatenate([[0.0], np.cumsum(total)])
            budget = self.keep_top * better[-1]
            place = (
                int(np.searchsorted(better, budget, side="left")) - 1
            )  # the last step of which some bytes fit
            place = min(max(place, 0), STEPS)
            rows += [(member, STEPS - place, int(np.ceil(budget - better[place]))) for member in members]
        address, cut, left = (np.array([row[i] for row in rows], np.int64) for i in range(3))
        return {
            "cuts": Outbox(address.astype(np.uint32), pa.table({"cut": cut.astype(np.uint16), "left": left}))
        }

    def ties(self, context: StepContext) -> dict[str, Outbox]:
        """The documents whose score is just that."""
        table, counts = self._counted(context)
        cut = column_values(context.inbox["cuts"], "cut")
        rows = (
            np.flatnonzero(counts & (column_values(table, "score") == cut[0]))
            if len(cut)
            else np.empty(0, np.int64)
        )
        part = np.full(len(rows), context.index, np.uint32)
        left = np.full(
            len(rows), column_values(context.inbox["cuts"], "left")[0] if len(cut) else 0, np.int64
        )
        chosen = table.take(pa.array(rows))
        tied = {
            "id": chosen.column("id"),
            "bytes": chosen.column("bytes"),
            "part": part,
            "row": rows,
            "left": left,
        }
        return {"ties": Outbox(0, pa.table(tied))}

    def divide(self, context: StepContext) -> dict[str, Outbox]:
        """Of the documents of one score, those that stay: by id, as long as bytes are left."""
        inbox = context.inbox["ties"]
        part, row, size, left = (column_values(inbox, name) for name in ("part", "row", "bytes", "left"))
        ids = fixed_words(inbox, "id", 2).byteswap()  # so that they compare as bytes do
        source_of = {p.index: p.source for p in context.parts}
        sources = np.array([source_of[p] for p in part.tolist()], str)
        stay = np.zeros(len(part), bool)
        for source in np.unique(sources):
            mine = np.flatnonzero(sources == source)
            mine = mine[np.lexsort((ids[mine, 1], ids[mine, 0]))]
            before = np.cumsum(size[mine]) - size[mine]
            stay[mine] = before < left[mine]
        return {"stay": Outbox(part[stay].astype(np.uint32), pa.table({"row": row[stay].astype(np.uint32)}))}

    def settle(self, context: StepContext) -> dict[str, Outbox]:
        """A row for each document: its score, its low lines, whether the cut of its source takes it."""
        table = self._table(context)
        score = column_values(table, "score")
        cut = np.full(len(score), -1, np.int32)
        if self.keep_top is not None and len(score) and self.judges(context.part.source):
            limit = column_values(context.inbox["cuts"], "cut")
            stays = score > limit[0]
            stays[column_values(context.inbox["stay"], "row")] = True
            cut[~stays] = limit[0]
            context.counters["below the best"] += int((~stays).sum())
        facts = pa.table({"score": score.astype(np.uint16), "cut": cut, "low": table.column("low")})
        return {"facts": Outbox(context.index, facts)}

    # ------------------------------------------------------------------------------------------ apply

    def apply(self, batch: pa.RecordBatch, facts: pa.Table, first_row: int) -> pa.RecordBatch:
        """The batch with the column, without low paragraphs, and with `drop` on what scores too low."""
        if "score" not in facts.column_names:
            return self.verdict(batch, np.zeros(0, np.uint16), [], np.zeros(0, np.int32))
        mine = facts.slice(first_row, len(batch))
        return self.verdict(
            batch, column_values(mine, "score"), mine.column("low").to_pylist(), column_values(mine, "cut")
        )


def _pieces(data_U8: np.ndarray, starts: np.ndarray, stops: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Buffers of these stretches of bytes, end to end."""
    offsets = np.concatenate([[0], np.cumsum(stops - starts)]).astype(np.int64)
    content = [data_U8[a:b] for a, b in zip(starts.tolist(), stops.tolist(), strict=True)]
    return np.concatenate([np.empty(0, np.uint8), *content]), offsets
