"""From what was worked out to the `Plan` that runs: phases, schedule, optimizer, what is saved and watched."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate

from stages.contract.mixture import Mixture
from stages.contract.order import Order, Source
from trainer.config import Compute, PlanConfig
from trainer.planned import (
    CheckpointPlan,
    MonitoringPlan,
    OptimizerPlan,
    PhasePlan,
    Plan,
    SchedulePlan,
    SourcePlan,
)
from trainer.planning import checks
from trainer.planning.draft import Draft
from trainer.planning.solver import Values
from trainer.shape import ModelShape


def assemble(
    draft: Draft, values: Values, mixture: Mixture, packed: bool, tombstones: tuple[str, ...], compute: Compute
) -> Plan:
    """The plan of a draft in which nothing contradicts; its notes and warnings come later."""
    config = draft.config
    shape: ModelShape = values.shape
    peak = values.number("lr_schedule.peak_lr")
    data_seed = config.seed if config.data.seed is None else config.data.seed
    sources = tuple(_source(draft, name, mixture) for name in draft.tokens)
    stretches = tuple(phase.stretch for phase in mixture.phases)
    rows = {name: draft.packed[name] for name in draft.sources} if packed else {}
    ordered = [Source(s.uid, s.digest, s.units, rows.get(s.name, {})) for s in sources]
    order = Order(data_seed, shape.seq_len, ordered, stretches, config.data.skip)
    checks.note_order(draft, mixture, order, bool(rows))
    parallel = config.parallel
    return Plan(
        name=config.name or (draft.manifests[0].name if draft.manifests else "plan"),
        seed=config.seed,
        data_seed=data_seed,
        deterministic=config.deterministic,
        model=shape,
        phases=_phases(mixture, order, peak, _batch_factor(draft, mixture.phases[0].batch * mixture.phases[0].seq_len)),
        stretches=stretches,
        sources=sources,
        schedule=_schedule(values, config, mixture, peak),
        optimizer=_optimizer(draft),
        checkpoint=_checkpoint(values, config),
        monitoring=_monitoring(values, config),
        micro_batch=int(values.number("batch.micro_batch_size")),
        compute=compute,
        reduce=config.precision.reduce,
        activation_checkpointing=parallel.activation_checkpointing,
        packing="best-fit" if packed else "concat",
        mask_documents=config.data.mask_documents,
        skip=config.data.skip,
        tombstones=tombstones,
        max_seconds=config.stop.max_time,
        patience_evals=config.stop.patience_evals,
        manifests=tuple(manifest.digest for manifest in draft.manifests),
        shard=parallel.shard,
        replicas=parallel.replicas,
        compile=parallel.compile,
        after_steps=config.stop.after_steps,
        tensor_parallel=parallel.tensor_parallel,
        pipeline_parallel=parallel.pipeline_parallel,
        rows=rows,
    )


def _checkpoint(values: Values, config: PlanConfig) -> CheckpointPlan:
    every, rules = int(values.number("checkpoint.save_every_steps")), config.checkpoint
    return CheckpointPlan(
        every, rules.save_every, rules.keep_last, rules.keep_best, rules.keep_every_steps, rules.async_save,
        rules.verify_resume, None if rules.weights_only is None else str(rules.weights_only),
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


def _monitoring(values: Values, config: PlanConfig) -> MonitoringPlan:
    rules, every = config.monitoring, values.get("monitoring.eval_every_steps")
    evals = int(every) if every is not None else None
    return MonitoringPlan(
        rules.log_every_steps, evals, rules.sinks, rules.on_nonfinite, rules.on_spike, rules.spike_z,
        rules.spike_window, rules.skips, rules.rollbacks, rules.profile_steps,
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


def _source(draft: Draft, name: str, mixture: Mixture) -> SourcePlan:
    use, entry = mixture.uses[name], draft.sources.get(name)
    uid, digest = (entry.uid, entry.digest) if entry is not None else (name, "")
    return SourcePlan(
        name, uid, digest, use.tokens, use.units, use.unused, use.samples, use.read, use.epochs, use.limit
    )


def _schedule(values: Values, config: PlanConfig, mixture: Mixture, peak: float) -> SchedulePlan:
    """The schedule in tokens; a warm-up that is given in steps is converted by the steps it covers."""
    rules, total = config.lr_schedule, mixture.tokens
    if rules.warmup_steps is not None:
        left, warmup = rules.warmup_steps, 0
        for phase in mixture.phases:
            warmup += min(phase.steps, left) * phase.batch * phase.seq_len
            left -= min(phase.steps, left)
    else:
        warmup = round(values.number("lr_schedule.warmup_share") * total)
    decay = round(rules.decay_share * total) if rules.decay == "wsd" else total - warmup
    return SchedulePlan(peak, peak * rules.min_lr_ratio, warmup, rules.decay, decay, total)
