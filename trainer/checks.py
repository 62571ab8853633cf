"""What a plan must keep to besides its equations: bounds, and what is usual."""

from __future__ import annotations

from stages.contract.epochs import GROUP_WINDOW
from stages.contract.mixture import Mixture
from stages.contract.order import Order
from trainer.draft import Draft
from trainer.figures import in_unit, span
from trainer.planned import Note
from trainer.shape import ModelShape
from trainer.solver import Values

#: A given number of parameters is met by the nearest shape: above the first share of difference that is said, above
#: the second it is an error. Small models with a large vocabulary come in coarse steps.
PARAMS_NEAR, PARAMS_FAR = 0.1, 0.5

#: The usual length of a warm-up, as shares of the run, and steps below which the upper bound means nothing.
WARMUP = (0.005, 0.02)
WARMUP_STEPS = 100

#: No training reaches more of the dense peak.
MFU_MOST = 0.75


def all_of(draft: Draft, values: Values) -> None:
    """Every check, as problems of the draft."""
    check_shape(draft, values)
    check_warmup(draft, values)
    check_speed(draft, values)
    check_holdout(draft)
    check_vocabulary(draft)
    check_shard(draft)


def check_shape(draft: Draft, values: Values) -> None:
    """Whether the shape can work, and is about as large as was asked."""
    shape: ModelShape | None = values.shape
    size = values.known.get("model.params")
    if shape is None or size is None:
        return
    asked = 0 if size.origin == "default" else int(size.number)
    for fault in shape.faults():
        draft.error("P001", fault, ("model",))
    real = shape.parameters
    layout = (
        f"{shape.width:,} wide, {shape.layers} layers, {shape.heads} heads ({shape.kv_heads} for keys), ffn {shape.ffn:,}, "
        f"{shape.vocab_size:,} ids{', tied' if shape.tie_embeddings else ''}"
    )
    draft.notes.append(Note("model.shape", layout, "derived", "nearest to model.params", section="model"))
    if asked and abs(real / asked - 1) > PARAMS_NEAR:
        far = f"the shape nearest to model.params {asked:,} has {real:,} parameters ({real / asked - 1:+.1%})"
        if abs(real / asked - 1) > PARAMS_FAR:
            draft.error("P001", far, ("model", "params"), f"write model.params: {real:_}")
        else:
            draft.warn(far, ("model", "params"), f"write model.params: {real:_} to mean it")


def check_warmup(draft: Draft, values: Values) -> None:
    """The warm-up against the steps of the run."""
    steps, warmup = values.get("lr_schedule.total_steps"), values.get("lr_schedule.warmup_steps")
    if draft.given(("lr_schedule", "total_steps")) and draft.config.lr_schedule.total_steps:
        steps = draft.config.lr_schedule.total_steps
    key = "warmup_steps" if draft.given(("lr_schedule", "warmup_steps")) else "warmup_share"
    path = ("lr_schedule", key)
    if not steps or warmup is None or not draft.given(path):
        return
    usual = f"warmup_steps: {max(1, round(steps / 100)):_}" if key == "warmup_steps" else "warmup_share: 1%"
    low, high = WARMUP
    share = warmup / steps
    if warmup >= steps:
        message = f"a warm-up of {warmup:,.0f} steps leaves nothing of a run of {steps:,.0f}"
        draft.error("P001", message, path, f"write lr_schedule.{usual}")
    elif warmup > WARMUP_STEPS and share > high:
        message = f"the warm-up takes {share:.1%} of the run: {warmup:,.0f} of {steps:,.0f} steps; {low:.1%} to {high:.0%} is usual"
        draft.warn(message, path, f"write lr_schedule.{usual}, which is 1 %")
    elif steps >= 10 * WARMUP_STEPS and warmup < WARMUP_STEPS and share < low:
        message = f"the warm-up takes {share:.2%} of the run, {warmup:,.0f} steps; {low:.1%} to {high:.0%} is usual"
        draft.warn(message, path, f"write lr_schedule.{usual}, which is 1 %")


