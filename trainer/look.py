"""Looking at the data order: the documents of a step, the steps of a document, and whether the order keeps its word."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stages.contract.manifest import Manifest
from stages.contract.order import Order
from stages.contract.problem import Problem, SpecError, printable
from trainer.loader import Loader
from trainer.planned import Plan
from trainer.planning.show import table

#: Sequences that `order-check` looks at one by one; of a longer run it takes steps that lie evenly spread.
MOST_SAMPLES = 20_000_000
SPREAD_STEPS = 2_000

#: Worlds whose ranks must share out the same batches.
WORLDS = (1, 2, 3, 4, 7, 8, 16)

#: How far a batch may be from the share of a source, in sequences (two of the whole number next to it), and 1,000 steps
#: from it, as a share.
BATCH_BOUND = 2.5
SHARE_BOUND = 0.001
WINDOW = 1_000


def batch_documents(
    loader: Loader, manifests: Sequence[Manifest], folders: Sequence[Path], step: int, rank: int, world: int
) -> list[dict[str, Any]]:
    """The documents of a step, in the order of its rows: `row` (slot of the step), `source`, `id`, `tokens`, and where
    the corpus has it, `uri` and `record`. SpecError outside of the run."""
    plan = loader.plan
    if not 0 <= step < plan.steps:
        raise SpecError(Problem("C005", f"there is no step {step:,}: the run has steps 0 to {plan.steps - 1:,}"))
    phase = plan.phase_at(step)
    batch = loader.batch(step, rank, world, phase.batch)
    first = rank * phase.batch // world
    found = []
    for micro in batch.micros:
        borders = micro["cu_seqlens"].astype(np.int64)
        for i, number in enumerate(micro["span_document"].tolist()):
            if number >= 0:
                found.append({
                    "row": first + int(borders[i]) // phase.seq_len,
                    "source": plan.sources[int(micro["span_source"][i])].name,
                    "id": micro["span_id"][i].tobytes().hex(),
                    "tokens": int(borders[i + 1] - borders[i]),
                    "number": number,
                })  # fmt: skip
    add_origins(found, manifests, folders)
    return found


def add_origins(found: list[dict[str, Any]], manifests: Sequence[Manifest], folders: Sequence[Path]) -> None:
    """Turns `number` (of the document in its `source`) of each row into `uri` and `record`, where its shard has a
    table of provenance."""
    shards = {
        name: (folder, source.shards)
        for manifest, folder in zip(manifests, folders, strict=True)
        for name, source in manifest.sources.items()
    }
    wanted: dict[tuple[str, int], list[tuple[dict[str, Any], int]]] = {}
    for row in found:
        number = row.pop("number")
        _, entries = shards[row["source"]]
        first = np.cumsum([0, *(shard.documents for shard in entries)])
        shard = int(np.searchsorted(first, number, side="right")) - 1
        if "docs" in entries[shard].files:
            wanted.setdefault((row["source"], shard), []).append((row, number - int(first[shard])))
    if wanted:
        from stages.shards.provenance import origins
    for (name, shard), rows in wanted.items():
        folder, entries = shards[name]
        facts = origins(entries[shard].path(folder, "docs"), [number for _, number in rows])
        for (row, _), fact in zip(rows, facts, strict=True):
            row |= {key: fact[key] for key in ("uri", "record", "user_id") if fact.get(key) is not None}


def batch_text(found: Sequence[dict[str, Any]]) -> str:
    """The documents of a step as a table."""
    head = ["row", "source", "document", "tokens", "file", "record"]
    rows = [
        [f"{one['row']:,}", one["source"], one["id"], f"{one['tokens']:,}", str(one.get("uri", "-")), str(one.get("record", "-"))]
        for one in found
    ]
    return "\n".join(table([head, *rows]))


def where_is(loader: Loader, document: str) -> list[dict[str, Any]]:
    """Every reading of a document (32 hex digits): `source`, `step`, `slot`, `phase`. SpecError for what is no id."""
    try:
        wanted = bytes.fromhex(document)
        assert len(wanted) == 16
    except (ValueError, AssertionError):
        raise SpecError(
            Problem("C005", f"`{printable(document[:60])}` is no document id: it must be 32 hex digits",
                    repairs=("pipeline inspect MANIFEST --kept and trainer batch show ids",))
        ) from None  # fmt: skip
    readings = loader.readings(wanted)
    if not readings:
        raise SpecError(Problem("C005", f"no source of this plan holds a document {document}"))
    return [
        {"source": source, "step": int(one["step"]), "slot": int(one["slot"]), "phase": loader.plan.phase_at(int(one["step"])).name}
        for source, found in readings
        for one in found
    ]


def where_text(found: Sequence[dict[str, Any]]) -> str:
    """Readings as a table."""
    if not found:
        return "no step of this plan reads it"
    head = ["source", "step", "row", "phase"]
    return "\n".join(table([head, *([one["source"], f"{one['step']:,}", f"{one['slot']:,}", one["phase"]] for one in found)]))


# ---- order-check -----------------------------------------------------------------------------------------------


@dataclass
class Check:
    """What was found about one source.

    worst_batch  sequences that a batch was off its share at most;  worst_window  the same for 1,000 steps, as a share
    most, least  readings of a unit (window, or packed row) in the run; None where not every step was looked at
    """

    name: str
    planned: int
    found: int = 0
    worst_batch: float = 0.0
    worst_window: float = 0.0
    most: int | None = None
    least: int | None = None
    room: int | None = None


def check_order(plan: Plan) -> tuple[list[Check], list[str], bool]:
    """`(a check for each source, findings, whether every step was looked at)`. No finding: the order keeps its word."""
    order = plan.order
    checks = [Check(source.name, 0) for source in plan.sources]
    total = sum(order.stretches[piece.stretch].batch * piece.steps for piece in order.pieces)
    whole = total <= MOST_SAMPLES
    reads: list[dict[int, np.ndarray]] = [{} for _ in plan.sources]
    for p, steps, samples in _walk(order, whole):
        _check_mixture(order, p, steps, samples, checks)
        if whole:
            _count_reads(order, samples, reads)
    findings = _judge(plan, checks, reads, whole)
    findings += _check_worlds(order)
    findings += _check_inverse(order)
    return checks, findings, whole


def _walk(order: Order, whole: bool) -> Iterator[tuple[int, range, np.ndarray]]:
    """`(stretch, steps, samples)` of up to 1,000 steps that follow each other, each piece by itself."""
    pieces = order.pieces
    every = 1 if whole else max(1, sum(piece.steps for piece in pieces) // SPREAD_STEPS)
    for piece in pieces:
        batch = order.stretches[piece.stretch].batch
        size = WINDOW if whole else max(1, min(WINDOW, SPREAD_STEPS * piece.steps // max(1, every) // 20, 10**6 // batch))
        stride = size if whole else max(size, piece.steps // 20)
        for first in range(piece.first, piece.first + piece.steps, stride):
            last = min(first + size, piece.first + piece.steps)
            parts = [order.samples(a, min(a + max(1, 65_536 // batch), last)) for a in range(first, last, max(1, 65_536 // batch))]
            yield piece.stretch, range(first, last), np.concatenate(parts)


def _check_mixture(order: Order, p: int, steps: range, samples: np.ndarray, checks: list[Check]) -> None:
    """How far batches, and all these steps together, are from the shares of the phase."""
    stretch = order.stretches[p]
    quota = np.array(stretch.samples) / (stretch.steps * stretch.batch)
    counts = np.zeros((len(steps), len(quota)), np.int64)
    np.add.at(counts, (np.repeat(np.arange(len(steps)), stretch.batch), samples["source"]), 1)
    worst = np.abs(counts - quota * stretch.batch).max(axis=0)
    window = np.abs(counts.sum(axis=0) / len(samples) - quota)
    enough = len(steps) == WINDOW
    for s, check in enumerate(checks):
        check.found += int(counts[:, s].sum())
        check.worst_batch = max(check.worst_batch, float(worst[s]))
        if enough:
            check.worst_window = max(check.worst_window, float(window[s]))


def _count_reads(order: Order, samples: np.ndarray, reads: list[dict[int, np.ndarray]]) -> None:
    """Adds up how often each unit (of each length of packed rows) is read; sub-windows of a unit count as parts."""
    for s in np.unique(samples["source"]).tolist():
        mine = samples[samples["source"] == s]
        length = int(mine["length"][0])
        source = order.sources[s]
        unit = source.rows[length].total if order.packed else source.units * order.longest // length
        number = mine["offset"] if order.packed else mine["offset"] // length
        counts = reads[s].setdefault(length, np.zeros(unit, np.int32))
        counts += np.bincount(number, minlength=unit).astype(np.int32)


def _judge(plan: Plan, checks: list[Check], reads: list[dict[int, np.ndarray]], whole: bool) -> list[str]:
    """Fills in what is left of the checks; what breaks a promise, one sentence each."""
    findings = []
    for s, (check, source) in enumerate(zip(checks, plan.sources, strict=True)):
        check.planned = source.samples
        if whole and not plan.skip and check.found != check.planned:
            findings.append(f"{check.name}: {check.found:,} sequences are read, {check.planned:,} are planned")
        if check.worst_batch > BATCH_BOUND:
            findings.append(f"{check.name}: a batch is {check.worst_batch:.1f} sequences off its share")
        if check.worst_window > SHARE_BOUND:
            findings.append(f"{check.name}: {WINDOW:,} steps are {check.worst_window:.2%} off its share")
        if len(reads[s]) == 1:
            (counts,) = reads[s].values()
            check.most, check.least = int(counts.max()), int(counts.min())
            check.room = None if source.limit is None else -int(-source.limit // 1)
            even = len(plan.stretches) > 1 or bool(plan.skip) or check.most - check.least <= 1
            if not even:
                findings.append(f"{check.name}: some of it is read {check.most} times, some {check.least} times")
            if check.room is not None and check.most > check.room:
                findings.append(f"{check.name}: some of it is read {check.most} times, more than {source.limit:g}")
    return findings


def _check_worlds(order: Order) -> list[str]:
    """Whether the ranks of any world share out the same batch."""
    findings = []
    for step in np.unique(np.linspace(0, order.steps - 1, 16).astype(np.int64)).tolist():
        batch = order.batch_samples(step)
        for world in WORLDS:
            parts = [order.batch_samples(step, rank, world) for rank in range(world)]
            if not np.array_equal(np.concatenate(parts), batch):
                findings.append(f"step {step:,}: {world} ranks read another batch than one")
    return findings


def _check_inverse(order: Order) -> list[str]:
    """Whether what a step reads is found again at that step."""
    findings = []
    for step in np.unique(np.linspace(0, order.steps - 1, 8).astype(np.int64)).tolist():
        sample = order.batch_samples(step)[0]
        source, offset, length = int(sample["source"]), int(sample["offset"]), int(sample["length"])
        found = (
            order.locate_rows(source, length, np.array([offset]))
            if order.packed
            else order.locate(source, offset, offset + length)
        )
        if not any(int(one["step"]) == step and int(one["slot"]) == 0 for one in found):
            findings.append(f"step {step:,}: its first sequence is not found again")
    return findings


def check_text(checks: Sequence[Check], findings: Sequence[str], whole: bool, steps: int) -> str:
    """The result as a table, then the findings."""
    head = ["source", "sequences", "planned", "worst batch", "worst 1,000 steps", "read at most", "at least", "limit"]
    rows = [
        [c.name, f"{c.found:,}", f"{c.planned:,}", f"{c.worst_batch:.2f}", f"{c.worst_window:.3%}", _shown(c.most), _shown(c.least), _shown(c.room)]
        for c in checks
    ]
    looked = f"all {steps:,} steps" if whole else f"some of {steps:,} steps: windows of up to {WINDOW:,}, evenly spread"
    worlds = ", ".join(map(str, WORLDS))
    lines = [*table([head, *rows]), "", f"  looked at {looked}; batches of {worlds} ranks compared"]
    lines += [f"  finding: {one}" for one in findings] or ["  no findings: shares, limits, coverage and ranks are as planned"]
    return "\n".join(lines)


def _shown(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"
