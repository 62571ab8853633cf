"""What a plan must keep to besides its equations: bounds, and what is usual."""

from __future__ import annotations

import math

from stages.contract.epochs import GROUP_WINDOW
from stages.contract.interleave import MOST_SLOTS
from stages.contract.mixture import Mixture
from stages.contract.order import Order
from stages.contract.problem import printable
from trainer.planned import Note
from trainer.planning.devices import GPUS, find_gpu
from trainer.planning.draft import Draft
from trainer.planning.figures import in_unit, span
from trainer.planning.ranks import too_few_passes
from trainer.planning.solver import Values
from trainer.shape import ModelShape

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
    check_shard(draft, values)
    check_gpu(draft, values)
    check_saves(draft, values)


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


def check_shard(draft: Draft, values: Values) -> None:
    """Whether heads, layers and devices can be cut as `parallel` says."""
    parallel = draft.config.parallel
    shape: ModelShape | None = values.shape
    tensor, pipeline = parallel.tensor_parallel, parallel.pipeline_parallel
    if shape is not None and (uneven := shape.uneven(tensor)):
        fitting = [n for n in range(1, shape.kv_heads + 1) if n.bit_count() == 1 and not shape.uneven(n)]
        message = f"{tensor} devices cannot share {', '.join(uneven)} evenly"
        draft.error("P001", message, ("parallel", "tensor_parallel"), f"tensor_parallel may be {', '.join(map(str, fitting))}")
    if tensor > 1 and draft.config.optimizer.type == "AdamW8bit":
        message = f"AdamW8bit keeps its state in blocks of whole rows, and {tensor} devices that share a layer cut rows"
        draft.error("P001", message, ("optimizer", "type"), "write optimizer.type: AdamW", "write parallel.tensor_parallel: 1")
    if shape is not None and pipeline > shape.layers:
        message = f"{pipeline} pipeline stages for {shape.layers} layers: some would be empty"
        draft.error("P001", message, ("parallel", "pipeline_parallel"), f"write at most {shape.layers}")
    replicas, devices = parallel.replicas, values.get("batch.data_parallel")
    if replicas is not None and devices is not None and devices % replicas:
        fitting = [n for n in range(1, int(devices) + 1) if devices % n == 0]
        message = f"{devices:,.0f} data-parallel devices cannot be cut into {replicas} equal groups"
        draft.error("P001", message, ("parallel", "replicas"), f"replicas may be {', '.join(map(str, fitting))}")
    if parallel.replicas is not None and parallel.shard != "hybrid":
        message = f"parallel.replicas is given, but parallel.shard is {parallel.shard}"
        draft.error("C017", message, ("parallel", "replicas"), "write parallel.shard: hybrid", "leave replicas out")


def check_stages(draft: Draft, values: Values, mixture: Mixture) -> None:
    """Every phase has passes for all stages, and tokens that the devices of a layer can share."""
    tensor, stages = draft.config.parallel.tensor_parallel, draft.config.parallel.pipeline_parallel
    readers, micro = values.get("batch.data_parallel"), values.get("batch.micro_batch_size")
    for phase in mixture.phases:
        if phase.seq_len % tensor:
            message = f"phase {phase.name}: {tensor} devices cannot share sequences of {phase.seq_len:,} tokens evenly"
            longer = -(-phase.seq_len // tensor) * tensor
            draft.error("P001", message, ("parallel", "tensor_parallel"), f"write a seq_len of {longer:_}")
        if readers is not None and micro is not None:
            found = too_few_passes(phase.name, phase.batch, int(readers), int(micro), stages)
            if found is not None:
                draft.error("P001", found.message, ("parallel", "pipeline_parallel"), *found.repairs)


def check_phases(draft: Draft, mixture: Mixture) -> None:
    """A phase has as many sequences as the data order can count."""
    for phase in mixture.phases:
        count = phase.planned * phase.batch
        if count > MOST_SLOTS:
            message = f"phase {phase.name} has {count:,} sequences of {phase.seq_len:,}; the data order counts {MOST_SLOTS:,}"
            draft.error("C005", message, ("data", "total_tokens"),
                        f"cut it into {-(-count // MOST_SLOTS)} phases of the same mix", "raise model.seq_len")  # fmt: skip


def check_gpu(draft: Draft, values: Values) -> None:
    """A GPU that is named must be known, or described."""
    name = draft.config.hardware.gpu
    if name is None or find_gpu(name) is not None:
        return
    lacking = [key for key in ("peak_flops", "gpu_memory") if f"hardware.{key}" not in values.known]
    if lacking:
        message = f"nothing is known of the GPU {printable(name)}: time or memory cannot be worked out"
        known = ", ".join(gpu.name for gpu in GPUS)
        keys = " and ".join(f"hardware.{key}" for key in lacking)
        draft.warn(message, ("hardware", "gpu"), f"give {keys}, from its data sheet", f"known: {known}")


def check_saves(draft: Draft, values: Values) -> None:
    """Saves must not take longer than what lies between them."""
    interval, save = values.get("checkpoint.interval"), values.get("checkpoint.save_time")
    if interval is not None and save is not None and interval < save and draft.given(("checkpoint", "save_every_steps")):
        steps = max(1, math.ceil(10 * save / values.number("run.step_time")))
        message = f"a save takes {span(save)}, and they are {span(interval)} apart"
        draft.warn(message, ("checkpoint", "save_every_steps"), f"write checkpoint.save_every_steps: {steps:_}, and they take a tenth of the time")


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
