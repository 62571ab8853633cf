"""Reading a config file into a pydantic model, with every problem found and each at its line.

    loaded = load("corpus.yaml", Corpus, overrides=["output.shard_tokens=64M"])
    loaded.value                       the model
    loaded.where(("mix", "web"))       the place of a value, so that a planner can point at it too

Order of precedence: defaults < `extends` < the file < `--set`. The tree of `tree.py` goes to pydantic as text, so the
type of a field decides what `no`, `3e-4` or `140B` mean. The scalar types are re-exported here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from stages.contract.names import canonical_json, digest
from stages.contract.override import apply_override
from stages.contract.problem import Problem, SpecError, Where, in_order
from stages.contract.scalars import Count, FilePath, Secret, Share, Size, Span, StorageOptions, reveal
from stages.contract.tree import Path, Table, Text, leaves, path_text, place, read_tree, value_at
from stages.contract.wrong import problems_of

__all__ = [
    "Count", "FilePath", "Loaded", "Model", "Secret", "Share", "Size", "Span", "StorageOptions",
    "json_schema", "load", "reveal", "validate",
]  # fmt: skip


class Model(BaseModel):
    """The base of every part of a config file: frozen, and a key it does not have is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True)
class Loaded(Generic[M]):
    """A config file that was read: the model, and the tree that knows where each value stands."""

    value: M
    tree: Table
    path: str

    def where(self, path: Path, key: bool = False) -> Where | None:
        """The place of a value (or of its key); of the nearest mapping above it if it was not given."""
        return place(self.tree, path, key)

    def given(self, path: Path) -> bool:
        """Whether the value was given, in a file or by `--set`, and is not just a default."""
        return value_at(self.tree, path) is not None

    def problem(
        self,
        code: str,
        message: str,
        path: Path = (),
        repairs: Sequence[str] = (),
        severity: Literal["error", "warning"] = "error",
    ) -> Problem:
        """A problem at the place of a value."""
        return Problem(code, message, self.where(path), tuple(repairs), severity)

    @property
    def origins(self) -> dict[str, Where]:
        """The place of every value that was given, by its path as text."""
        return {path_text(path): where for path, _ in leaves(self.tree) if (where := place(self.tree, path))}

    @property
    def digest(self) -> str:
        """SHA-256 over all settings, defaults too. Secrets and folders are not part of it."""
        return digest(canonical_json(self.value.model_dump(mode="json", by_alias=True, context={"digest": True})))


def load(
    path: str | os.PathLike[str], model: type[M], overrides: Sequence[str] = (), context: Mapping[str, Any] | None = None
) -> Loaded[M]:
    """The file as an instance of the model. `overrides` are the texts behind `--set`.

    SpecError with all problems, sorted by file and line. `context` is handed to the validators of the model.
    """
    tree, problems = load_tree(path, overrides)
    value, wrong = validate(tree, model, context=context)
    problems += wrong
    if value is None or problems:
        raise SpecError(*in_order(problems))
    return Loaded(value, tree, os.fspath(path))


def load_tree(path: str | os.PathLike[str], overrides: Sequence[str] = ()) -> tuple[Table, list[Problem]]:
    """The tree of a file with the overrides in it, and the problems found so far. SpecError if there is no tree."""
    tree, problems = read_tree(path)
    for override in overrides:
        apply_override(tree, override, problems)
    return tree, problems


def validate(
    tree: Table, model: type[M], at: Path = (), context: Mapping[str, Any] | None = None
) -> tuple[M | None, list[Problem]]:
    """The part of the tree at the path `at` as the model, or None and what is wrong with it.

    A part that is not there (a stage without settings) is taken as an empty mapping.
    """
    node = value_at(tree, at)
    data: Any = {} if node is None else node
    for _ in range(2):
        try:
            return model.model_validate(data, context=dict(context or {})), []
        except ValidationError as error:
            errors = error.errors(include_url=False)
            data, changed = _with_whole_numbers(data, errors)
            if not changed:
                break
    return None, problems_of(errors, tree, at, model)


def _with_whole_numbers(data: Any, errors: Sequence[Any]) -> tuple[Any, bool]:
    """The data with texts such as `2e9` as integers where a field asked for an integer and got them as text."""
    changed, copied = False, False
    for error in errors:
        if error["type"] not in {"int_parsing", "literal_error"} or not isinstance(error["input"], Text):
            continue
        number = _whole_number(error["input"])
        if number is None:
            continue
        if not copied:
            data, copied = _thawed(data), True
        holder, steps = data, list(error["loc"])
        while steps:
            step = steps.pop(0)
            inside = step in holder if isinstance(holder, dict) else isinstance(step, int) and step < len(holder)
            if not inside:
                break
            if not isinstance(holder[step], dict | list):
                holder[step] = number
                changed = True
                break
            holder = holder[step]
    return data, changed


def _whole_number(text: str) -> int | None:
    """The integer that a decimal text stands for, if it does and fits 64 bits."""
    try:
        number = Decimal(text.replace("_", ""))
    except ArithmeticError:
        return None
    if not number.is_finite() or number.adjusted() > 19 or abs(number) >= 2**63 or number != number.to_integral_value():
        return None
    return int(number)


def _thawed(node: Any) -> Any:
    """A copy of mappings and lists; scalars are shared."""
    if isinstance(node, dict):
        return {key: _thawed(value) for key, value in node.items()}
    return [_thawed(value) for value in node] if isinstance(node, list) else node


def json_schema(model: type[BaseModel]) -> dict[str, Any]:
    """JSON Schema, draft 7, of a config file: what editors can check. Descriptions are those of the fields."""
    schema = draft7(model.model_json_schema(by_alias=True))
    properties = schema.setdefault("properties", {})
    properties["extends"] = {
        "description": "Files to start from, relative to this one. Mappings merge, lists replace.",
        "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
    }
    return {"$schema": "http://json-schema.org/draft-07/schema#", **schema}


def draft7(schema: Any, of_names: bool = False) -> Any:
    """A schema of draft 2020-12, as pydantic writes it, in draft 7; made-up titles are left out.

    `of_names` says that the keys are names of properties, not words of JSON Schema.
    """
    if isinstance(schema, list):
        return [draft7(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if of_names:
        return {name: draft7(item) for name, item in schema.items()}
    renamed = {"$defs": "definitions", "prefixItems": "items"}
    out: dict[str, Any] = {}
    for word, value in schema.items():
        if word == "title":
            continue
        if word in {"default", "const", "enum", "examples", "required"}:
            out[word] = value
        elif word == "$ref":
            out[word] = value.replace("#/$defs/", "#/definitions/")
        else:
            out[renamed.get(str(word), str(word))] = draft7(value, word in {"properties", "$defs", "definitions"})
    if "$ref" in out and len(out) > 1:  # draft 7 ignores what stands beside a $ref
        reference = out.pop("$ref")
        out["allOf"] = [{"$ref": reference}]
    return out
