"""Quality rules, against datatrove with our words in it, and for every script."""

from __future__ import annotations

import json
import re

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit

from stages.document import text_buffers
from stages.language import Language
from stages.rules import RULES, Rules
from stages.rules.hashing import hash_bytes, hash_text, short_hash
from stages.rules.lines import clean_lines, count_sentences
from stages.rules.statistics import measure
from stages.rules.stop_words import STOP_WORDS
from stages.text import words
from stages.text.kernels import CLASSES
from stages.text.vectors import OVERREAD
from tests.stages.scripts_corpus import TEXTS, batch

ENGLISH = ("the", "be", "to", "of", "and", "that", "have", "with")
GOOD = (
    "The mill stands at the end of the valley, and nobody knows how long it has been there. In spring the river brings "
    "so much water that the wheel has to be stopped, which is a pity, because that is when people have grain left. "
    "My grandmother used to say that the sound of it kept her awake with joy.\nLater the road came, then the railway. "
    "It was never a rich place! Still, you could buy bread, have your shoes repaired and hear what went on elsewhere."
)
ZH = (
    "村口那座石桥是用青石砌成的，桥面不宽，刚好能让一辆牛车通过。每年夏天涨水的时候，水位会漫到第三级台阶，老人们就坐在"
    "桥头的樟树下，一边摇着蒲扇，一边讲从前修桥的故事。孩子们对故事并不感兴趣，他们更愿意蹲在桥洞里看小鱼。"
)


def verdicts(*texts: str, **given_: object) -> list[str | None]:
    return Rules(**given_).apply(batch(list(texts))).column("drop").to_pylist()


def datatrove_filters(preset: str):
    """The filters of a preset in their order, each with the prefix of our reasons; our words and sentences injected."""
    pytest.importorskip("datatrove")
    from datatrove.pipeline.filters import (
        C4QualityFilter,
        FineWebQualityFilter,
        GopherQualityFilter,
        GopherRepetitionFilter,
    )
    from datatrove.utils.word_tokenizers import WordTokenizer

    class Ours(WordTokenizer):
        def word_tokenize(self, text):
            return words(text)

        def sent_tokenize(self, text):
            raise NotImplementedError

        def span_tokenize(self, text):
            content = np.frombuffer(text.encode() + bytes(OVERREAD), np.uint8)
            return [(0, 0)] * int(count_sentences(content, 0, len(content) - OVERREAD, CLASSES, False))

    ours = Ours()
    gopher = [(GopherRepetitionFilter(language=ours), "gopher_"), (GopherQualityFilter(language=ours), "")]
    if preset == "gopher":
        return gopher
    c4 = (C4QualityFilter(language=ours, filter_no_terminal_punct=preset == "c4"), "c4_")
    return [c4] if preset == "c4" else [*gopher, c4, (FineWebQualityFilter(language=ours), "fineweb_")]


def same_as_datatrove(texts: list[str], preset: str) -> None:
    from datatrove.data import Document

    after = Rules(preset=preset, stop_words=ENGLISH).apply(batch(texts))
    filters = datatrove_filters(preset)
    for text, drop, clean in zip(
        texts, after.column("drop").to_pylist(), after.column("text").to_pylist(), strict=True
    ):
        document = Document(text=text, id="x", metadata={})
        reason = None
        for one, prefix in filters:
            verdict = one.filter(document)
            if verdict is not True:
                reason = f"rules.{prefix}{verdict[1]}"
                break
        assert drop == reason, text[:200]
        assert clean == (text if reason else document.text)


