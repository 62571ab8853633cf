"""Language identifiers: the built-in one (scripts, then the model of py3langid), and any fastText model.

The built-in one reads the tables of py3langid (naive Bayes over byte n-grams that an automaton finds; Lui and Baldwin,
2012) and runs them as a compiled kernel in float64, restricted to the languages of the script that prevails.
"""

from __future__ import annotations

import functools
import itertools
import re
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numba import njit, types

from stages.contract.files import sha256_file
from stages.language.codes import short_code
from stages.text import VERSION, scripts
from stages.text.kernels import BYTES, OFFSETS

UNKNOWN = "und"


class Identifier(Protocol):
    """`identify` gives `(short codes, scores float64 [N] from 0 to 1)`; `labels` are the codes it knows.

    letters_NS  what `scripts.letter_bytes` says of these texts
    """

    labels: frozenset[str]

    def identify(
        self, data_U8: np.ndarray, offsets_N1: np.ndarray, letters_NS: np.ndarray
    ) -> tuple[list[str], np.ndarray]: ...


# --- built in ------------------------------------------------------------------------------------------------------

#: Scripts that one language (nearly) alone is written in.
_ONE_LANGUAGE = {
    "Greek": "el", "Hangul": "ko", "Thai": "th", "Lao": "lo", "Khmer": "km", "Myanmar": "my", "Georgian": "ka", "Armenian": "hy",
    "Gurmukhi": "pa", "Gujarati": "gu", "Odia": "or", "Tamil": "ta", "Telugu": "te", "Kannada": "kn", "Malayalam": "ml",
    "Sinhala": "si", "Thaana": "dv", "Tibetan": "bo", "Hebrew": "he", "Ethiopic": "am",
}  # fmt: skip
#: Scripts that the model decides in, with its languages that are written in them.
_BY_MODEL = {
    "Cyrillic": "ru uk be bg mk sr kk ky mn tg tt ba",
    "Arabic": "ar fa ur ps ug ku",
    "Devanagari": "hi mr ne sa gom",
    "Bengali": "bn as",
}
#: Languages that nobody writes in Latin letters at length.
_OTHER_SCRIPTS = (
    "ru uk be bg mk kk ky mn tg tt ba ar fa ur ps ug hi mr ne sa gom bn as zh wuu yue ja dz zxx grc"
)
_NOT_LATIN = frozenset(_OTHER_SCRIPTS.split()) | frozenset(_ONE_LANGUAGE.values())
#: Latin letters count half where the script is chosen: names, code and English terms stand in texts of every script,
#: and hardly any other script in a text of Latin ones.
_LATIN_WEIGHT = 0.5
#: Share of kana among kana and Han from which a text is Japanese.
JAPANESE_KANA = 0.05

_FEATURES = types.Array(types.float32, 2, "C", readonly=True)
_F4 = types.Array(types.float32, 1, "C", readonly=True)
_U4 = types.Array(types.uint32, 1, "C", readonly=True)
_I4 = types.Array(types.int32, 1, "C", readonly=True)
_F8 = types.Array(types.float64, 1, "C", readonly=True)


@njit(
    types.void(BYTES, OFFSETS, OFFSETS, _U4, _U4, _I4, _FEATURES, _F4, _F8, types.float64[:, ::1]),
    cache=True, nogil=True,
)  # fmt: skip
def _posteriors(data, offsets, rows, next_move, row_of, feature_of, weights, prior, log1p, out):
    """Naive Bayes log-posterior of each class for the texts `rows` into `out`, divided by the square root of their bytes."""
    counts = np.zeros(len(weights), np.int32)
    seen = np.empty(len(weights), np.int32)
    for at in range(len(rows)):
        row = rows[at]
        found = 0
        state = np.uint32(0)
        for i in range(offsets[row], offsets[row + 1]):
            state = next_move[(np.int64(row_of[state]) << 8) + np.int64(data[i])]
            feature = feature_of[state]
            if feature >= 0:
                if counts[feature] == 0:
                    seen[found] = feature
                    found += 1
                counts[feature] += 1
        scores = out[at]
        scores[:] = 0.0
        for k in range(found):
            feature = seen[k]
            weight = log1p[min(counts[feature], len(log1p) - 1)]
            counts[feature] = 0
            for c in range(len(scores)):
                scores[c] += weight * weights[feature, c]
        scale = 1.0 / np.sqrt(max(offsets[row + 1] - offsets[row], 1))
        for c in range(len(scores)):
            scores[c] = (scores[c] + prior[c]) * scale


