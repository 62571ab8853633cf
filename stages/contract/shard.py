"""A shard on disk: `NNNNN.tok` (raw little-endian token ids), `NNNNN.idx` (one record per document), `NNNNN.crc`.

The last holds one CRC-32 for each 64 KiB of tokens, so that a reader of a few tokens can tell that they are those that
were written without reading the rest. In the layout `arrow` the tokens stand in an Arrow file instead of `.tok`; the
manifest says at which bytes, so that they are read in the same way, without Arrow.

Documents stand back to back and each ends with exactly one EOS, so the length of a document counts its EOS.
Boundaries are read from `.idx`, never found by scanning. Nothing is ever cast in silence: an id that the
vocabulary does not have is refused at write, because `70_000` as uint16 would become 4,464.
"""

from __future__ import annotations

import hashlib
import os
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import numpy as np

from stages.contract.checksums import Checksums, Guard
from stages.contract.files import atomic_file, on_disk, sha256_file, write_atomic
from stages.contract.problem import Problem, RunError

#: One record per document: tokens including the EOS, and the 16-byte document id.
INDEX = np.dtype([("length", "<u4"), ("id", "V16")])

#: Largest vocabulary whose ids fit two bytes.
SMALL_VOCABULARY = 65_536


def token_dtype(vocab_size: int) -> np.dtype:
    """How ids of this vocabulary are stored: `<u2` up to 65,536 entries, else `<u4`."""
    if not 0 < vocab_size <= 1 << 32:
        raise ValueError(f"a vocabulary of {vocab_size:,} entries has no token type")
    return np.dtype("<u2") if vocab_size <= SMALL_VOCABULARY else np.dtype("<u4")


@dataclass(frozen=True)
class FileFacts:
    """Size in bytes and SHA-256 (hex) of a file, as the manifest states them."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class ShardFacts:
    """What a written shard holds. `largest_id` is -1 for a shard without documents."""

    documents: int
    tokens: int
    largest_id: int
    tok: FileFacts
    idx: FileFacts
    crc: FileFacts


@dataclass(frozen=True)
class Documents:
    """A batch of documents on its way into a shard.

    tokens   any integer type, shape (T,): the documents back to back, each ending with EOS
    lengths  integers, shape (D,): tokens of each document, EOS included; they add up to T
    ids      V16, shape (D,)
    """

    tokens: np.ndarray
    lengths: np.ndarray
    ids: np.ndarray


def write_shard(base: Path, batches: Iterable[Documents], vocab_size: int, eos_id: int) -> ShardFacts:
    """Writes `<base>.tok`, `<base>.idx` and `<base>.crc` and returns what is in them.

    The files appear under their names only when complete. Raises ValueError on an id outside the vocabulary,
    a length that does not fit, or a document that does not hold exactly one EOS, at its end: each of these is a
    fault of the caller, never of the text.
    """
    dtype = token_dtype(vocab_size)
    documents = tokens = 0
    largest = -1
    checksums = Checksums()
    with ExitStack() as stack:
        tok, idx, crc = (
            _Hashing(stack.enter_context(atomic_file(Path(f"{base}.{kind}")))) for kind in ("tok", "idx", "crc")
        )
        for batch in batches:
            if len(batch.lengths) == 0:
                continue
            largest = max(largest, check_documents(batch, vocab_size, eos_id))
            data = np.ascontiguousarray(batch.tokens.astype(dtype, copy=False)).tobytes()
            checksums.add(data)
            tok.write(data)
            idx.write(index_records(batch).tobytes())
            documents += len(batch.lengths)
            tokens += len(batch.tokens)
        crc.write(checksums.table())
    return ShardFacts(documents, tokens, largest, tok.facts(), idx.facts(), crc.facts())


def index_records(batch: Documents) -> np.ndarray:
    """The records of `.idx` for these documents, dtype INDEX."""
    records = np.empty(len(batch.lengths), INDEX)
    records["length"] = batch.lengths
    records["id"] = batch.ids
    return records


def check_documents(batch: Documents, vocab_size: int, eos_id: int) -> int:
    """The largest id of the batch. ValueError where it breaks the format."""
    tokens, lengths = batch.tokens, batch.lengths
    if tokens.dtype.kind not in "iu" or lengths.dtype.kind not in "iu":
        raise ValueError(f"tokens and lengths must be integers, not {tokens.dtype} and {lengths.dtype}")
    if len(lengths) != len(batch.ids):
        raise ValueError(f"{len(lengths):,} lengths but {len(batch.ids):,} document ids")
    if int(lengths.min()) < 1 or int(lengths.max()) >= 1 << 32:
        raise ValueError("a document holds at least its EOS and at most 4,294,967,295 tokens")
    ends = np.cumsum(lengths, dtype=np.int64)
    if int(ends[-1]) != len(tokens):
        raise ValueError(f"lengths add up to {int(ends[-1]):,}, but there are {len(tokens):,} tokens")
    smallest, largest = int(tokens.min()), int(tokens.max())
    if smallest < 0 or largest >= vocab_size:
        wrong = smallest if smallest < 0 else largest
        raise ValueError(f"token id {wrong:,} is not in a vocabulary of {vocab_size:,} entries")
    at_ends = tokens[ends - 1] == eos_id
    if not at_ends.all() or int(np.count_nonzero(tokens == eos_id)) != len(lengths):
        raise ValueError(f"every document must hold the end token {eos_id:,} exactly once, at its end")
    return largest


class _Hashing:
    """A binary file that keeps the size and digest of what went through it."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        self._bytes = 0

    def write(self, data: bytes) -> None:
        self._file.write(data)
        self._hash.update(data)
        self._bytes += len(data)

    def facts(self) -> FileFacts:
        return FileFacts(self._bytes, self._hash.hexdigest())


