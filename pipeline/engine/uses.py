"""What a task applies to documents: stages at their places in the config, and how text becomes ids."""

from __future__ import annotations

from dataclasses import dataclass

from stages.stage import Stage


@dataclass(frozen=True)
class StageUse:
    """A stage at its place in the config; the label tells two uses of one stage apart (`rules`, `rules-2`)."""

    label: str
    stage: Stage


@dataclass(frozen=True)
class Encoding:
    """How the last pass turns text into ids."""

    tokenizer: str  # path or address of tokenizer.json
    eos: str | None
    holdout_seed: int
