"""Main text of HTML pages, by resiliparse or trafilatura, within counted limits."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from importlib import metadata
from importlib.util import find_spec
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
import orjson
import pyarrow as pa
from pydantic import Field

from stages.contract.config import Size
from stages.document import text_buffers, with_column
from stages.extract.markup import DEEPEST, join_wide_lines, shape_of
from stages.stage import RowStage
from stages.verdict import give_verdict, mark_column

Engine = Literal["resiliparse", "trafilatura"]

#: Media types in `meta.content_type` that are pages.
_PAGES = frozenset({"text/html", "application/xhtml+xml"})
_PACKAGES: dict[str, tuple[str, ...]] = {
    "resiliparse": ("resiliparse",),
    "trafilatura": ("resiliparse", "trafilatura", "lxml", "lxml_html_clean", "justext", "courlan", "htmldate"),
}
_LONGEST_TITLE = 1_000
#: Names under which meta elements give the date of publication, in any of their attributes `property`, `itemprop`, `name`.
_PUBLISHED = ("article:published_time", "datepublished", "date", "dc.date", "dc.date.issued", "pubdate")


class Page(NamedTuple):
    """What one page gives; strings are empty where it says nothing. `published` is what the page says, as it stands."""

    text: str
    title: str = ""
    published: str = ""
    url: str = ""


class Extract(RowStage):
    """Turns HTML into its main text; adds `title`, and where the page tells them `published` and `url`, to `meta`.

    Rows are pages where `meta.content_type` says so (web archives, `format: html`); others pass unchanged. Drops
    `extract.too-large` and `extract.too-deep` before parsing, `extract.empty` where no text is left, `extract.failed`
    where the engine gives up on a page.
    """

    name: ClassVar[str] = "extract"
    version: ClassVar[int] = 1
    changes_text: ClassVar[bool] = True

    engine: Annotated[Engine, Field(description="resiliparse is fast; trafilatura keeps less around the text.")] = (
        "resiliparse"
    )
    main_content: Annotated[
        bool, Field(description="Leave out menus, footers and the like. Off: all that can be seen (resiliparse only).")
    ] = True
    html: Annotated[
        Literal["auto", "always"], Field(description="always: every row is a page, whatever `meta` says of it.")
    ] = "auto"
    max_bytes: Annotated[Size, Field(gt=0, description="A page of more bytes is dropped.")] = 16 * 2**20
    max_tags: Annotated[int, Field(gt=0, description="A page with more start tags is dropped.")] = 200_000
    max_depth: Annotated[
        int, Field(gt=0, le=DEEPEST, description="A page with blocks nested deeper is dropped (browsers stop at 512).")
    ] = 512
    max_attributes: Annotated[int, Field(gt=0, description="A page with a tag of more attributes is dropped.")] = 1_000

    def adds(self) -> dict[str, pa.DataType]:
        return mark_column(self)

    def recipe(self) -> dict[str, str]:
        return {name: metadata.version(name) for name in _PACKAGES[self.engine] if _installed(name)}

    def problems(self) -> list[str]:
        missing = [name for name in _PACKAGES[self.engine] if not _installed(name)]
        if missing:
            names = ", ".join(missing)
            return [f"extract needs the `web` extra ({names} is missing): pip install 'gristmill[web]'"]
        if self.engine == "trafilatura" and not self.main_content:
            return ["extract: trafilatura knows no `main_content: false`; use engine: resiliparse"]
        return []

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        metas = batch.column("meta").to_pylist()
        rows = [row for row, meta in enumerate(metas) if self.html == "always" or _is_page(meta)]
        if not rows:
            return self._marked(batch)
        data_U8, offsets_N1 = text_buffers(batch.column("text"))
        texts = batch.column("text").fill_null("").to_pylist()
        reasons, values = [""] * len(batch), [""] * len(batch)
        extract = engine_of(self.engine, self.main_content)
        for row in rows:
            trouble = self._over(data_U8[offsets_N1[row] : offsets_N1[row + 1]])
            if trouble is None:
                try:
                    page = extract(texts[row] or "")
                except Exception as fault:  # a parser of third parties on a page of strangers: only the page goes
                    trouble = ("extract.failed", type(fault).__name__)
                else:
                    texts[row], metas[row] = page.text, _told(metas[row], page)
                    trouble = None if page.text else ("extract.empty", f"0 of {offsets_N1[row + 1] - offsets_N1[row]} bytes")
            if trouble is not None:
                reasons[row], values[row] = trouble
        batch = with_column(batch, "text", pa.array(texts, pa.large_string()))
        batch = with_column(batch, "meta", pa.array(metas, pa.string()))
        return give_verdict(self, batch, np.array([bool(reason) for reason in reasons], bool), reasons, values)

    def _marked(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return give_verdict(self, batch, np.zeros(len(batch), bool), "", "")

    def _over(self, page_U8: np.ndarray) -> tuple[str, str] | None:
        """`(reason, value)` of a page that no engine is to see."""
        if len(page_U8) > self.max_bytes:
            return "extract.too-large", f"{len(page_U8)} bytes > {self.max_bytes}"
        shape = shape_of(page_U8)
        if shape.tags > self.max_tags:
            return "extract.too-large", f"{shape.tags} tags > {self.max_tags}"
        if shape.attributes > self.max_attributes:
            return "extract.too-large", f"{shape.attributes} attributes in one tag > {self.max_attributes}"
        if shape.depth > self.max_depth:
            return "extract.too-deep", f"{shape.depth} > {self.max_depth}"
        return None


def _installed(name: str) -> bool:
    return find_spec(name) is not None


def _is_page(meta: str | None) -> bool:
    if meta is None or '"content_type"' not in meta:
        return False
    value = orjson.loads(meta).get("content_type")
    return isinstance(value, str) and value.partition(";")[0].strip().lower() in _PAGES


def _told(meta: str | None, page: Page) -> str:
    """The meta with what the page says; a url that is known already stays."""
    known = orjson.loads(meta) if meta else {}
    found = {"title": page.title, "published": page.published, "url": page.url}
    fresh = {key: value for key, value in found.items() if value and not known.get(key)}
    if "content_type" in known:
        known["content_type"] = "text/plain"
    return orjson.dumps(known | fresh, option=orjson.OPT_SORT_KEYS).decode()


@lru_cache(maxsize=4)
def engine_of(name: Engine, main_content: bool) -> Callable[[str], Page]:
    if name == "trafilatura":
        return _Trafilatura()
    return _Resiliparse(main_content)


#: One character from U+0800 on, alone between two tags: resiliparse takes it for a separator. Those that are separators
#: (bullets, arrows, geometric shapes) are not in here.
_LONE = re.compile(
    ">(\\s*(?:[\u0800-\u1fff\u2010-\u2015\u2026\u20a0-\u214f\u2e80-\ufdcf\ufdf0-\ufffd]"
    "|&(?:#[xX]?[0-9A-Fa-f]{3,5}|[mn]dash|hellip|euro);))(?=\\s*<)"
)
#: Stands beside such a character while the page is parsed; no text has it (a noncharacter of Unicode).
_PAD = "\ufdd0"
_SUMMARY = re.compile(r"</summary\s*>", re.IGNORECASE)
#: Boxes that are left out by their class unless they hold prose: this much text, at most this share of it in links.
_BOXES = ".sidebar, .side-bar, .sidebox, .side-box"
_LEAST_PROSE = 200
_MOST_LINKED = 0.2
_HAS_BOX = re.compile(r"""class\s*=\s*["']?[^"'>]*\bside-?(?:bar|box)\b""")
_CONTROLS = "form, nav, input, button, iframe, select, textarea"
#: resiliparse takes lists in the outermost blocks for menus; three blocks further in, only lists of links are.
_BODY = re.compile(r"<body\b[^>]*>", re.IGNORECASE)
_WRAPPERS = "<div>" * 3


class _Resiliparse:
    """The engine with what its rules get wrong put right: lists of flat pages, lone characters, boxes of prose."""

    def __init__(self, main_content: bool) -> None:
        from resiliparse.extract.html2text import extract_plain_text
        from resiliparse.parse.html import HTMLTree

        self._parse: Any = HTMLTree.parse
        self._text: Any = extract_plain_text
        self._main = main_content

    def __call__(self, html: str) -> Page:
        html = self._prepared(html)
        start = _BODY.search(html) if self._main else None
        tree = self._parse(html if start is None else html[: start.end()] + _WRAPPERS + html[start.end() :])
        said = _said(tree, html)
        if self._main and tree.body is not None:
            if start is None:
                _wrap(tree)
            if _HAS_BOX.search(html):
                _unbox(tree)
        text = self._text(tree, preserve_formatting=True, main_content=self._main, alt_texts=False)
        return said._replace(text=text.replace(_PAD, "").strip("\n"))

    def _prepared(self, html: str) -> str:
        html = join_wide_lines(html)
        if "summary" in html:
            html = _SUMMARY.sub("</summary><br>", html)
        return _LONE.sub(rf">\1{_PAD}", html)


class _Trafilatura:
    """The engine as it is; title, date and address as with resiliparse."""

    def __init__(self) -> None:
        import trafilatura
        from resiliparse.parse.html import HTMLTree

        self._parse: Any = HTMLTree.parse
        self._extract: Any = trafilatura.extract

    def __call__(self, html: str) -> Page:
        html = join_wide_lines(html)
        text = self._extract(html, include_comments=False, include_tables=True, deduplicate=False) or ""
        return _said(self._parse(html), html)._replace(text=text.strip("\n"))


def _said(tree: Any, html: str) -> Page:
    """Title, date and address as the page has them."""
    title = " ".join((tree.title or "").split())[:_LONGEST_TITLE]
    published = _published(tree, html) if "date" in html or "published_time" in html else ""
    url = _attribute(tree.document.query_selector('link[rel="canonical"]'), "href") if "canonical" in html else ""
    return Page("", title, published, url if url.startswith(("http://", "https://")) else "")


def _published(tree: Any, html: str) -> str:
    found: dict[str, str] = {}
    for element in tree.document.get_elements_by_tag_name("meta"):
        for name in ("property", "itemprop", "name"):
            key = (element.getattr(name) or "").lower()
            if key in _PUBLISHED:
                found.setdefault(key, _attribute(element, "content"))
    said = next((found[name] for name in _PUBLISHED if found.get(name)), "")
    return said or (_attribute(tree.document.query_selector("time[datetime]"), "datetime") if "<time" in html else "")


def _attribute(element: Any, name: str) -> str:
    return "" if element is None else (element.getattr(name) or "").strip()[:_LONGEST_TITLE]


def _unbox(tree: Any) -> None:
    """Takes the class off boxes at the side that hold prose, so that they are text like any other."""
    for box in tree.body.query_selector_all(_BOXES):
        prose = len(box.text.strip().encode())
        linked = sum(len(link.text.strip().encode()) for link in box.query_selector_all("a"))
        if prose >= _LEAST_PROSE and linked <= _MOST_LINKED * prose and box.query_selector(_CONTROLS) is None:
            box.class_name = ""


def _wrap(tree: Any) -> None:
    """Puts `_WRAPPERS` into a body without a tag of its own."""
    outer = inner = tree.create_element("div")
    for _ in range(2):
        inner = inner.append_child(tree.create_element("div"))
    while (child := tree.body.first_child) is not None:
        inner.append_child(child)
    tree.body.append_child(outer)
