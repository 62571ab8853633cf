"""Filters of datatrove as they are: verdicts, texts, our words where they ask for a language."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.corpus import load_corpus
from stages.datatrove import Datatrove, core_words, sentence_spans
from stages.rules import Rules
from stages.rules.lines import count_sentences
from stages.text import words
from stages.text.kernels import CLASSES
from stages.text.vectors import OVERREAD
from tests.pipeline.corpora import write_config
from tests.stages.scripts_corpus import TEXTS, batch
from tests.stages.test_rules import EDGES


@pytest.mark.parametrize(("preset", "name"), [("c4", "C4QualityFilter")])
def test_the_verdicts_are_those_of_the_same_rules(preset, name):
    texts = batch(EDGES)
    ours, theirs = Rules(preset=preset).apply(texts), Datatrove(filter=name).apply(texts)
    assert [r and r.replace("rules.c4_", "datatrove.") for r in ours.column("drop").to_pylist()] == theirs.column("drop").to_pylist()
    assert ours.column("text") == theirs.column("text")


def test_options_reach_the_filter_as_values():
    texts = batch(["one two three"])
    for minimum, reason in (("2", None), (4, "datatrove.gopher_short_doc")):
        options = {"min_doc_words": minimum, "min_stop_words": "null", "min_avg_word_length": 1}
        made = Datatrove(filter="GopherQualityFilter", options=options)
        assert made.options["min_stop_words"] is None
        assert made.apply(texts).column("drop").to_pylist() == [reason]


def test_options_in_a_config(tmp_path):
    stages = "  - datatrove: {filter: FineWebQualityFilter, options: {line_punct_thr: 0.2, stop_chars: [., '!'], line_punct_exclude_zero: yes}}\n"
    made = load_corpus(write_config(tmp_path, tmp_path, stages)).stages[0]
    assert made.options == {"line_punct_thr": 0.2, "stop_chars": [".", "!"], "line_punct_exclude_zero": True}
    assert made.problems() == []


def test_a_filter_by_module_and_what_cannot_be_made():
    made = Datatrove(filter="datatrove.pipeline.filters.regex_filter:RegexFilter", options={"regex_exp": "secret"})
    assert made.apply(batch(["a secret", "b"])).column("drop").to_pylist() == ["datatrove.RegexFilter", None]
    assert "nearest is GopherQualityFilter" in Datatrove(filter="GopherQalityFilter").problems()[0]
    assert "cannot be made" in Datatrove(filter="RegexFilter", options={"nothing": 1}).problems()[0]


@pytest.mark.parametrize("text", [*TEXTS.values(), *EDGES])
def test_words_and_sentences_are_those_of_the_text_core(text):
    ours = core_words()
    assert ours.word_tokenize(text) == words(text)
    spans = sentence_spans(text)
    content = np.frombuffer(text.encode() + bytes(OVERREAD), np.uint8)
    assert len(spans) == count_sentences(content, 0, len(content) - OVERREAD, CLASSES, False)
    assert [text[a:b] for a, b in spans] == ours.sent_tokenize(text)
    assert all(a < b for a, b in spans)
