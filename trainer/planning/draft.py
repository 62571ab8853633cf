"""What is known of a plan while it is worked out: plan.yaml, the corpus, the machine, and what was found so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from stages.contract.config import Loaded
from stages.contract.epochs import Rows
from stages.contract.manifest import Manifest, SourceEntry
from stages.contract.mixture import Phase
from stages.contract.problem import Problem, SpecError, Where
from stages.contract.tree import Path, path_text
from trainer.config import NO_PLAN, PlanConfig
from trainer.planned import Note
from trainer.planning.solver import Number

#: Tokens of a source where there is no corpus: more than any run reads.
ENDLESS = 1 << 50


@dataclass(frozen=True)
class Machine:
    """What a plan may know of where it runs. Only `device` enters derived values, so that the same command gives the
    same data order on every CPU machine, and on every GPU machine."""

    device: Literal["cpu", "cuda"] = "cpu"
    cpus: int = 1  # cores; for the estimate of time alone
    world: int = 1  # ranks, each a replica of the data parallel group
    memory: int | None = None  # bytes of one accelerator
    gpu: str | None = None  # its model, for the estimate of time


@dataclass
class Draft:
    """What is known while a plan is worked out."""

    config: PlanConfig
    machine: Machine
    loaded: Loaded[PlanConfig] | None
    sources: dict[str, SourceEntry]
    manifests: Sequence[Manifest]
    mix: dict[str, float] = field(default_factory=dict)
    mix_is_default: bool = False
    phases: tuple[Phase, ...] = ()
    shares: dict[str, float] = field(default_factory=dict)  # of the positions of the run, once they are counted
    packed: dict[str, dict[int, Rows]] = field(default_factory=dict)  # rows of each source by length
    notes: list[Note] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    @property
    def on_cpu(self) -> bool:
        """Whether the plan is for a machine without accelerators."""
        return self.machine.device == "cpu"

    @property
    def tokens(self) -> dict[str, int]:
        """Stored tokens of each source; without a corpus, of each source that a mix names, without end."""
        if self.manifests:
            return {name: entry.tokens for name, entry in self.sources.items()}
        named = dict.fromkeys([*self.mix, *(name for phase in self.phases for name in phase.mix or ())])
        return dict.fromkeys(named or ["text"], ENDLESS)

    def given(self, path: Path) -> bool:
        """Whether plan.yaml or `--set` has a value."""
        return self.loaded is not None and self.loaded.given(path)

    def at(self, path: Path) -> Where | None:
        """Where a value stands; None for what no file and no `--set` gives."""
        where = self.loaded.where(path) if self.loaded is not None else None
        return None if where is None or where.file == NO_PLAN else where

    def value(self, name: str) -> Any:
        """The value of a key of plan.yaml by its dotted name; None where there is no such key."""
        node: Any = self.config
        for step in name.split("."):
            node = getattr(node, step, None)
        return node

    def numbers_given(self, names: Sequence[str]) -> dict[str, Number]:
        """Those of these keys that are given, with their values."""
        found = {name: self.value(name) for name in names if self.given(tuple(name.split(".")))}
        return {name: value for name, value in found.items() if value is not None}

    def note(self, path: Path, value: Any, why: str, origin: str = "default", section: str = "data") -> None:
        """A line for the table that is no number of an equation; what plan.yaml has is `given` whatever the reason."""
        if self.given(path):
            origin, why = "given", ""
        shown = f"{value:,}" if isinstance(value, int) else f"{value:g}" if isinstance(value, float) else str(value)
        assert origin in ("given", "derived", "default")
        self.notes.append(Note(path_text(path), shown, origin, why, section=section))  # type: ignore[arg-type]

    def error(self, code: str, message: str, path: Path, *repairs: str) -> None:
        """An error at a value of plan.yaml."""
        self.problems.append(Problem(code, message, self.at(path), repairs))

    def warn(self, message: str, path: Path, *repairs: str) -> None:
        """A warning at a value of plan.yaml."""
        self.problems.append(Problem("W001", message, self.at(path), repairs, severity="warning"))


def merged(manifests: Sequence[Manifest]) -> dict[str, SourceEntry]:
    """All sources by name, sorted. SpecError when the manifests cannot be read together."""
    found: dict[str, SourceEntry] = {}
    for manifest in manifests:
        first = manifests[0]
        if manifest.tokenizer.sha256 != first.tokenizer.sha256:
            raise SpecError(
                Problem("C017", f"the corpora {first.name} and {manifest.name} were made with different tokenizers: "
                                f"SHA-256 {first.tokenizer.sha256[:12]}… and {manifest.tokenizer.sha256[:12]}…",
                        repairs=("build both with the same tokenizer.path",))
            )  # fmt: skip
        for name, entry in manifest.sources.items():
            if name in found:
                message = f"two manifests have a source called {name}"
                raise SpecError(Problem("C017", message, repairs=("rename one and build again",)))
            found[name] = entry
    if manifests and not any(entry.tokens for entry in found.values()):
        raise SpecError(Problem("M001", f"the corpus {manifests[0].name} has no tokens at all"))
    return dict(sorted(found.items()))
