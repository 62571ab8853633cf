"""The training loop.

A step is: read its batch (a function of manifest, plan and step), one forward and backward pass per micro-batch,
the global gradient norm, one decision that all ranks take together, one update. State between steps is the tensors
and a few numbers (`records.State`); learning rate, phase and data are functions of the step number.
"""

from __future__ import annotations

import datetime
import json
import platform
import socket
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from stages.contract.files import write_atomic
from stages.contract.names import canonical_json
from stages.contract.problem import Problem, RunError
from trainer import checkpoint, optim
from trainer.evaluate import holdout_loss, to_device
from trainer.launch import PREEMPTED, Stop
from trainer.loader import Batch, Loader
from trainer.metrics import Metrics, Ticker, batch_rows, digest_parts, finite_or_none
from trainer.model import Llama, fill
from trainer.parallel import World, seed_of, shard
from trainer.plan import Plan
from trainer.records import Identity, State, check_identity
from trainer.schedule import rate_at

#: Steps without a finite loss and norm in a row after which a run stops: its next step would not be better.
SKIPS = 10

#: Most sequences per source in one evaluation, and the least: an evaluation may cost about a twelfth of the training
#: between two of them (a forward pass is a third of a training pass), or a small run would mostly evaluate.
HOLDOUT_ROWS = 256
HOLDOUT_ROWS_LEAST = 4


@dataclass(frozen=True)
class StepResult:
    """What a step measured; the same on every rank."""

    loss: float  # over all label tokens of the step
    losses: dict[str, float]  # the same per source in the step
    norm: float  # before clipping
    targets: int
    digest: str  # of the token ids of the step, whatever the ranks
    bad_ranks: tuple[int, ...]  # whose own loss was not finite
    skipped: bool


@dataclass(frozen=True)
class End:
    """Why a run ended well, and the exit code that says so."""

    code: int
    why: str


