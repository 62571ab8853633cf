"""The stages, and what they are made of.

Compiled kernels are kept between runs, for exactly the sources they were compiled from. numba looks only at the file that a
kernel stands in, but compiles into it what it calls in other files: so each state of all files with kernels gets a folder of
its own here, before numba is imported, and a folder that no process has begun with for a week is removed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from pathlib import Path

_FOLDER = "kernels-"
_WEEK = 7 * 24 * 3600


def _keep_kernels(here: Path) -> None:
    named = os.environ.get("NUMBA_CACHE_DIR")
    if named and not Path(named).name.startswith(_FOLDER):  # named by the user, not by a process that started this one
        return
    state = hashlib.sha256()
    for path in sorted(here.rglob("*.py")):
        text = path.read_bytes()
        if b"numba" in text:
            state.update(hashlib.sha256(text).digest())
    folder = here / "__pycache__" / f"{_FOLDER}{state.hexdigest()[:16]}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        os.utime(folder)
        old = [one for one in folder.parent.glob(f"{_FOLDER}*") if one.stat().st_mtime < time.time() - _WEEK]
    except OSError:  # not ours to write to, as in a system's Python: numba finds another place
        os.environ.pop("NUMBA_CACHE_DIR", None)
        return
    for other in old:
        shutil.rmtree(other, ignore_errors=True)
    os.environ["NUMBA_CACHE_DIR"] = str(folder)


_keep_kernels(Path(__file__).parent)
