"""A YAML file as a tree whose every key and value knows its place.

YAML guesses types (`no` is False, `12:30:00` is 45000, `3e-4` is text); here nothing is guessed. Scalars stay text and
the type of the field they are for reads them. Only the empty value, `~` and a plain `null` become None.

A file may say `extends: [base.yaml]`: mappings merge, lists and scalars replace, and each value keeps the file it came
from, for messages and because relative paths are relative to it. Anchors, aliases and `<<` work, tags do not; the tree
is bounded, since aliases of aliases can make a small file into a huge one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from stages.contract.problem import Problem, SpecError, Where
from stages.contract.scalars import secret_name

LARGEST_FILE = 4 * 2**20  # bytes
MOST_NODES = 100_000  # after aliases are followed
DEEPEST = 64
NULLS = frozenset({"", "~", "null", "Null", "NULL"})
SWITCHES = frozenset({"true", "false", "yes", "no", "on", "off", *NULLS})  # not hidden even under the name of a secret
PLAIN_TAGS = frozenset(f"tag:yaml.org,2002:{kind}" for kind in ("str", "seq", "map"))

#: Path of a value: keys of mappings and indices of lists.
Path = tuple[str | int, ...]


class Text(str):
    """A scalar. `folder` is what relative paths in it are relative to."""

    where: Where
    folder: str
    quoted: bool


class Table(dict[str, Any]):
    """A mapping. `keys_at` has the place of each key."""

    where: Where
    keys_at: dict[str, Where]


class Items(list[Any]):
    """A list."""

    where: Where


@dataclass(frozen=True)
class Document:
    """Some YAML text. `file` is the name for messages; `offset` is where the YAML begins in `text` (for `--set`)."""

    file: str
    folder: str
    text: str
    offset: int = 0

    def where(self, start: int, end: int) -> Where:
        """The place of the characters from `start` to `end`, the end cut off at the end of the line."""
        start, end = start + self.offset, end + self.offset
        first = self.text.rfind("\n", 0, start) + 1
        last = self.text.find("\n", first)
        last = len(self.text) if last < 0 else last
        line = self.text[first:last].rstrip("\r")
        width = max(1, min(end, last) - start)
        return Where(self.file, self.text.count("\n", 0, start) + 1, start - first + 1, line, width)


def read_tree(path: str | os.PathLike[str]) -> tuple[Table, list[Problem]]:
    """The tree of a file with all it extends, and what is wrong that does not hinder reading on (double keys ...).

    SpecError if there is no tree: the file is missing, empty, not UTF-8, not YAML, or no mapping.
    """
    problems: list[Problem] = []
    return _read(os.fspath(path), None, (), problems), problems


def compose(document: Document, problems: list[Problem]) -> Any:
    """The document as Table, Items, Text or None. SpecError if it is not YAML; double keys go to `problems`."""
    yaml_text = document.text[document.offset :]
    try:
        node = yaml.compose(yaml_text, Loader=yaml.BaseLoader)
    except yaml.MarkedYAMLError as error:
        raise SpecError(_syntax_problem(error, document)) from None
    except yaml.reader.ReaderError as error:
        shown = f"U+{error.character:04X}" if isinstance(error.character, int) else repr(error.character)
        where = document.where(error.position, error.position + 1)
        raise SpecError(Problem("C011", f"the character {shown} cannot be in a YAML file", where)) from None
    except RecursionError:
        raise SpecError(Problem("C011", "values are nested too deeply", document.where(0, 1))) from None
    if node is None:
        return None
    return _Builder(_masked(document, node), problems).build(node, 0)


def place(root: Any, path: Path, key: bool = False) -> Where | None:
    """The place of the value at the path, or of its key; where the path leaves the tree, of the last one on it."""
    where, node = getattr(root, "where", None), root
    for step in path:
        if isinstance(node, Table) and step in node:
            above, node = node.keys_at[str(step)], node[str(step)]
            where = above if key else getattr(node, "where", above)
        elif isinstance(node, Items) and isinstance(step, int) and 0 <= step < len(node):
            node = node[step]
            where = getattr(node, "where", where)
        else:
            break
    return where


def value_at(root: Any, path: Path) -> Any:
    """The node at the path; None also if the path leaves the tree."""
    for step in path:
        if isinstance(root, Table) and step in root:
            root = root[str(step)]
        elif isinstance(root, Items) and isinstance(step, int) and 0 <= step < len(root):
            root = root[step]
        else:
            return None
    return root


def leaves(root: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Every scalar and every empty list or mapping with its path, in the order of the file."""
    if isinstance(root, Table) and root:
        for key, value in root.items():
            yield from leaves(value, (*path, key))
    elif isinstance(root, Items) and root:
        for index, value in enumerate(root):
            yield from leaves(value, (*path, index))
    elif path:
        yield path, root


