"""What may be changed about the data of a run that has begun: steps that are skipped, documents that are silenced."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

from stages.contract.mixture import Mixture
from trainer.planning.draft import Draft

_ID = re.compile(r"[0-9a-fA-F]{32}")


def check_skip(draft: Draft, mixture: Mixture) -> None:
    """Ranges of `data.skip` rise, do not touch each other and lie in the run."""
    steps = sum(phase.steps for phase in mixture.phases)
    skip = draft.config.data.skip
    for i, (a, b) in enumerate(skip):
        path = ("data", "skip", i)
        if not a < b:
            draft.error("C005", f"data.skip[{i}] is [{a:,}, {b:,}]: the first step must be below the second", path,
                        f"write [{a}, {a + 1}] to skip step {a:,} alone")  # fmt: skip
        elif b > steps:
            draft.error("C005", f"data.skip[{i}] ends at step {b:,}, but the data of the run ends at {steps:,}", path)
    if sum(b - a for a, b in skip) >= steps:
        draft.error("C005", "data.skip leaves no step of the run", ("data", "skip"))
    for (_, end), (start, _) in pairwise(skip):
        if start <= end:
            draft.error("C005", f"ranges of data.skip must rise and not touch: one ends at {end:,}, the next begins at "
                                f"{start:,}", ("data", "skip"), "sort them, and write touching ones as one")  # fmt: skip


def read_tombstones(draft: Draft) -> tuple[str, ...]:
    """The ids in the file `data.tombstones`, sorted; behind an id, and behind `#`, a line may say anything."""
    path = draft.config.data.tombstones
    if path is None:
        return ()
    place = ("data", "tombstones")
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        draft.error("D004", f"data.tombstones: {path} cannot be read: {error}", place)
        return ()
    found: set[str] = set()
    for number, line in enumerate(lines, 1):
        word = line.split("#")[0].split()[:1]
        if word and not _ID.fullmatch(word[0]):
            draft.error("C005", f"{path}, line {number}: `{word[0][:40]}` is no document id (32 hex digits)", place)
        found.update(one.lower() for one in word)
    draft.note(place, f"{len(found):,} documents", "", "derived")
    return tuple(sorted(found))
