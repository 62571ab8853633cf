"""Near-duplicate removal on real documents whose exact similarities are known.

    python -m benchmarks.neardup --data DIR [--quick] [--json]

DIR holds `docs.jsonl.zst` and `pairs.jsonl.zst`, itself or below it. Similarities are exact over the word 5-grams of this
project (of Chinese and Japanese: characters), computed anew for each pair that is listed; unlisted ones are below 0.1.

neardup.collisions.J    share of pairs of that decile that meet in a band, what theory says, and how many standard errors
                        lie between. Variants of one text meet or miss each other together, so a group of variants gives
                        one pair a decile, and the error is that of independent cases
neardup.found           of pairs with J >= t + 0.1, those with a side removed
neardup.wrong           of documents removed, those whose survivor has J < t - 0.15
neardup.template        of template pages without a near copy, those kept
All for all documents, and for `cjk` and `spaced` ones.
"""

from __future__ import annotations

import io
import json
import tempfile
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.measure import Report, labelled_parser, one_core

one_core()

import numpy as np  # noqa: E402
import pyarrow as pa  # noqa: E402
import zstandard  # noqa: E402

from benchmarks.rows import run_steps  # noqa: E402
from stages.dedup.bands import collision_probability  # noqa: E402
from stages.dedup.minhash import MinhashDedup  # noqa: E402
from stages.document import text_buffers  # noqa: E402
from stages.text import shingle_hashes  # noqa: E402


def read(path: Path) -> list[dict[str, Any]]:
    """The records of a compressed file of JSON lines."""
    with path.open("rb") as file:
        stream = zstandard.ZstdDecompressor().stream_reader(file)
        return [json.loads(line) for line in io.TextIOWrapper(stream, "utf-8")]


class Documents:
    """The texts of a set, who is Chinese or Japanese, who is a template, and the exact J of every listed pair."""

    def __init__(self, folder: Path) -> None:
        rows = read(folder / "docs.jsonl.zst")
        self.texts = pa.array([row["text"] for row in rows], pa.large_string())
        self.cjk = np.array([row["lang"][:2] in ("zh", "ja") for row in rows])
        self.groups = [row["group"] for row in rows]
        self.template = np.array([row["kind"] == "template" for row in rows])
        place = {row["id"]: i for i, row in enumerate(rows)}
        listed = read(folder / "pairs.jsonl.zst")
        pairs = sorted({tuple(sorted((place[p["a"]], place[p["b"]]))) for p in listed})
        hashes, offsets = shingle_hashes(*text_buffers(self.texts), 5)
        sets = [np.unique(hashes[a:b]) for a, b in pairwise(offsets.tolist())]
        self.pairs = np.array(pairs)
        self.similarity = np.array([_jaccard(sets[a], sets[b]) for a, b in pairs])
        self.known = dict(zip(pairs, self.similarity.tolist(), strict=True))

    def apart(self, pairs: np.ndarray) -> np.ndarray:
        """Some of these pairs (row numbers), in an order drawn once, so that each group of variants is in one at most."""
        used: set[str] = set()
        chosen = []
        for pair in np.random.default_rng(0).permutation(pairs).tolist():
            groups = {self.groups[row] for row in self.pairs[pair]}
            if not groups & used:
                used |= groups
                chosen.append(pair)
        return np.array(chosen, np.int64)


def _jaccard(left: np.ndarray, right: np.ndarray) -> float:
    both = len(np.intersect1d(left, right, assume_unique=True))
    return both / max(len(left) + len(right) - both, 1)


