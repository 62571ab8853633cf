"""Memory of a device against what it has: the ledger as values of the plan, and what to change when it is too much."""

from __future__ import annotations

from dataclasses import replace

from trainer.planned import Note
from trainer.planning.draft import Draft
from trainer.planning.figures import size
from trainer.planning.memory import (
    BILL,
    PARTS,
    Ledger,
    Setting,
    Way,
    largest_rows,
    ledger,
    ways_out,
    with_rows,
)
from trainer.planning.rules import setting_of
from trainer.planning.solver import Values

#: How each part of the ledger comes about.
WHY = {
    "weights": "4 bytes x {parameters} / {spread}",
    "master copy": "none: the weights are fp32 themselves",
    "gradients": "4 bytes x {parameters}{gradients}, as far as they are summed by then",
    "optimizer": "state of {optimizer}, {state:.3g} bytes x {parameters} / {spread}",
    "activations": "{layers} x {tokens:,} tokens{shared}, activation_checkpointing {recompute}",
    "gathered layers": "embedding, head and layers in use, in {compute}",
    "logits": "{vocab:,} ids x a chunk of the tokens, and the gradient of the head",
    "working set": "what the backward pass of a layer makes, gradients on their way",
}


def setting(values: Values) -> Setting | None:
    """The setting of the plan: its longest sequences, its micro-batch; None while something is unknown."""
    draft: Draft = values.context
    rows, seq_len = values.get("batch.micro_batch_size"), values.get("model.seq_len")
    if rows is None or seq_len is None or values.shape is None:
        return None
    longest = max([int(seq_len), *(phase.seq_len for phase in draft.phases if phase.seq_len)])
    return setting_of(values, int(rows), int(values.get("batch.grad_accum_steps") or 1), longest)


def note_memory(draft: Draft, values: Values) -> None:
    """The bill and the ledger as values; P003 where they do not fit."""
    found = setting(values)
    if found is None:
        return
    _note_bill(draft, values)
    now = ledger(found)
    shared = f" / {found.tensor} that share them" if found.tensor > 1 else ""
    words = {
        "spread": found.spread, "optimizer": found.optimizer, "layers": f"{found.shape.layers} layers" if found.pipeline == 1 else "layers and passes of a stage", "tokens": found.tokens,
        "parameters": "parameters" + (" of a stage" if found.pipeline > 1 else "") + shared, "shared": shared,
        "recompute": found.recompute, "compute": found.compute, "vocab": found.shape.vocab_size,
        "state": now.parts["optimizer"] * found.spread / (now.parts["weights"] * found.spread / 4),
        "gradients": "" if found.spread == 1 or now.parts["gradients"] > now.parts["weights"] else f" / {found.spread}",
    }  # fmt: skip
    for part in PARTS:
        _note(draft, f"memory.{part.replace(' ', '_')}", now.parts[part], WHY[part].format(**words))
    if not found.on_cpu:
        _note(draft, "memory.reserve", now.reserve, "CUDA and its libraries 1 GiB, 5 % between blocks of the allocator")
    _note(draft, "memory.total", now.total, f"at its fullest moment: {now.moment}")
    memory = values.get("hardware.gpu_memory")
    if memory is not None:
        share, most = now.total / memory, draft.config.hardware.memory_target
        why = f"memory.total / hardware.gpu_memory; at most hardware.memory_target {most:.0%}"
        draft.notes.append(Note("memory.share", f"{share:.1%}", "derived", why, share, "memory"))
        if share > most:
            _too_much(draft, found, now, most * memory, memory)


def _note(draft: Draft, key: str, number: float, why: str) -> None:
    draft.notes.append(Note(key, size(number), "derived", why, number, "memory"))


def _note_bill(draft: Draft, values: Values) -> None:
    """What parameters cost unsharded under AdamW, in the usual layout and in ours."""
    count = values.number("model.params")
    for part, (usual, ours) in BILL.items():
        why = f"{usual} and {ours} bytes for each of {count:,.0f} parameters"
        text = f"{usual * count / 1e9:,.4g} GB | {ours * count / 1e9:,.4g} GB"
        draft.notes.append(Note(f"bill.{part.replace(' ', '_')}", text, "derived", why, ours * count, "bill"))
    usual, ours = (sum(column) for column in zip(*BILL.values(), strict=True))
    text = f"{usual * count / 1e9:,.4g} GB | {ours * count / 1e9:,.4g} GB"
    why = f"{usual} and {ours} bytes for each parameter: bf16 weights with a master copy | fp32 weights, as here"
    draft.notes.append(Note("bill.sum", text, "derived", why, ours * count, "bill"))


def _too_much(draft: Draft, found: Setting, now: Ledger, budget: float, memory: float) -> None:
    path = ("batch", "micro_batch_size")
    if draft.at(path) is None:
        path = ("hardware", "gpu_memory")
    message = (
        f"a device needs {size(now.total)} ({now.moment}), but {budget / memory:.0%} of {size(memory)} are {size(budget)}"
    )
    ways = ways_out(found, budget)
    draft.error("P003", message, path, "in this order, what each alone frees:", *(way_text(way, budget) for way in ways))


def way_text(way: Way, budget: float) -> str:
    """`  batch.micro_batch_size: 2  frees 18.2 GiB and fits  (the result stays the same)`."""
    fit = " and fits" if ledger(way.setting).total <= budget else ""
    more = ""
    if way.key == "batch.micro_batch_size":
        more = f" with batch.grad_accum_steps: {way.setting.passes}"
    return f"  {way.key}: {way.value}{more}  frees {size(way.frees)}{fit}  ({way.price})"


def fit_memory(values: Values, memory: float) -> list[str]:
    """The largest micro-batch under the target for each kind of checkpointing, and the order of ways out, as lines."""
    draft: Draft = values.context
    found = setting(values)
    assert found is not None
    target = draft.config.hardware.memory_target
    budget = target * memory
    lines = [f"target {target:.0%} of {size(memory)}: {size(budget)}"]
    share = found.rows * found.passes
    for mode in ("none", "selective", "full"):
        changed = replace(found, recompute=mode)
        most = largest_rows(changed, budget)
        if most is None:
            lines.append(f"  activation_checkpointing {mode:<9}  not even one sequence fits")
            continue
        rows = max(n for n in range(1, most + 1) if share % n == 0)
        fitted = with_rows(changed, rows)
        total = ledger(fitted).total
        lines.append(
            f"  activation_checkpointing {mode:<9}  micro_batch_size {rows}  grad_accum_steps {fitted.passes}  "
            f"{size(total)}  {total / memory:.0%}" + (f"  (up to {most} fit, {rows} divide the step)" if most > rows else "")
        )
    ways = ways_out(found, budget)
    return [*lines, "if it is still too much, in this order, what each alone frees:", *(way_text(way, budget) for way in ways)]
