"""The plan as a system of equations: plan.yaml solved against the real corpus, before anything runs.

What is left out is derived and says how (`equations.py`); what is given twice over is checked; all problems come at
once, each with values that would make it right. The result is the `Plan` of `planned.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate

from stages.contract.config import Loaded
from stages.contract.epochs import GROUP_WINDOW, Rows
from stages.contract.manifest import Manifest, SourceEntry
from stages.contract.mixture import Mixture, resolve_mixture
from stages.contract.order import Order, Source
from stages.contract.problem import Problem, SpecError, Where, in_order
from stages.contract.tree import Path, path_text
from trainer.config import NO_PLAN, PlanConfig
from trainer.edits import check_skip, read_tombstones
from trainer.equations import CORE, Draft, Machine, check_memory, check_steps, check_warmup, request_of
from trainer.planned import (
    CheckpointPlan,
    MonitoringPlan,
    Note,
    OptimizerPlan,
    PhasePlan,
    Plan,
    SchedulePlan,
    SourcePlan,
)
from trainer.shape import ModelShape

__all__ = [
    "CheckpointPlan", "Machine", "ModelShape", "MonitoringPlan", "Note", "OptimizerPlan", "PhasePlan", "Plan",
    "SchedulePlan", "SourcePlan", "resolve",
]  # fmt: skip


def _place(loaded: Loaded[PlanConfig] | None, path: Path) -> Where | None:
    """Where a value stands; None for what no file and no `--set` gives."""
    where = loaded.where(path) if loaded is not None else None
    return None if where is None or where.file == NO_PLAN else where


def resolve(loaded: Loaded[PlanConfig] | None, manifests: Sequence[Manifest], machine: Machine) -> Plan:
    """The plan that `fit` runs. SpecError holds every contradiction found, each with usable repairs.

    Pure: the same plan.yaml and manifests give the same data order on every machine.
    """
    config = loaded.value if loaded else PlanConfig()
    draft = Draft(
        config,
        machine,
        given=loaded.given if loaded else lambda _path: False,
        at=lambda path: _place(loaded, path),
        sources=_merged(manifests),
        manifests=manifests,
    )
    draft.problems += _not_built_yet(config, draft.at)
    request, shape = request_of(draft)
    mixture = None
    try:
        mixture = resolve_mixture(request, draft.at)
    except SpecError as error:
        draft.problems += error.problems
    tombstones = read_tombstones(draft)
    if mixture is not None:
        draft.problems += mixture.warnings
        check_steps(draft, mixture)
        check_skip(draft, mixture)
    check_warmup(draft, sum(phase.steps for phase in mixture.phases) if mixture else None)
    check_memory(draft, shape)
    if mixture is None or any(problem.severity == "error" for problem in draft.problems):
        raise SpecError(*in_order(draft.problems))
    return _finish(draft, mixture, shape, request.rows is not None, tombstones)


def _merged(manifests: Sequence[Manifest]) -> dict[str, SourceEntry]:
    """All sources by name, sorted. SpecError when the manifests cannot be read together."""
    found: dict[str, SourceEntry] = {}
    first = manifests[0]
    for manifest in manifests:
        if manifest.tokenizer.sha256 != first.tokenizer.sha256:
            raise SpecError(
                Problem("C017", f"the corpora {first.name} and {manifest.name} were made with different tokenizers: "
                                f"SHA-256 {first.tokenizer.sha256[:12]}… and {manifest.tokenizer.sha256[:12]}…",
                        repairs=("build both with the same tokenizer.path",))
            )  # fmt: skip
        for name, entry in manifest.sources.items():
            if name in found:
                raise SpecError(
                    Problem(
                        "C017",
                        f"two manifests have a source called {name}",
                        repairs=("rename one and build again",),
                    )
                )
            found[name] = entry
    if not any(entry.tokens for entry in found.values()):
        raise SpecError(Problem("M001", f"the corpus {first.name} has no tokens at all"))
    return dict(sorted(found.items()))


def _not_built_yet(config: PlanConfig, at: Callable[[Path], Where | None]) -> Iterator[Problem]:
    """Keys of the grammar that ask for something that does not exist yet."""
    asked: list[tuple[bool, Path, str]] = [
        (config.parallel.tensor_parallel > 1, ("parallel", "tensor_parallel"), "1"),
        (config.parallel.pipeline_parallel > 1, ("parallel", "pipeline_parallel"), "1"),
    ]
    for wanted, path, instead in asked:
        if wanted:
            message = f"{path_text(path)} asks for a part that is not built yet"
            yield Problem("C009", message, at(path), (f"write {instead}",))


def _finish(
    draft: Draft, mixture: Mixture, shape: ModelShape, packed: bool, tombstones: tuple[str, ...]
) -> Plan:
    config = draft.config
    peak = _peak_lr(draft, shape)
    data_seed = config.seed if config.data.seed is None else config.data.seed
    sources = tuple(_source(name, entry, mixture) for name, entry in draft.sources.items())
    stretches = tuple(phase.stretch for phase in mixture.phases)
    rows = {name: draft.packed[name] for name in draft.sources} if packed else {}
    ordered = [Source(s.uid, s.digest, s.units, rows.get(s.name, {})) for s in sources]
    order = Order(data_seed, shape.seq_len, ordered, stretches, config.data.skip)
    step = mixture.phases[0].batch * mixture.phases[0].seq_len
    phases = _phases(mixture, order, peak, _batch_factor(draft, step))
    _note_run(draft, mixture, shape, rows, order)
    compute = config.precision.compute
    if compute is None or compute == "auto":
        compute = "fp32" if draft.machine.device == "cpu" else "bf16"
    draft.note(("precision", "compute"), compute, "fp32 on CPU, bf16 on GPU")
    return Plan(
        name=config.name or draft.manifests[0].name,
        seed=config.seed,
        data_seed=data_seed,
        deterministic=config.deterministic,
        model=shape,
        phases=phases,
        stretches=stretches,
        sources=sources,
        schedule=_schedule(draft, mixture, peak),
        optimizer=_optimizer(draft),
        checkpoint=_checkpoint(draft),
        monitoring=_monitoring(draft, order.steps),
        micro_batch=_micro_batch(draft, phases),
        compute=compute,
        reduce=config.precision.reduce,
        activation_checkpointing=config.parallel.activation_checkpointing,
        packing="best-fit" if packed else "concat",
        mask_documents=config.data.mask_documents,
        skip=config.data.skip,
        tombstones=tombstones,
        max_seconds=config.stop.max_time,
        patience_evals=config.stop.patience_evals,
        manifests=tuple(manifest.digest for manifest in draft.manifests),
        shard=config.parallel.shard,
        replicas=config.parallel.replicas,
        compile=config.parallel.compile,
        after_steps=config.stop.after_steps,
        rows=rows,
        notes=tuple(draft.notes),
        problems=tuple(draft.problems),
    )


def _note_run(
    draft: Draft, mixture: Mixture, shape: ModelShape, rows: Mapping[str, Mapping[int, Rows]], order: Order
) -> None:
    """What follows for the run as a whole."""
    draft.notes.append(Note("steps", f"{order.steps:,}", "derived", "total_tokens / global_tokens, phase by phase"))
    if order.steps < order.data_steps:
        why = "data.skip: the run is shorter by these steps, all others stay as they were"
        draft.notes.append(Note("steps skipped", f"{order.data_steps - order.steps:,}", "derived", why))
    if rows:
        pads = sum(use.read - use.stored for use in mixture.uses.values())
        draft.notes.append(Note("padding", f"{pads / mixture.tokens:.3%}", "derived", "of all positions, in packed rows"))
        lengths = list(dict.fromkeys(phase.seq_len for phase in mixture.phases))
        if len(lengths) > 1:
            why = "where the length changes, rows of the groups that are open may be read once more or once less"
            draft.notes.append(Note("groups open at once", str(GROUP_WINDOW), "default", why))
    else:
        _note_unused(draft, mixture)
    if draft.machine.device == "cpu":
        seconds = 6 * shape.matmul_parameters * mixture.tokens / (CORE * draft.machine.cpus)
        why = f"6 x parameters x tokens at {CORE / 1e9:g} GFLOP/s on each of {draft.machine.cpus} cores"
        draft.notes.append(Note("time, about", f"{seconds / 60:,.1f} min", "derived", why))


def _note_unused(draft: Draft, mixture: Mixture) -> None:
    """What windows leave over."""
    unused = sum(use.unused for use in mixture.uses.values() if use.samples)
    why = f"ends of sources that do not fill a sequence of {mixture.longest:,}"
    draft.notes.append(Note("tokens of an epoch not used", f"{unused:,}", "derived", why))
    seams = sum(use.drawn * mixture.longest - use.read for use in mixture.uses.values())
    if seams:
        why = "parts of long sequences that a phase with shorter ones leaves over"
        draft.notes.append(Note("tokens of the run passed over", f"{seams:,}", "derived", why))


def _checkpoint(draft: Draft) -> CheckpointPlan:
    config = draft.config.checkpoint
    every = config.save_every_steps or 1000
    draft.note(("checkpoint", "save_every_steps"), every, "and at the end of the run", derived=False)
    return CheckpointPlan(
        every, config.save_every, config.keep_last, config.keep_best, config.keep_every_steps, config.async_save,
        config.verify_resume, None if config.weights_only is None else str(config.weights_only),
    )  # fmt: skip


def _optimizer(draft: Draft) -> OptimizerPlan:
    """As given; Lion forgets slower than AdamW (Chen et al. 2023, section 4.1), unless beta2 is given."""
    given = draft.config.optimizer
    if given.type == "Lion" and not draft.given(("optimizer", "beta2")):
        given = given.model_copy(update={"beta2": 0.99})
    return OptimizerPlan(**given.model_dump())


def _batch_factor(draft: Draft, first_step: int) -> Callable[[int], float]:
    """Positions of a step -> factor of the rate, by `lr_schedule.batch_rule`: 1 for batch.global_tokens, or where it
    is left out, for a step of the first phase."""
    power = {"none": 0.0, "sqrt": 0.5, "linear": 1.0}[draft.config.lr_schedule.batch_rule]
    reference = draft.config.batch.global_tokens or first_step
    return lambda tokens: (tokens / reference) ** power



def _monitoring(draft: Draft, steps: int) -> MonitoringPlan:
    config = draft.config.monitoring
    return MonitoringPlan(
        config.log_every_steps, _eval_every(draft, steps), config.sinks, config.on_nonfinite, config.on_spike,
        config.spike_z, config.spike_window, config.skips, config.rollbacks, config.profile_steps,
    )  # fmt: skip


def _phases(
    mixture: Mixture, order: Order, peak: float, batch_factor: Callable[[int], float]
) -> tuple[PhasePlan, ...]:
    first = [0]
    for phase in mixture.phases:
        first.append(first[-1] + phase.steps)
    tokens = list(accumulate((phase.tokens for phase in mixture.phases), initial=0))
    phases = []
    for piece in order.pieces:
        phase = mixture.phases[piece.stretch]
        before = tokens[piece.stretch] + (piece.data - first[piece.stretch]) * phase.batch * phase.seq_len
        factor = batch_factor(phase.batch * phase.seq_len) if phase.lr is None else phase.lr / peak
        phases.append(
            PhasePlan(phase.name, piece.first, piece.steps, before, phase.seq_len, phase.batch, phase.mix, factor)
        )
    return tuple(phases)


def _source(name: str, entry: SourceEntry, mixture: Mixture) -> SourcePlan:
    use = mixture.uses[name]
    return SourcePlan(
        name,
        entry.uid,
        entry.digest,
        use.tokens,
        use.units,
        use.unused,
        use.samples,
        use.read,
        use.epochs,
        use.limit,
    )


def _peak_lr(draft: Draft, shape: ModelShape) -> float:
    peak = draft.config.lr_schedule.peak_lr
    if peak is None:
        peak = float(f"{min(3e-3, 0.0047 * (shape.parameters / 108e6) ** (-1 / 3)):.2g}")
    draft.note(("lr_schedule", "peak_lr"), peak, "0.0047 (params / 108M)^(-1/3), at most 3e-3")
    return peak


def _schedule(draft: Draft, mixture: Mixture, peak: float) -> SchedulePlan:
    """The schedule in tokens; the warm-up in steps is converted by the steps it covers."""
    config = draft.config.lr_schedule
    total = mixture.tokens
    if config.warmup_steps is not None:
        left, warmup = config.warmup_steps, 0
        for phase in mixture.phases:
            warmup += min(phase.steps, left) * phase.batch * phase.seq_len
            left -= min(phase.steps, left)
        draft.note(("lr_schedule", "warmup_steps"), config.warmup_steps, "")
    else:
        share = 0.01 if config.warmup_share is None else config.warmup_share
        warmup = round(share * total)
        draft.note(("lr_schedule", "warmup_share"), f"{share:.1%}", "1 % of the run", derived=False)
    decay = round(config.decay_share * total) if config.decay == "wsd" else total - warmup
    return SchedulePlan(peak, peak * config.min_lr_ratio, warmup, config.decay, decay, total)


def _micro_batch(draft: Draft, phases: tuple[PhasePlan, ...]) -> int:
    """Sequences in one forward pass: as many as 4,096 tokens (CPU) or 16,384 hold, at most a rank's share."""
    micro = draft.config.batch.micro_batch_size
    if micro is None:
        tokens = 4096 if draft.machine.device == "cpu" else 16384
        most = -(-max(phase.batch for phase in phases) // draft.machine.world)
        micro = max(1, min(most, tokens // max(phase.seq_len for phase in phases)))
    draft.note(
        ("batch", "micro_batch_size"), micro, "4,096 tokens on CPU, 16,384 on GPU, at most a rank's share"
    )
    return micro


def _eval_every(draft: Draft, steps: int) -> int | None:
    path = ("monitoring", "eval_every_steps")
    every = draft.config.monitoring.eval_every_steps
    if not any(entry.holdout for entry in draft.sources.values()):
        if every is not None:
            draft.warn(
                "monitoring.eval_every_steps is given, but the corpus has no holdout: nothing is evaluated",
                path,
            )
        return None
    every = every or min(1000, max(1, steps // 10))
    draft.note(path, every, "ten times in the run, at least every 1,000 steps")
    return every
