"""Checksums of blocks of tokens: `.crc`, written with a shard, looked at by whoever reads a few tokens of it."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from stages.contract.problem import Problem, RunError

if TYPE_CHECKING:
    from stages.contract.shard import TokenFile

#: Bytes of tokens that one checksum is over, and the type of it.
BLOCK = 1 << 16
CHECKSUM = np.dtype("<u4")


class Checksums:
    """CRC-32 of each `BLOCK` bytes of what goes through, whatever the cuts."""

    def __init__(self) -> None:
        self._done: list[int] = []
        self._open = 0  # checksum of the block that is being filled
        self._filled = 0  # bytes of it

    def add(self, data: bytes) -> None:
        """The bytes that follow."""
        view = memoryview(data)
        while len(view):
            part = view[: BLOCK - self._filled]
            self._open = zlib.crc32(part, self._open)
            self._filled += len(part)
            view = view[len(part) :]
            if self._filled == BLOCK:
                self._done.append(self._open)
                self._open = self._filled = 0

    def table(self) -> bytes:
        """The content of `.crc`: u32 for each block, the last of which may be short."""
        return np.array([*self._done, *([self._open] if self._filled else [])], CHECKSUM).tobytes()


class Guard:
    """Checks blocks of a file of tokens against their checksums when they are read for the first time."""

    def __init__(self, path: Path, tokens: int, dtype: np.dtype) -> None:
        """path  of `.crc`; RunError when it cannot be read or is not of this many tokens"""
        self._block = BLOCK // dtype.itemsize
        self._tokens = tokens
        self._wanted = _read_checksums(path, tokens * dtype.itemsize)
        self._unseen = bytearray(b"\1" * len(self._wanted))
        self._left = len(self._wanted)

    @property
    def done(self) -> bool:
        """Whether all blocks have been checked."""
        return not self._left

    def check(self, file: TokenFile, start: int, count: int) -> None:
        """Reads and checks the blocks that hold these tokens and were not checked before. RunError names the file."""
        high = (start + count - 1) // self._block + 1
        block = self._unseen.find(1, start // self._block, high)
        while block >= 0:
            first = block * self._block
            size = min(self._block, self._tokens - first)
            if zlib.crc32(file.read(first, size).data) != self._wanted[block]:
                message = f"{file.path} is damaged: tokens {first:,} to {first + size:,} are not those that were written"
                repairs = ("copy the file again from where it came, or make it again with `pipeline build`",)
                raise RunError(Problem("D002", message, repairs=repairs))
            self._unseen[block] = 0
            self._left -= 1
            block = self._unseen.find(1, block + 1, high)


def _read_checksums(path: Path, size: int) -> np.ndarray:
    """The checksums in a `.crc` file for `size` bytes of tokens. RunError when it has others."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RunError(Problem("D002", f"{path} cannot be read: {error.strerror}")) from error
    wanted = -(-size // BLOCK) * CHECKSUM.itemsize
    if len(data) != wanted:
        raise RunError(Problem("D002", f"{path} has {len(data):,} bytes; checksums of {size:,} bytes take {wanted:,}"))
    return np.frombuffer(data, CHECKSUM)
