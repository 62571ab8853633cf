"""The resolved plan as a value: the object that `trainer plan` prints and `trainer fit` runs.

Nothing of plan.yaml is read after it. It knows no rank count: ranks only cut its batches.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from stages.contract.epochs import Rows
from stages.contract.names import canonical_json, digest
from stages.contract.order import Order, Source, Stretch
from stages.contract.problem import Problem, problem_json
from trainer.shape import ModelShape


@dataclass(frozen=True)
class PhasePlan:
    """One resolved phase. A ramp becomes several of the same name, and so does a phase with skipped steps."""

    name: str
    first_step: int
    steps: int
    first_token: int  # planned positions before the phase, skipped ones too
    seq_len: int
    batch: int  # sequences in a step, over all ranks
    mix: Mapping[str, float]
    lr_factor: float  # multiplies the schedule in this phase

    @property
    def tokens_per_step(self) -> int:
        """Token positions of one step."""
        return self.batch * self.seq_len

    @property
    def tokens(self) -> int:
        """Token positions of the phase."""
        return self.steps * self.tokens_per_step

    @property
    def end(self) -> int:
        """The first step behind the phase."""
        return self.first_step + self.steps


@dataclass(frozen=True)
class SchedulePlan:
    """The learning rate as a function of planned tokens consumed."""

    peak_lr: float
    min_lr: float
    warmup_tokens: int
    decay: Literal["cosine", "linear", "constant", "inverse-sqrt", "wsd"]
    decay_tokens: int  # wsd: tokens of the decay at the end; else all after the warm-up
    total_tokens: int


@dataclass(frozen=True)
class OptimizerPlan:
    """The update rule (see `optim.py`), with clipping of the global gradient norm."""

    type: Literal["AdamW", "AdamW8bit", "Lion", "Sophia", "Muon"]
    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    grad_clip: float
    momentum: float = 0.95
    gamma: float = 0.05
    curvature_every: int = 10
    z_loss: float = 0.0


@dataclass(frozen=True)
class CheckpointPlan:
    """When to save and what to keep; None switches a trigger off."""

    save_every_steps: int | None
    save_every_seconds: float | None
    keep_last: int
    keep_best: bool
    keep_every_steps: int | None = None
    async_save: bool = False
    verify_resume: bool = False
    weights_only: str | None = None


@dataclass(frozen=True)
class MonitoringPlan:
    """What is written and watched. `eval_every_steps` is None where there is no holdout."""

    log_every_steps: int
    eval_every_steps: int | None
    sinks: tuple[str, ...]  # of jsonl, tensorboard, wandb
    on_nonfinite: Literal["stop", "skip", "roll-back"]
    on_spike: Literal["ignore", "warn", "skip", "roll-back"] = "warn"
    spike_z: float = 8.0
    spike_window: int = 128
    skips: int = 10
    rollbacks: int = 3
    profile_steps: tuple[int, int] | None = None


@dataclass(frozen=True)
class SourcePlan:
    """One source over the whole run. Units are windows of the longest sequence length, or packed rows."""

    name: str
    uid: str
    digest: str
    tokens: int  # stored, EOS included
    units: int  # in one epoch; packed rows: of the last length
    unused: int  # tokens at the end of the source that fill no unit
    samples: int  # sequences read
    read: int  # positions read
    epochs: float  # tokens read / tokens
    limit: float | None  # how often it may be read


@dataclass(frozen=True)
class Note:
    """One value of the plan: whether it was given, follows from others, or is free and was chosen; and why.

    section  where it is shown; number is what `value` shows, before rounding
    """

    key: str
    value: str
    origin: Literal["given", "derived", "default"]
    why: str
    number: float | str | None = None
    section: str = "run"


@dataclass(frozen=True)
class Plan:
    """Everything `fit` needs. `digest` covers what decides the result, so not names, saving or logging."""

    name: str
    seed: int  # of initialisation
    data_seed: int
    deterministic: bool
    model: ModelShape
    phases: tuple[PhasePlan, ...]
    stretches: tuple[Stretch, ...]  # the phases as they were mixed, skipped steps and all, and their sequences by source
    sources: tuple[SourcePlan, ...]  # by name; a sample's source is an index into this
    schedule: SchedulePlan
    optimizer: OptimizerPlan
    checkpoint: CheckpointPlan
    monitoring: MonitoringPlan
    micro_batch: int | None  # sequences in one forward pass; None: plan.yaml leaves it to `fit`
    compute: Literal["fp32", "bf16", "fp16"]
    reduce: Literal["fp32"]
    activation_checkpointing: Literal["none", "selective", "full"]
    packing: Literal["concat", "best-fit"]
    mask_documents: bool
    skip: tuple[tuple[int, int], ...]  # ranges [a, b) of data steps that are not trained on
    tombstones: tuple[str, ...]  # ids (hex) of documents from which nothing is learned
    max_seconds: float | None
    patience_evals: int | None
    manifests: tuple[str, ...]  # digests, in the order given
    shard: Literal["none", "optimizer", "gradients", "full", "hybrid"] = "full"
    replicas: int | None = None  # groups of `hybrid`; None: one on each machine
    compile: bool | None = None  # None: on GPUs
    after_steps: int | None = None
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    rows: Mapping[str, Mapping[int, Rows]] = field(default_factory=dict)  # packed rows of each source by length
    notes: tuple[Note, ...] = ()
    problems: tuple[Problem, ...] = ()  # warnings; errors were raised

    @cached_property
    def order(self) -> Order:
        """Which tokens stand where in which batch."""
        sources = [Source(s.uid, s.digest, s.units, self.rows.get(s.name, {})) for s in self.sources]
        return Order(self.data_seed, self.model.seq_len, sources, self.stretches, self.skip)

    @property
    def chain(self) -> tuple[str, ...]:
        """H_0 … H_P over the order of the first 0 … P of `phases`."""
        return self.order.chain

    @property
    def steps(self) -> int:
        """Steps of the run."""
        return self.phases[-1].end

    @property
    def total_tokens(self) -> int:
        """Token positions of the run, skipped ones too: what the learning rate is planned over."""
        return sum(stretch.length * stretch.batch * stretch.seq_len for stretch in self.stretches)

    def phase_at(self, step: int) -> PhasePlan:
        """The phase that holds a step (0-based). IndexError outside of the run."""
        if not 0 <= step < self.steps:
            raise IndexError(f"step {step} of a run of {self.steps}")
        return self.phases[bisect_right(self.phases, step, key=lambda phase: phase.first_step) - 1]

    def tokens_at(self, step: int) -> int:
        """Planned positions before a step, those of steps skipped before it too. IndexError outside of the run."""
        if step == 0:
            return 0
        phase = self.phase_at(step - 1)
        return phase.first_token + (step - phase.first_step) * phase.tokens_per_step

    def accumulation(self, step: int, world: int, micro: int) -> int:
        """Forward passes of each rank in a step, the same on every rank: the fullest rank decides."""
        rows = -(-self.phase_at(step).batch // world)
        return -(-rows // micro)

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hex) over what decides the result."""
        return digest(canonical_json({
            "seed": self.seed,
            "model": asdict(self.model),
            "chain": list(self.chain),
            "lr_factors": [phase.lr_factor for phase in self.phases],
            "schedule": asdict(self.schedule),
            "optimizer": asdict(self.optimizer),
            "compute": self.compute,
            "reduce": self.reduce,
            "mask_documents": self.mask_documents,
            "tombstones": list(self.tombstones),
            "on_nonfinite": self.monitoring.on_nonfinite,
            "on_spike": [self.monitoring.on_spike, self.monitoring.spike_z, self.monitoring.spike_window],
            "guard": [self.monitoring.skips, self.monitoring.rollbacks],
            "manifests": list(self.manifests),
        }))  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        """The plan as plain JSON values, with derived numbers, digest, chain, notes and warnings."""
        tree = asdict(replace(self, rows={}))
        tree["rows"] = {name: {n: rows.total for n, rows in lengths.items()} for name, lengths in self.rows.items()}
        tree["problems"] = [problem_json(problem) for problem in self.problems]
        tree["model"] |= {"parameters": self.model.parameters, "head_dim": self.model.head_dim}
        return tree | {
            "steps": self.steps,
            "total_tokens": self.total_tokens,
            "digest": self.digest,
            "chain": list(self.chain),
        }
