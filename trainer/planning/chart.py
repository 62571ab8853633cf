"""Simple charts as a list of shapes, drawn the same way as SVG (no script, text escaped) and as PNG."""

from __future__ import annotations

import html
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

Anchor = Literal["start", "middle", "end"]

#: Colours that stay apart in print and for most kinds of colour blindness (Okabe and Ito 2008).
COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#7F7F7F")
GRID, INK = "#d9dce1", "#24292f"

Point = tuple[float, float]


@dataclass(frozen=True)
class Area:
    """A filled polygon."""

    points: tuple[Point, ...]
    color: str


@dataclass(frozen=True)
class Line:
    """A line through points."""

    points: tuple[Point, ...]
    color: str
    width: float = 1.0


@dataclass(frozen=True)
class Label:
    """Text; its baseline begins, is centred or ends at (x, y)."""

    x: float
    y: float
    text: str
    anchor: Anchor = "start"
    size: int = 11
    bold: bool = False


@dataclass
class Canvas:
    """Shapes in the order in which they are drawn, in pixels from the upper left corner."""

    width: int
    height: int
    shapes: list[Area | Line | Label] = field(default_factory=list)

    def rectangle(self, x: float, y: float, width: float, height: float, color: str) -> None:
        """A filled rectangle."""
        self.shapes.append(Area(((x, y), (x + width, y), (x + width, y + height), (x, y + height)), color))

    def line(self, points: Sequence[Point], color: str = INK, width: float = 1.0) -> None:
        """A line through points."""
        self.shapes.append(Line(tuple(points), color, width))

    def label(self, x: float, y: float, text: str, anchor: Anchor = "start", size: int = 11, bold: bool = False) -> None:
        """A piece of text."""
        self.shapes.append(Label(x, y, text, anchor, size, bold))

    def put(self, other: Canvas, x: float, y: float) -> None:
        """Another canvas, its corner at (x, y)."""
        for shape in other.shapes:
            if isinstance(shape, Label):
                self.shapes.append(Label(shape.x + x, shape.y + y, shape.text, shape.anchor, shape.size, shape.bold))
            else:
                points = tuple((px + x, py + y) for px, py in shape.points)
                moved = Area(points, shape.color) if isinstance(shape, Area) else Line(points, shape.color, shape.width)
                self.shapes.append(moved)

    def svg(self) -> str:
        """The canvas as an `<svg>` element."""
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" width="{self.width}" '
            f'height="{self.height}" font-family="system-ui, sans-serif" role="img">'
        ]
        for shape in self.shapes:
            if isinstance(shape, Label):
                weight = ' font-weight="600"' if shape.bold else ""
                parts.append(
                    f'<text x="{shape.x:.1f}" y="{shape.y:.1f}" font-size="{shape.size}" text-anchor="{shape.anchor}" '
                    f'fill="{INK}"{weight}>{html.escape(shape.text)}</text>'
                )
                continue
            points = " ".join(f"{x:.1f},{y:.1f}" for x, y in shape.points)
            if isinstance(shape, Area):
                parts.append(f'<polygon points="{points}" fill="{shape.color}" shape-rendering="crispEdges"/>')
            else:
                parts.append(f'<polyline points="{points}" fill="none" stroke="{shape.color}" stroke-width="{shape.width}"/>')
        return "\n".join([*parts, "</svg>"])

    def png(self, scale: int = 2) -> bytes:
        """The canvas as a PNG image, `scale` pixels for each of its own. ImportError without Pillow."""
        from PIL import Image, ImageDraw, ImageFont

        image = Image.new("RGB", (self.width * scale, self.height * scale), "white")
        draw = ImageDraw.Draw(image)
        anchors = {"start": "ls", "middle": "ms", "end": "rs"}
        for shape in self.shapes:
            if isinstance(shape, Label):
                font = ImageFont.load_default(shape.size * scale)
                at = (shape.x * scale, shape.y * scale)
                draw.text(at, shape.text, fill=INK, font=font, anchor=anchors[shape.anchor])
                continue
            points = [(x * scale, y * scale) for x, y in shape.points]
            if isinstance(shape, Area):
                draw.polygon(points, fill=shape.color)
            elif len(points) > 1:
                draw.line(points, fill=shape.color, width=max(1, round(shape.width * scale)), joint="curve")
        out = io.BytesIO()
        image.save(out, "PNG", optimize=True)
        return out.getvalue()


