"""Texts made of several fields, and chats."""

from __future__ import annotations

import pytest

from stages.readers import CHAT, ReadSettings, parse_template
from stages.readers.record import Unfit
from stages.readers.template import text_fields, text_maker


def made(record: dict, **settings) -> str:
    return text_maker(ReadSettings("s", **settings))(record)


def test_a_field_a_dotted_field_and_a_key_with_a_dot():
    record = {"text": "t", "doc": {"body": "b", "in": {"x": "y"}}, "doc.body": "literal"}
    assert made(record) == "t"
    assert made(record, text="doc.in.x") == "y"
    assert made(record, text="doc.body") == "literal"


def test_a_template_fills_fields_and_keeps_doubled_braces():
    record = {"title": "题目", "doc": {"body": "{title}"}, "year": 1999}
    text = "# {title} ({year})\n\n{doc.body} {{x}}"
    assert made(record, text=text) == "# 题目 (1999)\n\n{title} {x}"
    assert text_fields(ReadSettings("s", text=text)) == ["title", "year", "doc.body"]


@pytest.mark.parametrize("template", ["{title", "title}", "{}", "{ }", "a {b}}"])
def test_a_template_that_cannot_be_meant_is_refused(template):
    with pytest.raises(ValueError, match="template"):
        parse_template(template)
    with pytest.raises(ValueError, match="template"):
        text_maker(ReadSettings("s", text=template))


def test_a_template_needs_a_field():
    with pytest.raises(ValueError, match="names no field"):
        text_maker(ReadSettings("s", text="{{text}}"))


@pytest.mark.parametrize(
    ("record", "reason"),
    [({}, "missing-field"), ({"a": None}, "not-text"), ({"a": 1.5}, "not-text"), ({"a": True}, "not-text")],
)
def test_a_field_that_cannot_be_filled_rejects_the_record(record, reason):
    with pytest.raises(Unfit) as unfit:
        made(record, text="x {a}")
    assert unfit.value.reason == reason
    assert "'a'" in unfit.value.detail


CHATTER = [{"role": "user", "content": "你好"}, {"role": "assistant", "content": "hi"}]


def test_chat_templates():
    record = {"messages": CHATTER}
    assert made(record, messages="chatml") == (
        "<|im_start|>user\n你好<|im_end|>\n<|im_start|>assistant\nhi<|im_end|>\n"
    )
    assert made(record, messages="plain") == "user: 你好\n\nassistant: hi\n\n"
    for name in CHAT:
        assert made({"messages": []}, messages=name) == ""


def test_other_spellings_of_a_chat():
    record = {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}
    assert made(record, messages="plain", text="conversations") == "user: a\n\nassistant: b\n\n"
    parts = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    assert made({"messages": parts}, messages="plain") == "user: ab\n\n"


def test_braces_in_a_message_are_text():
    record = {"messages": [{"role": "user", "content": "{role} {{content}}"}]}
    assert made(record, messages="plain") == "user: {role} {{content}}\n\n"


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ("hello", "not-text"),
        ([5], "not-text"),
        ([{"role": "user"}], "missing-field"),
        ([{"content": "x"}], "missing-field"),
        ([{"role": "user", "content": None}], "not-text"),
        ([{"role": "user", "content": [{"type": "image"}]}], "not-text"),
    ],
)
def test_a_chat_that_is_not_one(messages, reason):
    with pytest.raises(Unfit) as unfit:
        made({"messages": messages}, messages="chatml")
    assert unfit.value.reason == reason


def test_an_unknown_chat_template_is_refused():
    with pytest.raises(ValueError, match="chatml"):
        text_maker(ReadSettings("s", messages="chatlm"))
