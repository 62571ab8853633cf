"""The page of a plan: one file, nothing from data unescaped, and an image that can be opened."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from stages.contract.manifest import Lengths
from tests.trainer.planning.test_plan import manifest
from trainer.config import read_plan
from trainer.planning.chart import Canvas, bars, frame, legend, round_marks
from trainer.planning.draft import Machine
from trainer.planning.page import charts, page_html, sheet, write
from trainer.planning.plan import study

NASTY = "<script>alert(1)</script>"


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict]] = []

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))


def nasty_study():
    corpus = manifest(web=200_000, books=50_000)
    name = 'a"><img src=x onerror=alert(1)>'
    sources = {**corpus.sources, name: corpus.sources["web"].model_copy(update={"uid": "u", "lengths": Lengths()})}
    corpus = corpus.model_copy(update={"sources": sources})
    return study(read_plan(None, [f"name='{NASTY}'", "data.repeat_limit=9"]), [corpus], Machine())


def test_nothing_of_the_data_is_markup():
    found = nasty_study()
    text = page_html(found, charts(found))
    tags = Tags()
    tags.feed(text)
    assert not {"script", "img"} & {tag for tag, _ in tags.found}
    assert not [value for _, attrs in tags.found for key, value in attrs.items() if key.startswith("on")]
    assert "&lt;script&gt;" in text


def test_the_page_needs_nothing_else(tmp_path):
    pytest.importorskip("PIL")
    page, image = write(study(read_plan(None), [manifest(web=200_000, books=50_000)], Machine()), tmp_path)
    text = page.read_text()
    assert not re.findall(r"(?:src|href)=|url\(|@import", text)
    assert set(re.findall(r"https?://[^\s\"<]+", text)) == {"http://www.w3.org/2000/svg"}
    from PIL import Image

    with Image.open(image) as picture:
        assert picture.width > 1000
        assert len(picture.getcolors(1 << 24)) > 20


def test_there_is_a_chart_for_each_question():
    titles = [canvas.shapes[1].text.split(":")[0] for canvas in charts(nasty_study())]
    assert titles == ["learning rate over tokens", "tokens of a step", "sequence length", "mixture", "memory of a device",
                      "readings of each source (line"]  # fmt: skip


def test_charts_stand_beside_each_other():
    whole = sheet([bars("a", [("x", 1.0, "1")]), frame("b", 1, 1, "x", [], []).canvas, bars("c", [("y", 2.0, "2")])])
    assert whole.width > 2 * 520
    assert all(0 <= x <= whole.width and 0 <= y <= whole.height
               for shape in whole.shapes if hasattr(shape, "points") for x, y in shape.points)  # fmt: skip


@pytest.mark.parametrize(("most", "marks"), [(2.62e6, [0, 1e6, 2e6]), (0.003, [0, 0.001, 0.002, 0.003]), (0, [0])])
def test_marks_are_round(most, marks):
    assert round_marks(most) == pytest.approx(marks)


def test_a_legend_counts_what_has_no_room():
    found = frame("t", 1, 1, "x", [], [])
    legend(found, [f"source number {i}" for i in range(20)])
    assert re.search(r"and \d+ more", found.canvas.svg())


def test_text_is_escaped():
    canvas = Canvas(10, 10)
    canvas.label(0, 0, NASTY)
    assert "<script>" not in canvas.svg()
