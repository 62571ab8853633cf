"""Out of memory: what to change, in the order in which to try it, with what each change frees.

Bytes of activations a token and layer leaves for the backward pass, half precision, flash attention (checked against
a trace of torch 2.13): D width, K width of keys, F feed-forward, H heads

    none       12 D + 4 K + 8 F + 4 H + 8
    selective  10 D + 4 K + 4 F + 4 H
    full        2 D
"""

from __future__ import annotations

from trainer.planned import Plan
from trainer.shape import ModelShape

#: Bytes of optimizer state a parameter has.
STATE_BYTES = {"AdamW": 8.0, "Sophia": 8.0, "Lion": 4.0, "Muon": 4.0, "AdamW8bit": 2.0}

GIB = 1 << 30


def activation_bytes(shape: ModelShape, mode: str, compute: str) -> int:
    """Of a token in one layer."""
    d, k, f, h = shape.width, shape.kv_heads * shape.head_dim, shape.ffn, shape.heads
    half = {
        "none": 12 * d + 4 * k + 8 * f + 4 * h + 8,
        "selective": 10 * d + 4 * k + 4 * f + 4 * h,
        "full": 2 * d,
    }[mode]
    return half * (2 if compute == "fp32" else 1)


def ways_out(plan: Plan, step: int, micro: int, ranks: int) -> list[str]:
    """Sentences, the first to try first: those that leave the result as it is, then those that cost speed, then others."""
    shape, mode = plan.model, plan.activation_checkpointing
    tokens = micro * plan.phase_at(step).seq_len
    layer = {name: activation_bytes(shape, name, plan.compute) for name in ("none", "selective", "full")}
    held = shape.layers * tokens * layer[mode]
    found = []
    if micro > 1:
        found.append(f"batch.micro_batch_size: {micro // 2} frees about {_gib(held * (micro - micro // 2) // micro)}; the result stays the same")
    if plan.shard in ("none", "optimizer", "gradients") and ranks > 1:
        freed = int((8 if plan.shard == "gradients" else 16) * shape.parameters * (1 - 1 / ranks))
        found.append(f"parallel.shard: full frees up to {_gib(freed)}; the result stays the same")
    for name, cost in (("selective", "some"), ("full", "about a third more")):
        if layer[name] < layer[mode]:
            freed = shape.layers * tokens * (layer[mode] - layer[name])
            found.append(f"parallel.activation_checkpointing: {name} frees about {_gib(freed)}, for {cost} computation")
    now = STATE_BYTES[plan.optimizer.type]
    groups = ranks if plan.shard not in ("none", "hybrid") else 1
    for name in ("Lion", "AdamW8bit"):
        if STATE_BYTES[name] < now:
            freed = int((now - STATE_BYTES[name]) * shape.parameters / groups)
            found.append(f"optimizer.type: {name} frees {_gib(freed)}, in a new run: it learns differently")
    found.append(f"more devices: weights, gradients and optimizer take {_gib(int((8 + now) * shape.parameters))} in all")
    return found


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB" if size >= GIB else f"{size / (1 << 20):.1f} MiB"
