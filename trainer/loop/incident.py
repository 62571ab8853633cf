"""Which documents made a step bad: its batch read and run again, without learning, and each document weighed.

A document is suspect when its loss is not finite; among others, by what it adds to the loss of the step: (its mean loss -
the median over the documents of its source in the step) x its label tokens. When steps are looked at some time later,
the weights have moved a little since; that changes numbers, hardly an order.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch

from stages.contract.files import write_atomic
from stages.contract.names import canonical_json
from stages.contract.problem import Problem, RunError
from trainer.loader import Loader
from trainer.look import add_origins
from trainer.loop.evaluate import to_device
from trainer.loop.guard import Verdict
from trainer.loop.parallel import World, after_look
from trainer.loop.pipeline import looked
from trainer.loop.step import Numbers
from trainer.model import Llama
from trainer.planned import Plan

#: Documents that an incident names, the most suspect first. All of the step are in its `rows`.
SUSPECTS = 20


def file_of(out: Path, step: int) -> Path:
    """Where the incident of a step (counted from 1) is written."""
    return out / f"incident-{step:08d}.json"


@torch.no_grad()
def suspects(model: Llama, loader: Loader, world: World, step: int, micro: int) -> list[dict[str, Any]]:
    """The documents of a step (0-based) that weigh most: `rank`, `row` (slot of the step), `source`, `id`, `tokens`,
    `loss` (None: not finite), `excess` (nats), and `uri`, `record` where the corpus has them. All ranks together."""
    model.eval()
    plan = loader.plan
    phase = plan.phase_at(step)
    slot = world.reader * phase.batch // world.readers
    mine = []
    for one in loader.batch(step, world.reader, world.readers, micro).micros:
        tokens, positions, segments, labels = to_device(one, world.device)
        losses = looked((tokens, positions, segments, labels), model).double().tolist()
        if world.speaks:
            mine += _weighed(one, losses, labels.tolist(), plan, world.rank, slot)
        slot += int((one["weight"] > 0).sum())
    after_look(model)
    model.train()
    found = [document for text in world.texts(json.dumps(mine)) for document in json.loads(text)]
    for document in found:
        beside = [d["loss"] for d in found if d["source"] == document["source"] and d["loss"] is not None]
        usual = median(beside) if beside else 0.0
        document["excess"] = None if document["loss"] is None else (document["loss"] - usual) * document.pop("labels")
        document.pop("labels", None)
    found.sort(key=lambda d: (d["loss"] is not None, -(d["excess"] or 0.0), d["row"]))
    found = found[:SUSPECTS]
    add_origins(found, loader.manifests, loader.folders)
    return found


def _weighed(
    micro: Mapping[str, Any], losses: Sequence[float], labels: Sequence[int], plan: Plan, rank: int, slot: int
) -> list[dict[str, Any]]:
    """The documents of a micro-batch with their mean loss and label tokens."""
    length = micro["input_ids"].shape[1]
    borders = micro["cu_seqlens"].tolist()
    found = []
    for i, number in enumerate(micro["span_document"].tolist()):
        span = range(borders[i], borders[i + 1])
        own = [losses[t] for t in span if labels[t] >= 0]
        if number < 0 or not own:
            continue
        mean = sum(own) / len(own)
        found.append(
            {
                "rank": rank, "row": slot + borders[i] // length, "source": plan.sources[int(micro["span_source"][i])].name,
                "id": bytes(micro["span_id"][i]).hex(), "number": number, "tokens": len(span), "labels": len(own),
                "loss": mean if math.isfinite(mean) else None,
            }
        )  # fmt: skip
    return found


def write(
    out: Path, plan: Plan, numbers: Numbers, step: int, decision: str, documents: Sequence[Mapping[str, Any]],
    rows: Sequence[Mapping[str, Any]], in_a_row: int,
) -> Path:  # fmt: skip
    """The incident file of a step (0-based)."""
    path = file_of(out, step + 1)
    record = {
        "step": step + 1,
        "data_step": plan.order.data_step(step),
        "phase": plan.phase_at(step).name,
        "verdict": numbers.verdict.name.lower(),
        "decision": decision,
        "loss": repr(numbers.loss),
        "losses": {name: repr(loss) for name, loss in numbers.losses.items()},
        "grad_norm": repr(numbers.norm),
        "z": {"loss": repr(numbers.z[0]), "log_grad_norm": repr(numbers.z[1])},
        "ranks": list(numbers.bad_ranks),
        "skipped_in_a_row": in_a_row,
        "digest": numbers.digest,
        "documents": list(documents),
        "rows": list(rows),
    }
    write_atomic(path, canonical_json(record) + b"\n")
    return path


def what(numbers: Numbers) -> str:
    """What was measured of a bad step, for a sentence."""
    said = f"loss {numbers.loss}, gradient norm {numbers.norm}"
    if numbers.verdict != Verdict.NONFINITE:
        said += f", {max(numbers.z):.1f} deviations above the steps before"
    return said


def the_end(numbers: Numbers, step: int, in_a_row: int, rollbacks: int, path: Path) -> RunError:
    """Why the run does not go on behind a bad step (0-based), the last of so many in a row."""
    many = f"{in_a_row} steps in a row" if in_a_row > 1 else f"step {step + 1:,}"
    had = "had no finite loss and gradient norm" if numbers.verdict == Verdict.NONFINITE else "were far off"
    back = f", after going back {rollbacks} times" if rollbacks else ""
    repairs = (
        f"look at the documents in {path}",
        "lower lr_schedule.peak_lr or optimizer.grad_clip; the last checkpoint is sound",
    )
    return RunError(Problem("T003", f"{many} {had} (now {what(numbers)}){back}", repairs=repairs))
