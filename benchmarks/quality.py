"""Quality: a classifier trained on one half of labelled texts, tested on the other; and the rules on all of them.

    python -m benchmarks.quality --data DIR [--json] [--quick]

DIR holds JSON Lines with `text` and `label` (1 good, 0 bad); `class` names the sort. Files with `human` in their name
are judgements of people: they are never trained on. The halves are told apart by a hash of the text.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from benchmarks import measure
from benchmarks.labelled import batch_of, rows
from stages.document import text_buffers
from stages.language import Language
from stages.quality.scoring import STEPS, load_scorer
from stages.quality.train import Settings, train
from stages.rules import Rules


def area(scores: np.ndarray, labels: np.ndarray) -> float:
    """Chance that a good text scores above a bad one (area under the ROC curve, ties count half)."""
    good, bad = scores[labels == 1], scores[labels == 0]
    above = (good[:, None] > bad[None, :]).mean() + 0.5 * (good[:, None] == bad[None, :]).mean()
    return float(above)


def by_class(report: measure.Report, name: str, cases: list[dict[str, Any]], kept: np.ndarray) -> None:
    """Precision and recall of "good", and the share kept of every sort of text."""
    labels = np.array([row["label"] for row in cases])
    report.accuracy(name, "precision", float(labels[kept].mean()) if kept.any() else 0.0, int(kept.sum()))
    report.accuracy(name, "recall", float(kept[labels == 1].mean()), int((labels == 1).sum()))
    groups = defaultdict(list)
    for row, one in zip(cases, kept.tolist(), strict=True):
        groups[f"{'good' if row['label'] else 'bad'} {row.get('class', '')}".strip()].append(one)
    for group, found in sorted(groups.items()):
        report.accuracy(f"{name} {group}", "kept", sum(found) / len(found), len(found))


def main() -> None:
    """Classifier, rules, and both."""
    parser = measure.labelled_parser(__doc__, "folder of labelled texts")
    options = parser.parse_args()
    measure.one_core()
    report = measure.Report("quality", options)
    found = [
        (name, row)
        for name, row in rows(options.data, "quality")
        if row.get("label") in (0, 1) and row.get("text")
    ]
    human = [row for name, row in found if "human" in name]
    made = [row for name, row in found if "human" not in name]
    half = [xxhash.xxh3_64_intdigest(row["text"].encode()) & 1 for row in made]
    seen, unseen = (
        [row for row, side in zip(made, half, strict=True) if side == wanted] for wanted in (0, 1)
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.bin"
        sides = ([row["text"] for row in seen if row["label"] == label] for label in (1, 0))
        train(*sides, path, Settings(epoch=2) if options.quick else Settings())
        scorer = load_scorer(str(path), None, None)
        for name, cases in (("classifier", unseen), ("classifier, human labels", human)):
            if cases:
                buffers = text_buffers(pa.array([row["text"] for row in cases], pa.large_string()))
                seconds, steps = measure.cpu_seconds(lambda buffers=buffers: scorer.score(*buffers))  # type: ignore[misc]
                labels = np.array([row["label"] for row in cases])
                report.accuracy(name, "auc", area(steps / STEPS, labels), len(cases))
                by_class(report, name, cases, steps >= STEPS // 2)
                if cases is unseen:
                    size = int(buffers[1][-1])
                    report.rate("classifier speed", size / 1e6 / seconds, "MB/s")
    everything = [*made, *human]
    tagged = Language().apply(batch_of([row["text"] for row in everything]))
    for preset in ("gopher", "fineweb"):
        kept = np.asarray(Rules(preset=preset).apply(tagged).column("drop").is_null())
        by_class(report, f"rules {preset}", made, kept[: len(made)])
        if human:
            by_class(report, f"rules {preset}, human labels", human, kept[len(made) :])
    report.close()


if __name__ == "__main__":
    main()
