"""Words of every script."""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.document import text_buffers
from stages.text import folded_hashes, shingle_hashes, table, word_hashes, words
from tests.stages.scripts_corpus import TEXTS


def hashes_of(texts: list[str]) -> list[list[int]]:
    flat, offsets = word_hashes(*text_buffers(pa.array(texts, pa.large_string())))
    return [flat[a:b].tolist() for a, b in itertools.pairwise(offsets)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Don't stop-- it’s 3.14 or 1,000.", ["Don't", "stop", "it’s", "3.14", "or", "1,000"]),
        ("snake_case a.b 'quoted' rock'n'roll", ["snake", "case", "a", "b", "quoted", "rock'n'roll"]),
        ("我们在2024年學習。", ["我", "们", "在", "2024", "年", "學", "習"]),
        ("カタカナー ガ", ["カ", "タ", "カ", "ナ", "ー", "ガ"]),
        ("か\u3099", ["か\u3099"]),
        ("เปิดประตู", ["เปิ", "ด", "ป", "ระ", "ตู"]),
        ("ភាសាខ្មែរ", ["ភា", "សា", "ខ្មែ", "រ"]),
        ("नमस्ते दुनिया", ["नमस्ते", "दुनिया"]),
        ("می‌خواهم", ["می‌خواهم"]),
        ("한국어 문장", ["한국어", "문장"]),
        ("👩‍👩‍👧 🇨🇳 ... \u0301", []),
        ("", []),
    ],
)
def test_words(text, expected):
    assert words(text) == expected


def test_hashes_fold_case_and_skip_punctuation():
    same = hashes_of(["The CAFÉ, Don’t!", "the café don't", "the ca\u00adfé don't"])
    assert same[0] == same[1] == same[2]
    assert hashes_of(["ПРИВЕТ Ａ"]) == hashes_of(["привет ａ"])
    assert len(set(hashes_of(["a b c ab bc abc 中 国 中国"])[0])) == 8


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=40), max_size=6))
def test_a_hash_for_each_word_whatever_the_batch(texts):
    assert [len(row) for row in hashes_of(texts)] == [len(words(text)) for text in texts]
    assert hashes_of(texts) == [hashes_of([text])[0] for text in texts]


CLASSES, LOWER, _ = table.load()


def hash_by_definition(word):
    """The hash of a word as `scan.py` describes it, from its characters."""
    folded = ""
    for character in word:
        code = ord(character)
        if CLASSES[code] & table.CLASS != table.IGNORE:
            folded += "'" if character == "\u2019" else chr(LOWER[code]) if code < table.CASED else character
    content, state = folded.encode(), 0x243F6A8885A308D3
    for start in range(0, len(content), 8):
        block = int.from_bytes(content[start : start + 8], "little")
        state = (state ^ block) * 0x9E3779B97F4A7C15 % 2**64
        state ^= state >> 29
    for multiplier in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        state ^= state >> 33
        state = state * multiplier % 2**64
    return state ^ state >> 33


SMALL = st.sampled_from("aZ1'.,’ \n-é\u0301\u00ad中か\u3099แกาក្ខ\u200d葛\U000e0100𠮷И")


@settings(deadline=None)
@given(st.lists(st.text(SMALL, max_size=200), max_size=4))
def test_the_fast_scanner_finds_the_words_of_the_definition(texts):
    assert hashes_of(texts) == [[hash_by_definition(word) for word in words(text)] for text in texts]


@pytest.mark.parametrize("gap", [0, 1, 7, 8, 9, 55, 61, 62, 63, 64, 65, 71, 72, 73, 130])
def test_words_across_blocks_and_at_the_end_of_the_buffer(gap):
    for piece in ("x", "don't", "3.14", "a" * 70, "é", "中", "it's", "b'"):
        for text in (" " * gap + piece, "a" * gap + piece, ("ab " * gap) + piece + " " * gap, piece * gap):
            expected = [hash_by_definition(word) for word in words(text)]
            assert hashes_of([text]) == [expected]
            assert hashes_of([text, piece, text])[::2] == [expected] * 2


def test_the_ascii_part_of_the_table_is_what_the_masks_know():
    for code in range(128):
        character = chr(code)
        expected = table.WORD if character.isalnum() else table.SPACE if character.isspace() else table.OTHER
        assert CLASSES[code] & table.CLASS == expected
        assert bool(CLASSES[code] & table.ALPHA) == character.isalpha()


def test_sliced_arrays():
    texts = pa.array(["skip this", *TEXTS.values()], pa.large_string())
    expected = [value for row in hashes_of(list(TEXTS.values())) for value in row]
    assert word_hashes(*text_buffers(texts[1:]))[0].tolist() == expected


def test_shingles():
    buffers = text_buffers(pa.array(["a b c d", "a b", "", "d c b a", "今天天气"], pa.large_string()))
    flat, offsets = shingle_hashes(*buffers, 3)
    assert np.diff(offsets).tolist() == [2, 1, 0, 2, 2]
    assert len(set(flat.tolist())) == len(flat)
    assert flat[offsets[1] : offsets[2]].tolist() == shingle_hashes(*buffers, 2)[0][3:4].tolist()
    with pytest.raises(ValueError, match="at least one word"):
        shingle_hashes(*buffers, 0)


def test_hashes_never_change():
    """They are stored in caches: another hash needs another version of the stages that use them."""
    assert hashes_of(["Hello world 你好"])[0] == [
        6109711381025667392,
        4749652173550676951,
        15849710747237316249,
        3211787279343655164,
    ]


def test_shipped_table():
    classes, lower, version = table.load()
    assert version.startswith("unicode ")
    for character, kind in (
        ("a", table.WORD),
        ("中", table.UNIT),
        ("ー", table.UNIT),
        ("ก", table.CLUSTER),
        ("เ", table.LEAD),
    ):
        assert classes[ord(character)] & table.CLASS == kind
    assert classes[ord("。")] & table.TERMINAL
    assert lower[ord("É")] == ord("é")


WHITE = st.text(st.sampled_from(" \t\n\r\u00a0\u2003\u3000"), min_size=1, max_size=3)


@given(words=st.lists(st.text(st.characters(exclude_categories=["Z", "C"]), min_size=1), max_size=6), data=st.data())
def test_folded_hashes_see_neither_case_nor_the_amount_of_white_space(words, data):
    plain = " ".join(words)
    spaced = data.draw(WHITE).join(["", *words, ""]) if words else data.draw(WHITE)
    upper = "".join(c.upper() if len(c.upper()) == 1 and c.upper().lower() == c else c for c in plain)
    batch = pa.array([plain, spaced, upper, plain + "x", plain + " x"], pa.large_string())
    hashes = folded_hashes(*text_buffers(batch), 7).tolist()
    assert hashes[0] == hashes[1] == hashes[2]
    assert len({hashes[0], hashes[3], *([hashes[4]] if words else [])}) == (3 if words else 2)
    assert folded_hashes(*text_buffers(batch), 8).tolist() != hashes
