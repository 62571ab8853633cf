"""Quality: training that repeats, scores that do not depend on line breaks, the best share by bytes."""

from __future__ import annotations

import hashlib
import itertools
import json
import random
import re
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pydantic import ValidationError

from pipeline.corpus import load_corpus
from pipeline.engine.sealed import arrow_table
from stages.contract.problem import SpecError
from stages.document import text_buffers
from stages.quality import Quality
from stages.quality.scoring import STEPS, load_scorer, read_card, spaced
from stages.quality.soundness import soundness
from stages.quality.train import Settings, read_texts, train
from stages.stage import RowStage
from stages.text import words
from tests.pipeline.corpora import document, run_build, write_config, write_jsonl
from tests.stages.bsp import parts_of, run_global
from tests.stages.scripts_corpus import TEXTS, batch

SPAM = ["buy", "cheap", "pills", "casino", "click", "bonus", "winner", "free", "offer", "deal", "优惠", "点击", "免费"]


def spam(seed: int, size: int = 60) -> str:
    return " ".join(random.Random(seed).choices(SPAM, k=size))


GOOD = [document(i, 60) for i in range(80)]
BAD = [spam(i) for i in range(80)]
SMALL = Settings(epoch=10, dim=8, bucket=100_000, min_count=1)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("model") / "toy.bin"
    train(GOOD, BAD, path, SMALL)
    return str(path)


def scores(model: str, *texts: str, form: str | None = None) -> list[int]:
    return load_scorer(model, None, form).score(*text_buffers(pa.array(texts, pa.large_string()))).tolist()


def run(model: str, texts: list[str], tmp_path: Path, sizes: list[int] | None = None, **settings) -> list[dict]:
    ran = run_global(Quality(model=model, **settings), parts_of(texts, sizes or [len(texts)]), tmp_path)
    return [row for part in ran.apply().values() for batch in part for row in batch.to_pylist()]


def test_training_repeats_and_its_card_says_how_right_it_is(model, tmp_path):
    card = train(reversed(GOOD), BAD, tmp_path / "again.bin", SMALL)
    assert (tmp_path / "again.bin").read_bytes() == Path(model).read_bytes()
    assert card == read_card(model)
    assert card["trained_on"]["good"] + card["tested_on"]["good"] == len(GOOD)
    assert [(row["precision"], row["recall"]) for row in card["curve"] if row["threshold"] == 0.5] == [(1.0, 1.0)]
    with pytest.raises(ValueError, match="only 5 different bad texts"):
        train(GOOD, BAD[:5], tmp_path / "no.bin", SMALL)


def test_texts_of_training_come_from_any_files(tmp_path):
    write_jsonl(tmp_path / "a.jsonl", [*GOOD[:30], *GOOD[:5]])
    (tmp_path / "b.txt").write_text("One text.\n", encoding="utf-8")
    patterns = [str(tmp_path / "a.jsonl"), str(tmp_path / "b.txt")]
    assert sorted(read_texts(patterns, None, 100)) == sorted([*GOOD[:30], "One text.\n"])
    assert len(read_texts(patterns, None, 7)) == 7


def test_spam_scores_below_prose_in_every_form(model):
    good, bad = scores(model, *GOOD[:5], document(500)), scores(model, *BAD[:5], spam(500))
    assert min(good) > STEPS // 2 > max(bad)
    assert scores(model, "", " \n", "😀") [:2] == [0, 0]
    assert scores(model) == []


def test_breaks_are_spaces_and_labels_are_words(model):
    text = "One line\nand another\r\none\u2028more\u0085or\x0bless __label__bad"
    flat = re.sub("[\n\r\u2028\u0085\x0b]", " ", text)
    for form in ("plain", "words"):  # lines are part of the shape
        one, two = scores(model, text, flat, form=form)
        assert one == two


def test_words_have_one_space_between_them():
    texts = [*TEXTS.values(), "a,b  c!!\nd", "__label__x"]
    data, offsets = spaced(*text_buffers(pa.array(texts, pa.large_string())))
    for text, (a, b) in zip(texts, itertools.pairwise(offsets.tolist()), strict=True):
        pieces = bytes(data[a:b]).decode().split(" ")[:-1]
        assert [piece for piece in pieces if words(piece)] == words(text)
        assert "" not in pieces


def test_low_scores_go_and_marks_change_nothing(model, tmp_path):
    texts = [GOOD[0], BAD[0], GOOD[1], BAD[1], ""]
    rows = run(model, texts, tmp_path / "a", min_score="50%", column="edu")
    assert [row["drop"] for row in rows] == [None, "quality.low", None, "quality.low", "quality.low"]
    assert rows[1]["drop_value"] == f"{rows[1]['quality.edu']:.4f} < 0.5"
    assert all((row["quality.edu"] * STEPS).is_integer() for row in rows)
    marked = run(model, texts, tmp_path / "b", min_score="50%", mark=True)
    assert {row["drop"] for row in marked} == {None}
    assert [row["mark.quality"] for row in marked] == [row["drop"] for row in rows]
    assert {row["drop"] for row in run(model, texts, tmp_path / "c")} == {None}


