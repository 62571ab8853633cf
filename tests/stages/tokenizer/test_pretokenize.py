"""The compiled splitter against the regex engine that runs an exported tokenizer.json, and against `regex`."""

from __future__ import annotations

import unicodedata

import numpy as np
import pyarrow as pa
import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, pre_tokenizers

from stages.document import text_buffers
from stages.tokenizer.characters import classes, nfc_unsafe
from stages.tokenizer.make_characters import QUESTIONS, members
from stages.tokenizer.patterns import Pattern, named_pattern, recognise
from stages.tokenizer.pretokenize import CHUNK, cut_long, pieces

PATTERNS = {
    "gpt2": named_pattern("gpt2"),
    "gpt4": named_pattern("gpt4"),
    "qwen2": named_pattern("qwen2"),
    "llama3-2": named_pattern("llama3", digits=2),
    "llama3-han": named_pattern("llama3", split_han=True),
    "qwen2-han": named_pattern("qwen2", split_han=True),
    "o200k": named_pattern("o200k"),
    "o200k-1": named_pattern("o200k", digits=1),
    "deepseek": named_pattern("deepseek"),
}
#: What decides between alternatives: every class, both cases of contractions, all line ends, marks, joiners, planes.
ALPHABET = (
    "ab sS'’tTlLrReEvVmMdDſK  \t\n\r\v\x1c\x85\xa0\u3000\u2028.,!?-_0123456٣①½〇々，。漢字龘𠮷かなカナ한กาकि"
    "\u0301\u200d\u200b\ufeff\x00🎉👩\U0001f3fd\u2e80ﬆßİ\U000e0001\U0010ffffABÉéǅʰª/"
)
TEXTS = st.lists(
    st.text(st.sampled_from(ALPHABET), max_size=40) | st.text(st.characters(exclude_categories=["Cs"])),
    max_size=6,
)


def split(pattern: Pattern, texts: list[str]) -> list[str]:
    data, offsets = text_buffers(pa.array(texts, pa.large_string()))
    content, found = data.tobytes(), []
    for start, ends in pieces(pattern, data, offsets):
        for end in ends.tolist():
            found.append(content[start:end].decode())
            start = end
    return found


def split_by_library(pattern: Pattern, texts: list[str]) -> list[str]:
    library = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(one), "isolated") for one in pattern.regexes])
    return [piece for text in texts for piece, _ in library.pre_tokenize_str(text)]


@pytest.mark.parametrize("name", PATTERNS)
@settings(max_examples=300, deadline=None)
@given(texts=TEXTS)
def test_pieces_are_those_of_the_library(name: str, texts: list[str]) -> None:
    assert split(PATTERNS[name], texts) == split_by_library(PATTERNS[name], texts)


@pytest.mark.parametrize("name", PATTERNS)
@settings(max_examples=100, deadline=None)
@given(text=st.text(st.sampled_from(ALPHABET), max_size=60))
def test_pieces_are_those_of_the_regex_module(name: str, text: str) -> None:
    """Its Unicode may be newer; the alphabet holds no character that is new."""
    found = [text]
    for one in PATTERNS[name].regexes:
        parts = [regex.split(f"({one})", piece, flags=regex.VERSION1) for piece in found]
        found = [part for piece in parts for part in piece if part]
    assert split(PATTERNS[name], [text]) == found


@pytest.mark.parametrize("name", ["gpt2", "gpt4", "llama3-han", "o200k", "deepseek"])
@pytest.mark.parametrize("form", ["{}", "'{}", "'{}e", "'l{}", " {}a", "a{}1", "{}\n{}"])
def test_every_character_in_every_setting(name: str, form: str) -> None:
    """All planes: one text per character for the table, each in the place where it can change a decision."""
    codes = np.r_[0:0x3400:1, 0x3400:0xD800:61, 0xE000:0x10000, 0x10000:0x20000:3, 0x20000:0x110000:997]
    texts = [form.format(chr(code), chr(code)) for code in codes]
    assert split(PATTERNS[name], texts) == split_by_library(PATTERNS[name], texts)


