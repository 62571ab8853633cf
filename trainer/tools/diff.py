"""`trainer diff`: two runs side by side: plan, data, versions, curves; the first step where they part, and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from stages.contract.problem import printable
from trainer.planning.show import table
from trainer.tools.runs import Run, open_run

if TYPE_CHECKING:
    from trainer.command import Output

#: Parts of plan.json that say nothing by themselves: reasons, warnings, digests that follow from the rest.
LEFT_OUT = frozenset({"notes", "problems", "digest", "chain", "stretches", "rows"})

#: What of a start may change the bits of a run.
VERSIONS = ("torch", "python", "machine", "device", "cuda", "ranks", "threads", "deterministic")

#: Losses this close, as a share, are rounding.
ROUNDING = 1e-4


@dataclass(frozen=True)
class Parting:
    """The first step where a field differs."""

    field: str
    step: int
    a: Any
    b: Any


@dataclass(frozen=True)
class Difference:
    """Everything that differs. `why` is None for runs that agree in every step that both have."""

    config: list[tuple[str, Any, Any]]
    data: list[str]
    versions: list[tuple[str, Any, Any]]
    partings: list[Parting]
    why: str | None
    curves: dict[str, Any]

    @property
    def same(self) -> bool:
        """Whether nothing differs."""
        return not (self.config or self.data or self.versions or self.partings)


def flat(tree: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """`(dotted name, value)` of every leaf; lists by number."""
    if isinstance(tree, Mapping):
        for key in sorted(tree):
            yield from flat(tree[key], f"{name}.{key}" if name else str(key))
    elif isinstance(tree, list) and tree and isinstance(tree[0], Mapping):
        for i, one in enumerate(tree):
            yield from flat(one, f"{name}[{one.get('name', i)}]")
    else:
        yield name, tree


def compared(a: Run, b: Run) -> Difference:
    """What differs between two runs."""
    mine, theirs = ({k: v for k, v in run.planned.items() if k not in LEFT_OUT} for run in (a, b))
    config = list(_leaves(dict(flat(mine)), dict(flat(theirs))))
    data = _data(a, b)
    versions = _versions(a, b)
    partings = _partings(a, b)
    return Difference(config, data, versions, partings, _why(config, data, versions, partings), _curves(a, b))


def _leaves(one: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    for key in sorted(one.keys() | other.keys()):
        if one.get(key) != other.get(key):
            yield key, one.get(key), other.get(key)


def _data(a: Run, b: Run) -> list[str]:
    """What differs of the data, one sentence each."""
    found = []
    if a.planned["manifests"] != b.planned["manifests"]:
        found.append("the manifests differ")
    digests = [{s["name"]: s["digest"] for s in run.planned["sources"]} for run in (a, b)]
    for name in sorted(digests[0].keys() | digests[1].keys()):
        one, other = digests[0].get(name), digests[1].get(name)
        if one != other:
            found.append(f"source {name}: " + ("only in the first" if other is None else "only in the second" if one is None else "other tokens"))
    link = next((i for i, (x, y) in enumerate(zip(a.planned["chain"], b.planned["chain"], strict=False)) if x != y), None)
    if link is not None:
        what = "the seed of the order" if link == 0 else f"phase {a.planned['phases'][min(link, len(a.planned['phases'])) - 1]['name']} (steps, sources or mix)"
        found.append(f"the order of the data differs from link {link} on: {what}")
    return found


def _versions(a: Run, b: Run) -> list[tuple[str, Any, Any]]:
    one, other = (run.starts[-1] if run.starts else {} for run in (a, b))
    return [(key, one.get(key), other.get(key)) for key in VERSIONS if one.get(key) != other.get(key)]


def _partings(a: Run, b: Run) -> list[Parting]:
    """The first difference of each field, by step; of steps that both have."""
    one, other = ({r["step"]: r for r in run.steps} for run in (a, b))
    found = []
    for field in ("digest", "targets", "lr", "skipped", "loss", "grad_norm"):
        for step in sorted(one.keys() & other.keys()):
            if one[step].get(field) != other[step].get(field):
                found.append(Parting(field, step, one[step].get(field), other[step].get(field)))
                break
    return sorted(found, key=lambda parting: parting.step)


def _why(
    config: Sequence[tuple[str, Any, Any]], data: Sequence[str], versions: Sequence[tuple[str, Any, Any]], partings: Sequence[Parting]
) -> str | None:  # fmt: skip
    """Why the first step that differs does: the earliest link of data, labels, rate, update, arithmetic."""
    if not partings:
        return None
    by = {parting.field: parting for parting in partings}
    step = partings[0].step
    changed = {key.split("[")[0].split(".")[0] for key, _, _ in config}
    if "digest" in by and by["digest"].step == step:
        return f"step {step:,} read other tokens" + (f": {data[0]}" if data else ", although plans and manifests agree: a run did not follow its plan")
    if "targets" in by and by["targets"].step == step:
        return f"step {step:,} read the same tokens with other labels: data.tombstones or data.mask_documents"
    if "lr" in by and by["lr"].step == step:
        return f"step {step:,} has another learning rate: " + _named(config, "schedule", "phases")
    if "skipped" in by and by["skipped"].step == step:
        return f"step {step:,} was skipped by the guard in one run alone"
    loss = by.get("loss") or by["grad_norm"]
    near = isinstance(loss.a, float) and isinstance(loss.b, float) and abs(loss.a - loss.b) <= ROUNDING * abs(loss.a)
    others = any(key == "checkpoint.weights_only" for key, _, _ in config)
    if others or changed & {"model", "seed", "compute"}:
        return f"step {loss.step:,}: same tokens, other weights or arithmetic: " + _named(config, "model", "seed", "compute", "checkpoint")
    if "optimizer" in changed and step > 1:
        return f"step {step:,}: same tokens and rate, another update the step before: " + _named(config, "optimizer")
    if near:
        other = ", ".join(f"{key} {x} / {y}" for key, x, y in versions) or "the number of ranks or the micro-batch"
        return f"step {step:,}: rounding ({loss.a} / {loss.b}): {other}"
    if versions:
        return f"step {step:,}: same tokens and rate; beside the plan these differ: " + ", ".join(f"{key} {x} / {y}" for key, x, y in versions)
    return f"step {step:,}: same tokens and rate, another loss, and nothing that is written down explains it: a checkpoint that was changed, or code"


def _named(config: Sequence[tuple[str, Any, Any]], *sections: str) -> str:
    of = [(key.split("[")[0].split(".")[0], f"{key} {x} / {y}") for key, x, y in config]
    rows = [text for wanted in sections for section, text in of if section == wanted]
    return ", ".join(rows[:4]) or "nothing in the plan says why"


def _curves(a: Run, b: Run) -> dict[str, Any]:
    """The last losses of the steps that both have, and how far apart they are."""
    one, other = ({r["step"]: r["loss"] for r in run.steps if r["loss"] is not None} for run in (a, b))
    both = sorted(one.keys() & other.keys())
    if not both:
        return {"steps": 0}
    last = both[-max(1, len(both) // 10) :]
    gap = np.array([other[step] - one[step] for step in last])
    return {
        "steps": len(both), "last": both[-1], "over": len(last), "a": float(np.mean([one[s] for s in last])),
        "b": float(np.mean([other[s] for s in last])), "gap": float(gap.mean()), "error": float(gap.std() / np.sqrt(len(gap))),
    }  # fmt: skip


def report(found: Difference) -> str:
    """All of it as text."""
    lines = []
    for title, rows in (("plan", found.config), ("versions", found.versions)):
        if rows:
            lines += [f"  {title}", *table([["", "first", "second"], *([key, _short(x), _short(y)] for key, x, y in rows)]), ""]
    lines += [*(f"  data: {printable(one)}" for one in found.data), *([""] if found.data else [])]
    places = [[p.field, f"{p.step:,}", _short(p.a), _short(p.b)] for p in found.partings]
    lines += table([["first differs", "step", "first", "second"], *places]) if places else ["  every step that both have is the same"]
    curves = found.curves
    if curves["steps"]:
        lines += ["", f"  loss of the last {curves['over']:,} of {curves['steps']:,} common steps: {curves['a']:.4f} and {curves['b']:.4f} ({curves['gap']:+.4f} ± {curves['error']:.4f})"]
    if found.why:
        lines += ["", f"  they part here: {printable(found.why)}"]
    return "\n".join(lines)


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 40 else text[:37] + "..."


def command(output: Output, one: Path, other: Path) -> int:
    """`trainer diff`: 3 when something differs, else 0."""
    found = compared(open_run(one), open_run(other))
    code = 0 if found.same else 3
    if output.as_json:
        output.emit("result", {"exit": code} | asdict(found))
    else:
        click.echo(report(found))
    return code
