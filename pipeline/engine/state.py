"""What a build knows while it runs: parts and their accounts, boundaries and their facts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pipeline.engine.inputs import SourceInputs
from pipeline.engine.records import Excerpt, FactsRecord, FileRef, Part, PassRecord, StageCount
from pipeline.engine.task import StageUse


@dataclass
class PartState:
    """One part on its way through the passes, with everything that was booked about its documents."""

    source: str
    place: tuple[str, int, int]  # first uri, first byte, part number: canonical order inside the source
    record: PassRecord
    counts: list[StageCount] = field(default_factory=list)
    removed: list[Excerpt] = field(default_factory=list)
    kept: list[Excerpt] = field(default_factory=list)
    dropped: list[tuple[int, FileRef]] = field(default_factory=list)  # (pass number, table)
    rejects: list[FileRef] = field(default_factory=list)

    def book(self, number: int, record: PassRecord) -> None:
        """Takes over what a pass made of this part."""
        self.record = record
        self.counts += record.counts
        self.removed += record.removed
        self.kept = list(record.kept)
        if record.dropped is not None:
            self.dropped.append((number, record.dropped))
        if record.rejects is not None:
            self.rejects.append(record.rejects)


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
    boundaries: list[BoundaryState] = field(default_factory=list)
    input_files: dict[str, list] = field(default_factory=dict)  # source -> InputFile records
    damaged: list[dict] = field(default_factory=list)
    quarantine: list[dict] = field(default_factory=list)
    ran: dict[str, int] = field(default_factory=dict)  # name of a set of tasks -> tasks that really ran


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
