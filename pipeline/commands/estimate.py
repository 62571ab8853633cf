"""What a build would take on a cluster, from what builds of this corpus have taken: `pipeline plan --nodes`.

The rates are those of a build that is there: of this output folder, or of one that built a sample of the same corpus
(`--rates`). Each pass and each round of it took so many CPU seconds for each byte of text; a larger corpus takes as much
for each of its own bytes. That holds for what reads and writes documents, and for the rounds of deduplication, whose
rows grow with the documents (docs/clusters.md has the formulas).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import orjson

from pipeline.engine.inputs import EXPANSION
from pipeline.engine.plan import Plan
from pipeline.events import event_lines
from pipeline.output.dropped import PARTS
from pipeline.show import SCRATCH_PER_BYTE, size, span, table
from stages.contract.problem import Problem, SpecError
from stages.readers import compression_of

#: Of the CPUs of a cluster, those at work within a pass: stragglers at its end and lost nodes take the rest. Assumed.
EFFICIENCY = 0.7
#: Seconds of the driver for one task of a pass, and of a round, whose tasks travel together; only the driver sends tasks,
#: so this cannot be shared. Measured (benchmarks/scale.py), Ray's part in it.
DRIVER, DRIVER_SMALL = 0.0028, 0.0002
#: Behind each pass and round all wait for its slowest task: so many times what one takes on average, where there are
#: enough of them for one to be slow. Assumed; the simulation (benchmarks/simulate.py) comes to the same hours.
SLOWEST, ENOUGH = 10.0, 50
#: Ends of the names of passes and rounds whose tasks are of `PARTS` parts each.
OF_MANY_PARTS = ("write the tables of dropped documents", ": ask for survivors", ": name survivors")
#: Rounds that see a sample of the text, so they do not grow with it.
SAMPLED = "tokenizer"


@dataclass(frozen=True)
class Rates:
    """Measured on some text: bytes of it; CPU seconds and tasks of each pass and round, by name."""

    text_bytes: int
    seconds: dict[str, float]
    tasks: dict[str, int]


def read_rates(lines: Iterable[bytes]) -> Rates | None:
    """The rates in the log of a build; of each pass the last time that all of its tasks ran. None without such a time."""
    running: dict[str, list[float]] = {}  # name -> [seconds, bytes]
    whole: dict[str, tuple[float, float]] = {}
    tasks: dict[str, int] = {}
    for line in lines:
        event = orjson.loads(line)
        kind, name = event["event"], event.get("name", "")
        if kind == "pass-started":
            running[name] = [0.0, 0.0]
        elif kind == "task-done" and name in running:
            running[name][0] += event["seconds"]
            running[name][1] += event["text_bytes"]
        elif kind == "pass-done" and name in running:
            seconds, read = running.pop(name)
            if event["ran"] == event["tasks"] and event["ran"]:
                whole[name], tasks[name] = (seconds, read), event["ran"]
    first = next((read for name, (_, read) in whole.items() if name.startswith("read") and read), 0.0)
    if not first:
        return None
    return Rates(int(first), {name: seconds for name, (seconds, _) in whole.items()}, tasks)


def estimate(plan: Plan, rates_from: Any, nodes: int, cpus: int, price: float | None) -> tuple[str, dict[str, Any]]:
    """`(text, data)`: hours, scratch and cost. SpecError when nothing has been measured yet."""
    rates = read_rates(event_lines(rates_from))
    if rates is None:
        raise SpecError(
            Problem(
                "C017",
                f"no rates: {rates_from} has no log of a build that read its inputs",
                repairs=(
                    "build a sample first, then name its folder: --rates SAMPLE_OUT",
                    "a sample: the same config with fewer files and another output.path",
                ),
            )
        )
    text = sum(inputs.text_bytes for inputs in plan.inputs.values())
    grown = {name: seconds / rates.text_bytes * _seen(plan, rates, name, text) for name, seconds in rates.seconds.items()}
    tasks = _tasks(plan, rates)
    work = sum(grown.values())
    driver = sum((DRIVER_SMALL if _is_round(name) else DRIVER) * count for name, count in tasks.items())
    waits = sum((SLOWEST if tasks[name] >= ENOUGH else 1.0) * grown[name] / tasks[name] for name in grown)
    hours = (work / (nodes * cpus * EFFICIENCY) + driver + waits) / 3600
    alone = _longest(plan) * _first_pass(rates) / 3600
    scratch = SCRATCH_PER_BYTE * text
    rows = [
        (name, f"{1e6 * seconds / max(text, 1):.3f}", span(seconds / (nodes * cpus * EFFICIENCY)))
        for name, seconds in _grouped(grown)
    ]
    lines = [
        f"on {nodes:,} nodes of {cpus} CPUs, by rates measured on {size(rates.text_bytes)} of text in {rates_from}",
        "",
        table(("pass", "CPU s a MB", "takes"), rows),
        "",
        f"text      about {size(text)}",
        f"time      {span(3600 * max(hours, alone))}   ({work / 3600:,.1f} CPU hours with {100 * EFFICIENCY:.0f} % of the CPUs at work, "
        f"{span(driver)} of the driver, {span(waits)} of waiting for the slowest task of each pass and round)",
        f"scratch   {size(scratch)} in {plan.out / 'work'}, {size(scratch / nodes)} for each node",
    ]
    if alone > hours:
        lines.append(f"warning   the largest task takes {span(3600 * alone)} on one CPU, and the others wait for it")
    data: dict[str, Any] = {
        "text_bytes": text, "cpu_hours": work / 3600, "hours": max(hours, alone), "scratch_bytes": scratch,
        "nodes": nodes, "node_cpus": cpus,
    }  # fmt: skip
    if price is not None:
        data["cost"] = data["hours"] * nodes * price
        lines.append(f"cost      {data['cost']:,.2f}   ({nodes:,} nodes at {price:g} an hour)")
    return "\n".join(lines), data


def _grouped(seconds: dict[str, float]) -> list[tuple[str, float]]:
    """The rounds of a global stage as one line."""
    found: dict[str, float] = {}
    for name, each in seconds.items():
        stage = name.partition(": ")[0] if _is_round(name) else name
        found[stage] = found.get(stage, 0.0) + each
    return list(found.items())


def _seen(plan: Plan, rates: Rates, name: str, text: int) -> float:
    """Bytes of text that a pass or round works on, as a multiple of what it did in the build with the rates."""
    if not name.startswith(f"{SAMPLED}: "):
        return text
    most = plan.corpus.tokenizer.train_on
    return min(text, most) / min(rates.text_bytes, most) * rates.text_bytes


def _tasks(plan: Plan, rates: Rates) -> dict[str, int]:
    """Tasks of each pass and round. Those that ran once for each part then will do so again; the others stay few."""
    parts = sum(len(inputs.tasks) for inputs in plan.inputs.values())
    first = next(count for name, count in rates.tasks.items() if name.startswith("read"))
    groups = sum(-(-len(inputs.tasks) // PARTS) for inputs in plan.inputs.values())
    many = {name for name in rates.tasks if name.endswith(OF_MANY_PARTS)}
    return {
        name: groups if name in many else parts if count == first else count for name, count in rates.tasks.items()
    }


def _is_round(name: str) -> bool:
    """Whether a set of tasks is a round of a global stage (`minhash-dedup: stars`), not a pass (`read → rules`)."""
    return ": " in name and "→" not in name


def _first_pass(rates: Rates) -> float:
    """CPU seconds for a byte of text in the pass that reads the inputs."""
    return next(seconds for name, seconds in rates.seconds.items() if name.startswith("read")) / rates.text_bytes


def _longest(plan: Plan) -> int:
    """Bytes of text of the largest task."""
    tasks = [task for inputs in plan.inputs.values() for task in inputs.tasks]
    return max((t.bytes * (EXPANSION if compression_of(t.slices[0].slice.uri) else 1) for t in tasks), default=0)
