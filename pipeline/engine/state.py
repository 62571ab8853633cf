"""What a build knows while it runs: parts, the accounts of each source, boundaries and their facts.

Of a part only what later steps need is kept, about a kilobyte; its whole record is in the journal. Accounts and
excerpts are added up as parts are booked, in canonical order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipeline.engine.inputs import SourceInputs
from pipeline.engine.origin import InputSlice
from pipeline.engine.records import Excerpt, FactsRecord, FileRef, Part, PassRecord, StageCount
from pipeline.engine.tally import Tally
from pipeline.engine.uses import StageUse
from pipeline.engine.writer import EXCERPTS


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is kept of the last record of a part."""

    part: Part
    tokens: FileRef | None
    token_count: int
    largest_id: int

    @classmethod
    def of(cls, record: PassRecord) -> Outcome:
        """The outcome that a record tells of."""
        return cls(record.part, record.tokens, record.token_count, record.largest_id)


@dataclass(slots=True)
class PartState:
    """One part on its way through the passes."""

    source: str
    place: tuple[str, int, int]  # first uri, first byte, part number: canonical order inside the source
    record: Outcome
    dropped: tuple[FileRef, ...] = ()  # a table of each pass that dropped something
    rejects: tuple[FileRef, ...] = ()

    def book(self, record: PassRecord) -> None:
        """Takes over what a pass made of this part."""
        self.record = Outcome.of(record)
        if record.dropped is not None:
            self.dropped += (record.dropped,)
        if record.rejects is not None:
            self.rejects += (record.rejects,)


@dataclass
class Ledger:
    """The accounts of one source over all its parts, and excerpts for people."""

    tally: Tally = field(default_factory=Tally)
    kept: list[Excerpt] = field(default_factory=list)
    decoded: int = 0  # documents that were decoded again, and of them those that came out different
    different: int = 0
    _kept_of: int = -1  # the pass that they are of
    _removed: dict[str | None, list[Excerpt]] = field(default_factory=dict)  # by reason

    def book(self, number: int, record: PassRecord) -> None:
        """Adds what a pass did to one part."""
        for count in record.counts:
            self.tally.add(count)
        self.decoded += record.roundtrip[0]
        self.different += record.roundtrip[1]
        if number != self._kept_of:
            self.kept, self._kept_of = [], number
        self.kept = _first([*self.kept, *record.kept])
        for excerpt in record.removed:
            mine = self._removed.get(excerpt.reason, [])
            self._removed[excerpt.reason] = _first([*mine, excerpt])

    @property
    def removed(self) -> list[Excerpt]:
        """Some of what was dropped, for each reason."""
        return [excerpt for mine in self._removed.values() for excerpt in mine]

    def counts(self, order: Sequence[str]) -> list[StageCount]:
        """The sums per stage, in this order of stages."""
        found = {count.stage: count for count in self.tally.counts()}
        return [found[stage] for stage in order if stage in found]


def _first(excerpts: list[Excerpt]) -> list[Excerpt]:
    return sorted(excerpts, key=lambda e: e.id)[:EXCERPTS]


@dataclass
class BoundaryState:
    """A global stage that has run: its facts, and the parts as they were then."""

    use: StageUse
    number: int  # of the pass that collected for it
    facts: FactsRecord
    parts: dict[int, Part]
    emissions: dict[int, FileRef] = field(default_factory=dict)


@dataclass
class BuildState:
    """What a build knows so far."""

    inputs: dict[str, SourceInputs]
    parts: list[PartState] = field(default_factory=list)
    given_up: list[PartState] = field(
        default_factory=list
    )  # of damaged files that are skipped: only their accounts count
    ledgers: dict[str, Ledger] = field(default_factory=dict)  # by source
    boundaries: list[BoundaryState] = field(default_factory=list)
    input_digests: dict[str, bytearray] = field(
        default_factory=dict
    )  # source -> the SHA-256 of each stretch that was read, one behind the other in the order of its tasks
    damaged: list[dict] = field(default_factory=list)
    quarantine: list[dict] = field(default_factory=list)
    ran: dict[str, int] = field(default_factory=dict)  # name of a set of tasks -> tasks that really ran

    def input_files(self, source: str) -> Iterator[tuple[InputSlice, str]]:
        """Each stretch of the files of a source, and the SHA-256 of its stored bytes; none for what is no source."""
        if source in self.input_digests:
            digests = self.input_digests[source]
            slices = (one for task in self.inputs[source].tasks for one in task.slices)
            yield from ((one, digests[32 * n : 32 * n + 32].hex()) for n, one in enumerate(slices))

    def ledger(self, source: str) -> Ledger:
        """The accounts of a source."""
        return self.ledgers.setdefault(source, Ledger())


@dataclass(frozen=True)
class BuildResult:
    """What a build came to."""

    manifest: Any  # where it lies: a path, an address, or None
    state: BuildState
    accounts: dict[str, list[StageCount]]
    documents: int
    tokens: int
    seconds: float

    @property
    def exit_code(self) -> int:
        """0, or 3 when something was left out that the user should look at."""
        return 3 if self.state.damaged or self.state.quarantine else 0