EDGES = [
    GOOD,
    GOOD.replace(". ", "...\n"),
    "- " + GOOD.replace(". ", ".\n- "),
    (GOOD + "\n\n") * 3,
    "\n\n" + GOOD + "\n\n\n" + GOOD + "\n",
    "\r\n".join([GOOD, GOOD[:90], "", GOOD[:90], "x\u2028y"]),
    GOOD + "\nLorem IPSUM dolor sit amet.",
    GOOD + "\nEnable JavaScript { to go on.",
    GOOD + "\nWe use cookies { and other things.",
    GOOD + " [12] [edit] [citation needed] []\nRead more about this [3]",
    GOOD + " " + "x" * 1001,
    " ".join(["spam"] * 200),
    "one two three four five six. " * 40,
    "# " * 30 + GOOD,
    "abc " * 20,
    "....",
    "1234 5678 " * 40,
    "a\n" * 60,
]


@pytest.mark.parametrize("preset", ["gopher", "c4", "fineweb"])
def test_decisions_and_texts_are_those_of_datatrove(preset):
    same_as_datatrove(EDGES, preset)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            ["the", "and ", "of ", "word ", "Word", ". ", "...", "…", "\n", "\n\n", "\r\n", "- ", "•", "#", " ", "\t", "12.5", "é", "!",
             '"', "'", "{", "[1]", "x" * 40, "same words come again ", "a b c d e f g h. ", "\u2028", "１"]
        ),
        min_size=1, max_size=120,
    ).map("".join)
)  # fmt: skip
def test_random_texts_as_datatrove(text):
    if words(text) and text.strip():
        for preset in ("gopher", "c4"):
            same_as_datatrove([text + GOOD[:200]], preset)


@pytest.mark.data
@pytest.mark.parametrize("preset", ["gopher", "c4", "fineweb"])
def test_web_documents_as_datatrove(shared, preset):
    import zstandard

    packed = (shared / "data" / "quality" / "dev" / "human_dclm.jsonl.zst").read_bytes()
    rows = [json.loads(line) for line in zstandard.decompress(packed).split(b"\n") if line][:120]
    same_as_datatrove([row["text"] for row in rows if not spaceless(row["text"])], preset)


def spaceless(text: str) -> bool:
    found = words(text)
    return 3 * sum(CLASSES[ord(word[0])] & 15 in (3, 4, 5) for word in found) > len(found)


def test_values_say_what_was_measured():
    after = Rules(min_words=60).apply(batch(["two words", "spam " * 100]))
    assert after.column("drop").to_pylist() == ["rules.gopher_top_2_gram", "rules.gopher_top_2_gram"]
    after = Rules(preset=None, min_words=60, max_newlines=0.1).apply(batch(["two words", "a\n" * 61]))
    assert after.column("drop").to_pylist() == ["rules.gopher_short_doc", "rules.fineweb_list_ratio"]
    assert after.column("drop_value").to_pylist() == ["2 < 60", "1 > 0.1"]
    close = Rules(preset=None, min_alphabetic=0.8).apply(batch(["a 1 " + "b " * 2997 + "1 " * 750]))
    assert close.column("drop_value").to_pylist() == ["0.7997 < 0.8"]


def test_thresholds_replace_those_of_the_preset():
    assert verdicts("too short", preset="gopher", skip=["gopher_top_2_gram"]) == ["rules.gopher_short_doc"]
    assert verdicts("of the few words", min_words=1) == ["rules.gopher_top_2_gram"]
    assert verdicts("of the few words", min_words=1, max_top_ngrams={}) == [None]
    assert verdicts("x", preset=None) == [None]
    as_text = Rules(preset=None, max_top_ngrams={"2": "20%"}, min_words="1k", drop_lorem_ipsum="no")
    assert (as_text.max_top_ngrams, as_text.min_words, as_text.drop_lorem_ipsum) == ({2: 0.2}, 1000, False)
    with pytest.raises(ValueError, match="less than or equal to 4"):
        Rules(max_top_ngrams={5: 0.1})
    with pytest.raises(ValueError, match="there is no rule `gopher_shrt_doc`"):
        Rules(skip=["gopher_shrt_doc"])
    for field in {rule.field for rule in RULES}:
        assert field in Rules.model_fields


