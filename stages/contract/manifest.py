"""`manifest.json`: what a corpus is, to the byte. No manifest, no corpus; it is written last.

It holds no time, host, absolute path or worker count: the same inputs and settings give the same bytes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from stages.contract.epochs import Rows
from stages.contract.files import sha256_file, write_atomic
from stages.contract.names import digest, source_uid
from stages.contract.order import ORDER_VERSION
from stages.contract.problem import Problem, SpecError
from stages.contract.rows import check_rows, rows_kind
from stages.contract.shard import (
    INDEX,
    FileFacts,
    check_file,
    check_marks,
    check_shard_content,
    read_index,
    token_dtype,
)
from stages.contract.weights import Phase

__all__ = [
    "Bucket", "Checks", "DamagedFile", "FileEntry", "FunnelStep", "Inputs", "Lengths", "Manifest", "RejectEntry",
    "Rejects", "Roundtrip", "ShardEntry", "SourceEntry", "TokenizerEntry", "load_manifest", "save", "source_digest",
    "source_uid", "verify_manifest",
]  # fmt: skip

FORMAT = 1
FILE_NAME = "manifest.json"


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class FileEntry(_Record):
    """Size and digest of a file. `name` is its path in the output folder where it does not follow from the shard's."""

    bytes: int
    sha256: str
    name: str | None = None

    @property
    def facts(self) -> FileFacts:
        return FileFacts(self.bytes, self.sha256)


class ShardEntry(_Record):
    """One shard. `files` has `tok` (or `arrow`), `idx`, `crc` (named `<name>.tok` ...), and may have `docs` and rows.

    segments  where tokens stand in an Arrow file: (first token, byte), rising
    rows      for each length that it is packed in, the rows of each of its groups
    """

    name: str
    documents: int
    tokens: int
    files: dict[str, FileEntry]
    segments: tuple[tuple[int, int], ...] = ()
    rows: dict[str, tuple[int, ...]] = Field(default_factory=dict)

    @property
    def token_kind(self) -> str:
        """The kind of file that holds the tokens: `tok`, or `arrow`."""
        return "arrow" if self.segments else "tok"

    @property
    def places(self) -> tuple[tuple[int, int], ...]:
        """Where its tokens stand in that file, as `shard.TokenFile` takes it."""
        return self.segments or ((0, 0),)

    def path(self, folder: Path, kind: str) -> Path:
        """Where the file of this kind lies."""
        return folder / (self.files[kind].name or f"{self.name}.{kind}")


class Lengths(_Record):
    """Histogram of document lengths in tokens, EOS included: bin i holds lengths in [edges[i], edges[i + 1])."""

    edges: tuple[int, ...] = ()
    documents: tuple[int, ...] = ()
    tokens: tuple[int, ...] = ()

    @classmethod
    def of(cls, lengths_D: np.ndarray) -> Self:
        """The histogram of these lengths, bins 1, 2, 4 … up to the longest."""
        if len(lengths_D) == 0:
            return cls()
        lengths = np.asarray(lengths_D, np.int64)
        bins = np.frexp(lengths.astype(np.float64))[1] - 1  # floor(log2), exact below 2^53
        size = int(bins.max()) + 1
        documents = np.bincount(bins, minlength=size)
        tokens = np.zeros(size, np.int64)
        np.add.at(tokens, bins, lengths)
        return cls(
            edges=tuple(1 << i for i in range(size)),
            documents=tuple(int(n) for n in documents),
            tokens=tuple(int(n) for n in tokens),
        )

    def __add__(self, other: Lengths) -> Lengths:
        """The histogram of both sets of documents."""
        long, short = (self, other) if len(self.edges) >= len(other.edges) else (other, self)
        pad = (0,) * (len(long.edges) - len(short.edges))
        return Lengths(
            edges=long.edges,
            documents=tuple(a + b for a, b in zip(long.documents, short.documents + pad, strict=True)),
            tokens=tuple(a + b for a, b in zip(long.tokens, short.tokens + pad, strict=True)),
        )


class Inputs(_Record):
    """The raw files of a source: how many, their bytes as stored, one digest over path and content of all."""

    files: int
    bytes: int
    digest: str


class FunnelStep(_Record):
    """What one stage did to one source: documents_in = documents_out + sum(dropped) + rejected."""

    stage: str
    documents_in: int
    documents_out: int
    dropped: dict[str, int] = Field(default_factory=dict)
    rejected: int = 0


class Bucket(_Record):
    """Which documents of a source are in this tier: those whose column is at least `low` and below `high`."""

    of: str
    by: str
    low: float | None = None
    high: float | None = None