class BuiltIn:
    """Scripts that decide alone (kana, Hangul, Thai …), then naive Bayes among the languages of the prevailing script.

    The score is the share of letter bytes in the prevailing script, times the posterior of the model where it decides.
    """

    def __init__(self) -> None:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier

        model = LanguageIdentifier.from_model_file(MODEL_FILE)
        self._next = np.frombuffer(model.tk_nextmove, np.uint32)
        self._row_of = np.asarray(model.tk_row).astype(np.uint32)
        self._feature_of = np.asarray(model.tk_output, np.int32)
        self._weights = np.ascontiguousarray(model.nb_ptc, np.float32)
        self._prior = np.ascontiguousarray(model.nb_pc, np.float32)
        self._log1p = np.log1p(np.arange(65536, dtype=np.float64))
        self._codes = [short_code(label) for label in model.nb_classes]
        latin = frozenset(self._codes) - _NOT_LATIN
        self._allowed = {script: frozenset(codes.split()) for script, codes in _BY_MODEL.items()} | {
            "Latin": latin
        }
        self.labels = frozenset({"zh", "ja", *_ONE_LANGUAGE.values()}.union(*self._allowed.values()))

    def identify(
        self, data_U8: np.ndarray, offsets_N1: np.ndarray, letters_NS: np.ndarray
    ) -> tuple[list[str], np.ndarray]:
        """The prevailing language of each text and its score; `und` and 0 where there are no letters of a known script."""
        names = scripts.SCRIPTS
        han, kana, latin = names.index("Han"), names.index("Kana"), names.index("Latin")
        weight_NS = letters_NS.astype(np.float64)
        weight_NS[:, latin] *= _LATIN_WEIGHT
        total_N = weight_NS.sum(axis=1)
        japanese_N = weight_NS[:, kana] >= JAPANESE_KANA * (weight_NS[:, han] + weight_NS[:, kana])
        weight_NS[:, han] += weight_NS[:, kana]
        weight_NS[:, kana] = weight_NS[:, 0] = 0
        top_N = weight_NS.argmax(axis=1)
        scores_N = weight_NS.max(axis=1) / np.maximum(total_N, 1)
        codes = np.full(len(total_N), UNKNOWN, object)
        for number in np.unique(top_N[scores_N > 0]).tolist():
            script = names[number]
            rows = np.flatnonzero((top_N == number) & (scores_N > 0))
            if number == han:
                codes[rows] = np.where(japanese_N[rows], "ja", "zh")
            elif script in _ONE_LANGUAGE:
                codes[rows] = _ONE_LANGUAGE[script]
            else:
                codes[rows], posterior = self._ask(data_U8, offsets_N1, rows, script)
                scores_N[rows] *= posterior
        return codes.tolist(), scores_N

    def _ask(
        self, data_U8: np.ndarray, offsets_N1: np.ndarray, rows_K: np.ndarray, script: str
    ) -> tuple[np.ndarray, np.ndarray]:
        """The best language of a script for each of these texts, and its share of the posterior of all of the script."""
        log_KC = np.empty((len(rows_K), len(self._codes)))
        _posteriors(
            data_U8, offsets_N1, rows_K, self._next, self._row_of, self._feature_of, self._weights, self._prior,
            self._log1p, log_KC,
        )  # fmt: skip
        allowed = sorted(self._allowed[script])
        inside = [c for c, code in enumerate(self._codes) if code in allowed]
        weight_KC = np.exp(log_KC[:, inside] - log_KC[:, inside].max(axis=1, keepdims=True))
        by_code_KL = np.zeros((len(rows_K), len(allowed)))
        for column, c in enumerate(inside):  # several classes of the model can be one language
            by_code_KL[:, allowed.index(self._codes[c])] += weight_KC[:, column]
        best_K = by_code_KL.argmax(axis=1)
        share_K = by_code_KL.max(axis=1) / by_code_KL.sum(axis=1)
        return np.array(allowed, object)[best_K], share_K


@functools.lru_cache(maxsize=1)
def built_in() -> BuiltIn:
    """The built-in identifier, loaded once a process (some 100 MB)."""
    return BuiltIn()


# --- fastText ------------------------------------------------------------------------------------------------------

_BREAKS = re.compile("[\n\r\v\f\x1c-\x1e\u0085\u2028\u2029]")


@dataclass
class FastText:
    """A fastText classifier whose labels are languages."""

    model: Any
    labels: frozenset[str]

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
        codes = [_code(labels[0]) if labels else UNKNOWN for labels in found]
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
    return FastText(model, frozenset(_code(label) for label in model.labels))


def recipe(path: str | None) -> dict[str, str]:
    """What decides the answers of an identifier: versions of packages and tables, or the digest of the model file."""
    from importlib.metadata import version

    if path is None:
        return {"py3langid": version("py3langid"), "text": VERSION}
    return {"model": sha256_file(path), "text": VERSION}
