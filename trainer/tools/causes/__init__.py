"""Why a run is not what it should be: each cause looks for its own evidence.

In the order a practitioner checks them: data, resume, numbers, the model, the learning rate, progress, speed, memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from trainer.tools.causes import data, learning, numbers, progress, running
from trainer.tools.causes.case import Case, Finding

Cause = Callable[[Case], Iterator[Finding]]

#: Every cause, in the order in which they are looked for; the first one wins among equally certain ones.
CAUSES: tuple[Cause, ...] = (
    data.labels, data.unshuffled, data.empty_documents, data.strange_shards,
    running.resume, running.order,
    numbers.scale_at_floor, numbers.not_finite,
    learning.frozen, learning.initialisation, learning.rate_too_high, learning.rate_too_low,
    progress.overfitting, progress.spikes, progress.stuck, learning.batch,
    running.waits_for_data, running.communication, running.memory,
)  # fmt: skip


def findings(case: Case) -> list[Finding]:
    """What was found, the most certain first."""
    found = [(rank, one) for rank, cause in enumerate(CAUSES) for one in cause(case)]
    return [one for _, one in sorted(found, key=lambda pair: (-pair[1].certainty, pair[0]))]
