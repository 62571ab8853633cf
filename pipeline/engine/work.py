"""The work folder as a task sees it: sealed files to read, a place for files in the making, and the way from there.

On a disk that all nodes see a file in the making lies in `tmp/` beside `data/` and is renamed. On a store it is made
on the node's own disk and put into `data/` in one request: a sealed name is the digest of its content, so it does not
matter who puts it there, or how often.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from stages.contract.files import fsync_folder
from stages.storage.address import Address, SealedAddress, located
from stages.storage.cache import cache


class Work:
    """One work folder. `data` takes names of sealed files (`work.data / name`): a path, or an address."""

    def __init__(self, place: str | Path | Address) -> None:
        self.place: Any = located(place)
        self.remote = isinstance(self.place, Address)
        self.data: Any = data_of(self.place)
        self.tmp: Path = cache().scratch if self.remote else self.place / "tmp"

    def seal(self, path: Path, name: str) -> None:
        """Gives a finished file (synced already) its sealed name. On a store it is sent."""
        if not self.remote:
            os.replace(path, self.data / name)
            fsync_folder(self.data)
            return
        (self.data / name).put_and_keep(path)


def data_of(place: Any) -> Any:
    """The folder of sealed files of a work folder (path or address)."""
    return SealedAddress(f"{place}/data") if isinstance(place, Address) else place / "data"
