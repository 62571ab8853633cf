"""`trainer plan --init`: a complete plan.yaml for a corpus and a machine, every value with its reason.

What is given or free is written; what follows from it stands in a comment, so that it follows again when a value is
changed. Facts of this machine that only estimate time are comments too.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

import yaml
from pydantic import BaseModel

from trainer.config import PlanConfig
from trainer.planning.explain import help_of
from trainer.planning.figures import written
from trainer.planning.plan import Study

#: Words behind a `#` begin in this column.
COMMENT = 44

#: Keys that are worked out by shares, or belong to other machines, and are better left to the plan.
LEFT_OUT = frozenset({"data.tokens_per_parameter", "model.vocab_size"})


def plan_yaml(study: Study) -> str:
    """The text of the file. `study` must not have failed."""
    name = study.plan.name if study.plan is not None else "plan"
    lines = [
        "# yaml-language-server: $schema=plan.schema.json",
        "# Written by `trainer plan --init`. A line in a comment follows from the others, or is switched off.",
        "# Ask `trainer plan THIS --explain KEY` why a value is what it is.",
        *_line("name", _text(name), help_of("name"), True),
    ]
    for key, info in PlanConfig.model_fields.items():
        section = getattr(study.draft.config, key)
        if isinstance(section, BaseModel):
            inside = list(_section(study, key, section))
            empty = all(line.lstrip().startswith("#") for line in inside)
            lines += ["", f"{key}: {{}}" if empty else f"{key}:", *inside]
        elif key != "name":
            lines += _line(key, _text(section), info.description or "", section is not None)
    return "\n".join(lines) + "\n"


def _section(study: Study, section: str, config: BaseModel) -> Iterator[str]:
    for key in type(config).model_fields:
        name = f"{section}.{key}"
        value, given = getattr(config, key), study.draft.given((section, key))
        known = study.values.known.get(name)
        why = help_of(name)
        if name == "data.mix":
            value = None if study.draft.phases and not given else study.draft.mix or None
        elif name == "data.phases":
            value = [phase.model_dump(exclude_defaults=True) for phase in study.draft.phases] or None
            given = value is not None
        on = value is not None and value != () and value != {}
        text = _text(value)
        if known is not None:
            text, on = written(name, known.number), known.origin != "derived" and name not in LEFT_OUT
            why = f"{why} {'Follows' if known.origin == 'derived' else 'Chosen'}: {known.why}." if known.why else why
            if known.why == "the default":
                why = help_of(name)
        on = on and (given or section != "hardware" or name == "hardware.memory_target")
        if name == "data.phases" and on:
            yield f"  phases:{' ' * (COMMENT - 11)} # {why}"
            yield from (f"    - {_text(phase)}" for phase in value)
            continue
        yield from _line(key, text, why, on, "  ")


def _line(key: str, text: str, why: str, on: bool, indent: str = "") -> Iterator[str]:
    """`  key: value   # why`, in a comment where it is not on; long reasons go on in lines of their own."""
    head = f"{indent}{'' if on else '# '}{key}: {text}".rstrip()
    if not why:
        yield head
        return
    words = textwrap.wrap(why, 110 - COMMENT)
    first = head.ljust(COMMENT - 2)
    if len(first) > COMMENT - 2:
        yield from (f"{indent}# {line}" for line in textwrap.wrap(why, 100))
        yield head
        return
    yield f"{first}  # {words[0]}"
    yield from (f"{' ' * COMMENT}# {line}" for line in words[1:])


def _text(value: Any) -> str:
    """A value on one line of YAML."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return f"{value:_}"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, tuple):
        value = list(value)
    if isinstance(value, dict):  # amounts of tokens are whole numbers
        value = {k: int(v) if isinstance(v, float) and v >= 1 and v.is_integer() else v for k, v in value.items()}
    plain = yaml.safe_dump(value, default_flow_style=True, width=1 << 20, allow_unicode=True, sort_keys=False)
    return plain.removesuffix("\n...\n").removesuffix("\n")