@pytest.mark.parametrize("share", [0.3, 0.5, 0.8, 1.0])
def test_the_best_share_of_bytes_stays(model, tmp_path, share):
    texts = [document(i, 20 + 7 * (i % 5)) if i % 3 else spam(i, 10 + i) for i in range(40)]
    rows = run(model, texts, tmp_path, [13, 0, 20, 7], keep_top=share)
    kept = [row for row in rows if row["drop"] is None]
    gone = [row for row in rows if row["drop"] == "quality.below-top"]
    assert len(kept) + len(gone) == len(rows)
    size = [len(row["text"].encode()) for row in rows]
    kept_size = sum(len(row["text"].encode()) for row in kept)
    assert kept_size >= share * sum(size)
    order = sorted(rows, key=lambda row: (-row["quality.score"], row["id"]))
    assert [row["id"] for row in order[: len(kept)]] == sorted(
        (row["id"] for row in kept), key=[row["id"] for row in order].index
    )
    last = len(order[len(kept) - 1]["text"].encode())
    assert kept_size - last < share * sum(size)  # one document less would be too few


def test_equal_scores_go_by_id_and_parts_change_nothing(model, tmp_path):
    texts = [GOOD[0]] * 10
    rows = run(model, texts, tmp_path / "a", [10], keep_top="45%")
    ids = sorted(row["id"] for row in rows)
    assert sorted(row["id"] for row in rows if row["drop"] is None) == ids[:5]
    mixed = [GOOD[i] if i % 2 else BAD[i] for i in range(30)]
    one, other = (
        {row["text"]: row["drop"] for row in run(model, mixed, tmp_path / str(len(sizes)), sizes, keep_top="30%")}
        for sizes in ([30], [10, 10, 10])
    )
    assert sum(drop is None for drop in one.values()) == sum(drop is None for drop in other.values())


def test_each_source_has_a_share_of_its_own(model, tmp_path):
    parts = parts_of([*GOOD[:10], *BAD[:10]], [10, 10])
    ran = run_global(Quality(model=model, keep_top="50%"), parts, tmp_path, sources=["web", "books"])
    kept = [sum(b.column("drop").null_count for b in part) for part in ran.apply().values()]
    assert kept[0] in (5, 6)
    assert kept[1] in (5, 6)


def test_low_paragraphs_are_cut_before_the_document_is_scored(model, tmp_path):
    text = f"{GOOD[3]}\n\n{BAD[3]}\n\nshort\n{GOOD[4]}"
    whole, cut = run(model, [text], tmp_path / "a")[0], run(model, [text], tmp_path / "b", min_paragraph="50%")[0]
    assert cut["text"] == f"{GOOD[3]}\n\nshort\n{GOOD[4]}"
    assert cut["quality.score.cut"] == 1
    assert cut["quality.score"] > whole["quality.score"]
    assert cut["quality.score"] * STEPS == scores(model, cut["text"])[0]


def test_a_model_that_cannot_work_is_refused(model, tmp_path):
    assert "no model file" in Quality(model=str(tmp_path / "none.bin")).problems()[0]
    (tmp_path / "bad.bin").write_bytes(b"no model")
    assert "no fastText model" in Quality(model=str(tmp_path / "bad.bin")).problems()[0]
    assert "no label `best`; it has" in Quality(model=model, label="best").problems()[0]
    assert Quality(model=model, label="bad").problems() == []
    assert Quality(model=model).recipe()["form"] == "shaped"


def test_a_build_keeps_the_best(model, tmp_path):
    write_jsonl(tmp_path / "in" / "web" / "0.jsonl", [GOOD[i] if i % 2 else BAD[i] for i in range(40)])
    write_jsonl(tmp_path / "in" / "books" / "all.jsonl", GOOD[40:60])
    stages = f"  - quality: {{model: {model}, only: [web], keep_top: 40%, column: q, min_paragraph: 1%}}\n"
    result = run_build(write_config(tmp_path, tmp_path / "in", stages), ["holdout.share=0"])
    count = next(c for c in result.accounts["web"] if c.stage == "quality")
    assert count.dropped["quality.below-top"] == count.documents_in - count.documents_out >= 20
    docs = arrow_table(next((tmp_path / "out" / "shards" / "web").glob("docs-*.arrow")))
    assert min(docs.column("quality.q").to_pylist()) > 0.5
    assert np.all(np.array(docs.column("quality.q.cut").to_pylist()) >= 0)


def repeated(seed: int) -> str:
    return "\n".join([document(seed, 12)] * 30)


