"""`trainer smoke`: the half-hour before a long run, as gates with evidence.

First one batch is learned by heart (`overfit.py`), then a hundredth of the plan runs through `trainer fit` itself, is
resumed in a new process, and exported. smoke.json says what was found, for which plan; `trainer fit --after-smoke` asks
for it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click
import numpy as np
import torch

from stages.contract.files import write_atomic
from stages.contract.manifest import Manifest
from stages.contract.problem import Problem, RunError, SpecError, printable
from trainer import checkpoint
from trainer.checkpoint import Checkpoint
from trainer.checkpoint.attach import with_weights
from trainer.checkpoint.verify import Prover, compared
from trainer.loader import Loader
from trainer.loop import metrics, parallel
from trainer.loop.evaluate import to_device
from trainer.loop.parallel import World
from trainer.planned import Plan
from trainer.planning.figures import span
from trainer.planning.show import table
from trainer.tools import bring as importing
from trainer.tools.batches import single_tokens, strange_pieces
from trainer.tools.causes.data import EMPTY_SHARE
from trainer.tools.export import Corpus, export
from trainer.tools.overfit import Gate, failed, gates

if TYPE_CHECKING:
    from trainer.command import Output

#: Steps of the rehearsal: a hundredth of the plan, within these bounds, an even number.
LEAST, MOST = 20, 2000

NAME = "smoke.json"


@dataclass(frozen=True)
class Rehearsal:
    """A run of `steps` in `straight`, and in `halves` the second half again from its checkpoint."""

    steps: int
    straight: Path
    halves: Path


def length(plan: Plan, asked: int | None = None) -> int:
    """Steps of the rehearsal."""
    steps = min(asked or max(LEAST, min(MOST, plan.steps // 100)), plan.steps)
    return max(2, steps // 2 * 2)


def rehearse(arguments: Sequence[str], folder: Path, steps: int, ranks: int, say: Callable[[str], None]) -> Rehearsal:
    """Train `steps` of the plan, then the second half again in another process. RunError when a run fails."""
    prover = Prover(arguments, folder, steps // 2, say)
    say(f"rehearsal: {steps:,} steps of the plan")
    straight = prover.run("straight", steps, ranks)
    halves = prover.begun("halves", straight)
    say(f"rehearsal: steps {steps // 2 + 1:,} to {steps:,} again, in a new process")
    prover.run("halves", steps, ranks)
    return Rehearsal(steps, straight, halves)


def data_gates(manifests: Sequence[Manifest], folders: Sequence[Path]) -> Iterator[Gate]:
    """What the shards say by themselves."""
    empty = [
        f"{name}: {single / total:.1%} of {total:,} documents"
        for manifest in manifests
        for name, (single, total) in single_tokens(manifest).items()
        if total and single / total > EMPTY_SHARE
    ]
    change = "add `- rules: {min_words: 1}` to the stages of corpus.yaml and build again"
    yield Gate("documents", not empty, f"empty but for their end: {'; '.join(empty)}" if empty else "hardly any is empty", "empty-documents", change)
    pieces = strange_pieces(manifests, folders)
    rubbish = [piece for piece in pieces if piece.rubbish]
    said = "; ".join(piece.sentence() for piece in (rubbish or pieces)[:2])
    change = "look at it with `pipeline inspect MANIFEST --tokens`; take its files out of corpus.yaml if it is rubbish"
    yield Gate("shards", not rubbish, said or "no part of a source is unlike the rest", "garbage-shard", change)


def rehearsal_gates(found: Rehearsal, plan: Plan) -> Iterator[Gate]:
    """What the rehearsal says."""
    steps = [r for r in metrics.read(found.straight / "metrics.jsonl") if r["kind"] == "step"]
    loss = np.array([np.nan if r["loss"] is None else r["loss"] for r in steps])
    norm = np.array([np.nan if r["grad_norm"] is None else r["grad_norm"] for r in steps])
    part = max(2, len(steps) // 5)
    first, last = float(np.median(loss[:part])), float(np.median(loss[-part:]))
    falls = bool(np.isfinite(loss).all()) and last < first
    change = "see `trainer doctor` on the rehearsal; a lower lr_schedule.peak_lr first"
    yield Gate("loss falls", falls, f"{first:.3f} over the first {part} steps, {last:.3f} over the last {part}", "learning", change)
    bounded = bool(np.isfinite(norm).all()) and float(norm.max()) < 50 * max(float(np.median(norm)), 1e-9)
    yield Gate("gradient norm bounded", bounded, f"median {np.median(norm):.3g}, largest {norm.max():.3g}", "norm", "warm up longer, or lower lr_schedule.peak_lr")
    used = np.array([r["memory"] for r in steps], float)[len(steps) // 2 :]
    grown = used[-1] / used[0] - 1
    yield Gate("memory flat", bool(grown < 0.02), f"{used[-1] / 2**20:,.0f} MiB at most, {grown:+.1%} over the second half", "memory", "something keeps tensors of past steps")
    same = compared(found.straight, found.halves, found.steps // 2)
    other = [name for name, pair in same.items() if not all(pair)]
    evidence = f"differs: {', '.join(other)}" if other else f"{len(same)} components bit for bit, in a new process from step {found.steps // 2:,}"
    yield Gate("resume exact", not other, evidence, "resume", "`trainer verify` narrows it down; deterministic: true is needed for it")
    speed = float(np.median([r["tokens_per_second"] for r in steps[len(steps) // 5 :]]))
    wait = float(np.median([r["data_wait"] / r["seconds"] for r in steps[len(steps) // 5 :]]))
    whole = span(plan.total_tokens / speed)
    yield Gate("throughput", speed > 0 and wait < 0.5, f"{speed:,.0f} tokens/s, {wait:.0%} of a step waits for data; the plan takes {whole}", "data-bound", "put the shards on a local disk")


def export_gate(found: Rehearsal, plan: Plan, loader: Loader, world: World, folder: Path) -> Gate:
    """Whether an exported folder comes back as the model: the same loss on a batch."""
    last = checkpoint.read(found.straight / "checkpoints" / checkpoint.folder_name(found.steps))
    if not isinstance(last, Checkpoint):
        return Gate("export loads", False, f"no checkpoint of step {found.steps:,}: {last}", "export")
    export(last, None, Corpus(loader.manifests, loader.folders[0]), folder / "export")
    importing.bring(importing.read_source(folder / "export"), folder / "imported")
    again = checkpoint.read(folder / "imported" / checkpoint.folder_name(0))
    assert isinstance(again, Checkpoint)
    micro = loader.batch(0, micro=1).micros[0]
    with torch.no_grad():
        losses = []
        for one in (last, again):
            model = with_weights(plan, one, world)
            losses.append(float(model(*to_device(micro, world.device)).double().sum()))
            parallel.after_look(model)
    evidence = f"loss of a row {losses[0]:.6f} from the checkpoint, {losses[1]:.6f} from the exported folder"
    return Gate("export loads", losses[0] == losses[1], evidence, "export", "the exported tokenizer or weights differ: please report it")


def record_of(found: Sequence[Gate], plan: Plan, steps: int) -> dict[str, Any]:
    """smoke.json."""
    return {
        "plan": plan.digest, "manifests": list(plan.manifests), "steps": steps, "passed": not failed(found),
        "gates": [asdict(gate) for gate in found],
    }  # fmt: skip


def require(path: Path, plan: Plan) -> None:
    """SpecError unless smoke.json at `path` passed, for this plan."""
    hint = ("run `trainer smoke` with the same plan, manifest and --set",)
    try:
        record: Mapping[str, Any] = json.loads(path.read_bytes())
        passed, digest = record["passed"], record["plan"]
    except (OSError, ValueError, KeyError) as error:
        raise SpecError(Problem("P004", f"--after-smoke: {path} cannot be read: {error}", repairs=hint)) from error
    if digest != plan.digest:
        message = f"--after-smoke: {path} is of plan {digest[:12]}, this is {plan.digest[:12]}"
        raise SpecError(Problem("P004", message, repairs=hint))
    if not passed:
        names = ", ".join(gate["name"] for gate in record["gates"] if not gate["passed"])
        raise SpecError(Problem("P004", f"--after-smoke: {path} did not pass: {names}", repairs=hint))


def report(found: Sequence[Gate]) -> str:
    """The gates as a table, then what to change."""
    rows = [[gate.name, "pass" if gate.passed else "FAIL", gate.evidence] for gate in found]
    lines = table([["gate", "", "evidence"], *rows])
    bad = failed(found)
    lines += ["", *(f"  {gate.name}: {printable(gate.change)}" for gate in bad)] if bad else ["", "  every gate passed"]
    return "\n".join(lines)


def command(
    output: Output, plan: Plan, manifests: Sequence[Manifest], folders: Sequence[Path], arguments: Sequence[str],
    out: Path, ranks: int, steps: int | None, device: Literal["cpu", "cuda"], quick: bool,
) -> int:  # fmt: skip
    """`trainer smoke`: 3 when a gate did not pass, else 0."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    found = list(data_gates(manifests, folders))
    many = length(plan, steps)
    with Loader(folders, plan, manifests) as loader:
        world = parallel.join(device)
        try:
            output.say("one batch by heart")
            found += gates(plan, loader, world)
            if not quick and not failed(found):
                rehearsal = rehearse(arguments, out, many, ranks, output.say)
                found += rehearsal_gates(rehearsal, plan)
                found.append(export_gate(rehearsal, plan, loader, world, out))
        except torch.OutOfMemoryError as error:
            raise RunError(Problem("T005", f"one batch does not fit: {error}", repairs=("`trainer plan --fit-memory`",))) from error
        finally:
            parallel.leave()
    record = record_of(found, plan, many) | ({"passed": False, "quick": True} if quick else {})
    write_atomic(out / NAME, json.dumps(record, indent=1, ensure_ascii=False).encode() + b"\n")
    code = 3 if failed(found) else 0
    if output.as_json:
        output.emit("result", {"exit": code} | record)
    else:
        click.echo(report(found))
        if failed(found) and not quick and len(found) < 12:
            click.echo("  the rehearsal was left out: it would fail the same way")
    output.next(["trainer", "fit", *arguments, "--after-smoke"] if not code and not quick else ["trainer", "smoke", *arguments])
    return code
