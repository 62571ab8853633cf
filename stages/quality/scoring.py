"""Scoring texts with classifiers in the format of fastText (Joulin et al., 2016): the probability of one label.

A model that `pipeline train-quality` made has a card beside it, which says how texts are written for it: cut into words,
with words that say how the text is shaped behind them. Any other model gets the text as it is, with every line break
turned into a space.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numba import njit, types

from stages.language.identify import one_line
from stages.quality.shape import shape_words
from stages.quality.soundness import soundness
from stages.text.kernels import BYTES, CLASSES, END, OFFSETS, TABLE, next_token
from stages.text.memory import copy_bytes

Form = Literal["plain", "words", "shaped"]

#: Scores are kept as multiples of 1 / STEPS: models differ in the last bits from machine to machine, decisions must not.
STEPS = 4096
#: Labels that mean "good" when nobody says which one does, as published classifiers call it.
GOOD_LABELS = ("good", "hq", "__label__1", "high", "positive", "wiki", "cc_hq")


@dataclass(frozen=True)
class Scorer:
    """A loaded model, the label that counts, and how texts are put to it."""

    model: Any
    label: str
    form: Form

    def score(self, data_U8: np.ndarray, offsets_N1: np.ndarray, whole: bool = True) -> np.ndarray:
        """uint16 [N]: the probability of the label for each text, in steps; 0 for a text without a word.
        With a model of our own the probability counts as far as the text is sound.

        whole  whether these are documents: what lines and repetitions are like says nothing of a single paragraph
        """
        lines = written(data_U8, offsets_N1, self.form if whole or self.form == "plain" else "words")
        if not lines:
            return np.zeros(0, np.uint16)
        # The list form: with a single string, fastText 0.9.3 fails under NumPy 2.
        labels, chances = self.model.predict(lines, k=-1)
        found = [
            float(chance[own.index(self.label)]) if self.label in own and line.strip() else 0.0
            for own, chance, line in zip(map(list, labels), chances, lines, strict=True)
        ]
        scores_N = np.clip(np.array(found), 0.0, 1.0)
        if whole and self.form == "shaped":
            scores_N *= soundness(data_U8, offsets_N1)
        return np.round(scores_N * STEPS).astype(np.uint16)


def written(data_U8: np.ndarray, offsets_N1: np.ndarray, form: Form) -> list[str]:
    """The texts as a classifier of this form gets them, one line each; white space alone for a text without a word."""
    shapes = shape_words(data_U8, offsets_N1) if form == "shaped" else [""] * (len(offsets_N1) - 1)
    if form != "plain":
        data_U8, offsets_N1 = spaced(data_U8, offsets_N1)
    content = memoryview(data_U8)  # type: ignore[arg-type]
    texts = [one_line(str(content[a:b], "utf-8", "replace")) for a, b in pairwise(offsets_N1.tolist())]
    return [text + shape if text.strip() else text for text, shape in zip(texts, shapes, strict=True)]


def load_scorer(path: str, label: str | None, form: Form | None) -> Scorer:
    """The scorer of a model file, loaded once a process; ValueError if it is none, or does not know the label."""
    stat = os.stat(path)
    return _load(path, label, form, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=2)
def _load(path: str, label: str | None, form: Form | None, _mtime: int, _size: int) -> Scorer:
    import fasttext

    fasttext.FastText.eprint = lambda *_args, **_kwargs: None  # a warning about its own load_model
    try:
        model = fasttext.load_model(path)
    except ValueError as error:
        raise ValueError(f"{path} is no fastText model: {error}") from error
    card = read_card(path)
    known = list(model.labels)
    wanted = (label,) if label is not None else (card.get("label", ""), *GOOD_LABELS)
    names = [name for want in wanted for name in (want, f"__label__{want}") if name in known]
    if not names:
        said = (
            f"the model has no label `{label}`"
            if label is not None
            else "which label means good? Set `label`"
        )
        raise ValueError(f"{said}; it has {', '.join(name.removeprefix('__label__') for name in known[:20])}")
    return Scorer(model, names[0], form or card.get("form", "plain"))


def fasttext_version() -> str:
    """Name and version of the package that provides fastText."""
    from importlib.metadata import packages_distributions, version

    return ", ".join(sorted(f"{name} {version(name)}" for name in set(packages_distributions()["fasttext"])))


def card_path(model: str) -> Path:
    """Where the card of a model lies: beside it, `.json` behind its name."""
    return Path(f"{model}.json")


def read_card(model: str) -> dict[str, Any]:
    """What the card of a model says; empty if there is none."""
    path = card_path(model)
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


@njit(types.int64(BYTES, OFFSETS, TABLE, types.uint8[::1], types.int64[::1]), cache=True, nogil=True)
def _write_spaced(data, offsets, classes, out, out_offsets):
    at = np.int64(0)
    for row in range(len(offsets) - 1):
        i, end = offsets[row], offsets[row + 1]
        while True:
            kind, start, i = next_token(data, i, end, classes)
            if kind == END:
                break
            copy_bytes(out, at, data, start, i - start)
            at += i - start
            out[at] = 0x20
            at += 1
        out_offsets[row + 1] = at
    return at


def spaced(data_U8: np.ndarray, offsets_N1: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Buffers of the texts with one space between words, units and runs of other characters, and none besides."""
    out_U8 = np.empty(2 * int(offsets_N1[-1] - offsets_N1[0]) + 1, np.uint8)
    out_offsets_N1 = np.zeros(len(offsets_N1), np.int64)
    used = _write_spaced(data_U8, offsets_N1, CLASSES, out_U8, out_offsets_N1)
    return out_U8[:used], out_offsets_N1
