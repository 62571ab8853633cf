"""What goes into a reader and what can come out of it beside document batches. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from stages.storage.access import Access

KIB = 1 << 10
MIB = 1 << 20

#: Why a record was not taken -> what that means. A reader uses no other word.
REJECT_REASONS: dict[str, str] = {
    "bad-json": "the line is not one JSON value",
    "not-object": "the JSON value is not an object",
    "too-deep": "arrays and objects are nested deeper than a reader follows",
    "missing-field": "a field that makes the text is not in the record",
    "not-text": "a field that makes the text is null or not a string",
    "not-utf8": "the bytes are not valid UTF-8",
    "too-large": "the text is larger than `max_document`",
    "binary": "a file of a source tree holds NUL bytes",
    "not-html": "a record of a web archive holds neither a page nor plain text",
    "http-status": "the server answered with an error or a redirection",
    "bad-coding": "the body of a response is compressed in a way that cannot be undone here",
    "damaged-record": "a record of a web archive cannot be read; those behind it can",
}

#: Why a file, or the rest of it, cannot be read -> what that means.
DAMAGE_REASONS: dict[str, str] = {
    "truncated": "the file ends before its format says it may",
    "corrupt": "a checksum or the structure of the file is wrong",
    "trailing-bytes": "something else follows the end of the compressed data",
    "wrong-format": "the content is not what the name or `format` says",
    "wrong-encoding": "record formats must be UTF-8",
    "missing-column": "a table has no column for the text",
}


@dataclass(frozen=True, slots=True)
class FileSlice:
    """A part of one file.

    path   absolute path, or any address fsspec understands; how the file is opened
    uri    the file's name relative to its source; part of every document's identity
    start, end   half-open range; end None = to the end of the file. Bytes of the stored file for plain
                 lines, for web archives and for zstd lines (there both stand where a frame starts), numbers
                 of row groups for Parquet, numbers of record batches for Arrow.
    """

    path: str
    uri: str
    start: int = 0
    end: int | None = None


@dataclass(frozen=True)
class ReadSettings:
    """How the records of one source become documents.

    format        one of `guess.FORMATS`; None = by the name of the file
    text          a field ("content"), a dotted field ("doc.body") or a template ("{title}\\n\\n{body}");
                  None = "text", or "messages" for chat records
    messages      name of a chat template (`template.CHAT`): the field holds a list of messages
    id            field of the user's own id; it may be missing
    keep_meta     fields carried along as a JSON object
    encoding      of `format: text`; "auto" has it told by statistics where the bytes are not UTF-8
    on_damaged    what the caller does with a `Damaged`; readers only report it
    max_document  bytes of UTF-8 of one text
    batch_bytes   a batch closes before it holds more text than this; a larger document is alone in its batch
    access        how the store behind its addresses is opened, where the environment does not say it all
    """

    source: str
    format: str | None = None
    text: str | None = None
    messages: str | None = None
    id: str = "id"
    keep_meta: tuple[str, ...] = ()
    encoding: Literal["utf-8", "auto"] = "utf-8"
    on_damaged: Literal["skip", "stop", "keep-good-part"] = "skip"
    max_document: int = 64 * MIB
    batch_bytes: int = 8 * MIB
    access: Access | None = None


class Reject(NamedTuple):
    """One record that did not become a document.

    record     where it starts: byte offset in the decompressed stream, or row number
    line_hint  its line, counted from 1, where the reader knows it (slices from the start of a file)
    reason     a key of `REJECT_REASONS`
    """

    uri: str
    record: int
    line_hint: int | None
    reason: str
    detail: str


class Damaged(NamedTuple):
    """The last thing a reader yields for a file it could not read to the end.

    `good_records` documents were yielded before it; whether they count is for the caller's `on_damaged`.
    `reason` is a key of `DAMAGE_REASONS`.
    """

    uri: str
    reason: str
    detail: str
    good_records: int


class Unfit(Exception):  # noqa: N818 - an outcome of one record, caught in the same package
    """This record cannot become a document: `(reason, detail)` as in `Reject`."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail


class DamagedStream(Exception):  # noqa: N818 - becomes a `Damaged`
    """The file cannot be read further: `(reason, detail)` as in `Damaged`."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail
