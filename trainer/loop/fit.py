"""The training loop.

A step is: read its batch (a function of manifest, plan and step), one forward and backward pass per micro-batch, the
global gradient norm, one verdict that all ranks share, one update or none (`step.py`, on the device). The host looks at
what steps measured when it must: at every step on a CPU, on a GPU when something is logged, evaluated or saved. State
between steps is the tensors and a few numbers (`records.State`); rate, phase and data are functions of the step number.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from stages.contract.problem import Problem, RunError
from trainer import checkpoint
from trainer.checkpoint import Checkpoint, Save, Stamp, extend, keeping
from trainer.checkpoint.prove import prove_resume
from trainer.checkpoint.records import Identity, State, check_identity
from trainer.checkpoint.runfolder import peak_memory
from trainer.dataset import pinned
from trainer.launch import PREEMPTED, Stop
from trainer.loader import Batch, Loader
from trainer.loop import guard, incident, noise, oom, sinks
from trainer.loop.evaluate import Held, eval_record, evaluate
from trainer.loop.flops import definition, peak_of
from trainer.loop.guard import Ruling, Verdict
from trainer.loop.metrics import Metrics, Ticker, batch_rows, step_record
from trainer.loop.optim import Updater
from trainer.loop.parallel import World
from trainer.loop.step import Measured, Numbers, Stepper
from trainer.loop.window import Window
from trainer.model import build, fill
from trainer.planned import Plan

#: Most sequences per source in one evaluation, and the least: an evaluation may cost about a twelfth of the training
#: between two of them (a forward pass is a third of a training pass), or a small run would mostly evaluate.
HOLDOUT_ROWS = 256
HOLDOUT_ROWS_LEAST = 4


@dataclass(frozen=True)
class End:
    """Why a run ended well, and the exit code that says so."""

    code: int
    why: str


@dataclass(frozen=True)
class Pending:
    """A step that the host has not looked at yet, how long it took and how long it waited for its batch, in seconds.
    Its batch stays with it: the device may still be copying from its memory."""

    measured: Measured
    batch: Batch
    seconds: float
    waited: float


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
        self.asked = self.plan = plan  # `plan` may come to pass over some data, or go on from an earlier edit
        world = world.laid_out(plan.tensor_parallel, plan.pipeline_parallel)
        self.loader, self.out, self.world, self.stop = loader, out, world, stop
        if world.device.type == "cuda":
            loader.allocate = pinned
        self.emit = emit
        self.root = out / "checkpoints"
        self.state = State()
        self.now = 0  # steps enqueued; `state.step` of them have been looked at
        self.pending: list[Pending] = []
        self.saving: Save | None = None
        self.healthy: int | None = None  # the newest checkpoint that no bad step is near
        self.began = self.saved_at = time.monotonic()
        self.settled = time.perf_counter()  # when the host looked last, evaluations and saves behind it
        self.ticker = Ticker(plan.steps) if world.first and not quiet else None
        self.metrics: Metrics | None = None
        torch.use_deterministic_algorithms(plan.deterministic)
        # A check for faults, and a good part of a step.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        self.micro = plan.micro_batch or 1
        self.sources = [source.name for source in plan.sources]
        self.model = build(plan, world)
        self.updater = Updater(self.model, plan.optimizer)
        self.stepper = Stepper(plan, self.model, self.updater, world)
        self.window = Window(plan.monitoring.profile_steps, out / "profile", world.rank, world.device)
        self.peak = peak_of(torch.cuda.get_device_name(world.device)) if world.device.type == "cuda" else None
        self._feed: Iterator[Batch] | None = None
        self._proved = not plan.checkpoint.verify_resume

    def say(self, text: str) -> None:
        """A sentence for the person, from rank 0."""
        if self.ticker is not None:
            self.ticker.say(text)

    # -- checkpoints

    def tensors(self) -> dict[str, dict[str, torch.Tensor]]:
        """Everything that a checkpoint holds as tensors, by group and name: of this rank's stage."""
        return {"model": dict(self.model.named_parameters()), "optimizer": self.updater.state_tensors()}

    def _saved(self) -> dict[str, dict[str, torch.Tensor]]:
        """`tensors` without what the first stage saves for two."""
        lent = [name for name, one in self.model.named_parameters() if one is self.model.lent]
        return {
            group: {name: one for name, one in named.items() if not any(name.startswith(other) for other in lent)}
            for group, named in self.tensors().items()
        }

    def identity(self, step: int) -> Identity:
        """What a checkpoint of `step` must share with this run: the plan's chain up to the last phase begun."""
        begun = sum(1 for phase in self.plan.phases if phase.first_step < step)
        model = asdict(self.plan.model)
        del model["seq_len"]  # a later phase may have longer rows; no weight depends on it
        return Identity(
            manifests=list(self.plan.manifests),
            chain=list(self.plan.chain[: begun + 1]),
            model=model,
            packing=self.plan.packing,
            optimizer=self.plan.optimizer.type,
        )

    def resume(self) -> None:
        """Go to the newest usable checkpoint of the run folder; without any, start at step 0.

        SpecError when it belongs to another corpus, order or model; RunError when there are some and none is sound.
        """
        found, skipped = checkpoint.agreed(self.root, self.world)
        for item in skipped:
            self.say(f"skipped checkpoint {item.name}: {item.reason}")
        if found is not None:
            past = found.record.history
            self._follow(extend.following(self.asked, past, found.record.state))
            check_identity(found.path, found.record.identity, self.identity(found.step))
            self.load(found)
            self.healthy = keeping.newest_healthy(self.root, found.step, guard.HEALTHY)
            self.say(f"resumed from {found.path} ({found.step:,} of {self.plan.steps:,} steps done)")
            if found.record.plan != self.asked.digest:
                moved = extend.moves(self.plan, past, found.step)
                self.say(f"the plan was edited since that checkpoint{': ' if moved else ''}{moved or ''}; it holds from here on")
            if found.record.identity.manifests != list(self.plan.manifests):
                self.say("the manifest is another one than then; the data read so far are the same in both")
        elif (folder := self.plan.checkpoint.weights_only) is not None:
            self._take_weights(Path(folder))
        self.world.highest([0])  # nobody may still read what is deleted next
        if self.world.first:
            self.root.mkdir(parents=True, exist_ok=True)
            keeping.clear_unfinished(self.root)
        self._open_metrics()
        if self.peak is not None:
            self.say(definition(self.plan.model, self.world.size, self.peak))

    def load(self, found: Checkpoint) -> None:
        """Make tensors and state those of a checkpoint."""
        checkpoint.load(found, self.tensors())
        self._take(found.record.state)

    def _take(self, state: State) -> None:
        self.state, self.now = state, state.step
        self.stepper.judge.load(state.window)
        self.stepper.phase = state.phase
        self.stepper.scaler.load(state.scale, state.scale_good)

    def _take_weights(self, folder: Path) -> None:
        """`checkpoint.weights_only`: the weights of any checkpoint of this shape, and nothing else."""
        found = checkpoint.read(folder)
        if not isinstance(found, Checkpoint):
            raise RunError(Problem("T001", f"{folder} cannot be used: {found}"))
        checkpoint.load(found, {"model": dict(self.model.named_parameters())})
        self.say(f"begun with the weights of {folder}; optimizer and data begin at step 0")

    def _follow(self, plan: Plan) -> None:
        """Go by this plan from now on."""
        if self._feed is not None:
            self._feed.close()  # type: ignore[attr-defined]
            self._feed = None
        self.plan = self.stepper.plan = plan
        self.loader.follow(plan)

    def _open_metrics(self) -> None:
        if not self.world.first:
            return
        if self.metrics is not None:
            self.metrics.close()
        names = self.plan.monitoring.sinks
        config = {"plan": self.plan.digest, "steps": self.plan.steps, "parameters": self.plan.model.parameters}
        others = sinks.opened(names, self.out, self.state.step, self.plan.name, config)
        self.metrics = Metrics(self.out, self.state.step, self.plan.name, others)

    def save(self) -> None:
        """Write a checkpoint of the current step, then rotate; all ranks. In the background if the plan says so."""
        self.finish_saving()
        if self.metrics is not None:
            self.metrics.sync()
        step = self.state.step
        past = extend.history(self.plan, extend.stretched(self.asked), step)
        stamp = Stamp(self.state, self.identity(step), past, self.asked.digest)
        rules = self.plan.checkpoint
        self.saving = Save(self.root, self._saved(), stamp, self.world, rules.async_save)
        if not rules.async_save:
            self.finish_saving()
        self.saved_at = time.monotonic()

    def finish_saving(self) -> None:
        """Complete the save that is on its way, if there is one, then rotate; all ranks."""
        if self.saving is None:
            return
        saving, self.saving = self.saving, None
        path = saving.finish()
        state, rules = saving.stamp.state, self.plan.checkpoint
        if state.healthy(guard.HEALTHY):
            self.healthy = state.step
        if self.metrics is not None:
            best = self.state.best_step if rules.keep_best else None
            spared = {step for step in (best, self.healthy) if step is not None}
            keeping.rotate(self.root, rules.keep_last, spared, rules.keep_every_steps)
            self.metrics.draw()
        if not self._proved and self.now == state.step < self.plan.steps:
            self._proved = True
            prove_resume(self, path)

    # -- the loop

    def run(self) -> End:
        """Train to the end of the plan or to a wish to stop.

        RunError when the guard says stop, when memory is full, or when a checkpoint cannot be written.
        """
        end = End(0, "the plan is done") if self.state.step >= self.plan.steps else None
        gc.freeze()  # what is here stays: collections need not walk over it
        while end is None:
            self.window.before(self.now)
            began = time.perf_counter()
            batch = self._next()
            waited = time.perf_counter() - began
            try:
                measured = self.train_step(batch, self.now)
            except (RuntimeError, MemoryError) as error:
                raise oom.explained(error, self.plan, self.now, self.micro, self.world) from error
            self.window.after(self.now, waited, self.say)
            self.pending.append(Pending(measured, batch, time.perf_counter() - began, waited))
            self.now += 1
            end = self._boundary()
        self.finish_saving()
        if self.metrics is not None:
            self.metrics.draw()
        return end

    def close(self) -> None:
        """Let go of terminal and files."""
        if self.metrics is not None:
            self.metrics.close()
        if self.ticker is not None:
            self.ticker.close()

    def train_step(self, batch: Batch, step: int) -> Measured:
        """One update, or none, from this rank's part of the batch of `step`."""
        return self.stepper(batch, step)

    def _next(self) -> Batch:
        if self._feed is None:
            self._feed = self.loader.batches(self.now, self.world.reader, self.world.readers, self.micro)
        return next(self._feed)

    def _boundary(self) -> End | None:
        """What is due between two steps: a look at them, evaluation, a checkpoint, the end (None: go on)."""
        plan, step, rules = self.plan, self.now, self.plan.checkpoint
        now = time.monotonic()
        late = rules.save_every_seconds is not None and now - self.saved_at >= rules.save_every_seconds
        over = plan.max_seconds is not None and now - self.began >= plan.max_seconds
        busy = self.saving is not None and not self.saving.written
        # Clocks, signals and disks differ between ranks; the highest wish of any rank is everyone's.
        signal, by_time, timed_out, busy_somewhere = self.world.highest([self.stop.code, late, over, busy])
        every = plan.monitoring.eval_every_steps
        last, enough = step == plan.steps, plan.after_steps is not None and step >= plan.after_steps
        eval_due = every is not None and (step % every == 0 or last)
        save_due = rules.save_every_steps is not None and step % rules.save_every_steps == 0
        log_due = step % plan.monitoring.log_every_steps == 0 or self.world.device.type == "cpu"
        if not (log_due or last or enough or eval_due or save_due or signal or by_time or timed_out):
            return None
        if not self.settle():
            return End(0, "the plan is done") if self.now >= self.plan.steps else None
        if self.saving is not None and not busy_somewhere:
            self.finish_saving()
        best = eval_due and self._evaluate()
        end: End | None = None
        if last:
            end = End(0, "the plan is done")
        elif plan.patience_evals is not None and self.state.evals_since_best >= plan.patience_evals:
            end = End(0, f"no better holdout loss in {plan.patience_evals} evaluations")
        elif signal:
            end = End(signal, "stopped by a signal")
        elif timed_out:
            end = End(PREEMPTED, "stop.max_time is over")
        elif enough:
            end = End(PREEMPTED, "stop.after_steps is reached")
        if end or save_due or by_time or (best and rules.keep_best):
            self.save()
        self.settled = time.perf_counter()
        return end

    # -- looking at steps

    def settle(self) -> bool:
        """Look at the steps since the last time, in order: write them down, rule on them. False: the run went back."""
        if not self.pending:
            return True
        vectors = torch.stack([one.measured.numbers for one in self.pending]).tolist()
        whole = torch.stack([one.measured.whole for one in self.pending]).tolist()
        pending, self.pending = self.pending, []
        if self.world.device.type == "cuda":  # what the host took to enqueue a step says nothing
            each = (time.perf_counter() - self.settled) / len(pending)
            pending = [replace(one, seconds=each) for one in pending]
        self.settled = time.perf_counter()
        for one, some, ints in zip(pending, vectors, whole, strict=True):
            numbers = Numbers.read(some, ints, self.sources, self.world.size)
            step = one.measured.step
            self.state = self._after(numbers, step)
            ruling = guard.ruling(self.plan.monitoring, numbers.verdict, self.state)
            self._record(numbers, one)
            if numbers.verdict == Verdict.OVERFLOW and numbers.scale <= self.stepper.scaler.FLOOR:
                self.say(f"step {step + 1:,}: the loss scale is at its floor of {numbers.scale:g}: fp16 cannot hold these gradients; use bf16")
            if ruling.bad:
                self._report(numbers, step, ruling)
            if ruling.act == "roll back":
                self._roll_back(step)
                return False
        return True

    def _after(self, numbers: Numbers, step: int) -> State:
        phase, monitoring = self.plan.phase_at(step), self.plan.monitoring
        state = guard.after(self.state, numbers.verdict, numbers.seen, phase.name, monitoring.spike_window)
        update: dict[str, Any] = {}
        if self.stepper.scaler.on:
            update |= {"scale": numbers.scale, "scale_good": numbers.scale_good}
        if numbers.first is not None and not numbers.skipped:
            big = (numbers.norm**2, float(numbers.targets))
            update["noise"] = noise.followed(state.noise, big, numbers.first)
        return state.model_copy(update=update)

    def _record(self, numbers: Numbers, one: Pending) -> None:
        """The metrics line and the live line of a step done."""
        record = step_record(self.plan, numbers, one.measured.step, one.seconds, one.waited, one.measured.context)
        record["memory"] = peak_memory(self.world.device)
        if self.peak is not None:
            record["mfu"] = round(record["flops_per_second"] / self.world.size / self.peak, 4)
        if self.stepper.scaler.on:
            record["loss_scale"] = numbers.scale
        if (scale := noise.scale_of(self.state.noise)) is not None:
            record["noise_scale"] = scale
        self._write(record)
        if self.ticker is not None:
            self.ticker.tick(record)

    def _write(self, record: dict[str, Any]) -> None:
        """Every record goes to metrics.jsonl; the other sinks get evaluations, and every so many steps one step."""
        if self.metrics is None:
            return
        step = record["step"]
        due = step % self.plan.monitoring.log_every_steps == 0 or step == self.plan.steps
        self.metrics.write(record, due or record["kind"] == "eval")
        if self.emit is not None and (due or record["kind"] == "eval"):
            self.emit(record)

    def _report(self, numbers: Numbers, step: int, ruling: Ruling) -> None:
        """Write which data a bad step had and what is done about it; RunError when the run must not go on."""
        documents = incident.suspects(self.model, self.loader, self.world, step, self.micro)
        taken = numbers.verdict == Verdict.SPIKE
        decision = ruling.act if ruling.act != "go on" else "taken" if taken else "skipped"
        in_a_row = self.state.skipped_in_a_row
        path = incident.file_of(self.out, step + 1)
        if self.world.first:
            rows = batch_rows(self.loader.batch(step, 0, 1, self.micro), self.sources)
            incident.write(self.out, self.plan, numbers, step, decision, documents, rows, in_a_row)
        first = documents[0] if documents else None
        suspect = f"; most suspect: document {first['id']} of {first['source']}" if first else ""
        done = "was taken" if taken else "was skipped on every rank"
        self.say(f"step {step + 1:,} {done}: {incident.what(numbers)}{suspect}; all of it in {path}")
        if ruling.act == "stop":
            raise incident.the_end(numbers, step, in_a_row, self.state.rollbacks, path)

    def _roll_back(self, step: int) -> None:
        """Go back to the last healthy checkpoint before the bad steps that end with `step`, and pass over their data."""
        first = step - self.state.skipped_in_a_row + 1
        jump = [self.plan.order.data_step(first), self.plan.order.data_step(step) + 1]
        jumped = [list(one) for one in extend.merged(self.state.jumped, [jump])]
        kept = {"jumped": jumped, "rollbacks": self.state.rollbacks + 1}
        self.finish_saving()
        target = keeping.newest_healthy(self.root, first, guard.HEALTHY)
        self.world.highest([0])  # all ranks have looked before the first one deletes
        if self.world.first:
            keeping.remove_behind(self.root, target or 0)
        self.world.highest([0])
        self._follow(extend.jumping(self.plan, [jump]))
        if target is None:
            self._begin_again()
        else:
            found = checkpoint.read(self.root / checkpoint.folder_name(target))
            if not isinstance(found, Checkpoint):
                raise RunError(Problem("T001", f"the checkpoint to go back to cannot be used: {found}"))
            self.load(found)
        self.state = self.state.model_copy(update=kept)
        self.healthy = target
        self._open_metrics()
        self.say(f"went back to step {self.state.step:,} and pass over data steps {jump[0]:,} to {jump[1] - 1:,}")

    def _begin_again(self) -> None:
        """Weights and state of step 0."""
        fill(self.model, self.plan.seed)
        self.updater.forget()
        self._take(State())
        if (folder := self.plan.checkpoint.weights_only) is not None:
            self._take_weights(Path(folder))

    # -- evaluation

    def _holdout_rows(self) -> int:
        """Sequences of each source in an evaluation."""
        every = self.plan.monitoring.eval_every_steps or self.plan.steps
        budget = every * self.plan.phase_at(self.state.step - 1).batch // 4
        return min(max(budget // len(self.sources), HOLDOUT_ROWS_LEAST), HOLDOUT_ROWS)

    def _evaluate(self) -> bool:
        """Holdout loss per source and in all; whether it is the lowest so far."""
        seq_len = self.plan.phase_at(self.state.step - 1).seq_len
        found = evaluate(self.model, self.loader, self.world, seq_len, self.micro, self._holdout_rows())
        if not found:
            return False
        whole = sum(found.values(), Held())
        self._write(eval_record(found, whole, self.state.step))
        better = self.state.best_loss is None or whole.loss < self.state.best_loss
        update: dict[str, Any] = {"evals_since_best": self.state.evals_since_best + 1}
        if better:
            update = {"best_step": self.state.step, "best_loss": whole.loss, "evals_since_best": 0}
        self.state = self.state.model_copy(update=update)
        return better
