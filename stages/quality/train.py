"""Training of a quality classifier: good and bad texts in, a fastText model, its card and its figures out.

fastText fills only a part of its input matrix at random when it runs on few threads, and takes the rest as memory comes;
a large matrix is mapped freshly, and that is zeros. So training runs in a process of its own, on one thread, with a
matrix that is large enough: then the same texts give the same model, bit for bit.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from stages.contract.files import sha256_file, write_atomic
from stages.contract.names import canonical_json
from stages.document import text_buffers
from stages.quality.scoring import STEPS, card_path, load_scorer, written
from stages.readers import Damaged, FileSlice, ReadSettings, Reject, list_files, read_slice
from stages.text import VERSION

GOOD, BAD = "__label__good", "__label__bad"
#: One text in so many, by a hash of it, is kept for the test.
TEST_EVERY = 10

_SCRIPT = """
import sys, json, fasttext
given = json.load(open(sys.argv[1]))
model = fasttext.train_supervised(**given["train"])
model.save_model(given["out"])
"""


@dataclass(frozen=True)
class Settings:
    """How a classifier is trained: the names are those of fastText."""

    epoch: int = 10
    dim: int = 16
    lr: float = 0.5
    word_ngrams: int = 2
    bucket: int = 200_000
    min_count: int = 2
    seed: int = 0


@dataclass(frozen=True)
class Figures:
    """Precision and recall on texts that training did not see: `(threshold, precision, recall)` of the label good."""

    good: int
    bad: int
    curve: tuple[tuple[float, float, float], ...]

    def at(self, threshold: float) -> tuple[float, float]:
        """Precision and recall at one of the thresholds."""
        return next((p, r) for t, p, r in self.curve if t == threshold)


def train(
    good: Iterable[str], bad: Iterable[str], out: Path, settings: Settings, inputs: Sequence[str] = ()
) -> dict[str, Any]:
    """Trains on nine texts of ten, tests on the rest, writes `out` and its card; returns the card.

    inputs  what the texts came from, for the card
    ValueError where a side has fewer than 20 texts, RuntimeError where training fails or the model is no good.
    """
    texts = {GOOD: _unlike(good), BAD: _unlike(bad)}
    for label, found in texts.items():
        if len(found) < 20:
            raise ValueError(
                f"only {len(found)} different {label.removeprefix('__label__')} texts: at least 20 are needed"
            )
    lines: list[str] = []
    tests: dict[str, list[str]] = {}
    for label, found in texts.items():
        held = [i for i, text in enumerate(found) if _key(text, settings.seed) % TEST_EVERY == 0] or [0]
        tests[label] = [found[i] for i in held]
        lines += [
            f"{label} {line}" for line in _lines([found[i] for i in range(len(found)) if i not in set(held)])
        ]
    lines.sort(
        key=lambda line: (_key(line, settings.seed), line)
    )  # both labels mixed, in an order of their own
    _run(lines, out, settings)
    write_atomic(card_path(str(out)), b'{"form": "shaped", "label": "good"}')
    figures = _figures(out, tests)
    card = {
        "form": "shaped",
        "label": "good",
        "model": sha256_file(out),
        "text": VERSION,
        "settings": asdict(settings),
        "inputs": list(inputs),
        "trained_on": {
            label.removeprefix("__label__"): len(texts[label]) - len(tests[label]) for label in texts
        },
        "tested_on": {"good": figures.good, "bad": figures.bad},
        "curve": [
            {"threshold": t, "precision": round(p, 4), "recall": round(r, 4)} for t, p, r in figures.curve
        ],
    }
    write_atomic(
        card_path(str(out)), json.dumps(card, indent=1, ensure_ascii=False, sort_keys=True).encode() + b"\n"
    )
    return card


def read_texts(patterns: Sequence[str], text: str | None, limit: int) -> list[str]:
    """At most `limit` different texts of these files (any format that sources have), those of the smallest hash.

    text  the field, or a template
    ValueError where a file cannot be read, FileNotFoundError where a pattern names none.
    """
    files = list_files(list(patterns), os.getcwd()).files
    if not files:
        raise FileNotFoundError(f"{', '.join(patterns)} names no file")
    found: set[str] = set()
    settings = ReadSettings("quality", text=text)
    for file in files:
        for batch in read_slice(FileSlice(file.path, file.uri), settings):
            if isinstance(batch, Damaged):
                raise ValueError(f"{file.path} cannot be read: {batch.reason}: {batch.detail}")
            if not isinstance(batch, Reject):
                found.update(batch.column("text").to_pylist())
            if len(found) > 2 * limit:
                found = set(_unlike(found)[:limit])
    return _unlike(found)[:limit]


def _unlike(texts: Iterable[str]) -> list[str]:
    """Different texts with a word in them, in the order of a hash, so that the order of the inputs changes nothing."""
    return sorted({text for text in texts if text.strip()}, key=lambda text: (_key(text, 0), text))


def _key(text: str, seed: int) -> int:
    return xxhash.xxh3_64_intdigest(text.encode("utf-8", "surrogatepass"), seed=seed)


def _lines(texts: Sequence[str]) -> list[str]:
    """The texts as the classifier sees them, one line each."""
    return written(*text_buffers(pa.array(texts, pa.large_string())), "shaped")


def _run(lines: Sequence[str], out: Path, settings: Settings) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=".tmp-") as folder:
        text, made, given = (Path(folder) / name for name in ("train.txt", "model.bin", "settings.json"))
        text.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
        how = {
            "input": str(text), "epoch": settings.epoch, "dim": settings.dim, "lr": settings.lr, "seed": settings.seed,
            "wordNgrams": settings.word_ngrams, "bucket": settings.bucket, "minCount": settings.min_count, "thread": 1, "verbose": 0,
        }  # fmt: skip
        given.write_bytes(canonical_json({"train": how, "out": str(made)}))
        ran = subprocess.run(
            [sys.executable, "-c", _SCRIPT, str(given)],
            env={**os.environ, "MALLOC_MMAP_THRESHOLD_": "64"},
            capture_output=True,
            text=True,
        )
        if ran.returncode or not made.is_file():
            raise RuntimeError(
                f"fastText could not train: {(ran.stderr.strip().splitlines() or ['it died'])[-1]}"
            )
        os.replace(made, out)


def _figures(out: Path, tests: dict[str, list[str]]) -> Figures:
    scorer = load_scorer(str(out), "good", "shaped")
    scores = {
        label: scorer.score(*text_buffers(pa.array(found, pa.large_string()))) / STEPS
        for label, found in tests.items()
    }
    if (
        not np.isfinite(np.concatenate(list(scores.values()))).all()
        or len(np.unique(np.concatenate(list(scores.values())))) < 2
    ):
        raise RuntimeError("the trained model gives every text the same score")
    curve = []
    for threshold in (0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.9):
        right, wrong = (int((scores[label] >= threshold).sum()) for label in (GOOD, BAD))
        curve.append((threshold, right / max(right + wrong, 1), right / len(scores[GOOD])))
    return Figures(len(scores[GOOD]), len(scores[BAD]), tuple(curve))