def test_what_a_bag_of_words_cannot_see_is_learned_too(tmp_path):
    path = tmp_path / "shape.bin"
    train(GOOD, [repeated(i) for i in range(80)], path, SMALL)
    new = [document(1000 + i, 60) for i in range(20)], [repeated(1000 + i) for i in range(20)]
    good, bad = (scores(str(path), *texts) for texts in new)
    assert min(good) > STEPS // 2 > max(bad)
    assert abs(scores(str(path), *new[0], form="words")[0] - scores(str(path), *new[1], form="words")[0]) < STEPS // 2


def test_a_model_that_is_there_costs_no_pass_of_its_own(model):
    plain = Quality(model=model, min_score="20%", only=["web"], column="edu")
    local = plain.simplest()
    assert isinstance(local, RowStage)
    assert local.recipe() == plain.recipe()
    assert (local.min_score, local.only, local.adds()) == (plain.min_score, ("web",), plain.adds())
    assert Quality(model=model, keep_top="50%").simplest() == Quality(model=model, keep_top="50%")
    rows = batch([GOOD[0], BAD[0]])
    assert local.apply(rows).column("drop").to_pylist() == [None, "quality.low"]
    assert len(local.apply(rows.slice(0, 0))) == 0


LEARN = {"good": ["books"], "bad": ["web"]}


def learned(tmp_path: Path, sizes: list[int], texts: list[list[str]], **settings) -> tuple[list[dict], dict[str, bytes]]:
    """What a stage does that learns: rows, and the files it makes. One part a size, of the source that its texts have."""
    parts, sources = [], []
    for source, mine in zip(("books", "web"), texts, strict=True):
        bounds = np.cumsum([0, *sizes])
        cuts = [mine[a:b] for a, b in itertools.pairwise(bounds.tolist())]
        parts += [[batch(cut, source)] for cut in cuts]
        sources += [source] * len(cuts)
    ran = run_global(Quality(**{"train": LEARN, **settings}), parts, tmp_path, sources=sources)
    rows = [row for part in ran.apply().values() for piece in part for row in piece.to_pylist()]
    return rows, ran.artifacts()


def test_a_classifier_is_trained_on_the_corpus_itself(tmp_path):
    rows, files = learned(tmp_path / "a", [80], [GOOD, BAD], min_score="50%", only=["web"], column="edu")
    assert {row["drop"] for row in rows if row["source"] == "books"} == {None}
    assert {row["drop"] for row in rows if row["source"] == "web"} == {"quality.low"}
    card = json.loads(files["quality/edu.bin.json"])
    assert card["trained_on"]["good"] + card["tested_on"]["good"] == 80
    assert card["inputs"] == ["books", "web"]
    again, same = learned(tmp_path / "b", [30, 0, 50], [GOOD, BAD], min_score="50%", only=["web"], column="edu")
    assert same == files
    scored = {row["text"]: row["quality.edu"] for row in rows}
    assert {row["text"]: row["quality.edu"] for row in again} == scored


def test_what_is_learned_from_is_bounded_and_the_best_share_follows(tmp_path):
    mixed = [*BAD[:60], *GOOD[40:60]]
    how = {"train": {**LEARN, "texts": 45}, "only": ["web"], "keep_top": "30%"}
    rows, files = learned(tmp_path, [40, 40], [GOOD, mixed], **how)
    kept = [row for row in rows if row["source"] == "web" and row["drop"] is None]
    size = sum(len(text.encode()) for text in mixed)
    assert 0.3 * size <= sum(len(row["text"].encode()) for row in kept) < 0.4 * size
    assert {row["drop"] for row in rows if row["source"] == "books"} == {None}
    card = json.loads(files["quality/score.bin.json"])
    assert card["trained_on"]["bad"] + card["tested_on"]["bad"] == 45


def test_either_a_model_or_training(model):
    for wrong in ({}, {"model": model, "train": LEARN}, {"train": {"good": ["web"], "bad": ["web"]}}, {"train": LEARN, "label": "x"}):
        with pytest.raises(ValidationError):
            Quality(**wrong)


def test_a_build_that_trains_gives_the_same_model_again(tmp_path):
    write_jsonl(tmp_path / "in" / "web" / "0.jsonl", BAD)
    write_jsonl(tmp_path / "in" / "books" / "all.jsonl", GOOD)
    stages = "  - quality: {train: {good: [books], bad: [web]}, column: edu, min_score: 30%, only: [web]}\n"
    result = run_build(write_config(tmp_path, tmp_path / "in", stages), ["holdout.share=0"])
    web = next(c for c in result.accounts["web"] if c.stage == "quality")
    assert web.dropped["quality.low"] == len(BAD)
    books = next(c for c in result.accounts["books"] if c.stage == "quality")
    assert books.documents_out == len(GOOD)
    made = tmp_path / "out" / "quality" / "edu.bin"
    first = made.read_bytes()
    assert read_card(str(made))["model"] == hashlib.sha256(first).hexdigest()
    shutil.rmtree(tmp_path / "out")
    run_build(write_config(tmp_path, tmp_path / "in", stages), ["holdout.share=0"])
    assert made.read_bytes() == first


