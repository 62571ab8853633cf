"""A run folder, read: its plan as the value that ran, its corpora, what it wrote. Nothing here imports torch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from stages.contract.manifest import Manifest, load_manifest
from stages.contract.order import Stretch
from stages.contract.problem import Problem, RunError, SpecError
from stages.storage.address import located
from trainer.planned import (
    CheckpointPlan,
    MonitoringPlan,
    OptimizerPlan,
    PhasePlan,
    Plan,
    SchedulePlan,
    SourcePlan,
)
from trainer.shape import ModelShape

Record = dict[str, Any]


@dataclass(frozen=True)
class Run:
    """What a run folder says.

    planned  plan.json;  starts  of run.json, one for each start;  steps, evals  the records of metrics.jsonl
    """

    folder: Path
    planned: Record
    starts: list[Record]
    steps: list[Record]
    evals: list[Record]

    @cached_property
    def incidents(self) -> list[Record]:
        """The incident files, by step."""
        return [json.loads(path.read_bytes()) for path in sorted(self.folder.glob("incident-*.json"))]

    @property
    def name(self) -> str:
        """Name of the plan."""
        return str(self.planned["name"])


def open_run(folder: Path) -> Run:
    """SpecError when there is no run in the folder, RunError when what is there cannot be read."""
    path = folder / "plan.json"
    if not path.is_file():
        message = f"{folder} is no run folder: it has no plan.json"
        raise SpecError(Problem("C005", message, repairs=("`trainer fit` makes one; it says where with --out",)))
    try:
        planned = json.loads(path.read_bytes())
        about = folder / "run.json"
        starts = json.loads(about.read_bytes())["starts"] if about.exists() else []
        records = _lines(folder / "metrics.jsonl")
    except (ValueError, KeyError, TypeError) as error:
        raise RunError(Problem("R008", f"{folder} holds a file that is no JSON of this program: {error}")) from error
    return Run(
        folder, planned, starts, [r for r in records if r["kind"] == "step"], [r for r in records if r["kind"] == "eval"]
    )


def _lines(path: Path) -> list[Record]:
    """Whole lines alone: the last one may still be on its way."""
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in lines]


def corpora(run: Run, given: Sequence[Path]) -> tuple[list[Manifest], list[Path]]:
    """The manifests that the run read, and their folders: those given, else those that run.json names.

    SpecError when there are none, or when they are others than the run's.
    """
    paths = list(given)
    if not paths:
        named = [start["manifests"] for start in run.starts if start.get("manifests")]
        paths = [located(path) for path in named[-1]] if named else []
    hint = ("give them with --manifest, in the order that the run had",)
    missing = [path for path in paths if not path.exists()]
    if not paths or missing:
        where = f"{missing[0]} is not there" if missing else f"{run.folder / 'run.json'} does not name it"
        raise SpecError(Problem("D005", f"the corpus of the run is needed, but {where}", repairs=hint))
    manifests = [load_manifest(path) for path in paths]
    found, wanted = [manifest.digest for manifest in manifests], run.planned["manifests"]
    if found != wanted:
        short = [", ".join(one[:12] for one in some) for some in (wanted, found)]
        raise SpecError(Problem("P004", f"the run read manifests {short[0]}, but these are {short[1]}", repairs=hint))
    return manifests, [path if path.is_dir() else path.parent for path in paths]


def plan_of(run: Run, manifests: Sequence[Manifest] = ()) -> Plan:
    """The plan of plan.json as a value. A plan with packed rows needs the manifests.

    RunError when the value does not have the digest that plan.json states: it was written by another version, or edited.
    """
    tree = dict(run.planned)
    entries = {name: entry for manifest in manifests for name, entry in manifest.sources.items()}
    rows = {name: entries[name].packed() for name in tree["rows"]} if manifests else {}
    try:
        plan = _plan(tree, rows)
    except (TypeError, KeyError) as error:
        raise _foreign(run) from error
    if (manifests or not tree["rows"]) and plan.digest != tree["digest"]:
        raise _foreign(run)
    return plan


def _foreign(run: Run) -> RunError:
    message = f"{run.folder / 'plan.json'} is not a plan that this version can follow"
    return RunError(Problem("R008", message, repairs=("`trainer fit` with the same plan writes it again",)))


def _plan(tree: Record, rows: Record) -> Plan:
    model = {k: v for k, v in tree["model"].items() if k not in ("parameters", "head_dim")}
    watch = tree["monitoring"]
    watch = watch | {"sinks": tuple(watch["sinks"]), "profile_steps": watch["profile_steps"] and tuple(watch["profile_steps"])}
    own = {
        "model": ModelShape(**model),
        "phases": tuple(PhasePlan(**phase) for phase in tree["phases"]),
        "stretches": tuple(Stretch(**(one | {"samples": tuple(one["samples"])})) for one in tree["stretches"]),
        "sources": tuple(SourcePlan(**one) for one in tree["sources"]),
        "schedule": SchedulePlan(**tree["schedule"]),
        "optimizer": OptimizerPlan(**tree["optimizer"]),
        "checkpoint": CheckpointPlan(**tree["checkpoint"]),
        "monitoring": MonitoringPlan(**watch),
        "skip": tuple(tuple(one) for one in tree["skip"]),
        "tombstones": tuple(tree["tombstones"]),
        "manifests": tuple(tree["manifests"]),
        "rows": rows,
        "notes": (),
        "problems": (),
    }
    made = {name: value for name, value in tree.items() if name in Plan.__dataclass_fields__}
    return Plan(**(made | own))