def path_text(path: Path) -> str:
    """The path as people write it: `stages[1].language`."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


def merge(base: Any, over: Any) -> Any:
    """`over` on top of `base`: mappings merge key by key, anything else replaces."""
    if not (isinstance(base, Table) and isinstance(over, Table)):
        return over
    merged = Table(base)
    merged.where, merged.keys_at = over.where, {**base.keys_at, **over.keys_at}
    for key, value in over.items():
        merged[key] = merge(base.get(key), value)
    return merged


def _read(path: str, named_at: Where | None, stack: tuple[str, ...], problems: list[Problem]) -> Table:
    """The tree of one file and of what it extends. `named_at` is the place of its name in an `extends`."""
    document = Document(path, os.path.dirname(os.path.abspath(path)), _text_of(path, named_at))
    root = compose(document, problems)
    if root is None:
        raise SpecError(Problem("C010", f"{path} is empty", named_at or document.where(0, 1)))
    if not isinstance(root, Table):
        message = f"the top of {path} must be a mapping (`key: value` lines), not {kind_of(root)}"
        raise SpecError(Problem("C012", message, root.where))
    bases = root.pop("extends", None)
    named_by = root.keys_at.get("extends")
    merged = None
    for base in [bases] if isinstance(bases, Text) else bases or []:
        if not isinstance(base, Text):
            message = "`extends` must be a list of file names such as [base.yaml]"
            raise SpecError(Problem("C013", message, getattr(base, "where", named_by)))
        target = os.path.normpath(os.path.join(os.path.dirname(path), base))
        chain = (*stack, os.path.realpath(path))
        if os.path.realpath(target) in chain:
            raise SpecError(Problem("C013", f"{target} extends itself, directly or through another file", base.where))
        read = _read(target, base.where, chain, problems)
        merged = read if merged is None else merge(merged, read)
    return root if merged is None else merge(merged, root)


def _text_of(path: str, named_at: Where | None) -> str:
    try:
        with open(path, "rb") as file:
            data = file.read(LARGEST_FILE + 1)
    except OSError as error:
        reason = "there is no file" if isinstance(error, FileNotFoundError) else f"{error.strerror}:"
        raise SpecError(Problem("C013" if named_at else "C010", f"{reason} {path}", named_at)) from None
    if len(data) > LARGEST_FILE:
        message = f"{path} is larger than {LARGEST_FILE:,} bytes, too large for a config file"
        raise SpecError(Problem("C010", message, named_at))
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("utf-8-sig", "replace")
        line_rest = data[error.start :].split(b"\n")[0].decode("utf-8", "replace").rstrip("\r")
        shown = Document(path, "", before + line_rest)
        message = f"{path} is not UTF-8: byte 0x{data[error.start]:02x} at offset {error.start:,}"
        repairs = ("save the file as UTF-8",)
        raise SpecError(Problem("C010", message, shown.where(len(before), len(before) + 1), repairs)) from None


def kind_of(value: Any) -> str:
    """What kind of value it is, in words for a message."""
    if isinstance(value, dict):
        return "a mapping"
    return "a list" if isinstance(value, list) else "empty" if value is None else "text"


class _Builder:
    """Turns composed YAML nodes into the tree, counting nodes."""

    def __init__(self, document: Document, problems: list[Problem]) -> None:
        self.document = document
        self.problems = problems
        self.nodes = 0

    def where(self, node: yaml.Node) -> Where:
        return self.document.where(node.start_mark.index, node.end_mark.index)

    def build(self, node: yaml.Node, depth: int) -> Any:
        self.nodes += 1
        if self.nodes > MOST_NODES or depth > DEEPEST:
            message = f"more than {MOST_NODES:,} values after aliases are followed"
            if depth > DEEPEST:
                message = f"more than {DEEPEST} levels after aliases are followed; is an alias inside of its own anchor?"
            raise SpecError(Problem("C011", message, self.where(node)))
        if node.tag not in PLAIN_TAGS:
            message = f"the tag `{node.tag}` is not allowed: the field says what type a value has"
            self.problems.append(Problem("C011", message, self.where(node), ("leave the tag out",)))
        if isinstance(node, yaml.ScalarNode):
            if node.style is None and node.value in NULLS:
                return None
            text = Text(node.value)
            text.where, text.folder, text.quoted = self.where(node), self.document.folder, node.style is not None
            return text
        if isinstance(node, yaml.SequenceNode):
            items = Items(self.build(child, depth + 1) for child in node.value)
            items.where = self.where(node)
            return items
        return self.table(node, depth)

    def table(self, node: yaml.Node, depth: int) -> Table:
        table, inherited = Table(), Table()
        table.where, table.keys_at = self.where(node), {}
        inherited.where, inherited.keys_at = table.where, {}
        for key_node, value_node in node.value:
            at = self.where(key_node)
            if not isinstance(key_node, yaml.ScalarNode) or not key_node.value:
                self.problems.append(Problem("C011", "a key must be text", at))
                continue
            key = key_node.value
            value = self.build(value_node, depth + 1)
            if key == "<<" and key_node.style is None:
                for base in reversed(value if isinstance(value, Items) else [value]):
                    inherited = merge_shallow(inherited, base) if isinstance(base, Table) else inherited
                continue
            if key in table:
                message = f"the key `{key}` is there twice; the first is in line {table.keys_at[key].line}"
                self.problems.append(Problem("C003", message, at, ("remove one of the two",)))
            table[key], table.keys_at[key] = value, at
        return merge_shallow(inherited, table) if inherited else table


def merge_shallow(base: Table, over: Table) -> Table:
    """The keys of both, those of `over` winning, as YAML's `<<` says."""
    merged = Table({**base, **over})
    merged.where, merged.keys_at = over.where, {**base.keys_at, **over.keys_at}
    return merged


