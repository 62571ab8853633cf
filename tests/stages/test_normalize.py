"""One form for the same text."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.normalize import Normalize
from tests.stages.scripts_corpus import batch


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
