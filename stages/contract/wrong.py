"""Pydantic's errors as problems: each at its line, in words that say what is true and what would work."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import BaseModel

from stages.contract.problem import Problem
from stages.contract.scalars import secret_name
from stages.contract.tree import Items, Path, Table, Text, kind_of, path_text, place, value_at

LONGEST_SHOWN = 60

_MAPPING = "a mapping (`key: value` lines)"
_LIST = "a list such as [a, b]"
_WHOLE = "a whole number such as 2000"

#: Pydantic's error type -> what the value must be.
EXPECTED: dict[str, str] = {
    "int_parsing": _WHOLE, "int_type": _WHOLE, "int_from_float": _WHOLE, "int_parsing_size": _WHOLE,
    "float_parsing": "a number such as 0.1 or 3e-4", "float_type": "a number such as 0.1 or 3e-4",
    "bool_parsing": "true or false", "bool_type": "true or false",
    "string_type": "text",
    "list_type": _LIST, "tuple_type": _LIST, "set_type": _LIST, "frozen_set_type": _LIST, "iterable_type": _LIST,
    "dict_type": _MAPPING, "model_type": _MAPPING, "model_attributes_type": _MAPPING, "mapping_type": _MAPPING,
}  # fmt: skip

#: Error types of members of a union that are scalars.
OF_SCALARS = frozenset({"expected", "literal_error", "enum"})

#: Pydantic's error type -> what the value must keep to, with the names of pydantic's context.
BOUNDS: dict[str, str] = {
    "greater_than": "it must be greater than {gt}",
    "greater_than_equal": "it must be at least {ge}",
    "less_than": "it must be less than {lt}",
    "less_than_equal": "it must be at most {le}",
    "multiple_of": "it must be a multiple of {multiple_of}",
    "finite_number": "it must be a finite number",
    "too_short": "it must hold at least {min_length}",
    "too_long": "it must hold at most {max_length}",
    "string_too_short": "it must have at least {min_length} characters",
    "string_too_long": "it must have at most {max_length} characters",
    "string_pattern_mismatch": "it must match {pattern}",
}


def problems_of(errors: Sequence[Any], tree: Table, at: Path, model: type[BaseModel]) -> list[Problem]:
    """The errors that pydantic found in the part of the tree at the path `at`, one problem for each place."""
    found: list[Problem] = []
    by_path: dict[Path, list[Any]] = {}
    looked_into: set[Path] = set()  # mappings and lists that some member of a union accepted as such
    for error in errors:
        path = (*at, *_walk(value_at(tree, at), error["loc"]))
        looked_into.update(path[:n] for n in range(len(path)))
        if error["type"] == "missing":
            looked_into.add(path)
            found.append(_missing(error, tree, path))
        elif error["type"] == "extra_forbidden":
            found.append(_unknown(error, tree, at, path, model))
        else:
            by_path.setdefault(path, []).append(error)
    for path, group in by_path.items():
        if path in looked_into and all(error["type"] in {*EXPECTED, *OF_SCALARS} for error in group):
            continue  # the other members of the union; what was found inside says more
        found += _wrong_value(group, tree, path)
    return list(dict.fromkeys(found))


def nearest(name: str, valid: Iterable[str]) -> str | None:
    """The valid name that is most like this one, if any is much like it."""
    by_fold = {v.casefold().replace("-", "_"): v for v in sorted(valid)}
    close = difflib.get_close_matches(name.casefold().replace("-", "_"), by_fold, 1, 0.6)
    return by_fold[close[0]] if close else None


def name_repairs(name: str, valid: Iterable[str], label: str) -> tuple[str, ...]:
    """Repairs for a name that does not exist: the nearest one, and the list of all."""
    names = sorted(valid)
    close = nearest(name, names)
    listed = f"{label}: {', '.join(names) if names else 'none'}"
    return (f"did you mean `{close}`?", listed) if close else (listed,)


def shown(value: Any, path: Path = ()) -> str:
    """The value for a message: text in backticks, cut if long; a secret as stars."""
    if value is None or isinstance(value, dict | list):
        return kind_of(value)
    keys = [step for step in path if isinstance(step, str)]
    options = "storage_options" if "storage_options" in keys else None
    if keys[-1:] == ["storage_options"] or any(secret_name(key, options) for key in keys):
        return "`***`"
    text = str(value)
    return f"`{text[:LONGEST_SHOWN]}...`" if len(text) > LONGEST_SHOWN else f"`{text}`"


def keys_at(model: type[BaseModel], path: Path) -> list[str]:
    """The keys that the model allows at the path, sorted; none if the path leads out of the model."""
    whole = model.model_json_schema(by_alias=True)
    places = [whole]
    for step in path:
        places = [inner for outer in places for inner in _below(whole, outer, step)]
    return sorted({key for schema in places for member in _members(whole, schema) for key in member.get("properties", {})})


def _members(whole: dict[str, Any], schema: Any) -> list[dict[str, Any]]:
    """The schema with references followed and unions taken apart."""
    if not isinstance(schema, dict):
        return []
    if "$ref" in schema:
        return _members(whole, whole["$defs"][schema["$ref"].rsplit("/", 1)[-1]])
    inner = [*schema.get("anyOf", ()), *schema.get("oneOf", ()), *schema.get("allOf", ())]
    return [schema, *(member for item in inner for member in _members(whole, item))]


def _below(whole: dict[str, Any], schema: Any, step: str | int) -> list[Any]:
    if isinstance(step, int):
        return [m["items"] for m in _members(whole, schema) if "items" in m]
    found = []
    for member in _members(whole, schema):
        properties = member.get("properties", {})
        found.append(properties[step] if step in properties else member.get("additionalProperties"))
    return [schema for schema in found if isinstance(schema, dict)]


def _walk(node: Any, loc: Sequence[str | int]) -> Path:
    """The part of pydantic's location that is in the tree: names of union members are not."""
    path: list[str | int] = []
    for step in loc:
        if isinstance(node, Table) and step in node:
            node = node[str(step)]
        elif isinstance(node, Items) and isinstance(step, int) and step < len(node):
            node = node[step]
        else:
            continue
        path.append(step)
    return tuple(path)


