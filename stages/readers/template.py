"""From a parsed record to the text of its document: a field, a template of fields, or a chat."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from stages.readers.fields import lookup
from stages.readers.record import ReadSettings, Unfit

TextOf = Callable[[dict[str, Any]], str]

#: Chat templates: name -> the form of one message. The markers are plain text to the tokenizer.
CHAT: dict[str, str] = {
    "chatml": "<|im_start|>{role}\n{content}<|im_end|>\n",
    "llama3": "<|start_header_id|>{role}<|end_header_id|>\n\n{content}<|eot_id|>",
    "plain": "{role}: {content}\n\n",
}

#: Roles as other record formats spell them.
_ROLES = {"human": "user", "gpt": "assistant", "bot": "assistant"}

_TOKEN = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")


def parse_template(template: str) -> list[tuple[str, str | None]]:
    """`[(literal, field or None), …]` of a template; `{{` and `}}` are braces.

    Raises ValueError with a sentence when a brace has no partner or a field has no name.
    """
    parts: list[tuple[str, str | None]] = []
    literal, done = "", 0
    for match in _TOKEN.finditer(template):
        literal += template[done : match.start()]
        done = match.end()
        token = match.group()
        if token in ("{{", "}}"):
            literal += token[0]
        elif token in ("{", "}"):
            raise ValueError(
                f"the template has a single {token!r} at character {match.start() + 1}; double it to mean it"
            )
        elif not match.group(1).strip():
            raise ValueError(f"the template has a field without a name at character {match.start() + 1}")
        else:
            parts.append((literal, match.group(1).strip()))
            literal = ""
    parts.append((literal + template[done:], None))
    return parts


def text_fields(settings: ReadSettings) -> list[str]:
    """The fields that make the text, in order. Raises ValueError as `parse_template` does."""
    if settings.messages is not None:
        return [settings.text or "messages"]
    text = settings.text or "text"
    if not is_template(text):
        return [text]
    fields = [field for _, field in parse_template(text) if field is not None]
    if not fields:
        raise ValueError(f"the template {text!r} names no field")
    return fields


def is_template(text: str) -> bool:
    """Whether a `text` setting is a template rather than the name of a field."""
    return "{" in text or "}" in text


def plain_field(settings: ReadSettings) -> str | None:
    """The one field that is the text as it stands, or None if the text is made of more."""
    text = settings.text or "text"
    return text if settings.messages is None and not is_template(text) else None


def text_maker(settings: ReadSettings) -> TextOf:
    """A function record -> text that raises `Unfit`. Raises ValueError if the settings cannot be meant."""
    if settings.messages is not None:
        if settings.messages not in CHAT:
            raise ValueError(f"no chat template is called {settings.messages!r}; there are {', '.join(CHAT)}")
        return _chat(settings.text or "messages", CHAT[settings.messages])
    fields = text_fields(settings)
    field = plain_field(settings)
    if field is not None:
        return lambda record: _string(lookup(record, field), field)
    parts = parse_template(settings.text or "text")
    assert fields
    return lambda record: "".join(
        literal if name is None else literal + _filled(lookup(record, name), name) for literal, name in parts
    )


def _string(value: Any, name: str) -> str:
    if isinstance(value, str):
        return value
    kind = "null" if value is None else f"of type {type(value).__name__}"
    raise Unfit("not-text", f"field {name!r} is {kind}")


def _filled(value: Any, name: str) -> str:
    """A value inside a template: integers may stand beside strings ("{year}")."""
    return str(value) if type(value) is int else _string(value, name)


def _chat(field: str, form: str) -> TextOf:
    parts = parse_template(form)

    def made(record: dict[str, Any]) -> str:
        messages = lookup(record, field)
        if not isinstance(messages, list):
            raise Unfit("not-text", f"field {field!r} is not a list of messages")
        return "".join(_message(message, field, number, parts) for number, message in enumerate(messages))

    return made


def _message(message: Any, field: str, number: int, parts: list[tuple[str, str | None]]) -> str:
    """One message; both {role, content} and {from, value} are understood."""
    place = f"{field}[{number}]"
    if not isinstance(message, dict):
        raise Unfit("not-text", f"{place} is not an object")
    role = _first(message, ("role", "from"), place)
    content = _first(message, ("content", "value"), place)
    if isinstance(content, list):  # parts: [{"type": "text", "text": …}, …]
        content = "".join(_part(part, place) for part in content)
    values = {"role": _string(role, f"{place}.role"), "content": _string(content, f"{place}.content")}
    values["role"] = _ROLES.get(values["role"], values["role"])
    return "".join(literal if name is None else literal + values[name] for literal, name in parts)


def _first(message: dict[str, Any], names: tuple[str, ...], place: str) -> Any:
    for name in names:
        if name in message:
            return message[name]
    raise Unfit("missing-field", f"{place} has no {' or '.join(names)}")


def _part(part: Any, place: str) -> str:
    if isinstance(part, dict) and part.get("type") == "text":
        return _string(part.get("text"), f"{place}.content.text")
    raise Unfit("not-text", f"{place} has a part that is not text")
