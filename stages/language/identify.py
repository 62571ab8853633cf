"""Language identifiers: the built-in one, and any fastText model."""

from __future__ import annotations

import functools
import itertools
import re
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from stages.contract.files import sha256_file
from stages.language.builtin import UNKNOWN, BuiltIn
from stages.language.codes import short_code
from stages.text import VERSION


class Identifier(Protocol):
    """`identify` gives `(short codes, scores float64 [N] from 0 to 1)`; `labels` are the codes it knows.

    letters_NS  what `scripts.letter_bytes` says of these texts
    """

    @property
    def labels(self) -> frozenset[str]: ...

    def identify(
        self, data_U8: np.ndarray, offsets_N1: np.ndarray, letters_NS: np.ndarray
    ) -> tuple[list[str], np.ndarray]: ...


@functools.lru_cache(maxsize=1)
def built_in() -> BuiltIn:
    """The built-in identifier, loaded once a process (some 100 MB)."""
    return BuiltIn()


# --- fastText ------------------------------------------------------------------------------------------------------

_BREAKS = re.compile("[\n\r\v\f\x1c-\x1e\u0085\u2028\u2029]")


@dataclass
class FastText:
    """A fastText classifier whose labels are languages: `codes` has the short code of each label."""

    model: Any
    codes: dict[str, str]

    @property
    def labels(self) -> frozenset[str]:
        """The codes it knows."""
        return frozenset(self.codes.values())

    def identify(
        self,
        data_U8: np.ndarray,
        offsets_N1: np.ndarray,
        letters_NS: np.ndarray,  # noqa: ARG002
    ) -> tuple[list[str], np.ndarray]:
        """The first label of each text as a short code (the label itself if it is no known language) and its score."""
        if len(offsets_N1) < 2:
            return [], np.zeros(0)
        ends = offsets_N1.tolist()
        content = data_U8.tobytes()
        lines = [one_line(content[a:b].decode("utf-8", "replace")) for a, b in itertools.pairwise(ends)]
        # The list form: with a single string, fastText 0.9.3 fails under NumPy 2.
        found, scores = self.model.predict(lines)
        codes = [self.codes[labels[0]] if labels else UNKNOWN for labels in found]
        return codes, np.array([min(1.0, float(score[0])) if len(score) else 0.0 for score in scores])


def one_line(text: str) -> str:
    """The text as fastText takes it: every line break a space, no word that it would read as a label."""
    return _BREAKS.sub(" ", text).replace("__label__", "__label_")


def _code(label: str) -> str:
    try:
        return short_code(label)
    except ValueError:
        return label.removeprefix("__label__")


@functools.lru_cache(maxsize=2)
def fasttext_model(path: str) -> FastText:
    """A fastText model from a `.bin` or `.ftz` file, loaded once a process; ValueError if the file is none."""
    import fasttext

    fasttext.FastText.eprint = lambda *_args, **_kwargs: None  # a warning about its own load_model
    model = fasttext.load_model(path)
    codes = {label: _code(label) for label in model.labels}
    if "__label__als" in codes and "__label__sq" in codes:  # Wikipedia's name of Alemannic; Tosk Albanian in ISO 639-3
        codes["__label__als"] = "gsw"
    return FastText(model, codes)


def recipe(path: str | None) -> dict[str, str]:
    """What decides the answers of an identifier: versions of packages and tables, or the digest of the model file."""
    from importlib.metadata import version

    if path is None:
        return {"py3langid": version("py3langid"), "text": VERSION}
    return {"model": sha256_file(path), "text": VERSION}
