"""Decontamination against leaks at known places: recall by how a leak was disguised, false alarms, the right item, speed.

    python -m benchmarks.decontamination --data DIR [--json] [--quick]

DIR holds benchmark_items.jsonl(.zst) with `id` and `text`, and documents with `text` and `leaks` ({item, how}).
"""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import orjson

from benchmarks import measure
from benchmarks.labelled import batch_of, rows
from stages.decontaminate import Decontaminate


def main() -> None:
    """Three lengths of n-grams over the same documents."""
    parser = measure.labelled_parser(__doc__, "folder of items and documents")
    options = parser.parse_args()
    measure.one_core()
    report = measure.Report("decontamination", options)
    found = list(rows(options.data, "decontamination"))
    items = [row for _, row in found if "leaks" not in row]
    documents = [row for _, row in found if "leaks" in row]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "items.jsonl"
        path.write_bytes(
            b"".join(orjson.dumps({"id": row["id"], "text": row["text"]}) + b"\n" for row in items)
        )
        for ngram in (13,) if options.quick else (8, 10, 13):
            stage = Decontaminate(benchmarks=str(path), ngram=ngram)
            if wrong := stage.problems():
                raise SystemExit(wrong[0])
            score(report, f"{ngram}-grams", stage, documents)
    report.close()


def score(report: measure.Report, name: str, stage: Decontaminate, documents: list[dict[str, Any]]) -> None:
    """The figures of one setting."""
    batch = batch_of([row["text"] for row in documents])
    seconds, after = measure.cpu_seconds(lambda: stage.apply(batch))
    found: Counter[str] = Counter()
    total: Counter[str] = Counter()
    right = wrong = clean = 0
    for row, value in zip(documents, after.column("drop_value").to_pylist(), strict=True):
        if not row["leaks"]:
            clean += 1
            wrong += value is not None
            continue
        for group in (row["leaks"][0]["how"], "all"):
            total[group] += 1
            found[group] += value is not None
        right += value is not None and any(f" {leak['item']}:" in value for leak in row["leaks"])
    for group in sorted(total):
        report.accuracy(f"{name} {group}", "recall", found[group] / total[group], total[group])
    report.accuracy(name, "right item", right / max(found["all"], 1), found["all"])
    report.accuracy(name, "false alarms", wrong / max(clean, 1), clean)
    report.accuracy(name, "precision", found["all"] / max(found["all"] + wrong, 1), found["all"] + wrong)
    report.rate(f"{name} speed", batch.column("text").nbytes / 1e6 / seconds, "MB/s")


if __name__ == "__main__":
    main()
