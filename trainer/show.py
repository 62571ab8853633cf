"""The plan as a page of text."""

from __future__ import annotations

from collections.abc import Sequence

from stages.contract.problem import display_width, printable
from trainer.planned import Plan

MARKS = {"given": "●", "derived": "○", "default": "·"}


def plan_text(plan: Plan) -> str:
    """Values with their origin and reason, phases, sources; no newline at the end."""
    shape = plan.model
    lines = [f"{printable(plan.name)}   plan {plan.digest[:12]}   given ●  derived ○  default ·", ""]
    lines += table([[MARKS[note.origin], note.key, note.value, note.why] for note in plan.notes])
    lines += ["", f"  model   {shape.parameters:,} parameters: {shape.layers} layers of width {shape.width:,}, {shape.heads} heads "
              f"({shape.kv_heads} for keys), feed-forward {shape.ffn:,}, {shape.vocab_size:,} ids"
              f"{', tied' if shape.tie_embeddings else ''}; {plan.compute}"]  # fmt: skip
    schedule = plan.schedule
    lines += [f"  rate    up to {schedule.peak_lr:g} over {schedule.warmup_tokens:,} tokens, then {schedule.decay}"
              f"{'' if schedule.decay == 'constant' else f' to {schedule.min_lr:g}'}", ""]  # fmt: skip
    head = ["phase", "steps", "tokens", "sequences x length", "mix"]
    rows = [
        [
            phase.name,
            f"{phase.first_step:,} - {phase.end:,}",
            f"{phase.tokens:,}",
            f"{phase.batch:,} x {phase.seq_len:,}",
            "  ".join(f"{name} {share:.1%}" for name, share in sorted(phase.mix.items()) if share),
        ]
        for phase in plan.phases
    ]
    lines += [*table([head, *rows]), ""]
    head = ["source", "tokens", "read", "epochs", "limit"]
    rows = [
        [
            s.name,
            f"{s.tokens:,}",
            f"{s.read:,}",
            f"{s.epochs:.2f}",
            "-" if s.limit is None else f"{s.limit:g}",
        ]
        for s in plan.sources
    ]
    return "\n".join([*lines, *table([head, *rows])])


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines with columns below each other, indented by two."""
    if not rows:
        return []
    cells = [[printable(cell) for cell in row] for row in rows]
    widths = [max(display_width(cell) for cell in column) for column in zip(*cells, strict=True)]
    return [
        "  "
        + "  ".join(
            cell + " " * (w - display_width(cell)) for cell, w in zip(row, widths, strict=True)
        ).rstrip()
        for row in cells
    ]
