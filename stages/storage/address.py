"""An address of a store with the part of a path's interface that this project uses.

`located(text)` is a `Path` for what is on a disk and an `Address` for the rest, so code that only joins, lists, reads
and writes whole files takes both. Code that needs a file descriptor or a mapping calls `on_disk` (stages/contract/
files.py), which brings a copy. Listings are never taken from a cache.
"""

from __future__ import annotations

import fnmatch
import io
import json
import os
import posixpath
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, cast

from stages.storage.access import options_of
from stages.storage.blocks import Blocks
from stages.storage.cache import cache
from stages.storage.patience import patiently

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")

#: Bytes fetched at once by a file that is read from front to back.
READ_AHEAD = 8 << 20
#: A listing is read, and files are removed, so many at a time.
MANY = 1000


def is_address(text: str) -> bool:
    """Whether a text names a place on a store; `file://` is one on a disk."""
    found = _SCHEME.match(text)
    return found is not None and found[1] != "file"


def located(text: str | os.PathLike[str] | Address) -> Any:
    """The place that a text names: a `Path` of this machine, or an `Address`. Typed as Any because both will do."""
    if isinstance(text, Address):
        return text
    plain = os.fspath(text)
    if is_address(plain):
        return Address(plain)
    return Path(plain.removeprefix("file://"))


@lru_cache(maxsize=64)
def _file_system(protocol: str, options: str, pid: int) -> Any:  # noqa: ARG001 - a client does not survive a fork
    """The client of a store; `options` as JSON."""
    import fsspec

    fixed = {"use_listings_cache": False} if protocol != "memory" else {}
    return fsspec.filesystem(protocol, **json.loads(options), **fixed)


@dataclass(frozen=True)
class Stat:
    """What a store says of a file. `mark` changes when its content does (ETag, or time and size)."""

    st_size: int
    st_mtime: float
    mark: str


