"""One form for the same text."""

from __future__ import annotations

import re
import time
import unicodedata

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.normalize import Normalize
from stages.text.normal_form import COMPOSES, character_kinds
from tests.stages.scripts_corpus import TEXTS, batch

# The form again, in plain regular expressions: what the kernels are compared with.
_JUNK = (
    "[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\u00ad\u2060\ufeff\ufff9-\ufffb\ufdd0-\ufdef\ufffe\uffff"
    + "".join(chr(plane << 16 | low) for plane in range(1, 17) for low in (0xFFFE, 0xFFFF))
    + "]"
)
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u1a20-\u1aaf"
_SPACES = (
    " \t\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000"
)


def reference(text: str, blank_lines: int = 2, no_break_space: bool = True) -> str:
    text = re.sub("\r\n|[\v\f\r\u0085\u2028\u2029]", "\n", text)
    text = re.sub(_JUNK, "", text)
    text = re.sub(f"(?<![{_UNSPACED}])\u200b+|\u200b+(?![{_UNSPACED}\u200b])", "", text)
    if no_break_space:
        text = re.sub("[\u00a0\u2007\u202f]", " ", text)
    lines = [line.rstrip(_SPACES) for line in unicodedata.normalize("NFC", text).split("\n")]
    return re.sub(f"\n{{{blank_lines + 2},}}", "\n" * (blank_lines + 1), "\n".join(lines).strip("\n"))


def clean(*texts: str, **settings_: object) -> list[str]:
    return Normalize(**settings_).apply(batch(list(texts))).column("text").to_pylist()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\r\nb\rc\u2028d\u2029e\u0085f\x0bg\x0ch", "a\nb\nc\nd\ne\nf\ng\nh"),
        ("\ufeffhi\x00\x07 th\u00adere\x7f", "hi there"),
        ("x \t\u3000\ny\u00a0", "x\ny"),
        ("a\n\n\n\n\n\nb", "a\n\n\nb"),
        ("\n\n  code\n    x\n\n", "  code\n    x"),
        ("e\u0301\u00a0x\u202fy", "é x y"),
        ("e\ufeff\u0301", "é"),
        ("ＡＢＣ　①ﬁ１", "ＡＢＣ　①ﬁ１"),
        ("　第一段", "　第一段"),
        ("می‌خواهم 👩‍👩‍👧", "می‌خواهم 👩‍👩‍👧"),
        ("ไทย\u200bไทย a\u200bb", "ไทย\u200bไทย ab"),
        ("\U0001fffea\ufdd0\tb", "a\tb"),
    ],
)
def test_forms(text, expected):
    assert clean(text) == [expected]


def test_settings():
    assert clean("a\u00a0b\n\n\nc", no_break_space=False, blank_lines=0) == ["a\u00a0b\nc"]


def test_what_cannot_be_seen_goes():
    after = Normalize().apply(batch(["", " \n\u3000", "\u200d\u200b\ufeff", "\x00", ".", "　中"]))
    assert after.column("drop").to_pylist() == ["normalize.empty"] * 4 + [None, None]


@settings(max_examples=300)
@given(
    st.text(
        st.one_of(
            st.sampled_from(
                "\n\r\t \u00a0\u200b\u200d\u2028\ufeff\u00ad\u0301\u0e01\u0e34e中\u3000\u1100\u1161\u212b"
            ),
            st.characters(exclude_categories=["Cs"]),
        ),
        max_size=24,
    )
)
def test_twice_is_as_once_and_nothing_visible_is_lost(text):
    once = clean(text)[0]
    assert clean(once) == [once]
    assert unicodedata.is_normalized("NFC", once)
    seen = [[c for c in unicodedata.normalize("NFD", form) if c.isalnum()] for form in (text, once)]
    assert seen[0] == seen[1]


ODD = st.text(
    st.one_of(
        st.sampled_from(
            "\n\n\r\t   \u00a0\u2007\u202f\u1680\u2003\u200b\u200b\u200d\u2028\u0085\ufeff\u00ad\x00\u0301\u0323e\u0e01\u0e34\u1780中ab.\u3000"
            "\u1100\u1161\u11a8\u212b\u0958\U0001fffe\U0002f800\U0010ffff"
        ),
        st.characters(exclude_categories=["Cs"]),
    ),
    max_size=24,
)


@settings(max_examples=300, deadline=None)
@given(st.lists(ODD, min_size=1, max_size=4), st.integers(0, 3), st.booleans())
def test_the_kernels_write_the_form_of_the_regular_expressions(texts, blank_lines, no_break_space):
    expected = [reference(text, blank_lines, no_break_space) for text in texts]
    assert clean(*texts, blank_lines=blank_lines, no_break_space=no_break_space) == expected


def test_texts_of_every_script_have_the_form_of_the_regular_expressions():
    texts = [
        text.replace("\n", " \r\n") + end
        for text in TEXTS.values()
        for end in ("", "\n ", "\u200b", "\u0301")
    ]
    assert clean(*texts) == [reference(text) for text in texts]


def test_a_slice_of_an_array_is_read_from_its_own_beginning():
    texts = batch(["a ", "b\r\n", "c", "e\u0301 "])
    assert Normalize().apply(texts.slice(1, 3)).column("text").to_pylist() == ["b", "c", "é"]
    assert Normalize().clean(pa.array([None, "x "], pa.large_string())).to_pylist() == ["", "x"]


def test_every_character_that_can_compose_is_known():
    kinds = character_kinds()
    assert [
        hex(code)
        for code in range(0x110000)
        if not 0xD800 <= code < 0xE000
        and (unicodedata.combining(chr(code)) or not unicodedata.is_normalized("NFC", chr(code)))
        and not (code < len(kinds) and kinds[code] & COMPOSES)
    ] == []


@pytest.mark.parametrize("unit", [" ", "\n", " \n", "\u200b", "ก\u200b", "\u3000", "a ", "\x00", "中 "])
def test_time_grows_with_length_only(unit):
    text = "x" + unit * (8_000_000 // len(unit.encode()))
    start = time.process_time()
    clean(text)
    assert time.process_time() - start < 2