@dataclass(frozen=True)
class Frame:
    """The plot area of a chart: where numbers of the axes lie."""

    canvas: Canvas
    left: float
    top: float
    right: float
    bottom: float
    most_x: float
    most_y: float

    def at(self, x: float, y: float) -> Point:
        """The place of a point; both axes begin at 0."""
        return (
            self.left + (self.right - self.left) * x / (self.most_x or 1),
            self.bottom - (self.bottom - self.top) * y / (self.most_y or 1),
        )


def frame(title: str, most_x: float, most_y: float, x_text: str, y_marks: Sequence[tuple[float, str]],
          x_marks: Sequence[tuple[float, str]], width: int = 520, height: int = 240) -> Frame:  # fmt: skip
    """A chart with a title, marks on both axes, and nothing in it."""
    canvas = Canvas(width, height)
    canvas.rectangle(0, 0, width, height, "#ffffff")
    canvas.label(14, 20, title, size=13, bold=True)
    found = Frame(canvas, 70, 34, width - 30, height - 40, most_x, most_y)
    for y, text in y_marks:
        x0, y0 = found.at(0, y)
        canvas.line([(x0, y0), (found.right, y0)], GRID)
        canvas.label(x0 - 6, y0 + 4, text, "end")
    for x, text in x_marks:
        x0, y0 = found.at(x, 0)
        canvas.line([(x0, y0), (x0, y0 + 4)], INK)
        canvas.label(x0, y0 + 17, text, "middle")
    canvas.line([found.at(0, 0), found.at(most_x, 0)], INK)
    canvas.label((found.left + found.right) / 2, height - 8, x_text, "middle")
    return found


def bars(title: str, rows: Sequence[tuple[str, float, str]], mark: tuple[float, str] | None = None,
         marks: Sequence[float | None] = (), width: int = 520) -> Canvas:  # fmt: skip
    """Horizontal bars: name, length, and what is written behind it.

    mark   a line over all bars, and its name
    marks  a short line in each bar, such as a limit
    """
    height = 46 + 22 * len(rows) + (16 if mark else 0)
    canvas = Canvas(width, height)
    canvas.rectangle(0, 0, width, height, "#ffffff")
    canvas.label(14, 20, title, size=13, bold=True)
    left, right = 150, width - 120
    most = max([1e-12, *(value for _, value, _ in rows), *(one for one in marks if one is not None), mark[0] if mark else 0])
    for i, (name, value, text) in enumerate(rows):
        y = 34 + 22 * i
        length = (right - left) * value / most
        canvas.label(left - 8, y + 13, shortened(name, 20), "end")
        canvas.rectangle(left, y + 2, length, 16, COLORS[i % len(COLORS)])
        limit = marks[i] if i < len(marks) else None
        if limit is not None:
            x = left + (right - left) * limit / most
            canvas.line([(x, y), (x, y + 20)], INK, 2)
        canvas.label(left + max(length, (right - left) * (limit or 0) / most) + 6, y + 14, text)
    if mark:
        x = left + (right - left) * mark[0] / most
        bottom = 34 + 22 * len(rows)
        canvas.line([(x, 30), (x, bottom)], INK, 1.5)
        canvas.label(x, bottom + 14, mark[1], "middle")
    return canvas


def shortened(text: str, length: int) -> str:
    """The text, cut where it is longer."""
    return text if len(text) <= length else f"{text[: length - 1]}…"


def legend(found: Frame, names: Sequence[str], x: float = 100) -> None:
    """Names with their colours, on the line of the title from `x` on; those that have no room are counted."""
    for i, name in enumerate(names):
        text = shortened(name, 14)
        if x + 7 * len(text) + 60 > found.canvas.width and i < len(names) - 1:
            found.canvas.label(x, 21, f"and {len(names) - i} more")
            return
        found.canvas.rectangle(x, 12, 10, 10, COLORS[i % len(COLORS)])
        found.canvas.label(x + 14, 21, text)
        x += 7 * len(text) + 28


def round_marks(most: float) -> list[float]:
    """0 and up to five round numbers up to `most`."""
    if most <= 0:
        return [0.0]
    rough = most / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * (1 - 1e-9))
    return [step * i for i in range(int(most / step * (1 + 1e-9)) + 1)]
