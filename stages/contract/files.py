"""Files that are either whole or not there.

One way to write, for shards, manifest, tokenizer and checkpoints: a temporary name in the same folder, fsync,
rename, fsync of the folder. A reader never sees half a file, and after a power cut the name is there only if the
bytes are. Leftovers of a killed process are called `.tmp-...`; nothing reads them.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

TEMPORARY = ".tmp-"


def write_atomic(path: str | Path, data: bytes) -> None:
    """Puts the bytes at the path, replacing what was there, all or nothing."""
    with atomic_file(path) as file:
        file.write(data)


@contextmanager
def atomic_file(path: str | Path) -> Iterator[BinaryIO]:
    """A file to write (and seek in) that gets its name when the block ends well; else it is removed.

    Folders above it are made. OSError as the file system raises it (no room, no permission).
    """
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


def sha256_file(path: str | Path) -> str:
    """SHA-256 of a file's bytes, 64 hex digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