def write_atomic_hashed(path: Path, data: bytes) -> FileFacts:
    """Puts the bytes at the path, all or nothing, and returns what the manifest says of them."""
    write_atomic(path, data)
    return FileFacts(len(data), hashlib.sha256(data).hexdigest())


class TokenFile:
    """An open file of tokens, read by `pread`, so that threads may share it.

    segments  (first token, byte where it stands), rising: the places of its tokens; `.tok` has all from byte 0 on
    """

    def __init__(self, path: Path, dtype: np.dtype, segments: Sequence[tuple[int, int]] = ((0, 0),)) -> None:
        self.path = path
        self.dtype = dtype
        self._firsts = [first for first, _ in segments]
        self._places = [place for _, place in segments]
        try:
            self._remote = path.blocks() if hasattr(path, "blocks") else None  # an address of a store
            self._fd = -1 if self._remote is not None else os.open(path, os.O_RDONLY)
        except OSError as error:
            raise RunError(Problem("D002", f"{path} cannot be read: {error.strerror or error}")) from error

    def read(self, start: int, count: int) -> np.ndarray:
        """`count` tokens from token number `start`, in the dtype of the file. RunError when it is too short."""
        out = np.empty(count, self.dtype)
        self.read_into(start, out)
        return out

    def read_into(self, start: int, out: np.ndarray) -> None:
        """Fills `out` (the dtype of the file) with the tokens from number `start` on. RunError when it is too short."""
        if len(self._firsts) == 1:
            self._fill(self._places[0] + start * self.dtype.itemsize, out.data.cast("B"), start)
            return
        done = 0
        while done < len(out):
            i = bisect_right(self._firsts, start + done) - 1
            until = self._firsts[i + 1] if i + 1 < len(self._firsts) else start + len(out)
            size = min(len(out) - done, until - start - done)
            at = self._places[i] + (start + done - self._firsts[i]) * self.dtype.itemsize
            self._fill(at, out[done : done + size].data.cast("B"), start)
            done += size

    def read_many(self, starts: Sequence[int], counts: Sequence[int], out: np.ndarray) -> None:
        """Fills `out` with stretches of tokens, one behind the other. RunError when the file is too short."""
        if self._remote is not None:
            width = self.dtype.itemsize
            self._remote.bring([self._stretch(start, count, width) for start, count in zip(starts, counts, strict=True)])
        if len(self._firsts) > 1 or self._remote is not None:
            done = 0
            for start, count in zip(starts, counts, strict=True):
                self.read_into(start, out[done : done + count])
                done += count
            return
        width, base, fd = self.dtype.itemsize, self._places[0], self._fd
        view = out.data.cast("B")
        done = 0
        for start, count in zip(starts, counts, strict=True):
            size = count * width
            part = view[done : done + size]
            try:
                got = os.preadv(fd, [part], base + start * width)
            except OSError as error:
                raise self._unreadable(error) from error
            if got != size:
                self._fill(base + start * width, part, start)
            done += size

    def _stretch(self, start: int, count: int, width: int) -> tuple[int, int]:
        """The bytes that hold these tokens, and what lies between them."""
        first = bisect_right(self._firsts, start) - 1
        last = bisect_right(self._firsts, start + max(count, 1) - 1) - 1
        begin = self._places[first] + (start - self._firsts[first]) * width
        return begin, self._places[last] + (start + count - self._firsts[last]) * width

    def _fill(self, at: int, view: memoryview, start: int) -> None:
        """The bytes from `at` on; one pread may legally return less than it was asked for."""
        end = at + len(view)
        if self._remote is not None:
            if self._remote.read_into(at, view) != len(view):
                size = self._remote.size
                message = f"{self.path} is too short: tokens from {start:,} on end at byte {end:,}, it has {size:,}"
                raise RunError(Problem("D002", message))
            return
        try:
            while view:
                got = os.preadv(self._fd, [view], end - len(view))
                if not got:
                    size = os.fstat(self._fd).st_size
                    message = f"{self.path} is too short: tokens from {start:,} on end at byte {end:,}, it has {size:,}"
                    raise RunError(Problem("D002", message))
                view = view[got:]
        except OSError as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: OSError) -> RunError:
        return RunError(Problem("D002", f"{self.path} cannot be read: {error.strerror or error}"))

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_tokens(path: Path, dtype: np.dtype, start: int, count: int) -> np.ndarray:
    """`count` tokens of a `.tok` file from token number `start`. RunError when they are not there."""
    with TokenFile(path, dtype) as file:
        return file.read(start, count)