def _masked(document: Document, root: yaml.Node) -> Document:
    """The document with each value under a secret name as stars, so that no message can show it."""
    text = list(document.text)
    seen: set[tuple[int, bool]] = set()

    def walk(node: yaml.Node, inside: str | None, secret: bool) -> None:
        if (id(node), secret) in seen:
            return
        seen.add((id(node), secret))
        if isinstance(node, yaml.SequenceNode):
            for child in node.value:
                walk(child, inside, secret)
        elif isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                name = key.value if isinstance(key, yaml.ScalarNode) else ""
                bare_options = name == "storage_options" and not isinstance(value, yaml.MappingNode)
                below = "storage_options" if "storage_options" in {name, inside} else name
                walk(value, below, secret or bare_options or secret_name(name, inside))
        elif secret and node.value.lower() not in SWITCHES:
            start, end = node.start_mark.index + document.offset, node.end_mark.index + document.offset
            text[start:end] = ["*" if not c.isspace() else c for c in text[start:end]]

    walk(root, None, False)
    return Document(document.file, document.folder, "".join(text), document.offset)


_ASSIGNED = re.compile(r"""(["']?)([\w.-]+)\1(\s*[:=]\s*)([^,}\s][^,}\n]*)""")


def mask_line(line: str) -> str:
    """A line that is not parsed, with what looks like the value of a secret as stars."""

    def stars(found: re.Match[str]) -> str:
        if not secret_name(found[2].rsplit(".", 1)[-1], "storage_options"):
            return found[0]
        return found[0][: found.start(4) - found.start()] + "*" * len(found[4])

    return _ASSIGNED.sub(stars, line)


_HINTS = (
    ("found character '\\t'", "indent with spaces: YAML allows no tabs there"),
    ("mapping values are not allowed here", "put quotes around a value that holds `: `"),
    ("could not find expected ':'", "put a `:` behind the key, or quotes around a value of several lines"),
    ("alphabetic or numeric character", "put quotes around a value that starts with `*` or `&`, such as a glob"),
    ("found undefined alias", "put quotes around a value that starts with `*`, such as a glob"),
    ("cannot start any token", "put quotes around a value that starts with `%`, `@` or a backtick"),
    ("could not determine a constructor", "leave the tag out"),
    ("expected <block end>", "check the indentation of this line against the lines above"),
    ("but found another document", "keep one document in a file: remove the line `---`"),
)


def _syntax_problem(error: yaml.MarkedYAMLError, document: Document) -> Problem:
    mark = error.problem_mark or error.context_mark
    start = mark.index if mark is not None else 0
    where = document.where(start, start + 1)
    where = Where(where.file, where.line, where.column, mask_line(where.text), where.width)
    said = f"{error.context or ''} {error.problem or ''} {error.note or ''}"
    repairs = next(((hint,) for sign, hint in _HINTS if sign in said), ())
    problem = "a tab in the indentation" if "found character '\\t'" in said else error.problem or "cannot be read"
    context = ""
    if error.context and error.context_mark is not None and error.context_mark.line != getattr(mark, "line", None):
        line = document.where(error.context_mark.index, error.context_mark.index).line
        context = f" ({error.context}, which begins in line {line})"
    return Problem("C011", f"not valid YAML: {problem}{context}", where, repairs)
