"""What a build will do, before it does it: inputs, passes, sizes. `plan` prints the object that `build` runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.corpus import Corpus
from pipeline.engine.inputs import SourceInputs, cut
from pipeline.engine.passes import Pass, label_stages, plan_passes
from pipeline.engine.uses import StageUse
from pipeline.output.against import check_references
from pipeline.trained import trainer
from stages.contract.problem import GristmillError, Problem, SpecError, Where
from stages.readers import FORMATS, list_files
from stages.storage.address import is_address, located
from stages.storage.patience import without_secrets

TOKENIZER = "tokenizer"  # the label of the stage that trains one
LARGE = 1 << 30  # an unsplittable file above this is named


@dataclass(frozen=True)
class Plan:
    """A corpus with its inputs listed and its stages ordered into passes."""

    corpus: Corpus
    passes: tuple[Pass, ...]
    inputs: dict[str, SourceInputs]

    @property
    def out(self) -> Any:
        """The output folder."""
        return located(self.corpus.output.path)

    def labels(self) -> list[str]:
        """What `--until` may name."""
        return [label for plan in self.passes for label in plan.labels()]


def _refused(name: str, error: Exception, where: Where | None) -> Problem:
    """A store that does not take what it was given: credentials that are missing or wrong, an option it does not know."""
    return Problem(
        "D005",
        f"sources.{name}: the store cannot be opened: {type(error).__name__}: {without_secrets(str(error))}",
        where,
        (f"sources.{name}.storage_options and the environment say how; docs/clusters.md lists the variables",),
    )


def make_plan(corpus: Corpus) -> Plan:
    """Lists the inputs and orders the passes. SpecError if an input is not there or a format cannot be told."""
    uses = label_stages([(stage.name, stage) for stage in corpus.stages])
    if corpus.tokenizer.path is None:
        uses.append(StageUse(TOKENIZER, trainer(corpus)))
    problems: list[Problem] = []
    inputs = {}
    for name in corpus.sources:
        found, wrong = _list(corpus, name)
        problems += wrong
        inputs[name] = found
    problems += check_references(corpus.stages)
    if problems:
        raise SpecError(*problems)
    return Plan(corpus, plan_passes(uses), inputs)


def priority_ranks(corpus: Corpus) -> dict[str, int]:
    """Rank of each source among the distinct priorities, 0 = the one whose documents survive."""
    order = sorted({source.priority for source in corpus.sources.values()}, reverse=True)
    return {name: order.index(source.priority) for name, source in corpus.sources.items()}


def _list(corpus: Corpus, name: str) -> tuple[SourceInputs, list[Problem]]:
    source = corpus.sources[name]
    where = corpus.where(("sources", name, "path"))
    settings = source.settings(name)
    inputs = SourceInputs(name, settings)
    if settings.access is not None:
        settings.access.allow()
    try:
        listing = list_files(list(source.path), str(Path(corpus.file).parent), source.format)
    except (OSError, ValueError) as error:
        return inputs, [Problem("D005", f"sources.{name}: {error}", where)]
    except Exception as error:
        if isinstance(error, GristmillError) or not any(is_address(path) for path in source.path):
            raise
        return inputs, [_refused(name, error, where)]  # what the libraries of stores raise has no kind in common
    inputs.skipped = listing.reasons()
    inputs.files = len(listing.files)
    inputs.bytes = sum(file.size for file in listing.files)
    if not listing.files:
        left = ", ".join(f"{n} {reason}" for reason, n in inputs.skipped.items())
        text = f"sources.{name}: no file matches {', '.join(source.path)}" + (
            f" (left out: {left})" if left else ""
        )
        return inputs, [
            Problem(
                "D005",
                text,
                where,
                (f"set sources.{name}.format to one of {', '.join(FORMATS)}",) if left else (),
            )
        ]
    try:
        inputs.tasks = cut(name, listing.files, settings)
    except (OSError, ValueError) as error:
        return inputs, [Problem("D004", f"sources.{name}: {error}", where)]
    inputs.unsplittable = [
        (t.slices[0].slice.uri, t.slices[0].size)
        for t in inputs.tasks
        if t.long and t.slices[0].slice.end is None and t.slices[0].slice.start == 0 and t.slices[0].size > LARGE
    ]
    return inputs, []
