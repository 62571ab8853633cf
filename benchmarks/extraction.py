"""Main text of pages against labelled text: F1 of tokens by engine, language and source, and pages per second.

    python -m benchmarks.extraction --data DIR [--json] [--quick]

Labelled are pages of documentation and of the Universal Declaration. A token is a word, or one character of a script
that writes no spaces; F1 is over the bags of tokens of a page, averaged over pages. Encodings are measured on labelled
files and on pages whose bytes are known.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import zstandard

from benchmarks import measure

_TOKEN = re.compile("[\u2e80-\u9fff\uf900-\ufaff\uac00-\ud7af\u0e00-\u0eff\u1780-\u17ff\u1000-\u109f]|\\w+")


def gold(shared: Path) -> list[dict[str, Any]]:
    """Rows with `html`, `gold_main_text`, `lang`, `source`."""
    with (shared / "data" / "web" / "extraction_gold.jsonl.zst").open("rb") as file:
        lines = zstandard.ZstdDecompressor().stream_reader(file).read().split(b"\n")
    return [json.loads(line) for line in lines if line]


def token_f1(found: str, wanted: str) -> tuple[float, float, float]:
    """`(F1, precision, recall)` over bags of tokens."""
    ours, theirs = Counter(_TOKEN.findall(found)), Counter(_TOKEN.findall(wanted))
    common = sum((ours & theirs).values())
    if not common:
        return 0.0, 0.0, 0.0
    precision, recall = common / ours.total(), common / theirs.total()
    return 2 * precision * recall / (precision + recall), precision, recall


def engines() -> dict[str, Callable[[str], str]]:
    """Ours with both engines, and the engines as they come."""
    import trafilatura
    from resiliparse.extract.html2text import extract_plain_text

    from stages.extract import engine_of

    return {
        "resiliparse": lambda html: engine_of("resiliparse", True)(html).text,
        "trafilatura": lambda html: engine_of("trafilatura", True)(html).text,
        "resiliparse alone": lambda html: extract_plain_text(
            html, preserve_formatting=True, main_content=True, alt_texts=False
        ),
        "trafilatura alone": lambda html: trafilatura.extract(html, include_comments=False) or "",
    }


def pages(report: measure.Report, rows: list[dict[str, Any]]) -> None:
    """Scores and speeds of the engines."""
    speeds = {}
    for name, engine in engines().items():
        seconds, texts = measure.cpu_seconds(lambda engine=engine: [engine(row["html"]) for row in rows])  # type: ignore[misc]
        scores = [token_f1(text, row["gold_main_text"]) for text, row in zip(texts, rows, strict=True)]
        for metric, column in zip(("f1", "precision", "recall"), zip(*scores, strict=True), strict=True):
            report.accuracy(f"extraction {name}", metric, sum(column) / len(column), len(column))
        speeds[name] = len(rows) / seconds
        if name == "resiliparse":
            by_kind = defaultdict(list)
            for row, score in zip(rows, scores, strict=True):
                by_kind[row["lang"].partition("-")[0]].append(score[0])
                by_kind[row["source"].partition(":")[2]].append(score[0])
            for kind, found in sorted(by_kind.items()):
                if len(found) >= 5:
                    report.accuracy(f"extraction {name} {kind}", "f1", sum(found) / len(found), len(found))
    for name in ("resiliparse", "trafilatura"):
        report.rate(f"extraction {name}", speeds[name], "pages/s", speeds[f"{name} alone"], f"{name} alone")


def charsets(report: measure.Report, shared: Path) -> None:
    """Files and pages that come out as the text they are."""
    from stages.readers.charset import decode

    folder = shared / "data" / "language" / "dev" / "charset"
    right = []
    for line in (folder / "_manifest.jsonl").open(encoding="utf-8"):
        row = json.loads(line)
        if row["python_codec"]:
            data = (folder / row["file"]).read_bytes()
            found = decode(data)
            wanted = data.decode(row["python_codec"], "replace").removeprefix("\ufeff")
            right.append(found is not None and found.text == wanted)
    report.accuracy("charset files", "right", sum(right) / len(right), len(right))


def archives(report: measure.Report, shared: Path) -> None:
    """Documents of the whole and of the damaged archives, against what they hold."""
    from stages.readers import Damaged, FileSlice, ReadSettings, Reject, read_slice

    built = shared / "data" / "web" / "built"
    for path in sorted(built.glob("*.warc*")):
        found = list(read_slice(FileSlice(str(path), path.name), ReadSettings("web", format="warc")))
        rows = sum(item.num_rows for item in found if not isinstance(item, Reject | Damaged))
        rejects = sum(isinstance(item, Reject) and item.reason == "damaged-record" for item in found)
        report.accuracy(f"archive {path.name}", "documents", rows, rows + rejects)


def main() -> None:
    """Prints one measure a line."""
    parser = measure.labelled_parser(__doc__, "the folder that holds data/")
    options = parser.parse_args()
    measure.one_core()
    report = measure.Report("extraction", options)
    rows = gold(options.data)
    pages(report, rows[::8] if options.quick else rows)
    charsets(report, options.data)
    archives(report, options.data)
    report.close()


if __name__ == "__main__":
    main()
