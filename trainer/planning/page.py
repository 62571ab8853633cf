"""The plan as a page: rate, step, length and mixture over tokens, memory, readings of each source. HTML and PNG.

The page is one file without script or address of anything else; all that comes from data is escaped.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path

from stages.contract.files import write_atomic
from stages.contract.problem import Problem, RunError, printable, render
from trainer.loop.schedule import rate
from trainer.planned import Plan
from trainer.planning.chart import COLORS, Canvas, Frame, bars, frame, legend, round_marks
from trainer.planning.draft import ENDLESS
from trainer.planning.figures import billions, size
from trainer.planning.plan import Study
from trainer.planning.show import HEADINGS, MARKS

#: Points of the curve of the learning rate.
POINTS = 240

CSS = """
body { font: 14px/1.5 system-ui, sans-serif; color: #24292f; background: #f6f7f9; margin: 0 auto; max-width: 1120px; padding: 1.5rem }
h1 { font-size: 1.4rem } h2 { font-size: 1.05rem; margin: 1.6rem 0 .4rem }
.charts { display: flex; flex-wrap: wrap; gap: 12px } .charts svg { background: #fff; border: 1px solid #d9dce1; border-radius: 6px }
table { border-collapse: collapse; background: #fff; width: 100% }
td, th { border-bottom: 1px solid #e6e8eb; padding: .2rem .6rem; text-align: left; vertical-align: top }
td.n { font-variant-numeric: tabular-nums; white-space: nowrap } pre { background: #fff; padding: .8rem; overflow-x: auto; border: 1px solid #d9dce1 }
small { color: #57606a }
"""


def write(study: Study, folder: Path) -> list[Path]:
    """plan.html and plan.png in the folder; their paths. RunError without Pillow, after the page was written."""
    assert study.plan is not None
    drawn = charts(study)
    folder.mkdir(parents=True, exist_ok=True)
    page, image = folder / "plan.html", folder / "plan.png"
    write_atomic(page, page_html(study, drawn).encode())
    try:
        data = sheet(drawn).png()
    except ImportError as error:
        message = f"{page} is written; the image needs {error.name}"
        raise RunError(Problem("R007", message, repairs=("pip install pillow",))) from error
    write_atomic(image, data)
    return [page, image]


def charts(study: Study) -> list[Canvas]:
    """All charts, in the order of the page."""
    plan = study.plan
    assert plan is not None
    found = [_rate(plan), _steps(plan), _lengths(plan), _mixture(plan)]
    parts = [note for note in study.notes if note.section == "memory" and note.key not in ("memory.total", "memory.share")]
    rows = [(note.key.partition(".")[2].replace("_", " "), float(note.number or 0), note.value) for note in parts]
    total = next((note for note in study.notes if note.key == "memory.total"), None)
    if total is not None:
        memory = study.values.get("hardware.gpu_memory")
        share = next((f", {note.value} of {size(memory)}" for note in study.notes if note.key == "memory.share" and memory), "")
        found.append(bars(f"memory of a device: {total.value}{share}", rows))
    sources = [source for source in plan.sources if source.tokens < ENDLESS]
    if sources:
        lines = [(source.name, source.epochs, f"{source.epochs:.2f}" + (f" of {source.limit:g}" if source.limit else ""))
                 for source in sources]  # fmt: skip
        found.append(bars("readings of each source (line: its limit)", lines, marks=[source.limit for source in sources]))
    return found


def _token_marks(total: float) -> list[tuple[float, str]]:
    return [(value, billions(value)) for value in round_marks(total)]


def _rate(plan: Plan) -> Canvas:
    """The learning rate; a phase with a rate of its own scales it."""
    total, points = plan.total_tokens, []
    warmup = plan.schedule.warmup_tokens
    spots = sorted({*(total * i / POINTS for i in range(POINTS + 1)), *(warmup * i / 8 for i in range(9))})
    borders = [(phase.first_token, phase.lr_factor) for phase in plan.phases]
    for tokens in spots:
        factor = next((f for first, f in reversed(borders) if tokens >= first), 1.0)
        points.append((tokens, rate(plan.schedule, int(tokens)) * factor))
    most = max(value for _, value in points)
    marks = [(value, f"{value:.2g}") for value in round_marks(most)]
    found = frame("learning rate over tokens", total, most, "tokens", marks, _token_marks(total))
    found.canvas.line([found.at(x, y) for x, y in points], COLORS[0], 2)
    return found.canvas


def _stairs(found: Frame, plan: Plan, values: Sequence[float], color: str) -> None:
    points = []
    for phase, value in zip(plan.phases, values, strict=True):
        points += [found.at(phase.first_token, value), found.at(phase.first_token + phase.tokens, value)]
    found.canvas.line(points, color, 2)


def _steps(plan: Plan) -> Canvas:
    values = [phase.tokens_per_step for phase in plan.phases]
    most = max(values) * 1.15
    found = frame("tokens of a step", plan.total_tokens, most, "tokens", _token_marks(most), _token_marks(plan.total_tokens))
    _stairs(found, plan, values, COLORS[1])
    return found.canvas


def _lengths(plan: Plan) -> Canvas:
    values = [phase.seq_len for phase in plan.phases]
    marks = [(0, "0"), *((value, f"{value:,}") for value in sorted(set(values)))]
    found = frame("sequence length", plan.total_tokens, max(values) * 1.15, "tokens", marks, _token_marks(plan.total_tokens))
    _stairs(found, plan, values, COLORS[2])
    return found.canvas


def _mixture(plan: Plan) -> Canvas:
    """Shares of the sources over the tokens, stacked."""
    marks = [(i / 4, f"{i * 25} %") for i in range(5)]
    found = frame("mixture", plan.total_tokens, 1.0, "tokens", marks, _token_marks(plan.total_tokens))
    names = [source.name for source in plan.sources if any(phase.mix.get(source.name) for phase in plan.phases)]
    for phase in plan.phases:
        low, end = 0.0, phase.first_token + phase.tokens
        for i, name in enumerate(names):
            high = low + phase.mix.get(name, 0.0)
            (x0, y0), (x1, y1) = found.at(phase.first_token, high), found.at(end, low)
            found.canvas.rectangle(x0, y0, x1 - x0, y1 - y0, COLORS[i % len(COLORS)])
            low = high
    legend(found, names)
    return found.canvas


def sheet(drawn: Sequence[Canvas]) -> Canvas:
    """All charts on one canvas, two beside each other."""
    gap, width = 12, max(canvas.width for canvas in drawn)
    rows = [drawn[i : i + 2] for i in range(0, len(drawn), 2)]
    heights = [max(canvas.height for canvas in row) for row in rows]
    whole = Canvas(2 * width + 3 * gap, sum(heights) + gap * (len(rows) + 1))
    whole.rectangle(0, 0, whole.width, whole.height, "#f6f7f9")
    y = gap
    for row, height in zip(rows, heights, strict=True):
        for column, canvas in enumerate(row):
            whole.put(canvas, gap + column * (width + gap), y)
        y += height + gap
    return whole


def page_html(study: Study, drawn: Sequence[Canvas]) -> str:
    """The whole page."""
    plan = study.plan
    assert plan is not None
    title = html.escape(printable(plan.name))
    parts = [
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}: training plan</title>',
        f'<meta name="viewport" content="width=device-width"><style>{CSS}</style></head><body>',
        f"<h1>{title}</h1><p>{plan.model.parameters:,} parameters, {plan.total_tokens:,} tokens, {plan.steps:,} steps. "
        f"<small>plan {plan.digest}</small></p>",
        '<div class="charts">', *(canvas.svg() for canvas in drawn), "</div>",
    ]  # fmt: skip
    if study.problems:
        text = "\n\n".join(render(problem) for problem in study.problems)
        parts.append(f"<h2>what to look at</h2><pre>{html.escape(text)}</pre>")
    parts.append(f"<h2>values</h2><p><small>{MARKS['given']} given, {MARKS['derived']} follows, {MARKS['default']} free</small></p>")
    for heading, sections in (*HEADINGS, ("sources", ("sources",))):
        rows = [note for note in study.notes if note.section in sections]
        if rows:
            parts.append(f"<h2>{html.escape(heading)}</h2><table>")
            parts += [
                f'<tr><td>{MARKS[note.origin]}</td><td>{html.escape(printable(note.key))}</td>'
                f'<td class="n">{html.escape(printable(note.value))}</td><td>{html.escape(printable(note.why))}</td></tr>'
                for note in rows
            ]
            parts.append("</table>")
    return "\n".join([*parts, "</body></html>\n"])
