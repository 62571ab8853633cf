"""Copies of remote files on the local disk, within a bound, shared by the processes of a machine.

    GRISTMILL_CACHE        the folder; left out: gristmill-<user> in the folder for temporary files
    GRISTMILL_CACHE_SIZE   its bound, such as 50GiB; left out: half of what was free there

A file is fetched under a temporary name and renamed, so that a name is a whole file. The least recently used go first.
A process holds what it works with by hard links of its own until it calls `release`, so that nothing is taken away from
under it; what is held counts as soon as it is let go, hence a task may exceed the bound by what it reads at once.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import shutil
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

from stages.contract.scalars import read_size

#: Files are removed down to this share of the bound, so that not every fetch has to look for room.
_LOW = 0.9


class Cache:
    """One folder of copies."""

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder = folder
        self.limit = limit
        self._files = folder / "files"
        self._mine = folder / "held" / str(os.getpid())
        self._lock = threading.Lock()
        for path in (self._files, self._mine, folder / "tmp"):
            path.mkdir(parents=True, exist_ok=True)
        self._bury()
        self._filled = self._size()

    @property
    def scratch(self) -> Path:
        """A folder on the same disk for files in the making."""
        return self.folder / "tmp"

    def get(self, name: str, fetch: Callable[[Path], object]) -> Path:
        """The copy of the file called `name`; `fetch(path)` brings it when it is not here. The path holds until `release`."""
        key = _key(name)
        held, kept = self._mine / key, self._files / key
        with self._lock:
            if held.exists():
                return held
            try:
                os.utime(kept)
                os.link(kept, held)
            except FileNotFoundError:
                self._fetch(kept, held, fetch)
            return held

    def _fetch(self, kept: Path, held: Path, fetch: Callable[[Path], object]) -> None:
        temporary = self.scratch / secrets.token_hex(8)
        try:
            fetch(temporary)
            os.link(temporary, held)
            self._filled += temporary.stat().st_size
            os.replace(temporary, kept)
        finally:
            temporary.unlink(missing_ok=True)
        if self._filled > self.limit:
            self._evict()

    def keep(self, name: str, path: Path) -> None:
        """Takes a file of the same disk over as the copy of `name`, which is not held."""
        with self._lock:
            self._filled += path.stat().st_size
            os.replace(path, self._files / _key(name))
            if self._filled > self.limit:
                self._evict()

    def has(self, name: str) -> bool:
        """Whether there is a copy just now."""
        return (self._files / _key(name)).exists()

    def read(self, name: str) -> bytes | None:
        """The content of a copy, which is not held; None if there is none."""
        kept = self._files / _key(name)
        try:
            with open(kept, "rb") as file:
                os.utime(kept)
                return file.read()
        except FileNotFoundError:
            return None

    def put(self, name: str, data: bytes) -> None:
        """Keeps a copy of these bytes, which is not held."""
        temporary = self.scratch / secrets.token_hex(8)
        temporary.write_bytes(data)
        with self._lock:
            os.replace(temporary, self._files / _key(name))
            self._filled += len(data)
            if self._filled > self.limit:
                self._evict()

    def release(self) -> None:
        """Lets go of all that this process holds; what is open or mapped stays readable."""
        with self._lock:
            for path in self._mine.iterdir():
                path.unlink(missing_ok=True)

    def _size(self) -> int:
        return sum(size for _, size, _ in self._listed())

    def _listed(self) -> list[tuple[float, int, Path]]:
        found = []
        for path in self._files.iterdir():
            with contextlib.suppress(FileNotFoundError):
                stat = path.stat()
                found.append((stat.st_mtime, stat.st_size, path))
        return found

    def _evict(self) -> None:
        listed = sorted(self._listed())
        self._filled = sum(size for _, size, _ in listed)
        for _, size, path in listed:
            if self._filled <= self.limit * _LOW:
                break
            path.unlink(missing_ok=True)
            self._filled -= size

    def _bury(self) -> None:
        """Removes what processes that have died were holding."""
        for folder in (self.folder / "held").iterdir():
            if folder.name.isdigit() and not _alive(int(folder.name)):
                shutil.rmtree(folder, ignore_errors=True)


def _key(name: str) -> str:
    """The file name of a copy: a digest, and the suffixes, by which some readers go."""
    return hashlib.sha256(name.encode()).hexdigest()[:40] + "".join(Path(name).suffixes[-2:])[-24:]


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


_opened: dict[int, Cache] = {}


def release() -> None:
    """Lets go of the copies that this process holds, if it ever asked for one."""
    if os.getpid() in _opened:
        _opened[os.getpid()].release()


def cache() -> Cache:
    """The cache of this machine, as the environment says."""
    if os.getpid() not in _opened:
        named = os.environ.get("GRISTMILL_CACHE")
        folder = Path(named) if named else Path(tempfile.gettempdir()) / f"gristmill-{os.getuid()}"
        folder.mkdir(parents=True, exist_ok=True)
        given = os.environ.get("GRISTMILL_CACHE_SIZE")
        limit = read_size(given) if given else shutil.disk_usage(folder).free // 2
        _opened[os.getpid()] = Cache(folder, limit)
    return _opened[os.getpid()]