class Address:
    """A file or folder on a store. Equal addresses are equal values; it can be sent to other processes."""

    __slots__ = ("_url",)

    def __init__(self, url: str) -> None:
        scheme, _, rest = url.partition("://")
        self._url = f"{scheme}://{posixpath.normpath(rest).lstrip('/') if rest else ''}"

    # -- names

    def __str__(self) -> str:
        return self._url

    def __repr__(self) -> str:
        return f"Address({self._url!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Address) and other._url == self._url

    def __lt__(self, other: Address) -> bool:
        return self._url < other._url

    def __hash__(self) -> int:
        return hash(self._url)

    def __reduce__(self) -> tuple[Any, ...]:
        return Address, (self._url,)

    def __truediv__(self, name: str | PurePosixPath) -> Address:
        return Address(f"{self._url}/{name}")

    @property
    def name(self) -> str:
        """The last component."""
        return posixpath.basename(self._url)

    @property
    def stem(self) -> str:
        """The last component without its last suffix."""
        return PurePosixPath(self.name).stem

    @property
    def suffix(self) -> str:
        """The last suffix of the last component."""
        return PurePosixPath(self.name).suffix

    @property
    def parent(self) -> Address:
        """The folder that it is in."""
        return Address(posixpath.dirname(self._url))

    def relative_to(self, other: Address) -> PurePosixPath:
        """The path from a folder above it."""
        return PurePosixPath(self._url).relative_to(PurePosixPath(str(other)))

    # -- asking

    @property
    def _fs(self) -> Any:
        return _file_system(self._url.partition("://")[0], json.dumps(options_of(self._url), sort_keys=True), os.getpid())

    @property
    def _key(self) -> str:
        return str(self._fs._strip_protocol(self._url))

    def _try(self, word: str, *arguments: Any, **options: Any) -> Any:
        return patiently(lambda: getattr(self._fs, word)(*arguments, **options), self._url)

    def exists(self) -> bool:
        """Whether there is a file or a folder here."""
        return self.is_file() or self.is_dir()

    def is_file(self) -> bool:
        """Whether there is a file here."""
        try:
            self.stat()
        except (FileNotFoundError, IsADirectoryError):
            return False
        return True

    def is_dir(self) -> bool:
        """Whether anything lies below this address."""
        return any(True for _ in self._listing(1)) if not self.is_file() else False

    def stat(self) -> Stat:
        """Size, time and mark of the file. FileNotFoundError if there is none."""
        info = self._try("info", self._key)
        if info["type"] != "file":
            raise FileNotFoundError(self._url)
        return _stat(info)

    def iterdir(self) -> Iterator[Address]:
        """What lies directly in the folder, files and folders, in the order of their names."""
        for info in sorted(self._listing(1), key=lambda one: one["name"]):
            yield Address(self._fs.unstrip_protocol(info["name"]))

    def glob(self, pattern: str) -> Iterator[Address]:
        """What lies directly in the folder and has a name of this pattern."""
        return (path for path in self.iterdir() if fnmatch.fnmatchcase(path.name, pattern))

    def rglob(self, pattern: str) -> Iterator[Address]:
        """The files below the folder, at any depth, whose names have this pattern."""
        return (path for path in sorted(self.sizes()) if fnmatch.fnmatchcase(path.name, pattern))

    def sizes(self) -> dict[Address, int]:
        """The files below the folder, at any depth, with their bytes, in one listing."""
        return {Address(self._fs.unstrip_protocol(i["name"])): int(i["size"] or 0) for i in self._listing(None)}

    def _listing(self, depth: int | None) -> list[dict[str, Any]]:
        self._fs.invalidate_cache()
        try:
            if depth is None:
                return [i for i in self._try("find", self._key, detail=True).values() if i["name"] != self._key]
            found = self._try("ls", self._key, detail=True)
        except (FileNotFoundError, NotADirectoryError):
            return []
        return [i for i in found if i["name"].rstrip("/") != self._key.rstrip("/")]

    # -- reading

    def open(self, mode: str = "rb") -> BinaryIO:
        """The file, to be read and sought in; a line that breaks is picked up where it was."""
        assert mode == "rb", "files of a store are read here; they are written whole"
        return cast(BinaryIO, io.BufferedReader(_Patient(self), READ_AHEAD))

    def read_bytes(self) -> bytes:
        """All of the file."""
        return bytes(self._try("cat_file", self._key))

    def read_text(self, encoding: str = "utf-8") -> str:
        """All of the file as text."""
        return self.read_bytes().decode(encoding)

    def read_range(self, start: int, end: int) -> bytes:
        """The bytes from `start` up to `end`; fewer at the end of the file."""
        return bytes(self._try("cat_file", self._key, start=start, end=end))

    def read_ranges(self, ranges: Iterable[tuple[int, int]]) -> list[bytes]:
        """Several stretches `(start, end)` at once; stores answer them side by side."""
        wanted = list(ranges)
        starts, ends = [a for a, _ in wanted], [b for _, b in wanted]
        return [bytes(x) for x in self._try("cat_ranges", [self._key] * len(wanted), starts, ends, on_error="raise")]

    def local(self) -> Path:
        """A copy of the file on the local disk, good until the cache is released."""
        mark = self.stat().mark
        return cache().get(f"{self._url}#{mark}/{self.name}", self._fetch)

    def blocks(self) -> Blocks:
        """The file for reading here and there, by blocks that are kept on the local disk."""
        return Blocks(self)

    def _fetch(self, target: Path) -> None:
        self._try("get_file", self._key, str(target))

    # -- writing

    def write_bytes(self, data: bytes) -> int:
        """Puts the bytes here in one step, whatever was here before."""
        self._try("pipe_file", self._key, data)
        return len(data)

    def create(self, data: bytes) -> bool:
        """Puts the bytes here if nothing is; whether that is so. Of several that try at once one wins.

        An answer that got lost is asked for: who finds its own bytes has won. So they should be different for each.
        """
        try:
            if self._fs.protocol in ("s3", ("s3", "s3a")):
                self._try("pipe_file", self._key, data, mode="create")
            else:
                if self.is_file():
                    return False
                self._try("pipe_file", self._key, data)
        except (FileExistsError, PermissionError):
            pass
        return self.read_bytes() == data

    def put(self, path: Path) -> None:
        """Puts a local file here, whole, whatever was here before."""
        self._try("put_file", str(path), self._key)

    def copy_from(self, source: Address) -> None:
        """Puts what lies at `source` here; within one store the bytes do not come by this machine."""
        if self._fs is source._fs:
            self._try("copy", source._key, self._key)
        else:
            self.put(source.local())

    def unlink(self, missing_ok: bool = False) -> None:
        """Removes the file."""
        try:
            self._try("rm_file", self._key)
        except FileNotFoundError:
            if not missing_ok:
                raise

    def remove_all(self, names: Iterable[Address]) -> None:
        """Removes many files of this store."""
        keys = [one._key for one in names]
        for first in range(0, len(keys), MANY):
            self._try("rm", keys[first : first + MANY])

    def mkdir(self, parents: bool = True, exist_ok: bool = True) -> None:
        """Nothing: a store has no folders, only names with slashes."""


class SealedAddress(Address):
    """A folder of files that are named by their content, and the files in it: a copy of one is good for ever."""

    __slots__ = ()

    def __truediv__(self, name: str | PurePosixPath) -> SealedAddress:
        return SealedAddress(f"{self}/{name}")

    def __reduce__(self) -> tuple[Any, ...]:
        return SealedAddress, (self._url,)

    def local(self) -> Path:
        """A copy of the file on the local disk; the store is asked only when there is none."""
        return cache().get(self._url, self._fetch)

    def put_and_keep(self, path: Path) -> None:
        """Puts a local file here, and moves it to where `local` finds it."""
        self.put(path)
        cache().keep(self._url, path)


def _stat(info: dict[str, Any]) -> Stat:
    changed = next((info[k] for k in ("LastModified", "last_modified", "mtime", "created", "updated") if info.get(k)), 0)
    seconds = changed.timestamp() if hasattr(changed, "timestamp") else changed
    seconds = float(seconds) if isinstance(seconds, int | float) else 0.0
    mark = str(info.get("ETag") or info.get("etag") or f"{seconds}-{info.get('size')}").strip('"')
    return Stat(int(info.get("size") or 0), seconds, mark)


class _Patient(io.RawIOBase):
    """A remote file read in stretches, each of them a request that can be repeated."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._size = address.stat().st_size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + {0: 0, 1: self._at, 2: self._size}[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        end = min(self._at + len(view), self._size)
        if end <= self._at:
            return 0
        data = self._address.read_range(self._at, end)
        view[: len(data)] = data
        self._at += len(data)
        return len(data)