class SourceEntry(_Record):
    """One source, or one quality tier of it. `documents`, `tokens`, `text_bytes`, `lengths` are of `shards` alone; the holdout is not in them."""

    uid: str
    digest: str
    license: str | None = None
    documents: int
    tokens: int
    text_bytes: int
    largest_id: int
    lengths: Lengths = Lengths()
    shards: tuple[ShardEntry, ...] = ()
    holdout: tuple[ShardEntry, ...] = ()
    bucket: Bucket | None = None
    inputs: Inputs | None = None
    funnel: tuple[FunnelStep, ...] = ()

    def packed(self) -> dict[int, Rows]:
        """The packed rows by length: those lengths that every shard is packed in."""
        lengths = set.intersection(*(set(shard.rows) for shard in self.shards)) if self.shards else set()
        return {int(length): self._rows(length) for length in sorted(lengths, key=int)}

    def _rows(self, length: str) -> Rows:
        groups = [count for shard in self.shards for count in shard.rows[length]]
        parts = (shard.files[rows_kind(int(length))].sha256 for shard in self.shards)
        return Rows(np.array(groups, np.int64), digest(*parts))


class TokenizerEntry(_Record):
    """The tokenizer that made the ids. `path` is relative to the manifest; `sha256` is of that file."""

    path: str
    sha256: str
    vocab_size: int
    eos_id: int
    largest_id: int


class Roundtrip(_Record):
    """How many documents were decoded again after encoding, and how many came out different."""

    documents: int
    failures: int


class Checks(_Record):
    """What the build checked about itself."""

    roundtrip: Roundtrip | None = None


class RejectEntry(_Record):
    """A record that no reader could take, or a document that no worker survived."""

    source: str
    uri: str
    record: int
    reason: str


class Rejects(_Record):
    """All rejected records by number, the first of them by name."""

    total: int = 0
    records: tuple[RejectEntry, ...] = ()


class DamagedFile(_Record):
    """A file whose rest could not be read. `records` were taken from it before that."""

    source: str
    uri: str
    records: int
    reason: str


