"""Decontamination: every item is found, the item is named, a list that finds nothing is not silent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.events import Warned
from stages.decontaminate import Decontaminate
from stages.text import words
from tests.pipeline.corpora import document, make_inputs, run_build, write_config, write_jsonl
from tests.stages.scripts_corpus import TEXTS, batch

QUESTION = "Which ferry leaves the copper harbor first when the winter signal is red and the lantern is closed"
ZH = "河边的灯笼为什么在冬天的早上要由裁缝来打开并且由医生来记录"
SHORT = "Name nine rivers that flow north in winter time."


def benchmark(folder: Path, *texts: str, name: str = "quiz.jsonl", **fields: object) -> str:
    write_jsonl(folder / name, texts, **fields)
    return str(folder / name)


def stage(folder: Path, *texts: str, **settings) -> Decontaminate:
    return Decontaminate(benchmarks=benchmark(folder, *texts), **settings)


def test_a_piece_of_an_item_is_found_in_any_form(tmp_path):
    made = stage(tmp_path, QUESTION, ZH, SHORT)
    assert made.problems() == []
    filler = document(1, 40)
    held = [
        QUESTION, f"{filler} {QUESTION.upper()} {filler}", f"{filler}\n{QUESTION.replace(' ', '  ').replace('red', 'red,')}?",
        " ".join(QUESTION.split()[2:16]), f"问：{ZH}？", f"{filler} {SHORT.lower()} {filler}",
    ]  # fmt: skip
    free = [filler, " ".join(QUESTION.split()[:12]), ZH[:12], "Name nine rivers that flow north in", "", document(2)]
    after = made.apply(batch([*held, *free]))
    assert after.column("drop").to_pylist() == ["decontaminate.quiz"] * len(held) + [None] * len(free)
    values = after.column("drop_value").to_pylist()
    assert values[0] == "quiz quiz-0: 6 of 6 n-grams"
    assert values[3] == "quiz quiz-0: 2 of 6 n-grams"
    assert values[4] == f"quiz quiz-1: {len(words(ZH)) - 12} of {len(words(ZH)) - 12} n-grams"
    assert values[5] == "quiz quiz-2: 1 of 1 n-grams"
    assert after.column("decontaminate.ngrams").to_pylist()[:2] == [6, 6]


def test_settings_change_what_counts(tmp_path):
    half = " ".join(QUESTION.split()[:14])
    for given, dropped in (({}, True), ({"min_share": "50%"}, False), ({"min_share": "30%"}, True), ({"ngram": 15}, False)):
        made = stage(tmp_path, QUESTION, **given)
        assert made.apply(batch([half])).column("drop").is_valid().to_pylist() == [dropped], given
    marked = stage(tmp_path, QUESTION, mark=True).apply(batch([QUESTION]))
    assert marked.column("drop").to_pylist() == [None]
    assert marked.column("mark.decontaminate").to_pylist() == ["decontaminate.quiz"]


def test_benchmarks_in_many_files_and_fields(tmp_path):
    question, answer = QUESTION.split(" when ")
    rows = [{"name": "a", "question": question, "answer": f"When {answer}"}]
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "one.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (tmp_path / "b" / "two.v1.jsonl").write_text(json.dumps({"question": ZH, "answer": "是"}) + "\n", encoding="utf-8")
    made = Decontaminate(benchmarks=str(tmp_path / "b" / "*.jsonl"), text="{question} {answer}", id="name")
    assert made.problems() == []
    after = made.apply(batch([QUESTION, ZH]))
    assert after.column("drop").to_pylist() == ["decontaminate.one", "decontaminate.two"]
    assert [value.split(":")[0] for value in after.column("drop_value").to_pylist()] == ["one a", "two 0"]
    before = made.recipe()
    (tmp_path / "b" / "one.jsonl").write_text(json.dumps({"question": QUESTION, "answer": ""}) + "\n", encoding="utf-8")
    assert made.recipe() != before


def test_a_list_that_cannot_work_is_refused(tmp_path):
    assert "names no file" in Decontaminate(benchmarks=str(tmp_path / "*.jsonl")).problems()[0]
    assert "8 words" in stage(tmp_path, "too short", "好").problems()[0]
    (tmp_path / "bad.jsonl").write_text('{"text": 1}\n', encoding="utf-8")
    assert "bad.jsonl, line 1: not-text" in Decontaminate(benchmarks=str(tmp_path / "bad.jsonl")).problems()[0]
    assert any("fewer than 8 words" in note for note in stage(tmp_path, QUESTION, "too short").notes())


def test_every_text_is_found_in_itself(tmp_path):
    texts = [text for text in TEXTS.values() if len(words(text)) >= 8]
    made = stage(tmp_path, *texts, "STRASSE straße ẞ ς Σ ŉ İ i̇ " * 3)
    assert made.problems() == []
    assert all(made.apply(batch(texts)).column("drop").to_pylist())


@pytest.mark.parametrize("planted", [True, False])
def test_a_build_says_when_nothing_was_found(tmp_path, planted):
    make_inputs(tmp_path / "in", files=2, documents=8)
    item = document(1002, 60) if planted else QUESTION
    benchmark(tmp_path / "lists", item)
    config = write_config(tmp_path, tmp_path / "in", "  - decontaminate: {benchmarks: lists/quiz.jsonl}\n")
    heard: list = []
    result = run_build(config, heard=heard)
    said = [event.message for event in heard if isinstance(event, Warned) and "benchmark items" in event.message]
    dropped = [count.dropped for source in result.accounts.values() for count in source if count.stage == "decontaminate"]
    if planted:
        assert said == []
        assert {"decontaminate.quiz": 1} in dropped
    else:
        assert said == ["decontaminate: none of the 1 benchmark items was found in 37 documents"]


@pytest.mark.data
def test_the_planted_questions_are_found(shared):
    folder = shared / "cases" / "inputs" / "decontam"
    made = Decontaminate(benchmarks=str(folder / "eval.jsonl"), text="question")
    assert made.problems() == []
    rows = [json.loads(line) for line in (folder / "corpus.jsonl").read_bytes().split(b"\n") if line]
    after = made.apply(batch([row["text"] for row in rows]))
    found = {row["id"]: value for row, value in zip(rows, after.column("drop_value").to_pylist(), strict=True) if value}
    assert set(found) == {"hit_en", "hit_zh"}
    assert found["hit_en"].startswith("eval q0:")
    assert found["hit_zh"].startswith("eval q1:")