def test_chinese_is_kept_by_every_preset_for_text():
    for preset in ("gopher", "c4", "fineweb"):
        assert verdicts(ZH, preset=preset) == [None]
    spam = "优惠特价，快来购买。" * 30
    assert verdicts(spam, "好的。") == ["rules.gopher_top_2_gram", "rules.gopher_short_doc"]
    assert verdicts("\n".join(["首页", "关于我们", "联系方式"] * 30)) == ["rules.gopher_dup_line_frac"]


def test_chinese_with_english_words_counts_as_chinese():
    texts = batch([TEXTS["zh mixed"], GOOD, ZH]).column("text")
    numbers, _ = measure(*text_buffers(texts), "words", 30, {})
    assert (3 * numbers["units"] > numbers["words"]).tolist() == [True, False, True]


def test_stop_words_go_by_language():
    german = (
        "Der Fuchs und die Katze sind nicht auf dem Dach, sondern in der Scheune mit den Mäusen, für die es schlecht steht. "
        * 3
    )
    latin = (
        "Gallia est omnis divisa in partes tres quarum unam incolunt Belgae aliam Aquitani tertiam qui ipsorum lingua Celtae. "
        * 3
    )
    given_ = {"preset": None, "min_stop_words": 2}
    tagged = Language().apply(batch([german, latin]))
    assert Rules(**given_).apply(tagged).column("drop").to_pylist() == [None, None]
    assert verdicts(german, **given_) == [None]
    assert (
        verdicts(german, "xyzzy plugh " * 20, **given_, stop_words=ENGLISH)
        == ["rules.gopher_enough_stop_words"] * 2
    )


def test_line_rules_take_lines_out_and_keep_the_text_of_what_is_dropped():
    page = "Home\n" + GOOD + "\nEnable javascript now please.\n  Click here to read more about it.  \n"
    after = Rules(preset="c4").apply(batch([page, "Home\nNews"]))
    assert after.column("text").to_pylist() == [GOOD + "\nClick here to read more about it.", "Home\nNews"]
    assert after.column("drop").to_pylist() == [None, "rules.c4_too_few_sentences"]
    marked = Rules(preset="c4", mark=True).apply(batch([page, "Home"]))
    assert marked.column("text").to_pylist() == [page, "Home"]
    assert marked.column("mark.rules").to_pylist() == [None, "rules.c4_too_few_sentences"]


def test_code():
    good = "def f(x):\n    return x + 1\n"
    assert verdicts(good, "a" * 1001, good + "x" * 300, "+-*/ (){};\n" * 4, preset="code") == [
        None, "rules.code_long_line", "rules.code_mean_line", "rules.code_alphanumeric",
    ]  # fmt: skip


@pytest.mark.data
def test_good_chinese_articles_are_kept(shared):
    lines = (shared / "cases" / "inputs" / "zh_articles.jsonl").read_bytes().split(b"\n")
    texts = [json.loads(line)["text"] for line in lines if line]
    assert len(texts) == 6
    for preset in ("gopher", "c4", "fineweb"):
        assert verdicts(*texts, preset=preset) == [None] * 6
    assert verdicts(*texts) == [None] * 6


def test_what_was_replaced_or_left_out_is_counted_and_said():
    stage = Rules(preset="gopher")
    rows = Language().apply(batch([TEXTS["zh"] * 5, TEXTS["one long line"], "ภาษาไทย" * 30, TEXTS["th"] * 5]))
    after = stage.apply(rows)
    assert after.column("rules.unspaced").to_pylist() == [1, 0, 1, 1]
    listed = [code in STOP_WORDS for code in rows.column("lang").to_pylist()]
    assert after.column("rules.no-stop-words").to_pylist() == [int(not one) for one in listed]
    said = stage.remarks(4, 1, {"rules.unspaced": 3, "rules.no-stop-words": 2})
    assert said[0].startswith("3 of 4 documents are in scripts without spaces, where characters count for words; not asked: gopher_below")
    assert said[1].startswith("2 of 4 documents are in languages without a list of stop words")
    assert stage.remarks(4, 1, {"rules.unspaced": 0, "rules.no-stop-words": 0}) == []
    assert set(Rules(preset="code").adds()) == {"rules.unspaced"}


