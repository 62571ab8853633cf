"""The built-in identifier of languages: scripts, then the n-gram model of py3langid, then words that tell relatives apart.

The tables of py3langid (naive Bayes over n-grams of bytes; Lui and Baldwin, 2012) are rounded to one byte a weight and run
as a compiled kernel in integers, so the sums are the same on every machine. A text is judged in pieces, each by the
languages of its script, and the pieces vote: a page in two languages gets the prevailing one, with its share as the score.
"""

from __future__ import annotations

import numpy as np
from numba import njit, types

from stages.language import ngrams, relatives
from stages.language.codes import short_code
from stages.text import scripts
from stages.text.kernels import ALPHA, BYTES, CLASSES, OFFSETS, TABLE, decode
from stages.text.memory import prefetch
from stages.text.vectors import PRODUCTS, add_product

UNKNOWN = "und"

#: Scripts that one language (nearly) alone is written in.
_ONE_LANGUAGE = {
    "Greek": "el", "Hangul": "ko", "Thai": "th", "Lao": "lo", "Khmer": "km", "Myanmar": "my", "Georgian": "ka", "Armenian": "hy",
    "Gurmukhi": "pa", "Gujarati": "gu", "Odia": "or", "Tamil": "ta", "Telugu": "te", "Kannada": "kn", "Malayalam": "ml",
    "Sinhala": "si", "Thaana": "dv", "Tibetan": "bo", "Hebrew": "he", "Ethiopic": "am", "Han": "zh", "Kana": "zh",
    "Syriac": "syr", "NKo": "nqo", "Cherokee": "chr", "Mongolian": "mn", "Tifinagh": "zgh", "Yi": "ii", "Vai": "vai",
    "Ol Chiki": "sat", "Javanese": "jv", "Meetei": "mni", "Adlam": "ff", "Grantha": "sa", "Chakma": "ccp",
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
_NOT_LATIN = frozenset(_OTHER_SCRIPTS.split()) | frozenset(_ONE_LANGUAGE.values()) - {"jv", "ff"}
#: Latin letters count half where scripts are weighed: names, code and English terms stand in texts of every script,
#: and hardly any other script in a text of Latin ones.
_LATIN_WEIGHT = 0.5
#: So does English among pieces in other languages: terms, menus, citations and what nobody translated.
_ENGLISH_WEIGHT = 0.5
#: Share of kana among kana and Han from which a text is Japanese.
JAPANESE_KANA = 0.05

#: Texts are judged in pieces of about this many bytes, cut at spaces.
_PIECE = ngrams.PIECE
#: No piece speaks louder against a language than by this logarithm of odds: pieces in another language, names and code
#: are voted down, and close relatives are told apart by what all the pieces together say.
_FLOOR = 6.0

_LATIN, _HAN, _KANA = [scripts.SCRIPTS.index(name) for name in ("Latin", "Han", "Kana")]
#: Weights are kept in steps of 1 / this, from the lightest one up; so are the logarithms of counts, in finer ones.
_STEPS, _COUNT_STEPS = 21, 256

_I4 = types.Array(types.int32, 1, "C", readonly=True)
_U1 = types.Array(types.uint8, 1, "C", readonly=True)
_F8 = types.Array(types.float64, 1, "C", readonly=True)


@njit(cache=True, nogil=True)
def _piece_end(data, start, end):
    """Where the piece that begins at byte `start` ends: behind a space or line break, else between two characters."""
    space = -1
    for i in range(start, min(end, start + _PIECE)):
        if data[i] <= 0x20:
            space = i
    stop = min(end, start + _PIECE)
    if stop == end:
        return end
    if space > start + _PIECE // 2:
        return space + 1
    while stop > start + 4 and data[stop] & 0xC0 == 0x80:
        stop -= 1
    return stop


@njit(cache=True, nogil=True)
def _letters(data, start, end, classes, script_of, out):
    """Bytes of letters of each script in data[start:end], into `out`."""
    out[:] = 0
    i = start
    while i < end:
        if data[i] < 0x80:
            letter = data[i] | 0x20
            out[_LATIN] += 0x61 <= letter <= 0x7A
            i += 1
            continue
        code, after = decode(data, i, end)
        if classes[code] & ALPHA:
            out[np.int64(script_of[code]) if code < len(script_of) else 0] += after - i
        i = after


@njit(cache=True, nogil=True)
def _count_features(data, start, end, latin, piece, at_byte, known, table, long, weights, base, width, counts, seen):
    """Counts the n-grams of the model in data[start:end]; returns how many there are, their numbers in `seen`.

    Outside of Latin text ASCII letters count as spaces: they would speak for some language by chance. The weights of each
    n-gram are asked for from memory as soon as it is met: they will be needed when the piece is judged.
    """
    for i in range(start, end):
        byte = data[i]
        piece[ngrams.MARGIN + i - start] = 0x20 if not latin and 0x61 <= byte | 0x20 <= 0x7A else byte
    ngrams.find(piece, end - start, known, table, long, at_byte)
    found = 0
    for k in range(end - start):
        feature = np.int64(at_byte[k])
        if feature >= 0:
            if counts[feature] == 0:
                seen[found] = feature
                found += 1
                prefetch(weights, base + feature * width)
                prefetch(weights, base + feature * width + width - 1)
            counts[feature] += 1
    return found


@njit(cache=True, nogil=True)
def _judge(counts, seen, found, weights, base, width, prior, log1p, scale, sums, logs):
    """Naive Bayes of the `width` classes of a script: log-posteriors into logs[:width]. Takes `counts` back to 0.

    Up to PRODUCTS - 1 sums and weights behind those of the script are touched: they must be there, and count for nothing.
    """
    sums[: width + PRODUCTS - 1] = 0
    for k in range(found):
        feature = np.int64(seen[k])
        count = log1p[counts[feature]]
        counts[feature] = 0
        at = base + feature * width
        for c in range(0, width, PRODUCTS):
            add_product(sums, c, weights, at + c, count)
    top = -np.inf
    for c in range(width):
        logs[c] = (sums[c] / np.float64(_STEPS * _COUNT_STEPS) + prior[c]) * scale
        top = max(top, logs[c])
    total = 0.0
    for c in range(width):
        total += np.exp(logs[c] - top)
    total = np.log(total) + top
    for c in range(width):
        logs[c] -= total


@njit(
    types.void(
        BYTES, OFFSETS, TABLE, TABLE, ngrams.U8, ngrams.U8, ngrams.U8, _U1, _F8, OFFSETS, OFFSETS, OFFSETS, _I4, types.int64, types.int64,
        types.int64[::1], types.float64[::1],
    ),
    cache=True, nogil=True,
)  # fmt: skip
def _vote(
    data, offsets, classes, script_of, known, table, long, weights, priors, bases, firsts, language_of, log1p, languages,
    english, best, scores,
):  # fmt: skip
    """Number of the prevailing language of each text (-1: no letters that tell) into `best`, and its score.

    bases, firsts  of the script S: weights[bases[S] + feature * width + c] and priors[firsts[S] + c] belong to the
                   language language_of[firsts[S] + c], where width = firsts[S + 1] - firsts[S]; in ascending order
    """
    letters = np.zeros(len(firsts) - 1, np.int64)
    counts = np.zeros(len(table), np.uint16)  # there are fewer n-grams than slots
    seen, at_byte = np.empty(_PIECE, np.int32), np.empty(_PIECE, np.int32)
    piece = np.zeros(ngrams.MARGIN + _PIECE, np.uint8)
    logs, sums = np.empty(len(language_of), np.float64), np.empty(len(language_of) + PRODUCTS, np.int32)
    for row in range(len(offsets) - 1):
        said = np.zeros(languages, np.float64)
        spoken = np.zeros(languages, np.float64)
        total, voices, pieces = 0.0, 0.0, 0
        i, end = offsets[row], offsets[row + 1]
        while i < end:
            stop = _piece_end(data, i, end)
            _letters(data, i, stop, classes, script_of, letters)
            letters[_HAN] += letters[_KANA]
            letters[_KANA] = 0
            top, most = 0, 0.0
            for script in range(len(letters)):
                weight = letters[script] * (_LATIN_WEIGHT if script == _LATIN else 1.0)
                total += weight
                if script > 0 and weight > most:
                    top, most = script, weight
            first, width = firsts[top], firsts[top + 1] - firsts[top]
            if width == 1:
                said[language_of[first]] += most * _FLOOR
                spoken[language_of[first]] += most
                voices += most
            elif width > 1:
                found = _count_features(
                    data, i, stop, top == _LATIN, piece, at_byte, known, table, long, weights, bases[top], width, counts, seen
                )
                scale = 1.0 / np.sqrt(np.float64(stop - i))
                _judge(counts, seen, found, weights, bases[top], width, priors[first:], log1p, scale, sums, logs)
                loud = most
                if language_of[first + np.argmax(logs[:width])] == english:
                    loud *= _ENGLISH_WEIGHT
                voices += loud
                c = 0
                while c < width:
                    language, log = language_of[first + c], logs[c]
                    c += 1
                    while c < width and language_of[first + c] == language:  # several classes of the model
                        log = max(log, logs[c]) + np.log1p(np.exp(-abs(log - logs[c])))
                        c += 1
                    if log > -_FLOOR:
                        said[language] += loud * (_FLOOR + log)
                        spoken[language] += most
            i, pieces = stop, pieces + 1
        best[row] = np.argmax(said)
        most = said[best[row]]
        if most <= 0.0:
            best[row], scores[row] = -1, 0.0
            continue
        scale = np.sqrt(np.float64(pieces)) / voices
        odds = 0.0
        for language in range(languages):
            if said[language] > 0.0:
                odds += np.exp((said[language] - most) * scale)
        scores[row] = spoken[best[row]] / total / odds


class BuiltIn:
    """Scripts that decide alone (kana, Hangul, Thai …), naive Bayes in the others, and words that tell relatives apart.

    A text is judged in pieces, each by the languages of its script, and the pieces vote. The score is the share of the
    letters in pieces that may be in the language, times its posterior over all pieces.
    """

    def __init__(self) -> None:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier

        model = LanguageIdentifier.from_model_file(MODEL_FILE)
        self._ngrams, features = ngrams.build(
            np.frombuffer(model.tk_nextmove, np.uint32),
            np.asarray(model.tk_row).astype(np.int64),
            np.asarray(model.tk_output, np.int32),
        )
        weights_FC = np.asarray(model.nb_ptc, np.float32)[features]
        least = weights_FC.min()
        self._log1p = np.round(np.log1p(np.arange(_PIECE + 1)) * _COUNT_STEPS).astype(np.int32)
        self._spread(
            [short_code(label) for label in model.nb_classes],
            np.round((weights_FC - least) * _STEPS).astype(np.uint8),
            np.asarray(model.nb_pc, np.float64),
        )
        self.labels = frozenset({"ja", *self._codes, *relatives.CODES})

    def _spread(self, classes: list[str], weights_FC: np.ndarray, prior_C: np.ndarray) -> None:
        """The tables of `_vote`: the columns of the model that belong to each script, side by side."""
        by_script = {script: set(codes.split()) for script, codes in _BY_MODEL.items()}
        by_script |= {"Latin": set(classes) - _NOT_LATIN} | {s: {c} for s, c in _ONE_LANGUAGE.items()}
        self._codes = sorted(set().union(*by_script.values()))
        number = {code: i for i, code in enumerate(self._codes)}
        weights, priors, languages = [], [], []
        bases, firsts = [0], [0]
        for script in scripts.SCRIPTS:
            codes = by_script.get(script, set())
            if len(codes) == 1:
                columns = []
                languages.append([number[code] for code in codes])
                priors.append(np.zeros(1))
            else:
                columns = [c for c, code in enumerate(classes) if code in codes]
                columns.sort(key=lambda c: number[classes[c]])
                languages.append([number[classes[c]] for c in columns])
                priors.append(prior_C[columns])
            weights.append(np.ascontiguousarray(weights_FC[:, columns]).ravel())
            bases.append(bases[-1] + len(weights[-1]))
            firsts.append(firsts[-1] + len(languages[-1]))
        room = np.zeros(PRODUCTS, np.uint8)  # read behind the last row
        self._weights, self._priors = np.concatenate([*weights, room]), np.concatenate(priors)
        self._bases, self._firsts = np.array(bases, np.int64), np.array(firsts, np.int64)
        self._language_of = np.array([code for codes in languages for code in codes], np.int64)

    def identify(
        self, data_U8: np.ndarray, offsets_N1: np.ndarray, letters_NS: np.ndarray
    ) -> tuple[list[str], np.ndarray]:
        """The prevailing language of each text and its score; `und` and 0 where there are no letters of a known script."""
        best_N = np.empty(len(letters_NS), np.int64)
        scores_N = np.empty(len(letters_NS))
        found = self._ngrams
        _vote(
            data_U8, offsets_N1, CLASSES, scripts.SCRIPT_OF, found.known, found.table, found.long, self._weights, self._priors,
            self._bases, self._firsts, self._language_of, self._log1p, len(self._codes), self._codes.index("en"), best_N, scores_N,
        )  # fmt: skip
        codes_N = np.array([*self._codes, UNKNOWN], object)[best_N]
        kana_N = letters_NS[:, _KANA]
        japanese_N = kana_N >= np.maximum(JAPANESE_KANA * (letters_NS[:, _HAN] + kana_N), 1)
        codes_N[(codes_N == "zh") & japanese_N] = "ja"
        relatives.settle(codes_N, data_U8, offsets_N1)
        return codes_N.tolist(), scores_N