class Manifest(_Record):
    """The whole of manifest.json."""

    format: Literal[1] = 1
    order_version: Literal[1] = 1
    name: str
    seed: int
    config_digest: str
    dtype: Literal["uint16", "uint32"]
    byte_order: Literal["little"] = "little"
    tokenizer: TokenizerEntry
    sources: dict[str, SourceEntry]
    mixture: dict[str, float] = Field(default_factory=dict)
    phases: tuple[Phase, ...] = ()
    checks: Checks = Checks()
    rejects: Rejects = Rejects()
    damaged: tuple[DamagedFile, ...] = ()
    quarantine: tuple[RejectEntry, ...] = ()

    def to_bytes(self) -> bytes:
        """The bytes of manifest.json: sorted keys, indent 1, UTF-8, newline at the end."""
        tree = self.model_dump(mode="json")
        return (
            json.dumps(tree, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"
        ).encode()

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of `to_bytes`."""
        return hashlib.sha256(self.to_bytes()).hexdigest()


def source_digest(shards: Sequence[ShardEntry]) -> str:
    """One digest over the content of the shards, in order; file names are not content."""
    return digest(*(shard.files[kind].sha256 for shard in shards for kind in (shard.token_kind, "idx")))


def save(folder: Path, manifest: Manifest) -> Path:
    """Writes manifest.json in one atomic step and returns its path."""
    path = folder / FILE_NAME
    write_atomic(path, manifest.to_bytes())
    return path


def load_manifest(path: Path) -> Manifest:
    """The manifest at `path` (the file, or the folder that holds it). SpecError says what is wrong with it."""
    file = path / FILE_NAME if path.is_dir() else path
    try:
        tree = json.loads(file.read_bytes())
    except OSError as error:
        raise SpecError(Problem("D001", f"there is no manifest at {file}: {error.strerror}", repairs=(
            "a corpus has a manifest only when its build is complete: run `pipeline build` to its end",
        ))) from error  # fmt: skip
    except ValueError as error:
        raise SpecError(Problem("D001", f"{file} is not JSON: {error}")) from error
    if not isinstance(tree, dict) or not isinstance(tree.get("format"), int) or "sources" not in tree:
        raise SpecError(Problem("D001", f"{file} is JSON, but no manifest of `pipeline build`"))
    if tree["format"] > FORMAT or tree.get("order_version", 0) > ORDER_VERSION:
        raise SpecError(Problem("D001", f"{file} has format {tree['format']}, order {tree.get('order_version')}; this "
                                        f"version reads format {FORMAT}, order {ORDER_VERSION}",
                                repairs=("install a newer gristmill", "build the corpus again with this one")))  # fmt: skip
    try:
        return Manifest.model_validate(tree)
    except ValidationError as error:
        raise SpecError(*(
            Problem("D001", f"{file}: {'.'.join(map(str, one['loc']))}: {one['msg']}") for one in error.errors()
        )) from error  # fmt: skip


def verify_manifest(folder: Path, manifest: Manifest, deep: bool = False) -> list[Problem]:
    """What is wrong with the corpus in `folder`; an empty list is a clean bill.

    Always: the numbers agree with each other; every file is there with its size; the first and the last tokens of
    every shard are those that were written. `deep` reads everything: digests, lengths, ids in the vocabulary, one EOS
    per document, every token once in packed rows. Each problem names file, stated and real value.
    """
    found = _check_numbers(manifest)
    tokenizer = manifest.tokenizer
    tokenizer_file = folder / tokenizer.path
    if not tokenizer_file.is_file():
        found.append(Problem("D002", f"{tokenizer_file} is missing"))
    elif (real := sha256_file(tokenizer_file)) != tokenizer.sha256:
        message = f"{tokenizer_file} has SHA-256 {real}, but the manifest states {tokenizer.sha256}"
        found.append(Problem("D002", message))
    for source in manifest.sources.values():
        for shard in (*source.shards, *source.holdout):
            found += _check_shard(folder, shard, tokenizer, deep)
    return found


def _check_shard(folder: Path, shard: ShardEntry, tokenizer: TokenizerEntry, deep: bool) -> list[Problem]:
    """What is wrong with the files of one shard."""
    found: list[Problem] = []
    for kind, entry in sorted(shard.files.items()):
        problem = check_file(shard.path(folder, kind), entry.facts, deep)
        found += [] if problem is None else [problem]
    if not _whole(folder, shard):
        return found
    tok = shard.path(folder, shard.token_kind)
    if not deep:
        if "crc" in shard.files:
            crc = shard.path(folder, "crc")
            problem = check_marks(tok, crc, shard.tokens, token_dtype(tokenizer.vocab_size), shard.places)
            found += [] if problem is None else [problem]
        return found
    numbers = (shard.documents, shard.tokens, tokenizer.vocab_size, tokenizer.eos_id)
    content = check_shard_content(folder / shard.name, *numbers, tok, shard.places)
    if not content:
        lengths = read_index(shard.path(folder, "idx"), shard.tokens)["length"].astype(np.int64)
        for length, groups in shard.rows.items():
            content += check_rows(shard.path(folder, rows_kind(int(length))), int(length), groups, lengths)
    return found + content


def _whole(folder: Path, shard: ShardEntry) -> bool:
    """Whether the files are there with their size, so that their content can be walked."""
    kinds = [kind for kind in shard.files if kind != "docs"]
    return {"idx", shard.token_kind} <= set(kinds) and all(
        (path := shard.path(folder, kind)).is_file() and path.stat().st_size == shard.files[kind].bytes
        for kind in kinds
    )


def _check_numbers(manifest: Manifest) -> list[Problem]:
    """Where the manifest contradicts itself."""
    found: list[Problem] = []
    tokenizer = manifest.tokenizer
    dtype = token_dtype(tokenizer.vocab_size)
    if manifest.dtype != dtype.name:
        found.append(Problem("D003", f"the manifest states {manifest.dtype}, but a vocabulary of "
                                     f"{tokenizer.vocab_size:,} entries is stored as {dtype.name}"))  # fmt: skip
    for name, source in manifest.sources.items():
        if source.largest_id >= tokenizer.vocab_size:
            found.append(Problem("D003", f"source {name} holds id {source.largest_id:,}, which a vocabulary of "
                                         f"{tokenizer.vocab_size:,} does not have"))  # fmt: skip
        for word in ("documents", "tokens"):
            total = sum(getattr(shard, word) for shard in source.shards)
            if total != getattr(source, word):
                found.append(Problem("D002", f"source {name} states {getattr(source, word):,} {word}, but its shards "
                                             f"add up to {total:,}"))  # fmt: skip
        if source.digest != source_digest(source.shards):
            found.append(Problem("D002", f"source {name} states another digest than that of its shards"))
        for shard in (*source.shards, *source.holdout):
            bytes_of = {"tok": shard.tokens * dtype.itemsize, "idx": shard.documents * INDEX.itemsize}
            for kind in ("idx", shard.token_kind, *(rows_kind(int(length)) for length in shard.rows)):
                size = bytes_of.get(kind)
                if kind not in shard.files:
                    found.append(Problem("D002", f"shard {shard.name} states no .{kind} file"))
                elif size is not None and shard.files[kind].bytes != size:
                    found.append(Problem("D002", f"shard {shard.name} states {shard.files[kind].bytes:,} bytes of "
                                                 f".{kind}, but its counts make {size:,}"))  # fmt: skip
    return found
