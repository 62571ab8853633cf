"""Any filter of datatrove, document by document, with the words of this project where it asks for a language.

A filter that takes `language` gets our word definition unless the options name one: so Chinese has words, and spaCy is
not needed. It runs as it is: slower than the stages here by one or two orders of magnitude.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import json
from functools import lru_cache
from typing import Annotated, Any, ClassVar

import numpy as np
import orjson
import pyarrow as pa
from pydantic import BeforeValidator, Field

from stages.contract.names import canonical_json
from stages.document import with_column
from stages.stage import RowStage
from stages.text import VERSION, kernels, words
from stages.verdict import give_verdict, mark_column

_MODULE = "datatrove.pipeline.filters"


def _plain(value: Any) -> Any:
    """A value of a config as JSON has it: what reads as a number, a truth value or null is one."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, str):
        try:
            return json.loads(
                {"True": "true", "False": "false", "None": "null", "yes": "true", "no": "false"}.get(
                    value, value
                )
            )
        except ValueError:
            return str(value)
    return value


class Datatrove(RowStage):
    """Runs one of datatrove's filters; drops `datatrove.<its reason>`. A filter that changes the text changes it here."""

    name: ClassVar[str] = "datatrove"
    changes_text: ClassVar[bool] = True

    filter: Annotated[
        str,
        Field(
            description="A class of datatrove.pipeline.filters, such as GopherQualityFilter, or module:Class."
        ),
    ]
    options: Annotated[
        dict[str, Any], BeforeValidator(_plain), Field(description="What its constructor takes, by name.")
    ] = {}

    def adds(self) -> dict[str, pa.DataType]:
        return mark_column(self)

    def recipe(self) -> dict[str, str]:
        from importlib.metadata import version

        return {"datatrove": version("datatrove"), "text": VERSION}

    def problems(self) -> list[str]:
        try:
            self._filter()
        except Exception as error:  # whatever a constructor raises is about these settings
            return [f"{self.filter} cannot be made: {error}"]
        return []

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        from datatrove.data import Document

        one = self._filter()
        texts = batch.column("text").fill_null("").to_pylist()
        ids, metas = batch.column("id").to_pylist(), batch.column("meta").to_pylist()
        reasons = [""] * len(batch)
        changed = False
        for row, text in enumerate(texts):
            document = Document(
                text=text, id=ids[row].hex(), metadata=orjson.loads(metas[row]) if metas[row] else {}
            )
            verdict = one.filter(document)
            passes, reason = verdict if isinstance(verdict, tuple) else (verdict, type(one).__name__)
            if not passes:
                reasons[row] = f"datatrove.{reason}"
            elif document.text != text and not self.mark:
                texts[row], changed = document.text, True
        if changed:
            batch = with_column(batch, "text", pa.array(texts, pa.large_string()))
        dropped_N = np.array([bool(reason) for reason in reasons], bool)
        return give_verdict(self, batch, dropped_N, reasons, f"by {type(one).__name__}")

    def _filter(self) -> Any:
        return _make(self.filter, canonical_json(self.options).decode())


@lru_cache(maxsize=8)
def _make(name: str, options: str) -> Any:
    """The filter, made once a process; ValueError where there is none of this name."""
    from loguru import logger

    logger.disable("datatrove")  # it tells stderr of every object it makes
    module, _, attribute = name.rpartition(":")
    place = importlib.import_module(module or _MODULE)
    found = getattr(place, attribute, None)
    if not inspect.isclass(found):
        known = [
            key for key, value in vars(place).items() if inspect.isclass(value) and hasattr(value, "filter")
        ]
        near = difflib.get_close_matches(attribute, known, 1, 0)
        raise ValueError(
            f"{place.__name__} has no filter {attribute}; the nearest is {near[0] if near else 'none'}"
        )
    given = json.loads(options)
    if "language" in inspect.signature(found).parameters and "language" not in given:
        given["language"] = core_words()
    return found(**given)


@lru_cache(maxsize=1)
def core_words() -> Any:
    """A word tokenizer of datatrove that knows the words and sentences of this project."""
    from datatrove.utils.word_tokenizers import WordTokenizer

    class CoreWords(WordTokenizer):
        def word_tokenize(self, text: str) -> list[str]:
            return words(text)

        def sent_tokenize(self, text: str) -> list[str]:
            return [text[a:b] for a, b in sentence_spans(text)]

        def span_tokenize(self, text: str) -> list[tuple[int, int]]:
            return sentence_spans(text)

    return CoreWords()


def sentence_spans(text: str) -> list[tuple[int, int]]:
    """Where sentences begin and end: as `rules.lines.count_sentences` counts them. Slow, for filters in Python."""
    spans = []
    start = 0
    filled = False
    for at, character in enumerate(text):
        value = int(kernels.CLASSES[ord(character)])
        kind = value & kernels.CLASS
        if value & kernels.TERMINAL:
            behind = text[at + 1 : at + 2]
            if filled and (not character.isascii() or behind <= " "):
                spans.append((start, at + 1))
                start, filled = at + 1, False
        elif kind not in (kernels.SPACE, kernels.OTHER):
            filled = True
    return [*spans, (start, len(text))] if filled else spans


if __name__ == "__main__":
    from stages.attempt import main

    main("datatrove")
