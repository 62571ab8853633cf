"""What lies in the output folder already, so that a build that ends a second time moves nothing.

On a disk a placed file is another name of the sealed one. On a store it is a copy, so what was copied is written down:
`work/placed.json`, path in the output folder -> digest. It is written behind the copies, and a copy that is not in it
is made again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from pipeline.engine.records import FileRef
from pipeline.engine.store import Store
from pipeline.output.shards import place
from stages.contract.names import canonical_json

PLACED = "placed.json"
COPIES = 16  # at a time, on a store


class Placed:
    """The placed files of one output folder."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._note = store.work / PLACED
        self._known: dict[str, str] = {}
        self._sizes: dict[str, int] = {}
        if store.remote:
            try:
                self._known = json.loads(self._note.read_bytes())
            except (FileNotFoundError, ValueError):
                return
            self._sizes = {str(a.relative_to(store.out)): n for a, n in store.out.sizes().items()}

    def same(self, name: str, file: FileRef) -> bool:
        """Whether this sealed file is what lies at its name in the output folder."""
        if self._store.remote:
            return self._known.get(name) == file.digest and self._sizes.get(name) == file.bytes
        try:
            return bool((self._store.out / name).samefile(self._store.path(file)))
        except OSError:
            return False

    def put_all(self, files: Mapping[str, FileRef]) -> None:
        """Puts sealed files at their names."""
        missing = {name: file for name, file in files.items() if not self.same(name, file)}
        if not self._store.remote:
            for name, file in missing.items():
                place(self._store.path(file), self._store.out / name)
            return
        with ThreadPoolExecutor(COPIES) as pool:
            list(pool.map(lambda name: place(self._store.path(missing[name]), self._store.out / name), missing))
        self._known |= {name: file.digest for name, file in files.items()}
        self._note.write_bytes(canonical_json(self._known))
