"""Quality rules: the heuristics of Gopher, C4 and FineWeb, and a few for code, with every threshold open.

A preset sets thresholds; a threshold given in the config replaces it; `skip` takes single rules out. Rules are asked in a
fixed order and the first that fails names the reason, with what was measured against what.

Scripts without spaces (a document where more than a third of the words are Han, kana, Thai, Lao, Khmer or Myanmar units)
count units for words: one Chinese character is one word. For such documents the mean word length is not asked, a short line is half as long, and
n-grams are twice as long. Stop words are asked of the language in the column `lang`, if the stage `language` ran before;
else two stop words of any one language are enough. Languages without a list are not asked. Columns say for which documents
this was so, and the report how many they are.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
from pydantic import Field, field_validator

from stages.contract.config import Count, Share
from stages.document import text_buffers, with_column
from stages.rules.columns import REPEATED_SIZES, TOP_SIZES, UNSPACED_FROM
from stages.rules.lines import clean_lines
from stages.rules.presets import PRESETS, Preset
from stages.rules.statistics import Depth, measure
from stages.rules.stop_words import STOP_WORDS
from stages.stage import RowStage
from stages.text import VERSION, Buffers
from stages.text.cutting import chosen
from stages.verdict import give_verdict, mark_column

Numbers = dict[str, np.ndarray]


@dataclass(frozen=True)
class Rule:
    """One rule: a document fails where `value(numbers) <op> threshold`.

    name       the reason, without `rules.` in front
    field      of the threshold in `Rules`; `key` picks one of a mapping (n-gram sizes)
    spaced     asked only of documents in scripts with spaces
    """

    name: str
    field: str
    value: Callable[[Numbers], np.ndarray]
    fails: Literal["<", ">"]
    key: int | None = None
    spaced: bool = False


def _ratio(above: str, below: str) -> Callable[[Numbers], np.ndarray]:
    """`above / below` as float64; 0 where there is nothing below."""
    return lambda n: n[above] / np.maximum(n[below], 1)


def _count(name: str) -> Callable[[Numbers], np.ndarray]:
    return lambda n: n[name]


#: In the order in which they are asked: the published FineWeb recipe, then code.
RULES: tuple[Rule, ...] = (
    Rule("gopher_dup_para_frac", "max_duplicate_paragraphs", _ratio("duplicate_paragraphs", "paragraphs"), ">"),
    Rule("gopher_dup_para_char_frac", "max_duplicate_paragraph_characters",
         _ratio("duplicate_paragraph_characters", "characters"), ">"),
    Rule("gopher_dup_line_frac", "max_duplicate_lines", _ratio("duplicate_lines", "lines"), ">"),
    Rule("gopher_dup_line_char_frac", "max_duplicate_line_characters", _ratio("duplicate_line_characters", "characters"), ">"),
    *(Rule(f"gopher_top_{n}_gram", "max_top_ngrams", _ratio(f"top_{n}", "characters"), ">", n) for n in TOP_SIZES),
    *(Rule(f"gopher_duplicated_{n}_n_grams", "max_repeated_ngrams", _ratio(f"repeated_{n}", "characters"), ">", n)
      for n in REPEATED_SIZES),
    Rule("gopher_short_doc", "min_words", _count("plain_words"), "<"),
    Rule("gopher_long_doc", "max_words", _count("plain_words"), ">"),
    Rule("gopher_below_avg_threshold", "min_mean_word_length", _ratio("plain_word_characters", "plain_words"), "<", spaced=True),
    Rule("gopher_above_avg_threshold", "max_mean_word_length", _ratio("plain_word_characters", "plain_words"), ">", spaced=True),
    Rule("gopher_too_many_hashes", "max_hashes", _ratio("hashes", "words"), ">"),
    Rule("gopher_too_many_ellipsis", "max_ellipses", _ratio("ellipses", "words"), ">"),
    Rule("gopher_too_many_bullets", "max_bullet_lines", _ratio("bullet_lines", "broken_lines"), ">"),
    Rule("gopher_too_many_end_ellipsis", "max_ellipsis_lines", _ratio("ellipsis_lines", "broken_lines"), ">"),
    Rule("gopher_below_alpha_threshold", "min_alphabetic", _ratio("alphabetic_words", "words"), "<"),
    Rule("gopher_enough_stop_words", "min_stop_words", _count("stop_words"), "<"),
    Rule("c4_lorem_ipsum", "drop_lorem_ipsum", _count("lorem_ipsum"), ">"),
    Rule("c4_curly_bracket", "drop_curly_brackets", _count("curly_bracket"), ">"),
    Rule("c4_too_few_sentences", "min_sentences", _count("sentences"), "<"),
    Rule("fineweb_line_punct_ratio", "min_terminal_lines", _ratio("terminal_lines", "filled_lines"), "<"),
    Rule("fineweb_short_line_ratio", "max_short_lines", _ratio("short_lines", "filled_lines"), ">"),
    Rule("fineweb_char_dup_ratio", "max_repeated_line_characters", _ratio("repeated_line_characters", "unbroken"), ">"),
    Rule("fineweb_list_ratio", "max_newlines", _ratio("newlines", "words"), ">"),
    Rule("code_long_line", "max_line_length", _count("longest_line"), ">"),
    Rule("code_mean_line", "max_mean_line_length", _ratio("characters", "filled_lines"), ">"),
    Rule("code_alphanumeric", "min_alphanumeric", _ratio("alphanumerics", "characters"), "<"),
)  # fmt: skip

#: Columns that say which rules were replaced or left out for a document: 1 or 0.
UNSPACED, NO_STOP_WORDS = "rules.unspaced", "rules.no-stop-words"
#: More stop words than any list has.
_NEVER_FAILS = 65

_FAILS = {"<": operator.lt, ">": operator.gt}
_NGRAMS = {"max_top_ngrams": TOP_SIZES, "max_repeated_ngrams": REPEATED_SIZES}


class Rules(RowStage):
    """Drops `rules.<rule>` where a quality rule fails; the presets `c4` and `fineweb` also take single lines out."""

    name: ClassVar[str] = "rules"
    version: ClassVar[int] = 2
    changes_text: ClassVar[bool] = True  # with the line rules of C4

    preset: Annotated[
        Preset | None,
        Field(
            description="gopher, c4, fineweb (gopher, then c4 without its full stops, then its own) or code."
        ),
    ] = "gopher"
    skip: Annotated[
        tuple[str, ...], Field(description="Rules that are not asked, by the name in the reason.")
    ] = ()

    min_words: Annotated[Count | None, Field(description="Words (units in scripts without spaces).")] = None
    max_words: Count | None = None
    min_mean_word_length: Annotated[float | None, Field(ge=0, description="Characters a word.")] = None
    max_mean_word_length: Annotated[float | None, Field(ge=0)] = None
    max_hashes: Annotated[Share | None, Field(description="`#` for each word.")] = None
    max_ellipses: Annotated[Share | None, Field(description="`...` for each word.")] = None
    max_bullet_lines: Annotated[Share | None, Field(description="Lines that begin with a bullet.")] = None
    max_ellipsis_lines: Annotated[Share | None, Field(description="Lines that end with an ellipsis.")] = None
    min_alphabetic: Annotated[Share | None, Field(description="Words that hold a letter.")] = None
    min_stop_words: Annotated[Count | None, Field(description="Distinct stop words of the language.")] = None
    stop_words: Annotated[
        tuple[str, ...] | None, Field(max_length=64, description="In place of the built-in lists.")
    ] = None

    max_duplicate_lines: Share | None = None
    max_duplicate_line_characters: Share | None = None
    max_duplicate_paragraphs: Share | None = None
    max_duplicate_paragraph_characters: Share | None = None
    max_top_ngrams: Annotated[
        dict[Annotated[int, Field(ge=2, le=4)], Share] | None,
        Field(description="Characters in the most frequent n-gram, by n."),
    ] = None
    max_repeated_ngrams: Annotated[
        dict[Annotated[int, Field(ge=5, le=10)], Share] | None,
        Field(description="Characters in repeated n-grams, by n."),
    ] = None

    line_rules: Annotated[bool | None, Field(description="Take out single lines as C4 does.")] = None
    line_end_punctuation: Annotated[
        bool | None, Field(description="Line rule: a line has to end a sentence.")
    ] = None
    min_words_per_line: Annotated[Count | None, Field(description="Line rule: words a line.")] = None
    max_word_length: Annotated[
        Count | None, Field(description="Line rule: characters of the longest word.")
    ] = None
    min_sentences: Annotated[Count | None, Field(description="Sentences in the lines that stay.")] = None
    drop_lorem_ipsum: bool | None = None
    drop_curly_brackets: bool | None = None

    min_terminal_lines: Annotated[Share | None, Field(description="Lines that end a sentence.")] = None
    max_short_lines: Share | None = None
    short_line_length: Annotated[
        Count | None, Field(description="Characters; half of it in scripts without spaces.")
    ] = None
    max_repeated_line_characters: Share | None = None
    max_newlines: Annotated[float | None, Field(ge=0, description="Line breaks for each word.")] = None

    max_line_length: Count | None = None
    max_mean_line_length: Annotated[float | None, Field(ge=0)] = None
    min_alphanumeric: Annotated[Share | None, Field(description="Characters that are letters or digits.")] = (
        None
    )

    @field_validator("skip")
    @classmethod
    def _known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        known = [rule.name for rule in RULES]
        for name in names:
            if name.removeprefix("rules.") not in known:
                raise ValueError(f"there is no rule `{name}`; rules: {', '.join(known)}")
        return tuple(name.removeprefix("rules.") for name in names)

    def adds(self) -> dict[str, pa.DataType]:
        added: dict[str, pa.DataType] = {UNSPACED: pa.int8()}
        if self._asks("min_stop_words"):
            added[NO_STOP_WORDS] = pa.int8()
        return added | mark_column(self)

    def remarks(self, documents: int, dropped: int, totals: Mapping[str, int]) -> list[str]:  # noqa: ARG002
        """Which rules were replaced or not asked, and for how many documents."""
        said = []
        if unspaced := totals.get(UNSPACED):
            spaced = [rule.name for rule in self._asked() if rule.spaced]
            unasked = f"; not asked: {', '.join(spaced)}" if spaced else ""
            said.append(
                f"{unspaced:,} of {documents:,} documents are in scripts without spaces, where characters count for words{unasked}"
            )
        if unlisted := totals.get(NO_STOP_WORDS):
            said.append(
                f"{unlisted:,} of {documents:,} documents are in languages without a list of stop words, and were not asked for any"
            )
        return said

    def recipe(self) -> dict[str, str]:
        return {"text": VERSION}

    def limit(self, field: str) -> Any:
        """The threshold in force: what was given, else what the preset has, else None."""
        given = getattr(self, field)
        return PRESETS[self.preset].get(field) if given is None and self.preset is not None else given

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        rules = self._asked()
        cleaned, numbers, later, unspaced_N = self._measured(batch, rules)
        reasons, values = self._first_failures(rules, numbers, later, unspaced_N)
        dropped_N = np.array([reason is not None for reason in reasons], bool)
        texts = batch.column("text")
        batch = with_column(batch, UNSPACED, pa.array(unspaced_N.astype(np.int8)))
        if self._asks("min_stop_words"):
            unlisted_N = numbers["stop_words"] == _NEVER_FAILS
            batch = with_column(batch, NO_STOP_WORDS, pa.array(unlisted_N.astype(np.int8)))
        if cleaned is not None and not self.mark:  # a dropped document keeps its text: people look at it
            batch = with_column(batch, "text", chosen(*cleaned, texts, dropped_N))
        return give_verdict(self, batch, dropped_N, reasons, values)

    def explain(self, batch: pa.RecordBatch) -> list[str]:
        rules = self._asked()
        _, numbers, later, unspaced_N = self._measured(batch, rules)
        lines = ["a script without spaces: characters count for words"] if unspaced_N[0] else []
        for rule in rules:
            threshold = self._threshold(rule)
            assert threshold is not None
            if rule.spaced and unspaced_N[0]:
                lines.append(f"{rule.name}: not asked in this script")
                continue
            measured_N = rule.value(later if rule.name.startswith(("fineweb_", "code_")) else numbers)
            sign = "FAILS" if _FAILS[rule.fails](measured_N, threshold)[0] else "fine"
            lines.append(
                f"{rule.name}: {_shown(measured_N[0], threshold)}, {sign} (fails if {rule.fails} {threshold:g})"
            )
        return lines

    def _measured(
        self, batch: pa.RecordBatch, rules: list[Rule]
    ) -> tuple[Buffers | None, Numbers, Numbers, np.ndarray]:
        """`(texts after the line rules if there are any, numbers, numbers of these texts, bool [N] scripts without spaces)`."""
        texts = batch.column("text")
        lists = STOP_WORDS if self.stop_words is None else {"given": self.stop_words}
        depth: Depth = "words" if any(rule.name.startswith("gopher_") for rule in rules) else "lines"
        if any(rule.field in _NGRAMS for rule in rules):
            depth = "ngrams"
        short = self.limit("short_line_length") or 0
        numbers, found_NL = measure(*text_buffers(texts), depth, short, lists)
        numbers["stop_words"] = self._stop_words(batch, found_NL, list(lists))
        unspaced_N = numbers["units"] * UNSPACED_FROM > numbers["words"]
        if not self.limit("line_rules"):
            numbers["unbroken"] = numbers["characters"] - numbers["newlines"]
            return None, numbers, numbers, unspaced_N
        # Rules about whole texts come first: the lines of a document that one of them drops are not looked at.
        first = [rule for rule in rules if rule.name.startswith("gopher_")]
        gone = self._first_failures(first, numbers, numbers, unspaced_N)[0]
        names = {rule.name for rule in rules}
        data_U8, offsets_N1, line_numbers = clean_lines(
            texts,
            np.array([reason is not None for reason in gone], bool),
            unspaced_N,
            end_punctuation=bool(self.limit("line_end_punctuation")),
            min_words=self.limit("min_words_per_line") or 0,
            max_word_length=self.limit("max_word_length") or 0,
            lorem_ipsum="c4_lorem_ipsum" in names,
            curly_brackets="c4_curly_bracket" in names,
        )
        later, _ = measure(data_U8, offsets_N1, "lines", short, {})
        later["unbroken"] = later["characters"] - later["newlines"]
        return (data_U8, offsets_N1), numbers | line_numbers, later, unspaced_N

    def _asked(self) -> list[Rule]:
        lines = self.limit("line_rules")
        return [
            rule
            for rule in RULES
            if rule.name not in self.skip
            and self._threshold(rule) is not None
            and (lines or not rule.name.startswith("c4_"))
        ]

    def _asks(self, field: str) -> bool:
        """Whether a rule with this threshold is asked."""
        return any(rule.field == field for rule in self._asked())

    def _threshold(self, rule: Rule) -> float | None:
        limit = self.limit(rule.field)
        if isinstance(limit, dict):
            return limit.get(rule.key)
        if isinstance(limit, bool):
            return 0 if limit else None
        return limit

    def _stop_words(self, batch: pa.RecordBatch, found_NL: np.ndarray, languages: list[str]) -> np.ndarray:
        """Distinct stop words of each document; a number that never fails where its language has no list."""
        if not languages:
            return np.full(len(batch), _NEVER_FAILS)
        best_N = found_NL.max(axis=1)
        if self.stop_words is not None or "lang" not in batch.schema.names:
            return best_N
        column_of = {language: number for number, language in enumerate(languages)}
        columns_N = np.array([column_of.get(code, -1) for code in batch.column("lang").to_pylist()], np.int64)
        own_N = found_NL[np.arange(len(found_NL)), columns_N]
        unknown_N = np.array([code in (None, "und") for code in batch.column("lang").to_pylist()], bool)
        return np.where(unknown_N, best_N, np.where(columns_N < 0, _NEVER_FAILS, own_N))

    def _first_failures(
        self, rules: list[Rule], numbers: Numbers, later: Numbers, unspaced_N: np.ndarray
    ) -> tuple[list[str | None], list[str | None]]:
        """For each document the first rule that fails (None if all pass) and `measured < threshold`.

        later   the numbers of the text without the lines that went, for the rules that come after the line rules
        """
        reasons: list[str | None] = [None] * len(unspaced_N)
        values: list[str | None] = [None] * len(unspaced_N)
        open_N = np.ones(len(unspaced_N), bool)
        for rule in rules:
            threshold = self._threshold(rule)
            assert threshold is not None  # `_asked` left the others out
            measured_N = rule.value(later if rule.name.startswith(("fineweb_", "code_")) else numbers)
            failed_N = open_N & _FAILS[rule.fails](measured_N, threshold)
            if rule.spaced:
                failed_N &= ~unspaced_N
            for row in np.flatnonzero(failed_N).tolist():
                reasons[row] = f"rules.{rule.name}"
                values[row] = f"{_shown(measured_N[row], threshold)} {rule.fails} {threshold:g}"
            open_N &= ~failed_N
        return reasons, values


def _shown(value: float, threshold: float) -> str:
    """The number in as few digits as tell it from the threshold."""
    number = float(value)
    if number.is_integer():
        return f"{number:.0f}"
    for digits in range(3, 17):
        text = f"{number:.{digits}g}"
        if float(text) != threshold:
            return text
    return repr(number)