def test_a_build_names_a_source_that_is_not_there(tmp_path):
    write_jsonl(tmp_path / "in" / "web" / "0.jsonl", BAD[:3])
    write_jsonl(tmp_path / "in" / "books" / "all.jsonl", GOOD[:3])
    stages = "  - quality: {train: {good: [bookz], bad: [web]}}\n"
    with pytest.raises(SpecError, match=r"no source is called `bookz`, but stages\[0\].quality.train.good names it"):
        load_corpus(write_config(tmp_path, tmp_path / "in", stages))


@pytest.mark.data
def test_a_build_scores_texts_of_many_lines_as_one_line(shared, model, tmp_path):
    rows = [json.loads(line) for line in (shared / "cases" / "inputs" / "multiline.jsonl").read_bytes().split(b"\n") if line]
    flat = [re.sub("[\n\r\u2028]", " ", row["text"]) for row in rows]
    write_jsonl(tmp_path / "in" / "web" / "0.jsonl", [*(row["text"] for row in rows), *flat])
    write_jsonl(tmp_path / "in" / "books" / "all.jsonl", GOOD[:20])
    stages = f"  - quality: {{model: {model}, form: words}}\n"
    run_build(write_config(tmp_path, tmp_path / "in", stages), ["holdout.share=0"])
    docs = arrow_table(next((tmp_path / "out" / "shards" / "web").glob("docs-*.arrow"))).to_pylist()
    scored = [row["quality.score"] for row in sorted(docs, key=lambda row: row["record"])]
    assert scored[: len(rows)] == scored[len(rows) :]


@pytest.mark.data
def test_lines_of_the_case_are_spaces(shared, model):
    rows = [json.loads(line) for line in (shared / "cases" / "inputs" / "multiline.jsonl").read_bytes().split(b"\n") if line]
    texts = [row["text"] for row in rows]
    flat = [re.sub("[\n\r\u2028]", " ", text) for text in texts]
    for form in ("plain", "words"):
        assert scores(model, *texts, form=form) == scores(model, *flat, form=form)


PROSE = " ".join(f"Sentence {n} of the story is about water, wheat and the {n} stones of a mill." for n in range(40))
ACCENTS = "La divulgación coordinada también está aquí, según el autor, y así llegó después. " * 3


def sound(*texts: str) -> list[float]:
    return soundness(*text_buffers(pa.array(texts, pa.large_string()))).tolist()


@pytest.mark.parametrize(
    "text",
    [
        "", PROSE, TEXTS["zh"], TEXTS["ja"], TEXTS["ru"], TEXTS["hi"], ACCENTS[:80], "Der Spaß“, sagte er. «là\u00a0»", "ΔGpol = ∑M⟨ΔUself⟩PM, naïve café",
        "И Wi-Fi, и USB-порт", "龘鱻 與 傳統漢字", "🏳️‍🌈 emoji 👨‍👩‍👧", "a\u0085b", "मैं घर जा रहा हूँ",
    ],
)  # fmt: skip
def test_texts_as_they_were_written_are_sound(text):
    assert sound(text) == [1.0]


@pytest.mark.parametrize(
    "text",
    [
        ACCENTS.encode().decode("latin-1"),
        ACCENTS.encode().decode("cp1252", "replace"),
        ACCENTS.encode().decode("cp1251", "replace"),
        PROSE[:200] + ACCENTS.encode().decode("latin-1"),
        TEXTS["zh"].encode().decode("gbk", "replace"),
        "锟斤拷锟斤拷，锟斤拷的文字。" * 2,
        f"{PROSE[:400]}\n\n" * 3,
        "over and over the same ten words come back to us " * 20,
    ],
    ids=("latin-1", "cp1252", "cp1251", "in part", "gbk", "kuntangkao", "paragraphs", "loop"),
)
def test_spoilt_texts_are_not(text):
    assert sound(PROSE, text)[1] < 0.5


def test_soundness_counts_in_the_score(tmp_path):
    texts = [f"good water wheat mill {n}" for n in range(30)], [f"bad spam click buy {n}" for n in range(30)]
    train(*texts, tmp_path / "m.bin", Settings(epoch=2))
    scorer = load_scorer(str(tmp_path / "m.bin"), None, None)
    loop = "over and over the same ten words come back to us " * 20
    buffers = text_buffers(pa.array([loop], pa.large_string()))
    assert scorer.score(*buffers).tolist() == [0]
    assert scorer.score(*buffers, whole=False)[0] > 0
