"""What tasks return and the journal keeps: small frozen models that go to JSON and back.

Files are named by their content, so a record never points at something half-written or replaced.
"""

from __future__ import annotations

import builtins
import sys
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, GetCoreSchemaHandler
from pydantic.dataclasses import dataclass
from pydantic_core import core_schema


class Record(BaseModel):
    """Base: frozen, strict about unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class FileRef:
    """A sealed file in `work/data`: its name holds its digest. About 130 bytes: a build may know millions."""

    __slots__ = ("_kind", "_raw")

    def __init__(self, name: str, bytes: int, digest: str) -> None:
        """digest  SHA-256, hex; the name begins with its first half"""
        self._raw = bytes.to_bytes(8, "little") + builtins.bytes.fromhex(digest)
        self._kind = sys.intern(name[32:])

    @property
    def bytes(self) -> int:
        """Size of the file."""
        return int.from_bytes(self._raw[:8], "little")

    @property
    def name(self) -> str:
        """`<half of the digest>.<kind>`."""
        return f"{self._raw[8:24].hex()}{self._kind}"

    @property
    def digest(self) -> str:
        """SHA-256 of the content, hex."""
        return self._raw[8:].hex()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FileRef) and (self._raw, self._kind) == (other._raw, other._kind)

    def __hash__(self) -> int:
        return hash(self._raw)

    def __repr__(self) -> str:
        return f"FileRef({self.name}, {self.bytes} bytes)"

    def __reduce__(self) -> tuple[Any, ...]:
        return FileRef, (self.name, self.bytes, self.digest)

    @classmethod
    def _read(cls, value: Any) -> FileRef:
        return value if isinstance(value, FileRef) else cls(**value)

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        plain = core_schema.plain_serializer_function_ser_schema(
            lambda file: {"name": file.name, "bytes": file.bytes, "digest": file.digest}
        )
        return core_schema.no_info_plain_validator_function(cls._read, serialization=plain)


class StageCount(Record):
    """The account of one stage over some documents of one source: in = out + dropped + rejected."""

    stage: str
    documents_in: int = 0
    documents_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    dropped: dict[str, int] = {}
    rejected: dict[str, int] = {}
    totals: dict[str, int] = {}  # sums of the counting columns that the stage added (`pii.email` …)

    def balanced(self) -> bool:
        """Whether nothing was lost in silence."""
        gone = sum(self.dropped.values()) + sum(self.rejected.values())
        return self.documents_in == self.documents_out + gone


class Excerpt(Record):
    """The head of a document, for people; the smallest ids of a group are shown, so the choice is a function of content."""

    id: str
    uri: str
    record: int
    reason: str | None
    value: str | None
    text: str


class InputFile(Record):
    """A stretch of an input file as it was read: what decides whether it has to be read again."""

    uri: str
    start: int
    end: int | None
    size: int
    mtime_ns: int
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True, config=ConfigDict(extra="forbid"))
class Part:
    """A run of documents in canonical order: `base` holds whole rows; `overlay`, if any, selects rows and replaces columns."""

    source: Annotated[str, AfterValidator(sys.intern)]
    base: FileRef
    overlay: FileRef | None = None
    rows: int
    text_bytes: int

    def digest(self) -> str:
        """What the documents of this part are, as far as a cache key goes."""
        return self.base.digest + (self.overlay.digest if self.overlay else "")

    def files(self) -> list[FileRef]:
        """The files that the part needs."""
        return [self.base, *([self.overlay] if self.overlay else [])]


class Lost(Record):
    """A damaged input file: how far it could be read."""

    uri: str
    detail: str
    records: int


class PassRecord(Record):
    """What one part of one task of a pass came to."""

    part: Part
    dropped: FileRef | None = None  # rows: id, user_id, source, uri, record, stage, reason, value, text, row
    rejects: FileRef | None = None  # rows: source, uri, record, reason, detail
    tokens: FileRef | None = None  # the last pass: raw token ids
    token_count: int = 0
    largest_id: int = -1
    roundtrip: tuple[int, int] = (0, 0)  # documents decoded again, of them different
    counts: tuple[StageCount, ...] = ()
    kept: tuple[Excerpt, ...] = ()
    removed: tuple[Excerpt, ...] = ()
    inputs: tuple[InputFile, ...] = ()
    damaged: tuple[Lost, ...] = ()
    more: bool = False  # another part of the same task follows

    def files(self) -> list[FileRef]:
        """The files that the record needs."""
        maybe = [self.dropped, self.rejects, self.tokens]
        return [*self.part.files(), *(f for f in maybe if f is not None)]


class EmitRecord(Record):
    """What a global stage collected of a part."""

    file: FileRef

    def files(self) -> list[FileRef]:
        return [self.file]


class StepRecord(Record):
    """The outbox of one superstep task. `sends`: channel -> the address of its rows, `exchange.MANY` or `NOBODY`."""

    file: FileRef
    sends: dict[str, int]
    counters: dict[str, int] = {}

    def files(self) -> list[FileRef]:
        return [self.file]


class Routes(Record):
    """The outboxes that have rows of one channel, in the order of their producers, and for whom.

    to_one   address -> places in `boxes` of those that send to nobody else
    to_many  places of those that send to several addresses
    """

    boxes: tuple[FileRef, ...] = ()
    to_one: dict[int, tuple[int, ...]] = {}
    to_many: tuple[int, ...] = ()

    def of(self, address: int) -> list[FileRef]:
        """The boxes that may have rows for an address; if none has, one box of the channel, for its schema."""
        places = sorted((*self.to_many, *self.to_one.get(address, ())))
        return [self.boxes[place] for place in places] or list(self.boxes[:1])


class FactsRecord(Record):
    """What a global stage decided, per part index; where the evidence of each part is."""

    facts: dict[int, FileRef] = {}
    evidence: Routes = Routes()
    artifact: dict[str, FileRef] = {}
    counters: dict[str, int] = {}

    def files(self) -> list[FileRef]:
        return [*self.facts.values(), *self.evidence.boxes, *self.artifact.values()]


class AdoptRecord(Record):
    """A part of an earlier corpus, taken up to be deduplicated against: places of its documents, signatures, drops."""

    part: Part
    emission: FileRef
    dropped: FileRef

    def files(self) -> list[FileRef]:
        return [*self.part.files(), self.emission, self.dropped]


class ShardRecord(Record):
    """One finished shard, still under its content names. `tok` is the file of its tokens in either layout."""

    tok: FileRef
    idx: FileRef
    crc: FileRef
    docs: FileRef
    segments: tuple[tuple[int, int], ...] = ()  # where tokens stand in an Arrow file
    documents: int
    tokens: int
    largest_id: int
    text_bytes: int

    def files(self) -> list[FileRef]:
        return [self.tok, self.idx, self.crc, self.docs]


class RowsRecord(Record):
    """Packed rows of one length of one shard, and how many each group of documents has."""

    file: FileRef
    groups: tuple[int, ...]

    def files(self) -> list[FileRef]:
        return [self.file]


class TableRecord(Record):
    """A table for people (dropped documents, rejects) of one source."""

    file: FileRef
    rows: int

    def files(self) -> list[FileRef]:
        return [self.file]
