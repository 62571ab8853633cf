"""The two stage protocols and the registry.

A stage is a frozen pydantic model: its fields are its settings, its methods are what it does. So the
configuration grammar, the JSON Schema and the cache key all come from one class.

Row-local stages:  `apply(batch) -> batch`, nothing seen but the batch.
Global stages:     `emit(batch)` writes a few numbers per document; supersteps exchange rows between
                   partitions and parts (Bulk Synchronous Parallel, Valiant 1990) until there are facts per
                   part; `apply(batch, facts)` then acts on each document.

Laws (one parametrised test over the registry holds them): other batch cuts give the same rows; order is
kept; declared columns are exactly those added; an empty batch, an empty text and one row are fine.
"""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import numpy as np
import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field

from stages.contract.config import Share


class Stage(BaseModel):
    """What every stage has. Subclasses add their settings as fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, arbitrary_types_allowed=False)

    #: The name in corpus.yaml, and the first part of each drop reason.
    name: ClassVar[str]
    #: Raised by hand whenever output bytes change; part of every cache key.
    version: ClassVar[int] = 1
    #: Columns read beyond those of `document.DOCUMENT`.
    reads: ClassVar[tuple[str, ...]] = ()
    #: Whether `apply` may change `text`.
    changes_text: ClassVar[bool] = False

    #: CPUs and GPUs that a worker needs for it. A stage that uses threads or a model on a GPU asks for more.
    cpus: ClassVar[float] = 1.0
    gpus: ClassVar[float] = 0.0

    only: Annotated[tuple[str, ...] | None, Field(description="Run on these sources only.")] = None
    except_: Annotated[
        tuple[str, ...] | None, Field(alias="except", description="Run on all sources but these.")
    ] = None
    mark: Annotated[
        bool, Field(description="Write the verdict to the column `mark.<stage>` and drop nothing.")
    ] = False
    max_loss: Annotated[
        Share | None, Field(description="Stop the build when a source loses more than this share here.")
    ] = None

    def adds(self) -> dict[str, pa.DataType]:
        """The columns that `apply` adds, with their types."""
        return {}

    def memory(self) -> int:
        """Bytes that a worker needs for the models and lists of this stage, beside the batch."""
        return 0

    def recipe(self) -> dict[str, str]:
        """Versions and digests of the packages, tables and models whose output reaches the data."""
        return {}

    def remarks(self, documents: int, dropped: int, totals: Mapping[str, int]) -> list[str]:  # noqa: ARG002
        """What a build should say of the account of this stage over all sources; `totals` are sums of its columns."""
        return []

    def explain(self, batch: pa.RecordBatch) -> list[str]:  # noqa: ARG002
        """Why the stage does what it does to the one document of a batch, in lines for people."""
        return []

    def wants(self) -> tuple[str, ...]:
        """Columns that these settings name, which earlier stages must add."""
        return ()

    def problems(self) -> list[str]:
        """What is wrong with these settings beyond what types can say (a missing model file …), one sentence each."""
        return []

    def simplest(self) -> Stage:
        """A stage that does the same in fewer passes, where these settings allow one; else this one."""
        return self

    def runs_on(self, source: str) -> bool:
        """Whether the stage runs on this source."""
        if self.only is not None:
            return source in self.only
        return self.except_ is None or source not in self.except_


class RowStage(Stage):
    """A stage that sees one batch at a time."""

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch, same rows in the same order; `drop` set on rows to remove. Gets only rows still kept."""
        raise NotImplementedError


@dataclass(frozen=True)
class PartInfo:
    """One part (a file of documents) as a global stage sees it."""

    index: int  # place in the canonical order (source, path, slice, part)
    source: str
    rank: int  # of its source among the distinct priorities, 0 = best
    base: int  # global row number of its row 0: prefix sum of the rows before it
    rows: int
    fixed: bool = False  # of an earlier corpus: nothing of it is dropped; such parts come first and have rank 0


@dataclass(frozen=True)
class Superstep:
    """One round of a global stage: tasks that read their inbox and write an outbox.

    name     of the stage's method that runs it: `method(context) -> {channel: Outbox}`
    over     None = one task per part; a number = that many partitions, addressed 0 … over-1
    reads    channels of earlier supersteps that each task finds in its inbox; `*name` is what was sent to address 0,
             for every task, in the inbox as `name`
    """

    name: str
    over: int | None = None
    reads: tuple[str, ...] = ()

    def inbox(self, task: int) -> dict[str, tuple[str, int]]:
        """Name in the inbox -> (channel, address) for a task."""
        return {name.removeprefix("*"): (name.removeprefix("*"), 0 if name[0] == "*" else task) for name in self.reads}


