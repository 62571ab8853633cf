"""What a stage does to one text, and why: for `pipeline try` and for `python -m stages.<name> "text"`."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Sequence
from typing import Any

import yaml
from pydantic import ValidationError

from stages.document import DOCUMENT, document_batch
from stages.stage import REGISTRY, RowStage, Stage, stage_class

#: Longer texts are shown by what changed in them.
_WHOLE = 4000


def make_stage(name: str, settings: Sequence[str]) -> Stage:
    """A stage with settings as `key=value`, values as YAML has them. ValueError with a sentence where it cannot be."""
    try:
        found = stage_class(name)
    except KeyError:
        near = difflib.get_close_matches(name, REGISTRY, 1, 0)
        raise ValueError(f"there is no stage called `{name}`; the nearest is {near[0]}") from None
    given: dict[str, Any] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise ValueError(f"`{setting}` is not key=value")
        given[key] = yaml.safe_load(value)
    try:
        stage = found(**given)
    except ValidationError as error:
        said = [f"{'.'.join(map(str, e['loc'])) or name}: {e['msg']}" for e in error.errors()]
        raise ValueError("; ".join(said)) from error
    if wrong := stage.problems():
        raise ValueError("; ".join(wrong))
    stage = stage.simplest()
    if not isinstance(stage, RowStage) and type(stage).explain is Stage.explain:
        raise ValueError(f"{name} decides by comparing documents, so one text alone shows nothing")
    return stage


def attempt(stage: Stage, text: str, source: str = "try", meta: str | None = None) -> dict[str, Any]:
    """What the stage does: `kept`, `reason`, `value`, `text` after it, `columns` added, `why` (lines that explain)."""
    batch = document_batch(source, ["stdin"], [0], [text], metas=[meta])
    row = (stage.apply(batch) if isinstance(stage, RowStage) else batch).to_pylist()[0]
    columns = {name: value for name, value in row.items() if name not in DOCUMENT.names}
    return {
        "stage": stage.name,
        "kept": row["drop"] is None,
        "reason": row["drop"],
        "value": row["drop_value"],
        "text": row["text"],
        "columns": columns,
        "why": stage.explain(batch),
    }


def shown(before: str, result: dict[str, Any]) -> str:
    """The same for people."""
    verdict = "kept" if result["kept"] else f"dropped: {result['reason']}"
    value = f" ({result['value']})" if result["value"] else ""
    lines = [f"{result['stage']}: {verdict}{value}"]
    lines += [f"  {name}: {item}" for name, item in result["columns"].items()]
    lines += [f"  {line}" for line in result["why"]]
    if result["text"] == before:
        lines.append("the text is unchanged")
    elif len(before) <= _WHOLE:
        lines += ["the text is now:", result["text"]]
    else:
        changes = difflib.unified_diff(
            before.split("\n"), result["text"].split("\n"), "before", "after", n=0, lineterm=""
        )
        lines += ["the text changed:", *changes]
    return "\n".join(lines)


def main(name: str) -> None:
    """The program behind `python -m stages.<name>`: text as an argument or on stdin."""
    parser = argparse.ArgumentParser(
        prog=f"python -m stages.{name}", description=f"What the stage {name} does to a text, and why."
    )
    parser.add_argument("text", nargs="?", help="left out: it is read from stdin")
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="KEY=VALUE")
    given = parser.parse_args()
    text = sys.stdin.buffer.read().decode("utf-8", "replace") if given.text is None else given.text
    try:
        stage = make_stage(name, given.settings)
    except ValueError as error:
        sys.exit(f"{name}: {error}")
    sys.stdout.buffer.write((shown(text, attempt(stage, text)) + "\n").encode("utf-8", "replace"))
