"""Quality rules against datatrove's filters, one core, same texts: statistics, decisions, and whether decisions are equal.

    GRISTMILL_DATA=... python -m benchmarks.rules [--quick] [--json]

datatrove runs as it comes (its English words are those of spaCy) on fewer texts, because it is slow, and with a fast word
tokenizer injected (one regular expression). Rates are MB of text a second of CPU. `same decisions` puts our own words into
datatrove's filters and compares verdict and reason of every document.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from benchmarks import measure
from benchmarks.labelled import batch_of
from benchmarks.texts import mixture, of_kind
from stages.document import text_buffers
from stages.rules import Rules
from stages.rules.columns import UNSPACED_FROM
from stages.rules.statistics import measure as statistics

ENGLISH = ("the", "be", "to", "of", "and", "that", "have", "with")
#: Characters of the longest text that speeds are measured on: with whole novels among them, few texts would decide.
_LONGEST = 30_000
_TOKEN = re.compile(r"\w+(?:'\w+)?|[^\w\s]+")
_SENTENCE = re.compile(r"[^.!?]+[.!?]*\s*")


def fast_words() -> Any:
    """A word tokenizer for datatrove that is one regular expression."""
    from datatrove.utils.word_tokenizers import WordTokenizer

    class Fast(WordTokenizer):
        def word_tokenize(self, text: str) -> list[str]:
            return _TOKEN.findall(text)

        def sent_tokenize(self, text: str) -> list[str]:
            return _SENTENCE.findall(text)

        def span_tokenize(self, text: str) -> list[tuple[int, int]]:
            return [match.span() for match in _SENTENCE.finditer(text)]

    return Fast()


def filters(language: Any) -> list[tuple[Any, str]]:
    """The filters of the FineWeb recipe in its order, with what our reasons have in front."""
    from datatrove.pipeline.filters import (
        C4QualityFilter,
        FineWebQualityFilter,
        GopherQualityFilter,
        GopherRepetitionFilter,
    )
    from loguru import logger

    logger.disable("datatrove")
    return [
        (GopherRepetitionFilter(language=language), "gopher_"),
        (GopherQualityFilter(language=language), ""),
        (C4QualityFilter(language=language, filter_no_terminal_punct=False), "c4_"),
        (FineWebQualityFilter(language=language), "fineweb_"),
    ]


def verdict(text: str, chain: list[tuple[Any, str]]) -> str | None:
    """The reason of the first filter of a chain that fails."""
    from datatrove.data import Document

    document = Document(text=text, id="x", metadata={})
    for one, prefix in chain:
        found = one.filter(document)
        if found is not True:
            return f"rules.{prefix}{found[1] if isinstance(found, tuple) else ''}"
    return None


def every(texts: list[str], chain: list[tuple[Any, str]]) -> None:
    """Each filter on each text, as if none had failed before: the work that our statistics do."""
    for text in texts:
        for one in chain:
            if "C4" not in type(one[0]).__name__:
                verdict(text, [one])


def main() -> None:
    """Statistics, presets, and decisions one by one."""
    options = measure.parser(__doc__).parse_args()
    measure.one_core()
    report = measure.Report("rules", options)
    texts = pa.array([t for t in of_kind("english", 30).to_pylist() if len(t) < _LONGEST], pa.large_string())
    texts = texts[: len(texts) // 8] if options.quick else texts
    rate = _rates(texts)
    data, offsets = text_buffers(texts)
    ours = rate(lambda: statistics(data, offsets, "ngrams", 30, {"en": ENGLISH}), 3)
    batch = batch_of(texts.to_pylist())
    chain = rate(lambda: Rules(preset="fineweb", stop_words=ENGLISH).apply(batch), 1)
    some = texts.to_pylist()[:: 8 if options.quick else 20]
    for name, language in (("datatrove", "eng"), ("datatrove, fast words", fast_words())):
        if language == "eng" and importlib.util.find_spec("spacy") is None:
            print("spaCy is not installed: datatrove's default is not measured")
            continue
        theirs, made = _rates(pa.array(some)), filters(language)
        verdict(some[0], made)  # its caches
        injected = "" if language == "eng" else ".injected"
        all_of_it = theirs(lambda some=some, made=made: every(some, made), 1)  # type: ignore[misc]
        report.rate(f"rules.all{injected}", ours, "MB/s", all_of_it, name)
        first = theirs(lambda some=some, made=made: [verdict(text, made) for text in some], 1)  # type: ignore[misc]
        report.rate(f"rules.fineweb{injected}", chain, "MB/s", first, name)
    for preset in ("gopher", "c4", "code"):
        report.rate(
            f"rules.{preset}", rate(lambda preset=preset: Rules(preset=preset).apply(batch), 1), "MB/s"
        )  # type: ignore[misc]
    _same(report, mixture(2 if options.quick else 100).to_pylist())
    report.close()


def _rates(texts: pa.Array) -> Callable[[Callable[[], Any], int], float]:
    """MB of these texts a second of CPU, the best of some runs."""
    size = sum(len(text.encode()) for text in texts.to_pylist()) / 1e6

    def rate(work: Callable[[], Any], repeat: int) -> float:
        return size / measure.cpu_seconds(work, repeat)[0]

    return rate


def _same(report: measure.Report, texts: list[str]) -> None:
    """Decisions and reasons against datatrove's with our words in it; scripts without spaces differ on purpose."""
    from stages.datatrove import core_words

    chain = filters(core_words())
    batch = batch_of(texts)
    drops = Rules(preset="fineweb", stop_words=ENGLISH).apply(batch).column("drop").to_pylist()
    numbers, _ = statistics(*text_buffers(batch.column("text")), "words", 30, {})
    unspaced = (numbers["units"] * UNSPACED_FROM > numbers["words"]).tolist()
    for name, wanted in (("scripts with spaces", False), ("scripts without spaces", True)):
        same = [
            drop == verdict(text, chain)
            for text, drop, own in zip(texts, drops, unspaced, strict=True)
            if own is wanted
        ]
        if same:
            report.accuracy(f"rules.fineweb, {name}", "same decisions", sum(same) / len(same), len(same))


if __name__ == "__main__":
    main()
