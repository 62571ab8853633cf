"""Files that are either whole or not there.

One way to write, for shards, manifest, tokenizer and checkpoints: a temporary name in the same folder, fsync,
rename, fsync of the folder. A reader never sees half a file, and after a power cut the name is there only if the
bytes are. Leftovers of a killed process are called `.tmp-...`; nothing reads them.

Paths may be addresses of a store (`stages/storage`), which are told by what they can do: a file goes there whole, in
one request; `on_disk` brings a copy of one.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

TEMPORARY = ".tmp-"


def on_disk(path: Any) -> Path:
    """A file on a disk of this machine: a path is that already, an address brings a copy."""
    local = getattr(path, "local", None)
    return Path(path) if local is None else local()


def write_atomic(path: Any, data: bytes) -> None:
    """Puts the bytes at the path or address, replacing what was there, all or nothing."""
    if hasattr(path, "put"):
        path.write_bytes(data)
        return
    with atomic_file(path) as file:
        file.write(data)


@contextmanager
def atomic_file(path: Any) -> Iterator[BinaryIO]:
    """A file to write (and seek in) that gets its name when the block ends well; else it is removed.

    Folders above it are made. OSError as the file system raises it (no room, no permission).
    """
    if hasattr(path, "put"):
        with tempfile.TemporaryDirectory(prefix="gristmill-") as folder:
            made = Path(folder) / "file"
            with open(made, "x+b") as file:
                yield file
            path.put(made)
        return
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.parent / f"{TEMPORARY}{secrets.token_hex(8)}"
    file = open(temporary, "x+b")  # closed before the rename, and on every way out
    try:
        yield file
        file.flush()
        os.fsync(file.fileno())
        file.close()
        os.replace(temporary, target)
    except BaseException:
        file.close()
        temporary.unlink(missing_ok=True)
        raise
    fsync_folder(target.parent)


def fsync_folder(path: str | Path) -> None:
    """Makes the names in a folder durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sha256_file(path: Any) -> str:
    """SHA-256 of the bytes of a file (path or address), 64 hex digits."""
    with path.open("rb") if hasattr(path, "put") else open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
