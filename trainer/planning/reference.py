"""The reference part of docs/plan-yaml.md, made of the tables that the program itself reads.

    python -m trainer.planning.reference        writes it anew; a test compares
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trainer.config import PlanConfig, plan_schema
from trainer.planning.equations import EQUATIONS, FIELDS
from trainer.planning.explain import help_of
from trainer.planning.memory import PARTS
from trainer.planning.rules import RULES
from trainer.planning.suggest import SUGGESTIONS

PAGE = Path(__file__).parents[2] / "docs" / "plan-yaml.md"
BEGIN, END = "<!-- reference begin -->", "<!-- reference end -->"


def reference() -> str:
    """Every key, equation, rule and value, as Markdown."""
    return "\n".join([*_keys(), *_equations(), *_rules(), *_values(), *_suggestions()]).strip() + "\n"


def _keys() -> Iterator[str]:
    schema = plan_schema()
    yield from ("## Keys", "", *_table(schema, [name for name, info in PlanConfig.model_fields.items() if not _section(info)]))
    for name, info in PlanConfig.model_fields.items():
        if _section(info):
            model = schema["definitions"][info.annotation.__name__]  # type: ignore[union-attr]
            yield from (f"### {name}", "", *_table(model, list(model["properties"])))
    phase = schema["definitions"]["Phase"]
    yield from ("### phases", "", "An item of `data.phases`.", "", *_table(phase, list(phase["properties"])))


def _section(info: Any) -> bool:
    return hasattr(info.annotation, "model_fields")


def _table(model: dict[str, Any], names: list[str]) -> Iterator[str]:
    yield from ("| key | default | meaning |", "|---|---|---|")
    for name in names:
        about = model["properties"][name]
        yield f"| `{name}` | {_default(about.get('default'))} | {_cell(about.get('description', ''))}{_choices(about)} |"
    yield ""


def _default(value: Any) -> str:
    if value is None or value == [] or value == {}:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return ", ".join(map(str, value)) if isinstance(value, list) else f"{value:,}" if isinstance(value, int) else str(value)


def _choices(about: dict[str, Any]) -> str:
    found = about.get("enum") or [v for one in about.get("anyOf", ()) for v in one.get("enum", ())]
    return f" One of {', '.join(f'`{value}`' for value in found)}." if found else ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _equations() -> Iterator[str]:
    yield from ("## Equations", "", "Any one value of an equation may be left out.", "",
                "| what | equation | source |", "|---|---|---|")  # fmt: skip
    for one in EQUATIONS:
        yield f"| {one.title} | `{one.formula()}` | {_cell(one.source)} |"
    yield ""


def _rules() -> Iterator[str]:
    yield from ("## Rules", "", "A value that no equation gives. Free values may as well be given.", "",
                "| value | free | rule | source |", "|---|---|---|---|")  # fmt: skip
    for one in RULES:
        yield f"| `{one.field}` | {'yes' if one.free else ''} | {_cell(one.text)} | {_cell(one.source)} |"
    yield ""


def _values() -> Iterator[str]:
    yield from ("## Values that are no keys", "", "| value | unit | meaning |", "|---|---|---|")
    for name, field in FIELDS.items():
        if field.help:
            yield f"| `{name}` | {field.unit} | {_cell(help_of(name))} |"
    for part in PARTS:
        yield f"| `memory.{part.replace(' ', '_')}` | bytes | A part of the memory of a device, at its fullest moment. |"
    yield ""


def _suggestions() -> Iterator[str]:
    yield from ("## Suggestions", "", "| name | learning rate and tokens of a step | source |", "|---|---|---|")
    for one in SUGGESTIONS:
        yield f"| `suggest.{one.name}` | {_cell(one.formula)} | {_cell(one.source)} |"
    yield ""


def with_reference(text: str) -> str:
    """The page with its reference part as it should be."""
    pattern = re.compile(f"{re.escape(BEGIN)}\n.*?{re.escape(END)}", re.DOTALL)
    assert pattern.search(text), f"the page has no {BEGIN}"
    return pattern.sub(lambda _found: f"{BEGIN}\n{reference()}{END}", text)


if __name__ == "__main__":
    PAGE.write_text(with_reference(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
