"""Stages to passes: which stages run in one reading of the documents, and what each pass's bytes depend on.

Row-local stages between two global ones share a pass. Neighbouring global stages that only drop collect in one
pass. Training a tokenizer has a pass boundary of its own, because it must see what is left, and so does the last
pass, which turns text into ids.

    read normalize language rules [exact-dedup minhash-dedup] | drop pii [tokenizer] | tokenize
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from pipeline.engine.uses import Encoding, StageUse
from pipeline.engine.writer import TOKENIZE
from stages.contract.names import canonical_json, digest
from stages.stage import GlobalStage, RowStage, Stage

#: Raised whenever the engine itself changes the bytes of parts, facts or shards.
ENGINE_VERSION = 3

#: Settings that stop a build or say where a stage runs, but do not change what it does to a document.
NOT_BYTES = {"max_loss", "only", "except_"}


@dataclass(frozen=True)
class Pass:
    """One reading of the documents."""

    number: int
    before: tuple[StageUse, ...] = ()  # global stages whose facts are applied first
    rows: tuple[StageUse, ...] = ()
    after: tuple[StageUse, ...] = ()  # global stages that collect at the end
    encodes: bool = False

    @property
    def name(self) -> str:
        """For people: `read → normalize → [exact-dedup]`."""
        steps = ["read"] if self.number == 0 else []
        steps += [
            f"{'drop' if use.stage.drops_only else 'cut'} {use.label}"
            for use in self.before
            if isinstance(use.stage, GlobalStage) and use.stage.has_facts
        ]
        steps += [use.label for use in self.rows]
        steps += [TOKENIZE] if self.encodes else []
        steps += [f"[{use.label}]" for use in self.after]
        return " → ".join(steps)

    def rows_for(self, source: str) -> tuple[StageUse, ...]:
        """The row-local stages that run on a source."""
        return tuple(use for use in self.rows if use.stage.runs_on(source))

    def emits_for(self, source: str) -> tuple[StageUse, ...]:
        """The global stages that collect of a source at the end."""
        return tuple(use for use in self.after if use.stage.runs_on(source))

    def changes_text(self) -> bool:
        """Whether a stage of this pass may change text."""
        return any(use.stage.changes_text for use in (*self.before, *self.rows))

    def labels(self) -> list[str]:
        """The stages of the pass, for `--until`."""
        return [use.label for use in (*self.rows, *self.after)]


@dataclass
class _Draft:
    before: list[StageUse] = field(default_factory=list)
    rows: list[StageUse] = field(default_factory=list)
    after: list[StageUse] = field(default_factory=list)


def label_stages(stages: Sequence[tuple[str, Stage]]) -> list[StageUse]:
    """Each stage with a label of its own: the second `rules` is `rules-2`."""
    seen: Counter[str] = Counter()
    uses = []
    for name, stage in stages:
        seen[name] += 1
        uses.append(StageUse(name if seen[name] == 1 else f"{name}-{seen[name]}", stage))
    return uses


def plan_passes(uses: Sequence[StageUse]) -> tuple[Pass, ...]:
    """The passes for these stages, in order; the last one encodes."""
    drafts = [_Draft()]
    for use in uses:
        current = drafts[-1]
        if isinstance(use.stage, RowStage):
            if current.after:
                current = _next(drafts)
            current.rows.append(use)
        elif isinstance(use.stage, GlobalStage):
            shares = use.stage.drops_only and all(_drops(other) for other in current.after)
            if current.after and not shares:
                current = _next(drafts)
            current.after.append(use)
    if drafts[-1].after:
        _next(drafts)
    last = len(drafts) - 1
    return tuple(
        Pass(i, tuple(d.before), tuple(d.rows), tuple(d.after), encodes=i == last)
        for i, d in enumerate(drafts)
    )


def _drops(use: StageUse) -> bool:
    return isinstance(use.stage, GlobalStage) and use.stage.drops_only


def _next(drafts: list[_Draft]) -> _Draft:
    drafts.append(_Draft(before=list(drafts[-1].after)))
    return drafts[-1]


def stage_digest(use: StageUse) -> str:
    """What a stage does to a document, as a digest: settings, version, recipe."""
    stage = use.stage
    settings = {
        k: v for k, v in stage.model_dump(mode="json", context={"digest": True}).items() if k not in NOT_BYTES
    }
    return digest(
        use.label, str(type(stage).version), canonical_json(settings), canonical_json(stage.recipe())
    )


def pass_digest(plan: Pass, source: str, encoding: Encoding | None, tokenizer: str | None) -> str:
    """What a pass does to the documents of one source. What it collects for later is keyed apart."""
    parts = [f"engine {ENGINE_VERSION}", f"pass {plan.number == 0}"]
    parts += [stage_digest(use) for use in (*plan.before, *plan.rows) if use.stage.runs_on(source)]
    if encoding is not None:
        parts += [tokenizer or "", str(encoding.eos), str(encoding.holdout_seed)]
    return digest(*parts)