@dataclass(frozen=True)
class Outbox:
    """Rows, each with the index of the task that will read it (uint32, one per row; or one for all)."""

    address: np.ndarray | int
    rows: pa.RecordBatch | pa.Table


@dataclass
class StepContext:
    """All that a superstep task may look at.

    parts       every part of the sources the stage runs on, canonical order (indices are into all parts)
    inbox       per channel one table; rows of one producer stay together, producers in index order
    emission    opens what `emit` wrote for a part (memory-mapped)
    dropped     rows of a part that an earlier stage of the same boundary already dropped (sorted uint32)
    documents   iterates the document batches of a part
    """

    index: int
    parts: tuple[PartInfo, ...]
    inbox: Mapping[str, pa.Table]
    emission: Callable[[int], pa.Table]
    dropped: Callable[[int], np.ndarray]
    documents: Callable[[int], Iterator[pa.RecordBatch]]
    seed: int = 0
    counters: Counter[str] = field(default_factory=Counter)  # for the report: `context.counters["pairs"] += n`

    @property
    def part(self) -> PartInfo:
        """The part of this task, in a superstep over parts."""
        return next(p for p in self.parts if p.index == self.index)


class GlobalStage(Stage):
    """A stage that must see all documents before it can decide about one.

    The channel `facts` of any superstep is addressed to parts and is what `apply` gets. Facts must not
    hold global row numbers: their digest is part of a cache key, and a new file shifts those numbers.
    The channel `evidence` (row u32, survivor_part u32, survivor_row u32, similarity f32), addressed to the
    part of `row`, names the kept document for each dropped one. The channel `artifact` (name string,
    content large_binary) is a set of files for the whole corpus.
    """

    #: Whether `apply` only drops (then neighbours of the kind share one pass over the documents).
    drops_only: ClassVar[bool] = True

    @property
    def has_facts(self) -> bool:
        """Whether there is anything to apply: a stage that neither drops nor changes text makes artifacts alone."""
        return self.drops_only or self.changes_text

    def fingerprint(self) -> dict[str, Any] | None:
        """All settings that emissions must share to be compared; None when later corpora cannot build on them.

        A stage that has one may have a field `against`: manifests of earlier corpora, whose documents then take part
        as survivors in fixed parts.
        """
        return None

    def emit(self, batch: pa.RecordBatch, first_row: int) -> pa.RecordBatch:
        """What the supersteps need of these documents; `first_row` is the row number of row 0 in its part."""
        raise NotImplementedError

    def supersteps(self, parts: tuple[PartInfo, ...]) -> tuple[Superstep, ...]:
        """The rounds for a corpus of this size."""
        raise NotImplementedError

    def apply(self, batch: pa.RecordBatch, facts: pa.Table, first_row: int) -> pa.RecordBatch:
        """The batch with `drop` set as the facts of its part say."""
        raise NotImplementedError


#: Name in corpus.yaml -> "module:Class". Modules are imported when a config names them.
REGISTRY: dict[str, str] = {
    "normalize": "stages.normalize:Normalize",
    "language": "stages.language:Language",
    "rules": "stages.rules:Rules",
    "exact-dedup": "stages.dedup.exact:ExactDedup",
    "minhash-dedup": "stages.dedup.minhash:MinhashDedup",
    "span-dedup": "stages.dedup.spans:SpanDedup",
    "pii": "stages.pii:Pii",
    "extract": "stages.extract:Extract",
    "urls": "stages.urls:Urls",
    "repeated-lines": "stages.repeated:RepeatedLines",
    "decontaminate": "stages.decontaminate:Decontaminate",
    "quality": "stages.quality:Quality",
    "words": "stages.words:Words",
    "datatrove": "stages.datatrove:Datatrove",
}

#: Names of the design that are not built yet: refused by name, never ignored.
PLANNED: tuple[str, ...] = ()


def stage_class(name: str) -> type[Stage]:
    """The class of a stage; `package.module:Class` names one of the user's own. KeyError if there is none."""
    target = name if ":" in name else REGISTRY[name]
    module, _, attribute = target.partition(":")
    found: Any = getattr(importlib.import_module(module), attribute)
    if not (isinstance(found, type) and issubclass(found, RowStage | GlobalStage)):
        raise TypeError(f"{name} is not a RowStage or GlobalStage")
    return found