def _missing(error: Any, tree: Table, path: Path) -> Problem:
    inside = f" in {path_text(path)}" if path else ""
    where = place(tree, path, key=True) if path else tree.where
    return Problem("C002", f"`{error['loc'][-1]}` is missing{inside}", where)


def _unknown(error: Any, tree: Table, at: Path, path: Path, model: type[BaseModel]) -> Problem:
    key = str(path[-1]) if path else str(error["loc"][-1])
    above = path[:-1]
    inside = f" in {path_text(above)}" if above else ""
    valid = [*keys_at(model, above[len(at) :]), *(() if above else ("extends",))]
    repairs = name_repairs(key, valid, "keys here")
    return Problem("C001", f"unknown key `{key}`{inside}", place(tree, path, key=True), repairs)


def _wrong_value(group: list[Any], tree: Table, path: Path) -> list[Problem]:
    """The problems of one value. Errors of the members of a union become one sentence with `or`."""
    where = place(tree, path)
    value = value_at(tree, path)
    subject = f"{path_text(path)} is {shown(value, path)}" if path else "this"
    expected, repairs, problems = [], [], []
    code = "C004"
    for error in group:
        kind, context = error["type"], error.get("ctx", {})
        if kind in EXPECTED:
            expected.append(EXPECTED[kind])
            if EXPECTED[kind] == _LIST and isinstance(value, Text) and "***" not in subject:
                repairs.append(f"write [{value}]")
        elif kind == "expected":
            expected.append(error["msg"])
        elif kind in {"literal_error", "enum"}:
            choices = re.findall(r"'([^']*)'", context["expected"])
            expected.append(_one_of(choices) if choices else context["expected"])
            close = nearest(str(value), choices) if isinstance(value, Text) else None
            repairs += [f"did you mean `{close}`?"] if close else []
            code = "C005"
        elif kind in BOUNDS:
            problems.append(Problem("C005", f"{subject}; {BOUNDS[kind].format(**context)}", where))
        elif kind == "bound":
            problems.append(Problem("C005", f"{subject}; {error['msg']}", where))
        elif kind in {"value_error", "assertion_error"}:
            sentence = str(context.get("error", error["msg"]))
            head = f"{path_text(path)}: " if path else ""
            problems.append(Problem("C005", f"{head}{sentence}", where))
        else:
            problems.append(Problem("C005", f"{subject}: {error['msg']}", where))
    if expected and not problems:  # out of bounds: of the right type for one member of the union
        wanted = " or ".join(dict.fromkeys(expected))
        problems.insert(0, Problem(code, f"{subject}; it must be {wanted}", where, tuple(dict.fromkeys(repairs))))
    return problems


def _one_of(choices: Sequence[str]) -> str:
    quoted = [f"`{choice}`" for choice in choices]
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} or {quoted[-1]}"