def check_speed(draft: Draft, values: Values) -> None:
    """Whether the speed can be, and the run ends when it may."""
    hardware = draft.config.hardware
    mfu = values.get("hardware.mfu")
    measured = draft.given(("hardware", "tokens_per_second"))
    if measured and mfu is not None and mfu > MFU_MOST and not draft.on_cpu:
        rate, peak = values.number("hardware.tokens_per_second"), values.number("hardware.peak_flops")
        gpus = values.number("hardware.gpus")
        most = MFU_MOST * gpus * peak / values.number("model.flops_per_token")
        message = (
            f"{rate:,.0f} tokens/s would be {mfu:.0%} of the peak of {gpus:,.0f} x {in_unit('FLOP/s', peak)}; "
            f"training reaches at most some {MFU_MOST:.0%}"
        )
        path = ("hardware", "tokens_per_second")
        repairs = (f"write at most hardware.tokens_per_second: {float(f'{most:.3g}'):.0f}", "write hardware.gpu and hardware.gpus as they are")
        if mfu > 1:
            draft.error("P001", message, path, *repairs)
        else:
            draft.warn(message, path, *repairs)
    wall, most_time = values.get("run.wall_time"), draft.config.stop.max_time
    if most_time is not None and wall is not None and wall > most_time and (measured or hardware.mfu is not None):
        draft.warn(
            f"the run takes {span(wall)}; stop.max_time ends each start after {span(most_time)}",
            ("stop", "max_time"), f"start it {-(-wall // most_time):.0f} times; each goes on where the last one ended",
        )  # fmt: skip


def check_holdout(draft: Draft) -> None:
    """An evaluation needs documents that are held out."""
    asked = draft.config.monitoring.eval_every_steps
    if asked is not None and draft.manifests and not any(entry.holdout for entry in draft.sources.values()):
        message = "monitoring.eval_every_steps is given, but the corpus has no holdout: nothing is evaluated"
        draft.warn(message, ("monitoring", "eval_every_steps"))


def check_vocabulary(draft: Draft) -> None:
    """A vocabulary that is given must be that of the corpus."""
    given = draft.config.model.vocab_size
    if given is not None and draft.manifests and given != draft.manifests[0].tokenizer.vocab_size:
        real = draft.manifests[0].tokenizer.vocab_size
        message = f"model.vocab_size is {given:,}, but the tokenizer of the corpus has {real:,} entries"
        draft.error("C017", message, ("model", "vocab_size"), f"write model.vocab_size: {real:_}", "leave it out")


def check_shard(draft: Draft) -> None:
    """A number of groups belongs to hybrid sharding."""
    parallel = draft.config.parallel
    if parallel.replicas is not None and parallel.shard != "hybrid":
        message = f"parallel.replicas is given, but parallel.shard is {parallel.shard}"
        draft.error("C017", message, ("parallel", "replicas"), "write parallel.shard: hybrid", "leave replicas out")


def note_order(draft: Draft, mixture: Mixture, order: Order, packed: bool) -> None:
    """What the data order leaves over or repeats."""
    notes = draft.notes
    if order.steps < order.data_steps:
        why = "data.skip: the run is shorter by these steps, all others stay as they were"
        notes.append(Note("data.steps_skipped", f"{order.data_steps - order.steps:,}", "derived", why, section="data"))
    if packed:
        pads = sum(use.read - use.stored for use in mixture.uses.values())
        why = "of all positions, in packed rows"
        notes.append(Note("data.padding", f"{pads / mixture.tokens:.3%}", "derived", why, section="data"))
        if len({phase.seq_len for phase in mixture.phases}) > 1:
            why = "where the length changes, rows of the groups that are open may be read once more or once less"
            notes.append(Note("data.groups_open", str(GROUP_WINDOW), "default", why, section="data"))
    elif draft.manifests:
        unused = sum(use.unused for use in mixture.uses.values() if use.samples)
        why = f"at the ends of sources, in an epoch: they fill no sequence of {mixture.longest:,}"
        notes.append(Note("data.tokens_unused", f"{unused:,}", "derived", why, section="data"))
        seams = sum(use.drawn * mixture.longest - use.read for use in mixture.uses.values())
        if seams:
            why = "parts of long sequences that a phase with shorter ones leaves over"
            notes.append(Note("data.tokens_passed", f"{seams:,}", "derived", why, section="data"))
