"""Word lists: whole words, every script, the list of the language, counts and shares."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from stages.document import with_column
from stages.words import Words
from tests.stages.scripts_corpus import batch


def stage(folder: Path, lists: dict[str, str], **settings) -> Words:
    for name, content in lists.items():
        (folder / f"{name}.txt").write_text(content, encoding="utf-8")
    return Words(lists={name: str(folder / f"{name}.txt") for name in lists}, **settings)


def test_whole_words_in_any_case_and_phrases(tmp_path):
    made = stage(tmp_path, {"any": "# a comment\nass\nvery bad\n下三烂\n"})
    texts = ["The assessed class passed.", "An ASS!", "Very, bad. very good", "他是下三烂的人", "下三", "very badly", ""]
    after = made.apply(batch(texts))
    assert after.column("words.hits").to_pylist() == [0, 1, 1, 1, 0, 0, 0]
    assert after.column("drop").to_pylist() == [None, "words.count", "words.count", "words.count", None, None, None]
    assert after.column("drop_value")[1].as_py() == "1 > 0"


def test_counts_and_shares(tmp_path):
    lists = {"any": "bad\n"}
    texts = ["bad", "bad bad", "bad " + "fine " * 9, "bad bad " + "fine " * 198]
    for given, dropped in (
        ({"max_count": 1}, [None, "words.count", None, "words.count"]),
        ({"max_share": "10%"}, ["words.share", "words.share", None, None]),
        ({"max_count": 1, "max_share": "10%"}, ["words.share", "words.count", None, "words.count"]),
    ):
        assert stage(tmp_path, lists, **given).apply(batch(texts)).column("drop").to_pylist() == dropped
    assert stage(tmp_path, lists, max_share="10%").apply(batch(texts)).column("drop_value")[0].as_py() == "1 of 1 words > 0.1"


def test_the_list_of_the_language_counts_where_it_is_known(tmp_path):
    made = stage(tmp_path, {"de": "gift\n", "English": "poison\n"})
    texts = batch(["A gift", "A gift", "ein Gift", "poison"])
    assert made.apply(texts).column("words.hits").to_pylist() == [1, 1, 1, 1]
    known = with_column(texts, "lang", pa.array(["en", "und", "de", "fr"]))
    assert made.apply(known).column("words.hits").to_pylist() == [0, 1, 1, 0]


def test_lists_that_cannot_work_are_refused(tmp_path):
    assert "has no entries" in stage(tmp_path, {"en": "# nothing\n"}).problems()[0]
    assert "cannot be read" in Words(lists={"en": str(tmp_path / "none.txt")}).problems()[0]
    assert stage(tmp_path, {"en": "x\n"}).problems() == []
    with pytest.raises(ValueError, match="klingonish"):
        Words(lists={"klingonish": "x"})


def test_a_changed_list_is_read_again(tmp_path):
    made = stage(tmp_path, {"en": "one\n"})
    before = made.recipe()
    assert made.apply(batch(["one two two"])).column("words.hits").to_pylist() == [1]
    (tmp_path / "en.txt").write_text("two words\ntwo\n", encoding="utf-8")
    assert made.apply(batch(["one two two"])).column("words.hits").to_pylist() == [2]
    assert made.recipe() != before


@pytest.mark.data
def test_published_lists_leave_lookalikes_alone(shared):
    lists = shared / "data" / "quality" / "lists"
    made = Words(lists={code: str(lists / "LDNOOBW" / code) for code in ("en", "zh", "ja", "ko", "ru")})
    assert made.problems() == []
    rows = [json.loads(line) for line in (lists / "scunthorpe.jsonl").read_bytes().split(b"\n") if line]
    texts = batch([row["text"] for row in rows])
    hits = made.apply(with_column(texts, "lang", pa.array(["en"] * len(rows)))).column("words.hits").to_pylist()
    # whole words that are innocent here: only a share or a larger count tells them from the others
    assert sum(hit > 0 for hit in hits) <= 4
    assert sum(hit > 1 for hit in hits) == 0