class Fit:
    """One run on one rank: build it, `resume()`, `run()`."""

    def __init__(
        self,
        plan: Plan,
        loader: Loader,
        out: Path,
        world: World,
        stop: Stop,
        emit: Callable[[dict[str, Any]], None] | None = None,
        quiet: bool = False,
    ) -> None:
        """emit  gets, on rank 0, every evaluation and every `log_every_steps`th step (for `--json`)"""
        self.plan, self.loader, self.out, self.world, self.stop = plan, loader, out, world, stop
        self.emit = emit
        self.root = out / "checkpoints"
        self.state = State()
        self.began = time.monotonic()
        self.saved_at = self.began
        self.ticker = Ticker(plan.steps) if world.first and not quiet else None
        self.metrics: Metrics | None = None
        torch.use_deterministic_algorithms(plan.deterministic)
        self.micro = plan.micro_batch or 1
        self.sources = [source.name for source in plan.sources]
        self.model = self._build()
        self.optimizer = optim.build(self.model, plan.optimizer)

    def _build(self) -> Llama:
        with torch.device("meta"):
            model = Llama(self.plan.model, self.plan.activation_checkpointing)
        compute = torch.bfloat16 if self.plan.compute == "bf16" else torch.float32
        shard(model, model.model.layers, self.world, compute)
        model.to_empty(device=self.world.device)
        model.tie()
        fill(model, self.plan.seed)
        return model

    def say(self, text: str) -> None:
        """A sentence for the person, from rank 0."""
        if self.ticker is not None:
            self.ticker.say(text)

    # -- checkpoints

    def tensors(self) -> dict[str, dict[str, torch.Tensor]]:
        """Everything that a checkpoint holds as tensors, by group and name."""
        return {
            "model": dict(self.model.named_parameters()),
            "optimizer": optim.state_tensors(self.model, self.optimizer),
        }

    def identity(self, step: int) -> Identity:
        """What a checkpoint of `step` must share with this run: the plan's chain up to the last phase begun."""
        begun = sum(1 for phase in self.plan.phases if phase.first_step < step)
        model = asdict(self.plan.model)
        del model["seq_len"]  # a later phase may have longer rows; no weight depends on it
        chain = list(self.plan.chain[: begun + 1])
        return Identity(manifests=list(self.plan.manifests), chain=chain, model=model)

    def resume(self) -> None:
        """Go to the newest usable checkpoint of the run folder; without any, start at step 0.

        SpecError when it belongs to another corpus, order or model; RunError when there are some and none is sound.
        """
        found, skipped = checkpoint.agreed(self.root, self.world)
        for item in skipped:
            self.say(f"skipped checkpoint {item.name}: {item.reason}")
        if found is not None:
            check_identity(found.path, found.record.identity, self.identity(found.step))
            checkpoint.load(found, self.tensors())
            self.state = found.record.state
            self.say(f"resumed from {found.path} ({found.step:,} of {self.plan.steps:,} steps done)")
            if found.record.plan != self.plan.digest:
                self.say("the plan was edited since that checkpoint; its settings hold from here on")
        self.world.highest([0])  # nobody may still read what is deleted next
        if self.world.first:
            self.root.mkdir(parents=True, exist_ok=True)
            checkpoint.clear_unfinished(self.root)
            self.metrics = Metrics(self.out, self.state.step, "tensorboard" in self.plan.monitoring.sinks)

    def save(self) -> None:
        """Write a checkpoint of the current step, then rotate; all ranks."""
        if self.metrics is not None:
            self.metrics.sync()
        step = self.state.step
        checkpoint.save(
            self.root, self.tensors(), self.state, self.identity(step), self.plan.digest, self.world
        )
        if self.metrics is not None:
            best = self.state.best_step if self.plan.checkpoint.keep_best else None
            checkpoint.rotate(self.root, self.plan.checkpoint.keep_last, best)
            self.metrics.draw()
        self.saved_at = time.monotonic()

    # -- the loop

    def run(self) -> End:
        """Train to the end of the plan or to a wish to stop.

        RunError after the first step without finite numbers, or after `SKIPS` in a row, as the plan says.
        """
        end = End(0, "the plan is done") if self.state.step >= self.plan.steps else None
        batches = self.loader.batches(self.state.step, self.world.rank, self.world.size, self.micro)
        while end is None:
            began = time.perf_counter()
            batch = next(batches)
            waited = time.perf_counter() - began
            step = self.state.step
            result = self.train_step(batch, step)
            counts = {"step": step + 1, "skipped_in_a_row": 0}
            if result.skipped:
                in_a_row = self.state.skipped_in_a_row + 1
                counts |= {"skipped": self.state.skipped + 1, "skipped_in_a_row": in_a_row}
            self.state = self.state.model_copy(update=counts)
            self._record(result, step, time.perf_counter() - began, waited)
            if result.skipped:
                self._report_skip(result, step)
            end = self._boundary()
        if self.metrics is not None:
            self.metrics.draw()
        return end

    def close(self) -> None:
        """Let go of terminal and files."""
        if self.metrics is not None:
            self.metrics.close()
        if self.ticker is not None:
            self.ticker.close()

    def train_step(self, batch: Batch, step: int) -> StepResult:
        """One update (or none, when a number is not finite) from this rank's part of the batch of `step`."""
        world = self.world
        torch.manual_seed(seed_of("step", self.plan.seed, step, world.rank))
        numbers = digest_parts(batch, self._first_slot(step))
        targets, *parts = world.total_int([batch.targets, *numbers])
        sums = torch.zeros(2, len(self.sources), dtype=torch.float64, device=world.device)
        for micro in batch.micros:
            tokens, positions, segments, labels = to_device(micro, world.device)
            losses = self.model(tokens, positions, segments, labels)
            (losses.sum() / max(targets, 1)).backward()
            source_B = torch.as_tensor(micro["source"]).to(world.device, torch.int64)
            rows = (len(source_B), -1)
            sums[0].index_add_(0, source_B, losses.detach().double().view(rows).sum(1))
            sums[1].index_add_(0, source_B, (labels >= 0).double().view(rows).sum(1))
        own = sums[0].sum().isfinite().item()
        totals = world.total(sums.flatten().tolist())
        lost, counted = totals[: len(self.sources)], totals[len(self.sources) :]
        loss = sum(lost) / max(targets, 1)
        norm = optim.gradient_norm(self.model)
        skipped = bool(world.highest([not optim.finite(loss, norm)])[0])
        bad_ranks: tuple[int, ...] = ()
        if skipped:
            flags = world.total_int([int(rank == world.rank and not own) for rank in range(world.size)])
            bad_ranks = tuple(rank for rank, flag in enumerate(flags) if flag)
        else:
            optim.update(
                self.model, self.optimizer, rate_at(self.plan, step), norm, self.plan.optimizer.grad_clip
            )
        self.optimizer.zero_grad(set_to_none=True)
        by_source = {name: lost[i] / counted[i] for i, name in enumerate(self.sources) if counted[i]}
        digest = b"".join((part % (1 << 32)).to_bytes(4, "little") for part in parts).hex()
        return StepResult(loss, by_source, norm, targets, digest, bad_ranks, skipped)

    def _first_slot(self, step: int) -> int:
        return self.world.rank * self.plan.phase_at(step).batch // self.world.size

    def _record(self, result: StepResult, step: int, seconds: float, waited: float) -> None:
        """The metrics line and the live line of a step done."""
        phase = self.plan.phase_at(step)
        tokens = self.plan.tokens_at(step + 1)
        record = {
            "kind": "step",
            "step": step + 1,
            "phase": phase.name,
            "loss": finite_or_none(result.loss),
            "losses": {name: finite_or_none(loss) for name, loss in result.losses.items()},
            "lr": rate_at(self.plan, step),
            "grad_norm": finite_or_none(result.norm),
            "tokens": tokens,
            "targets": result.targets,
            "digest": result.digest,
            "skipped": result.skipped,
            "seconds": round(seconds, 6),
            "tokens_per_second": round(phase.tokens_per_step / seconds, 3),
            "data_wait": round(waited, 6),
        }
        self._write(record)
        if self.ticker is not None:
            self.ticker.tick(record)

    def _write(self, record: dict[str, Any]) -> None:
        """Every record goes to metrics.jsonl; the other sinks get evaluations, and every so many steps one step."""
        if self.metrics is None:
            return
        step = self.state.step
        due = step % self.plan.monitoring.log_every_steps == 0 or step == self.plan.steps
        self.metrics.write(record, due or record["kind"] == "eval")
        if self.emit is not None and (due or record["kind"] == "eval"):
            self.emit(record)

    def _report_skip(self, result: StepResult, step: int) -> None:
        """Write which data a skipped step had; RunError when the run must not go on."""
        in_a_row = self.state.skipped_in_a_row
        path = self.out / f"incident-{step + 1:08d}.json"
        if self.world.first:
            record = {
                "step": step + 1,
                "phase": self.plan.phase_at(step).name,
                "loss": repr(result.loss),
                "losses": {name: repr(loss) for name, loss in result.losses.items()},
                "grad_norm": repr(result.norm),
                "ranks": list(result.bad_ranks),
                "skipped_in_a_row": in_a_row,
                "digest": result.digest,
                "rows": batch_rows(self.loader.batch(step, 0, 1, self.micro), self.sources),
            }
            write_atomic(path, canonical_json(record) + b"\n")
        numbers = f"loss {result.loss}, gradient norm {result.norm}"
        self.say(f"step {step + 1:,} was skipped on every rank: {numbers}; its documents are in {path}")
        if self.plan.monitoring.on_nonfinite == "stop" or in_a_row >= SKIPS:
            many = f"{in_a_row} steps in a row" if in_a_row > 1 else f"step {step + 1:,}"
            message = f"{many} had no finite loss and gradient norm (now {numbers})"
            repairs = (
                f"look at the documents in {path}",
                "lower lr_schedule.peak_lr or optimizer.grad_clip; the last checkpoint is sound",
            )
            raise RunError(Problem("T003", message, repairs=repairs))

    def _boundary(self) -> End | None:
        """What is due between two steps: evaluation, a checkpoint, the end (None: go on)."""
        plan, step, rules = self.plan, self.state.step, self.plan.checkpoint
        now = time.monotonic()
        late = rules.save_every_seconds is not None and now - self.saved_at >= rules.save_every_seconds
        over = plan.max_seconds is not None and now - self.began >= plan.max_seconds
        # Clocks and signals differ between ranks; the highest wish of any rank is everyone's.
        signal, by_time, timed_out = self.world.highest([self.stop.code, late, over])
        last = step == plan.steps
        every = plan.monitoring.eval_every_steps
        best = every is not None and (step % every == 0 or last) and self._evaluate()
        end: End | None = None
        if last:
            end = End(0, "the plan is done")
        elif plan.patience_evals is not None and self.state.evals_since_best >= plan.patience_evals:
            end = End(0, f"no better holdout loss in {plan.patience_evals} evaluations")
        elif signal:
            end = End(signal, "stopped by a signal")
        elif timed_out:
            end = End(PREEMPTED, "stop.max_time is over")
        due = rules.save_every_steps is not None and step % rules.save_every_steps == 0
        if end or due or by_time or (best and rules.keep_best):
            self.save()
        return end

    def _holdout_rows(self) -> int:
        """Sequences of each source in an evaluation."""
        every = self.plan.monitoring.eval_every_steps or self.plan.steps
        budget = every * self.plan.phase_at(self.state.step - 1).batch // 4
        return min(max(budget // len(self.sources), HOLDOUT_ROWS_LEAST), HOLDOUT_ROWS)

    def _evaluate(self) -> bool:
        """Holdout loss per source and in all; whether it is the lowest so far."""
        seq_len = self.plan.phase_at(self.state.step - 1).seq_len
        rows = self._holdout_rows()
        losses, total, targets = {}, 0.0, 0
        for name in self.sources:
            batches = self.loader.holdout(name, seq_len, self.micro, rows)
            loss, count = holdout_loss(self.model, batches, self.world)
            if count:
                losses[name] = loss
                total, targets = total + loss * count, targets + count
        if not targets:
            return False
        mean = total / targets
        shown = {name: finite_or_none(loss) for name, loss in losses.items()}
        self._write({"kind": "eval", "step": self.state.step, "loss": finite_or_none(mean), "losses": shown})
        better = self.state.best_loss is None or mean < self.state.best_loss
        update: dict[str, Any] = {"evals_since_best": self.state.evals_since_best + 1}
        if better:
            update = {"best_step": self.state.step, "best_loss": mean, "evals_since_best": 0}
        self.state = self.state.model_copy(update=update)
        return better


def describe_run(out: Path, plan: Plan, world: World, step: int) -> None:
    """plan.json: the plan that runs. run.json: where and when, one entry per start; nothing else reads it."""
    write_atomic(
        out / "plan.json",
        json.dumps(plan.to_json(), indent=1, sort_keys=True, ensure_ascii=False).encode() + b"\n",
    )
    path = out / "run.json"
    starts = json.loads(path.read_bytes())["starts"] if path.exists() else []
    starts.append(
        {
            "step": step,
            "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "host": socket.gethostname(),
            "ranks": world.size,
            "device": world.device.type,
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "python": platform.python_version(),
        }
    )
    write_atomic(path, json.dumps({"starts": starts}, indent=1).encode() + b"\n")
