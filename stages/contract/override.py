"""`--set a.b=c`: values on the command line that override those of the file.

The value is YAML, so `--set sources.web.keep_meta=[url]` works. A step of the path is a key, an index of a list, or,
in a list, the name of its item: of a stage (`stages.pii.replace=tag`) or of an item with that `name`
(`phases.refine.share=20%`). A key with a dot in it goes in quotes: `mix."web.0"=40%`.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from typing import Any

from stages.contract.problem import Problem, SpecError, Where
from stages.contract.scalars import secret_name
from stages.contract.tree import Document, Items, Path, Table, Text, compose, kind_of, mask_line, path_text

FLAG = "--set "

_STEP = re.compile(r'"([^"]+)"|([^."]+)')
_PATH = re.compile(rf"(?:{_STEP.pattern})(?:\.(?:{_STEP.pattern}))*")


def apply_override(root: Table, override: str, problems: list[Problem]) -> None:
    """Puts one `path=value` into the tree, in place; what is wrong with it goes to `problems`."""
    left, equals, right = override.partition("=")
    steps = [found[1] or found[2] for found in _STEP.finditer(left)]
    hidden = any(secret_name(step, "storage_options" if "storage_options" in steps else None) for step in steps)
    shown = f"{FLAG}{mask_line(left)}{equals}{'***' if hidden else mask_line(right)}"
    at = Where(FLAG.strip(), 1, len(FLAG) + 1, shown, max(1, len(left)))
    if not equals or not _PATH.fullmatch(left):
        message = "an override must have the form path=value"
        problems.append(Problem("C014", message, at, ("write for example --set output.shard_tokens=64M",)))
        return
    if steps[0] == "extends":
        problems.append(Problem("C014", "`extends` is read before overrides; it can stand in a file only", at))
        return
    document = Document(FLAG.strip(), os.getcwd(), f"{FLAG}{override}", len(FLAG) + len(left) + 1)
    try:
        value = compose(document, problems)
    except SpecError as error:
        problems += [Problem(p.code, p.message, at, p.repairs) for p in error.problems]
        return
    if hidden:
        _hide(value, shown)
    elif value is not None:
        at = replace(at, text=value.where.text)
    try:
        _put(root, (), steps, value, at)
    except _CannotStepError as error:
        problems.append(Problem("C014", str(error), at))


class _CannotStepError(Exception):
    """A step of the path leads nowhere; the text is a sentence for the user."""


def _put(node: Any, path: Path, steps: list[str], value: Any, at: Where) -> None:
    """Sets the value below the node. Mappings on the way are made; lists are only walked."""
    name = path_text(path)
    if isinstance(node, Table):
        step, rest = _longest_key(node, steps)
        if not rest or node.get(step) is None:
            node[step], node.keys_at[step] = (_empty_table(at) if rest else value), at
        if rest:
            _put(node[step], (*path, step), rest, value, at)
    elif isinstance(node, Items):
        index, rest = _item(node, steps, name)
        if rest:
            _put(node[index], (*path, index), rest, value, at)
        else:
            node[index] = value
    else:
        raise _CannotStepError(f"{name} is {kind_of(node)}, so it has no `{steps[0]}`")


def _longest_key(table: Table, steps: list[str]) -> tuple[str, list[str]]:
    """The key that the next steps spell (`web`, `0` spell `web.0` if that is a key), and the steps behind it."""
    for count in range(len(steps), 1, -1):
        joined = ".".join(steps[:count])
        if joined in table:
            return joined, steps[count:]
    return steps[0], steps[1:]


def _item(items: Items, steps: list[str], name: str) -> tuple[int, list[str]]:
    """Which item of a list the first step means, and the steps from that item on.

    A bare stage (`- pii`) that gets a setting becomes `- pii: {}`; its name may be left out of the path.
    """
    step, rest = steps[0], steps[1:]
    if step.isdecimal():
        index = int(step)
        if index >= len(items):
            raise _CannotStepError(f"{name} has no item {step}: it has {len(items)}, counted from 0")
    else:
        found = [index for index, item in enumerate(items) if _is_called(item, step)]
        if len(found) > 1:
            places = ", ".join(f"{name}.{index}" for index in found)
            raise _CannotStepError(f"{name} has {len(found)} items called `{step}`; say which: {places}")
        if not found:
            raise _CannotStepError(f"{name} has no item called `{step}`")
        index = found[0]
        if isinstance(items[index], Text) or step in items[index]:
            rest = [step, *rest]
    if rest and isinstance(items[index], Text):
        items[index] = _single(items[index])
    item = items[index]
    if rest and isinstance(item, Table) and len(item) == 1 and rest[0] not in item:
        only, settings = next(iter(item.items()))
        if settings is None or isinstance(settings, Table):
            rest = [only, *rest]
    return index, rest


def _is_called(item: Any, name: str) -> bool:
    if isinstance(item, Table):
        return item.get("name") == name or (len(item) == 1 and name in item)
    return item == name


def _single(name: Text) -> Table:
    table = _empty_table(name.where)
    table[str(name)] = _empty_table(name.where)
    table.keys_at[str(name)] = name.where
    return table


def _empty_table(where: Where) -> Table:
    table = Table()
    table.where, table.keys_at = where, {}
    return table


def _hide(value: Any, shown: str) -> None:
    """Makes the places of a secret show its path only."""
    if hasattr(value, "where"):
        value.where = replace(value.where, text=shown, width=3)
    for child in value.values() if isinstance(value, Table) else value if isinstance(value, Items) else ():
        _hide(child, shown)
