"""The plan as a page of text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stages.contract.problem import display_width, printable
from trainer.planned import Note, PhasePlan, Plan
from trainer.planning.draft import ENDLESS

MARKS = {"given": "●", "derived": "○", "default": "·"}

#: Headings, and the sections of values that stand under each.
HEADINGS = (
    ("model", ("model", "precision")),
    ("data", ("data",)),
    ("step", ("batch", "parallel")),
    ("rate", ("lr_schedule",)),
    ("what published rules would choose, and the loss to expect", ("suggest",)),
    ("time and cost", ("hardware", "run")),
    ("bill of the parameters under AdamW, unsharded: usual mixed precision (bf16 weights) | here (fp32 weights)", ("bill",)),
    ("memory of a device", ("memory",)),
    ("checkpoints", ("checkpoint", "monitoring")),
)

#: What follows from others and is shown even so before a run.
BRIEFLY = frozenset({"lr_schedule.total_steps", "run.wall_time", "memory.total", "model.shape", "data.first_read_out"})


def values_text(notes: Sequence[Note]) -> list[str]:
    """Every value with its origin and reason, under headings."""
    lines: list[str] = []
    for heading, sections in HEADINGS:
        rows = [
            [MARKS[note.origin], note.key, note.value, note.why] for note in notes if note.section in sections
        ]
        if rows:
            lines += [heading, *table(rows), ""]
    return lines[:-1]


def head_text(name: str, digest: str | None) -> str:
    """The first line of the page."""
    word = f"plan {digest[:12]}" if digest is not None else "no plan yet: see below"
    return f"{printable(name)}   {word}   given ●  follows ○  free ·"


def plan_text(plan: Plan, brief: bool = False) -> str:
    """Values with their origin and reason, phases, sources; no newline at the end. `brief` leaves out what follows."""
    notes = [note for note in plan.notes if not brief or note.origin != "derived" or note.key in BRIEFLY]
    lines = [head_text(plan.name, plan.digest), "", *values_text(notes), ""]
    return "\n".join([*lines, *run_text(plan)])


def run_text(plan: Plan) -> list[str]:
    """The rate in words, phases, and sources where there is a corpus."""
    schedule = plan.schedule
    lines = [f"rate up to {schedule.peak_lr:g} over {schedule.warmup_tokens:,} tokens, then {schedule.decay}"
             f"{'' if schedule.decay == 'constant' else f' to {schedule.min_lr:g}'}", ""]  # fmt: skip
    head = ["phase", "steps", "tokens", "sequences x length", "mix"]
    rows = [
        [
            group[0].name,
            f"{group[0].first_step:,} - {group[-1].end:,}",
            f"{sum(phase.tokens for phase in group):,}",
            f"{group[0].batch:,} x {group[0].seq_len:,}",
            _mix(group),
        ]
        for group in _stretches(plan.phases)
    ]
    lines += table([head, *rows])
    phases = list(dict.fromkeys(phase.name for phase in plan.phases))
    values = {note.key: note.value for note in plan.notes if note.section == "sources"}
    head = ["source", "tokens", *(phases if len(phases) > 1 else ()), "read", "epochs", "limit"]
    rows = [
        [
            s.name,
            f"{s.tokens:,}",
            *([values.get(f"sources.{s.name}.in.{phase}", "") for phase in phases] if len(phases) > 1 else ()),
            f"{s.read:,}",
            f"{s.epochs:.2f}",
            "-" if s.limit is None else f"{s.limit:g}",
        ]
        for s in plan.sources
        if s.tokens < ENDLESS
    ]
    return [*lines, "", *table([head, *rows])] if rows else lines


def _stretches(phases: Sequence[PhasePlan]) -> Iterator[list[PhasePlan]]:
    """Phases of one name, length and batch that follow each other: a ramp and what comes behind it."""
    group: list[PhasePlan] = []
    for phase in phases:
        same = group and (phase.name, phase.seq_len, phase.batch) == (group[0].name, group[0].seq_len, group[0].batch)
        if group and not same:
            yield group
            group = []
        group.append(phase)
    if group:
        yield group


def _mix(group: Sequence[PhasePlan]) -> str:
    """The mix of a phase; where it moves, from where to where."""
    first, last = group[0].mix, group[-1].mix
    return "  ".join(
        f"{name} {first[name]:.1%}" + (f" to {last[name]:.1%}" if abs(first[name] - last[name]) > 5e-4 else "")
        for name in sorted(first)
        if first[name] or last[name]
    )


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