def read_index(path: Path, tokens: int) -> np.ndarray:
    """The records (dtype INDEX) of an `.idx` file, memory-mapped. RunError when their lengths do not add up to `tokens`."""
    try:
        path = on_disk(path)
        size = path.stat().st_size
        whole = size % INDEX.itemsize == 0
        records = np.asarray(np.memmap(path, INDEX, "r")) if size and whole else np.empty(0, INDEX)
    except OSError as error:
        raise RunError(Problem("D002", f"{path} cannot be read: {error.strerror}")) from error
    if not whole:
        message = f"{path} has {size:,} bytes, which is no whole number of {INDEX.itemsize}-byte records"
        raise RunError(Problem("D002", message))
    total = int(records["length"].sum(dtype=np.int64))
    if total != tokens:
        message = f"lengths in {path} add up to {total:,} tokens, but the manifest states {tokens:,}"
        raise RunError(Problem("D002", message))
    return records


def check_file(path: Path, expected: FileFacts, deep: bool) -> Problem | None:
    """What is wrong with a file: missing, another size, and with `deep` another digest."""
    try:
        size = path.stat().st_size
    except OSError:
        return Problem("D002", f"{path} is missing: the manifest states {expected.bytes:,} bytes")
    if size != expected.bytes:
        return Problem("D002", f"{path} has {size:,} bytes, but the manifest states {expected.bytes:,}")
    if deep and (real := sha256_file(path)) != expected.sha256:
        return Problem("D002", f"{path} has SHA-256 {real}, but the manifest states {expected.sha256}")
    return None


def check_marks(tok: Path, crc: Path, tokens: int, dtype: np.dtype, segments: Sequence[tuple[int, int]]) -> Problem | None:
    """What is wrong with the first and the last block of a file of tokens: a foreign file of the same size shows here."""
    try:
        guard = Guard(crc, tokens, dtype)
        with TokenFile(tok, dtype, segments) as file:
            for start in {0, tokens - 1} if tokens else ():
                guard.check(file, start, 1)
    except RunError as error:
        return error.problems[0]
    return None


def check_shard_content(
    base: Path,
    documents: int,
    tokens: int,
    vocab_size: int,
    eos_id: int,
    tok: Path | None = None,
    segments: Sequence[tuple[int, int]] = ((0, 0),),
) -> list[Problem]:
    """What is wrong inside the tokens (`<base>.tok`, or `tok`) and `<base>.idx`, both of the right size.

    Reads every token: lengths add up, ids are in the vocabulary, each document holds one EOS, at its end.
    """
    dtype = token_dtype(vocab_size)
    tok = tok or Path(f"{base}.tok")
    try:
        records = read_index(type(base)(f"{base}.idx"), tokens)
    except RunError as error:
        return list(error.problems)
    found: list[Problem] = []
    if len(records) != documents:
        found.append(
            Problem(
                "D002", f"{base}.idx has {len(records):,} documents, but the manifest states {documents:,}"
            )
        )
    ends = np.cumsum(records["length"], dtype=np.int64)
    largest, eos_total, eos_at_end = -1, 0, 0
    block = 1 << 24
    with TokenFile(tok, dtype, segments) as file:
        for start in range(0, tokens, block):
            part = file.read(start, min(block, tokens - start))
            largest = max(largest, int(part.max()))
            is_eos = part == eos_id
            eos_total += int(np.count_nonzero(is_eos))
            inside = ends[(ends > start) & (ends <= start + len(part))] - 1 - start
            eos_at_end += int(np.count_nonzero(is_eos[inside]))
    if largest >= vocab_size:
        found.append(
            Problem(
                "D003", f"{tok} holds id {largest:,}, which a vocabulary of {vocab_size:,} does not have"
            )
        )
    if eos_total != len(records) or eos_at_end != len(records):
        found.append(
            Problem("D002", f"{tok} has {eos_total:,} end tokens, {eos_at_end:,} of them at the end of a "
                            f"document, but {base}.idx has {len(records):,} documents")
        )  # fmt: skip
    return found
