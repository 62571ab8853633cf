"""Pictures of a run: loss.svg, and loss.html with loss by source and phase, rate and gradient norm. No script."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Point = tuple[float, float]

COLORS = ("#1f6feb", "#d1242f", "#1a7f37", "#9a6700", "#8250df", "#bf3989", "#0a7ea4", "#57606a")

#: Steps that a picture shows at most, evenly spread: some two a pixel.
MOST = 2000

#: Steps at the end of a phase over which the table takes the mean.
LAST = 50


def thinned(lines: Sequence[bytes]) -> list[dict[str, Any]]:
    """The records of metrics.jsonl that a picture needs: every evaluation, and steps evenly spread with the last."""
    steps = [i for i, line in enumerate(lines) if b'"kind":"step"' in line]
    every = max(1, len(steps) // MOST)
    kept = {*steps[::every], *steps[-LAST:]}
    return [json.loads(line) for i, line in enumerate(lines) if line and (i in kept or b'"kind":"eval"' in line)]


def svg(
    lines: Mapping[str, Sequence[Point]], dots: Mapping[str, Sequence[Point]], title: str, width: int = 800, height: int = 400
) -> str:
    """Lines and dots by name over steps, with axes and a legend; an empty picture where there is no point."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"'
    points = [point for some in (*lines.values(), *dots.values()) for point in some]
    if not points:
        return f"{head}/>\n"
    last = max(x for x, _ in points)
    low, high = min(y for _, y in points), max(y for _, y in points)
    span = (high - low) or 1.0
    left, top, right, bottom = 60, 30, width - 20, height - 40

    def place(x: float, y: float) -> tuple[str, str]:
        at = left + (right - left) * x / max(last, 1)
        return f"{at:.1f}", f"{bottom - (bottom - top) * (y - low) / span:.1f}"

    parts = [f'<rect width="{width}" height="{height}" fill="white"/>']
    for i in range(5):
        x, y = place(last * i / 4, low + span * i / 4)
        parts.append(f'<path d="M{left} {y}H{right}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 6}" y="{y}" dy="4" text-anchor="end">{low + span * i / 4:.3g}</text>')
        parts.append(f'<text x="{x}" y="{bottom + 18}" text-anchor="middle">{last * i / 4:,.0f}</text>')
    legend = [title]
    for color, (name, some) in zip(_colors(), [*lines.items(), *dots.items()], strict=False):
        if name in lines and some:
            path = " ".join(",".join(place(*point)) for point in some)
            parts.append(f'<polyline points="{path}" fill="none" stroke="{color}"/>')
        for point in some if name not in lines else ():
            x, y = place(*point)
            parts.append(f'<circle cx="{x}" cy="{y}" r="3" fill="{color}"><title>{point[1]:.4f}</title></circle>')
        legend.append(f'<tspan fill="{color}">{html.escape(name)}</tspan>')
    parts.append(f'<text x="{left}" y="18">{"  ".join(legend)}</text>')
    body = "\n".join(parts)
    return f'{head} font-family="sans-serif" font-size="12">\n{body}\n</svg>\n'


def _colors() -> Iterable[str]:
    while True:
        yield from COLORS


def loss_svg(records: Sequence[Mapping[str, Any]]) -> str:
    """Training loss (line) and holdout loss (dots) over steps; a loss that was not finite is left out."""
    return svg({"training": _of(records, "step", "loss")}, {"holdout": _of(records, "eval", "loss")}, "loss over steps:")


def page(records: Sequence[Mapping[str, Any]], name: str) -> str:
    """loss.html: pictures and the table of losses by phase and source."""
    sources = sorted({source for record in records for source in record["losses"]})
    by_source = {source: _of(records, "step", "losses", source) for source in sources}
    bytes_of = {source: _of(records, "eval", "bits_per_byte_of", source) for source in sources}
    pictures = [
        loss_svg(records),
        svg(by_source, {}, "training loss by source:"),
        svg({}, bytes_of, "holdout, bits per byte by source:"),
        svg({"rate": _of(records, "step", "lr")}, {}, "learning", height=200),
        svg({"norm": _of(records, "step", "grad_norm")}, {}, "gradient", height=200),
    ]
    title = html.escape(name)
    body = "\n".join(picture for picture in pictures if "<text" in picture)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>\n'
        "<style>body{font-family:sans-serif;margin:2em}td,th{padding:.2em 1em;text-align:right}</style></head>\n"
        f"<body><h1>{title}</h1>\n{body}\n{_table(records, sources)}\n</body></html>\n"
    )


def by_phase(records: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Phase -> source -> mean training loss over the last steps of the phase, in the order of the run."""
    found: dict[str, dict[str, float]] = {}
    steps: dict[str, list[Mapping[str, Any]]] = {}
    for record in records:
        if record["kind"] == "step":
            steps.setdefault(record["phase"], []).append(record)
    for phase, some in steps.items():
        values: dict[str, list[float]] = {}
        for record in some[-LAST:]:
            for source, loss in record["losses"].items():
                if loss is not None:
                    values.setdefault(source, []).append(loss)
        found[phase] = {source: sum(one) / len(one) for source, one in sorted(values.items())}
    return found


def _table(records: Sequence[Mapping[str, Any]], sources: Sequence[str]) -> str:
    head = "".join(f"<th>{html.escape(name)}</th>" for name in ("phase", *sources))
    rows = []
    for phase, losses in by_phase(records).items():
        cells = "".join(f"<td>{losses[s]:.4f}</td>" if s in losses else "<td>-</td>" for s in sources)
        rows.append(f"<tr><th>{html.escape(phase)}</th>{cells}</tr>")
    caption = f"<caption>training loss, mean over the last {LAST} steps of each phase</caption>"
    return f"<table>{caption}<tr>{head}</tr>{''.join(rows)}</table>"


def _of(records: Sequence[Mapping[str, Any]], kind: str, field: str, key: str | None = None) -> list[Point]:
    found = []
    for record in records:
        value = record.get(field) if record["kind"] == kind else None
        value = value.get(key) if key is not None and value is not None else value
        if value is not None:
            found.append((record["step"], value))
    return found