def test_table_is_that_of_the_installed_library() -> None:
    for bit, question in QUESTIONS.items():
        assert np.array_equal((classes() & bit) != 0, members(question)), question


def test_texts_without_an_unsafe_character_are_their_own_nfc() -> None:
    texts = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    unsafe = nfc_unsafe(*text_buffers(pa.array(texts, pa.large_string())))
    assert all(unsafe[i] for i, text in enumerate(texts) if unicodedata.normalize("NFC", text) != text)
    assert not nfc_unsafe(*text_buffers(pa.array(["plain, 中文、かな 한국어 é"], pa.large_string()))).any()
    assert nfc_unsafe(
        *text_buffers(pa.array(["e\u0301", "か\u3099", "\u1112\u1161"], pa.large_string()))
    ).all()


def test_more_pieces_than_one_chunk_and_empty_texts() -> None:
    texts = ["", "a " * CHUNK, "", "", "中 " * 10, ""]
    assert split(PATTERNS["gpt4"], texts) == split_by_library(PATTERNS["gpt4"], texts)
    assert split(PATTERNS["gpt4"], []) == split(PATTERNS["gpt4"], ["", ""]) == []


def test_a_slice_is_read_from_its_place() -> None:
    whole = pa.array(["one two", "three four", "five"], pa.large_string())
    data, offsets = text_buffers(whole.slice(1, 1))
    [(start, ends)] = pieces(PATTERNS["gpt2"], data, offsets)
    assert (start, ends.tolist()) == (7, [12, 17])


def test_broken_utf8_is_covered_without_reading_past_the_end() -> None:
    for data in (b"a\xf0\x9f", b"\xff\xfe", b"\xe4\xb8", b"\xc3", b"\xf7\xbf\xbf\xbf", b"' \x80\x80"):
        buffer = np.frombuffer(data, np.uint8)
        for pattern in PATTERNS.values():
            ends = [
                end for _, ends in pieces(pattern, buffer, np.array([0, len(data)])) for end in ends.tolist()
            ]
            assert ends[-1] == len(data)


def test_long_pieces_are_cut_at_characters_and_counted() -> None:
    text = "天" * 70 + "。short " + "a" * 32
    data, offsets = text_buffers(pa.array([text], pa.large_string()))
    [(start, ends)] = pieces(PATTERNS["gpt4"], data, offsets)
    shorter, cut = cut_long(data, start, ends, 32)
    content, found = data.tobytes(), []
    for end in shorter.tolist():
        found.append(content[start:end].decode())
        start = end
    assert found == ["天" * 32, "天" * 32, "天" * 6, "。short", " " + "a" * 31, "a"]
    assert cut == 2


@pytest.mark.parametrize("name", PATTERNS)
def test_its_own_description_is_recognised(name: str) -> None:
    assert recognise(PATTERNS[name].pre_tokenizer()) == PATTERNS[name]


@pytest.mark.parametrize(
    "description",
    [
        None,
        {"type": "Whitespace"},
        {"type": "ByteLevel", "add_prefix_space": True, "use_regex": True},
        {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
        {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": r"\d"}, "behavior": "Isolated", "invert": False},
                {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
            ],
        },
    ],
)
def test_other_descriptions_are_not(description: dict | None) -> None:
    assert recognise(description) is None


def test_patterns_that_are_fixed_say_so() -> None:
    with pytest.raises(ValueError, match="gpt2"):
        named_pattern("gpt2", digits=1)
    with pytest.raises(ValueError, match="o200k"):
        named_pattern("o200k", split_han=True)


def test_o200k_cuts_words_at_capitals_and_keeps_contractions() -> None:
    """Its regex gives back capitals that no small letter follows; marks and letters without case go with either."""
    text = "HelloWorld's HTTPServer don'T 中AB 한b e\u0301X ǅa //\n/x"
    expected = ["Hello", "World's", " HTTPServer", " don'T", " 中", "AB", " 한b", " e\u0301", "X", " ǅa", " //\n/", "x"]
    assert split(PATTERNS["o200k"], [text]) == expected == split_by_library(PATTERNS["o200k"], [text])