PIECES = st.sampled_from(
    [*"ab c.\n!?,'#-9é’…。中\t\r\x0b\x1c\u2028\x85\xa0\u3000🎉", "...", "word ", "w0rds and ", "\n\n", "x" * 61, "y" * 130]
)
LINE_ENDS = re.compile("\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")


def sentences(line: str) -> int:
    """Pieces that hold a letter or digit and end with a mark (ASCII: before white space or the end), or with the line."""
    found, filled = 0, False
    for at, character in enumerate(line):
        ends = (character in ".!?" and line[at + 1 : at + 2] <= " ") or character == "。"
        if ends:
            found, filled = found + filled, False
        elif character not in ".!?":
            filled = filled or character.isalnum()
    return found + filled


@settings(max_examples=300, deadline=None)
@given(parts=st.lists(st.lists(PIECES, max_size=60).map("".join), min_size=1, max_size=4), least=st.integers(0, 4))
def test_numbers_by_masks_are_those_of_python(parts, least):
    numbers, _ = measure(*text_buffers(pa.array(parts, pa.large_string())), "ngrams", 30, {})
    for row, text in enumerate(parts):
        alone, _ = measure(*text_buffers(pa.array([text], pa.large_string())), "ngrams", 30, {})
        assert {name: int(values[row]) for name, values in numbers.items()} == {n: int(v[0]) for n, v in alone.items()}
        assert numbers["characters"][row] == len(text)
        assert numbers["hashes"][row] == text.count("#")
        assert numbers["ellipses"][row] == text.count("...") + text.count("…")
        assert numbers["alphanumerics"][row] == sum(map(str.isalnum, text))
        assert numbers["longest_line"][row] == max(map(len, text.split("\n")))
        assert numbers["words"][row] == len(words(text))
        assert numbers["broken_lines"][row] == len(text.splitlines())
    how = {"end_punctuation": False, "min_words": least, "max_word_length": 70, "lorem_ipsum": False, "curly_brackets": False}
    no = np.zeros(len(parts), bool)
    data, offsets, found = clean_lines(pa.array(parts, pa.large_string()), no, no, **how)
    for row, text in enumerate(parts):
        kept = [line.strip() for line in LINE_ENDS.split(text)]
        kept = [x for x in kept if len(x.split()) >= least and max(map(len, x.split()), default=0) <= 70]
        if text and LINE_ENDS.fullmatch(text[-1]):
            kept = kept[:-1] if least == 0 else kept
        assert data[offsets[row] : offsets[row + 1]].tobytes().decode() == "\n".join(kept).strip()
        assert found["sentences"][row] == sum(map(sentences, kept))


@pytest.mark.parametrize("size", range(70))
def test_hashes_in_python_are_those_of_the_kernels(size):
    text = "".join(map(chr, range(48, 48 + size)))
    data = np.frombuffer(b"##" + text.encode() + b"x" * 16, np.uint8)
    assert int(hash_bytes(data, 2, 2 + size)) == hash_text(text)
    if 0 < size < 16:
        assert int(short_hash_of(data, 2, size)) == hash_text(text)


@njit
def short_hash_of(data, i, size):
    return short_hash(data, i, size)


def test_phrases_of_the_line_rules_are_found_wherever_they_stand():
    for phrase in ("JavaScript", "Terms of Use", "privacy policy", "cookie policy", "uses cookies", "use of cookies", "Use Cookies"):
        for before in range(60, 70):
            line = "w " * (before // 2) + "é" * (before % 2) + phrase
            assert verdicts(f"{line} and more\nA line that stays here.", preset=None, line_rules=True) == [None]
            found = Rules(preset=None, line_rules=True).apply(batch([f"{line} and more\nA line that stays here."]))
            assert found.column("text").to_pylist() == ["A line that stays here."]
