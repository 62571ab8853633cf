"""Proof of resume: k steps, a save, a new process, k more steps, against 2 k steps straight. Every bit is compared.

Then the proof is proved: one number of the optimizer state is changed in a copy of the checkpoint (its digests made
right again), and the run that goes on from it must end differently. Other numbers of ranks must read the same tokens in
every step, and come to the same loss within rounding.

All of it in processes of `trainer fit` itself; the result is verify.json.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from stages.contract.files import sha256_file, write_atomic
from stages.contract.names import canonical_json, digest
from stages.contract.problem import Problem, RunError
from trainer import checkpoint
from trainer.checkpoint import COMPLETE, Checkpoint
from trainer.launch import PREEMPTED
from trainer.loop import metrics
from trainer.planned import Plan
from trainer.planning.show import table

#: How far losses of other numbers of ranks may be, as a share: sums in another order, in the precision of the matrices.
TOLERANCE = {"fp32": 1e-4, "bf16": 2e-2, "fp16": 2e-2}


@dataclass
class Proof:
    """What was found. `same` by component: whether it was the same at step k, and at step 2 k."""

    steps: int
    same: dict[str, tuple[bool, bool]] = field(default_factory=dict)
    control_differs: bool = False
    changed: str = ""  # what the negative control changed
    worlds: dict[int, str] = field(default_factory=dict)  # what is wrong with a number of ranks; "" is nothing

    @property
    def findings(self) -> list[str]:
        """What breaks the promise, one sentence each."""
        found = [f"{name} is not the same {when}" for name, pair in self.same.items()
                 for when, fine in zip((f"at step {self.steps}", f"at step {2 * self.steps}"), pair, strict=True)
                 if not fine]  # fmt: skip
        if not self.control_differs:
            found.append(f"the comparison is blind: {self.changed} was changed and nothing came out different")
        return found + [f"{ranks} ranks: {text}" for ranks, text in self.worlds.items() if text]

    def to_json(self, plan: Plan) -> dict[str, Any]:
        """verify.json: the findings, for which plan and manifests, and a digest over all of it."""
        record = {
            "steps": self.steps,
            "plan": plan.digest,
            "manifests": list(plan.manifests),
            "components": {name: list(pair) for name, pair in self.same.items()},
            "negative_control": {"changed": self.changed, "differs": self.control_differs},
            "worlds": {str(ranks): text or "same tokens, same loss" for ranks, text in self.worlds.items()},
            "findings": self.findings,
        }
        return record | {"digest": digest(canonical_json(record))}


class Prover:
    """Runs of `trainer fit` with the same arguments in folders of their own below `folder`.

    least  ranks that one copy of the model takes by the arguments
    """

    def __init__(
        self, arguments: Sequence[str], folder: Path, steps: int, say: Callable[[str], None], least: int = 1
    ) -> None:
        self.arguments, self.folder, self.steps, self.say, self.least = arguments, folder, steps, say, least

    def run(self, name: str, until: int, ranks: int) -> Path:
        """Train in the folder of this name up to a step: the folder. RunError when that fails.

        A number of ranks that cannot be cut into such groups trains without them: the result must be the same.
        """
        out = self.folder / name
        own = {
            "stop.after_steps": until, "checkpoint.save_every_steps": self.steps, "checkpoint.keep_last": 100,
            "checkpoint.keep_best": "false", "checkpoint.verify_resume": "false", "checkpoint.async_save": "false",
        }  # fmt: skip
        if ranks % self.least:
            own |= {"parallel.tensor_parallel": 1, "parallel.pipeline_parallel": 1}
        sets = [part for key, value in own.items() for part in ("--set", f"{key}={value}")]
        words = [sys.executable, "-m", "trainer.cli", "fit", *self.arguments, *sets]
        done = subprocess.run([*words, "--out", str(out), "--ranks", str(ranks), "-q"], capture_output=True, text=True, check=False)
        if done.returncode not in (0, PREEMPTED):
            raise RunError(Problem("T006", f"a run of the proof ended with code {done.returncode}: {done.stderr.strip()[-2000:]}"))
        return out

    def begun(self, name: str, source: Path) -> Path:
        """A folder with the checkpoint of step k of another run, and its metrics up to there."""
        out = self.folder / name
        folder = checkpoint.folder_name(self.steps)
        shutil.copytree(source / "checkpoints" / folder, out / "checkpoints" / folder)
        shutil.copy(source / "metrics.jsonl", out)
        return out


def prove(
    plan: Plan, arguments: Sequence[str], folder: Path, steps: int, ranks: int, worlds: Sequence[int], say: Callable[[str], None]
) -> Proof:
    """The proof for a plan; `arguments` are those of `trainer fit`. RunError when a run fails, or the plan is too short."""
    if plan.steps < 2 * steps:
        message = f"a proof takes twice {steps:,} steps, but the run has {plan.steps:,}"
        raise RunError(Problem("T006", message, repairs=(f"write --steps {max(1, plan.steps // 2)}",)))
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    prover = Prover(arguments, folder, steps, say, plan.tensor_parallel * plan.pipeline_parallel)
    say(f"{2 * steps:,} steps straight")
    straight = prover.run("straight", 2 * steps, ranks)
    say(f"{steps:,} steps, a new process, {steps:,} more")
    halves = prover.run("halves", steps, ranks)
    control = prover.begun("control", halves)
    others = {world: prover.begun(f"ranks-{world}", halves) for world in worlds}
    prover.run("halves", 2 * steps, ranks)
    proof = Proof(steps, compared(straight, halves, steps))
    say("the negative control: one number changed, which must show")
    proof.changed = _change(control, steps)
    prover.run("control", 2 * steps, ranks)
    proof.control_differs = not all(pair[1] for pair in compared(straight, control, steps).values())
    for world, out in others.items():
        say(f"{steps:,} steps with {world} ranks from the same checkpoint")
        prover.run(out.name, 2 * steps, world)
        proof.worlds[world] = _other_world(straight, out, TOLERANCE[plan.compute])
    write_atomic(folder / "verify.json", json.dumps(proof.to_json(plan), indent=1, ensure_ascii=False).encode() + b"\n")
    return proof


def _at(out: Path, step: int) -> Checkpoint:
    found = checkpoint.read(out / "checkpoints" / checkpoint.folder_name(step))
    if not isinstance(found, Checkpoint):
        raise RunError(Problem("T006", f"{out} has no checkpoint of step {step:,}: {found}"))
    return found


def compared(a: Path, b: Path, steps: int) -> dict[str, tuple[bool, bool]]:
    """By component, whether two runs agree at step k and at step 2 k."""
    pairs = [(checkpoint.digests(_at(a, step)), checkpoint.digests(_at(b, step))) for step in (steps, 2 * steps)]
    found = {name: (pairs[0][0][name] == pairs[0][1].get(name), pairs[1][0][name] == pairs[1][1].get(name)) for name in pairs[0][0]}
    lines = [{r["step"]: r for r in metrics.read(out / "metrics.jsonl") if r["kind"] == "step"} for out in (a, b)]
    for title, field_ in (("tokens of each step", "digest"), ("learning rate of each step", "lr"), ("loss of each step", "loss")):
        both = [[one[step][field_] for step in sorted(one)] for one in lines]
        found[title] = (both[0][:steps] == both[1][:steps], both[0] == both[1])
    return found


def _change(out: Path, steps: int) -> str:
    """Change one number of the optimizer state of a checkpoint, and its record so that it looks sound: which one."""
    path = _at(out, steps).path
    record = json.loads((path / COMPLETE).read_bytes())
    for name in sorted(record["files"]):
        if not name.startswith("optimizer-"):
            continue
        tensors = load_file(path / name)
        key = next((k for k in sorted(tensors) if tensors[k].ndim and tensors[k].is_floating_point()), None)
        if key is None:
            continue
        flat = tensors[key].view(-1)
        flat[0] = flat[0] + flat.abs().max() + 1e-3
        save_file(tensors, path / name, metadata={"format": "pt"})
        record["files"][name] = {"bytes": (path / name).stat().st_size, "sha256": sha256_file(path / name)}
        (path / COMPLETE).write_bytes(json.dumps(record, indent=1).encode() + b"\n")
        return f"one number of {key}"
    raise RunError(Problem("T006", f"{path} holds no optimizer state that could be changed"))


def _other_world(straight: Path, out: Path, tolerance: float) -> str:
    """What is wrong with a run of another number of ranks; "" is nothing."""
    one, other = ([r for r in metrics.read(p / "metrics.jsonl") if r["kind"] == "step"] for p in (straight, out))
    for a, b in zip(one, other, strict=False):
        if a["digest"] != b["digest"]:
            return f"step {a['step']:,} read other tokens"
        if abs(a["loss"] - b["loss"]) > tolerance * abs(a["loss"]):
            return f"the loss of step {a['step']:,} is {b['loss']:.6f}, not {a['loss']:.6f}"
    return "" if len(one) == len(other) else f"{len(other):,} steps, not {len(one):,}"


def proof_text(proof: Proof) -> str:
    """The result as a table."""
    word = {True: "same", False: "DIFFERS"}
    head = ["component", f"at step {proof.steps}", f"at step {2 * proof.steps}"]
    rows = [[name, word[a], word[b]] for name, (a, b) in proof.same.items()]
    lines = [*table([head, *rows]), ""]
    control = "ended differently, as it must" if proof.control_differs else "ended the same: the comparison is blind"
    lines.append(f"  negative control ({proof.changed} changed): {control}")
    lines += [f"  {ranks} ranks: {text or 'the same tokens in every step, the same loss within rounding'}" for ranks, text in proof.worlds.items()]
    lines += [f"  finding: {one}" for one in proof.findings] or ["  no findings: a resumed run is the run"]
    return "\n".join(lines)