def collisions(report: Report, documents: Documents, seeds: int) -> None:
    """Measured and theoretical rates of meeting in a band, by decile of J."""
    batch = pa.record_batch({"text": documents.texts})
    met = []
    for seed in range(seeds):
        stage = MinhashDedup(seed=seed)
        flat = np.frombuffer(stage.emit(batch, 0).column("keys").buffers()[1], np.uint64)
        keys = flat.reshape(-1, stage.shape[0])
        met.append((keys[documents.pairs[:, 0]] == keys[documents.pairs[:, 1]]).any(1))
    theory = np.array([collision_probability(j, *MinhashDedup().shape) for j in documents.similarity])
    measured = np.array(met, float)
    for decile in range(10):
        inside = (documents.similarity >= decile / 10) & (documents.similarity < decile / 10 + 0.1)
        inside |= (documents.similarity == 1) & (decile == 9)
        chosen = documents.apart(np.flatnonzero(inside))
        cases = len(chosen) * seeds
        rate, expected = float(measured[:, chosen].mean()), float(theory[chosen].mean())
        error = np.sqrt((theory[chosen] * (1 - theory[chosen])).mean() / cases)
        name = f"neardup.collisions.{decile / 10:.1f}"
        report.accuracy(name, "measured rate", rate, cases)
        report.accuracy(name, "expected rate", expected, cases)
        report.accuracy(name, "standard errors apart", float((rate - expected) / max(error, 1e-9)), cases)


def removal(documents: Documents, seed: int) -> tuple[set[int], list[tuple[int, int, float]]]:
    """`(rows removed, proofs)` of one run."""
    stage = MinhashDedup(seed=seed, audit=0)

    def emission(first: int) -> pa.Table:
        batch = pa.record_batch({"text": documents.texts[first : first + 1500]})
        return pa.Table.from_batches([stage.emit(batch, first)])

    parts = [partial(emission, first) for first in range(0, len(documents.texts), 1500)]
    with tempfile.TemporaryDirectory(prefix="gristmill-bench-") as folder:
        proofs = run_steps(Path(folder), stage, parts).proofs()
    return {row for row, _, _ in proofs}, proofs


def quality(report: Report, documents: Documents, seeds: int) -> None:
    """What was found, what was wrong, what became of templates; sums over the seeds."""
    threshold = MinhashDedup().threshold
    runs = [removal(documents, seed) for seed in range(seeds)]
    groups = {"all": np.ones(len(documents.cjk), bool), "cjk": documents.cjk, "spaced": ~documents.cjk}
    near = documents.similarity >= threshold + 0.1
    alike = {
        row for pair in documents.pairs[documents.similarity >= threshold - 0.1].tolist() for row in pair
    }
    for group, members in groups.items():
        chosen = documents.pairs[near & members[documents.pairs[:, 0]]].tolist()
        found = sum(a in gone or b in gone for gone, _ in runs for a, b in chosen)
        report.accuracy(f"neardup.found.{group}", f"share of pairs with J >= {threshold + 0.1:.2g}",
                        found / max(len(chosen) * seeds, 1), len(chosen) * seeds)  # fmt: skip
        true = [
            documents.known.get((min(r, s), max(r, s)), 0.0)
            for _, proofs in runs
            for r, s, _ in proofs
            if members[r]
        ]
        wrong = sum(j < threshold - 0.15 for j in true)
        report.accuracy(f"neardup.wrong.{group}", f"share of removals with J < {threshold - 0.15:.2g}",
                        wrong / max(len(true), 1), len(true))  # fmt: skip
    pages = [row for row in np.flatnonzero(documents.template).tolist() if row not in alike]
    kept = sum(row not in gone for gone, _ in runs for row in pages)
    report.accuracy("neardup.template", "share kept", kept / max(len(pages) * seeds, 1), len(pages) * seeds)


def main() -> None:
    """Every set below --data."""
    options = labelled_parser(__doc__, "folder with docs.jsonl.zst and pairs.jsonl.zst")
    chosen = options.parse_args()
    report = Report("neardup", chosen)
    found = sorted(path.parent for path in chosen.data.rglob("docs.jsonl.zst"))
    if not found:
        raise SystemExit(f"no docs.jsonl.zst below {chosen.data}")
    for folder in found:
        documents = Documents(folder)
        collisions(report, documents, 8 if chosen.quick else 64)
        quality(report, documents, 1 if chosen.quick else 4)
    report.close()


if __name__ == "__main__":
    main()
