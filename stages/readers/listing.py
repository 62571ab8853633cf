"""Patterns, folders and addresses -> the files of a source in a stable order, and what was left out."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from stages.readers.guess import guess_format, is_url, without_compression
from stages.readers.tree import SKIPPED_FOLDERS, is_binary_name, is_tree_text
from stages.storage.access import options_of
from stages.storage.patience import patiently

_WILD = re.compile(r"[*?\[{]")
_IN_CLASS = re.compile(r"[\\\[\]^&~|]")  # what a character class of `re` would take as syntax


class Found(NamedTuple):
    """One input file. `size` in stored bytes; `mtime_ns` is 0 where a store does not tell."""

    path: str
    uri: str
    size: int
    mtime_ns: int


class Skipped(NamedTuple):
    """A file or folder that a walk came by and did not take.

    reason  unknown-suffix, binary, hidden, version-control, dependency-folder, broken-link, link-loop,
            same-file (another name of a file already taken), unreadable, not-a-file
    """

    path: str
    reason: str


class Listing(NamedTuple):
    """The files of a source, ordered by uri, and what was left out, ordered by path."""

    files: list[Found]
    skipped: list[Skipped]

    def reasons(self) -> dict[str, int]:
        """Reason -> number left out, most frequent first."""
        counted = Counter(item.reason for item in self.skipped)
        return dict(sorted(counted.items(), key=lambda pair: (-pair[1], pair[0])))


class _Entry(NamedTuple):
    """One name of a walk: `relative` to its root, '/'-separated; `real` is equal for two names of one file;
    `linked` says that a link leads to it."""

    relative: str
    path: str
    real: str
    linked: bool
    size: int
    mtime_ns: int

    def rank(self) -> tuple[bool, bytes]:
        """Of two names of one file, the one that is no link comes first, whatever it is called."""
        return self.linked, _bytes(self.relative)


def list_files(patterns: str | Sequence[str], base_dir: str, format: str | None = None) -> Listing:
    """The files that the patterns name: globs (`*`, `?`, `[…]`, `{a,b}`, `**` for any depth), folders
    (walked), single files, local or any fsspec address. Relative patterns start at `base_dir`.

    A uri is the path behind the part of its pattern before the first wildcard; of a single file, its name.
    Each file is listed once. With `format` None or `tree`, files whose name no reader takes are skipped; any
    other format takes every match. A path that exists is never read as a glob.

    Raises FileNotFoundError if a pattern without wildcards names nothing, ValueError if two files would
    get one uri.
    """
    taken: dict[str, Found] = {}
    reals: set[str] = set()
    paths: set[str] = set()
    skipped: set[Skipped] = set()
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        for entry in sorted(_matches(pattern, base_dir, format, skipped), key=_Entry.rank):
            if entry.real in reals:
                if entry.path not in paths:
                    skipped.add(Skipped(entry.path, "same-file"))
                continue
            found = Found(entry.path, _uri(entry.relative), entry.size, entry.mtime_ns)
            if (other := taken.get(found.uri)) is not None:
                raise ValueError(
                    f"two files of one source would be called {found.uri!r}: {other.path} and {found.path}; "
                    "name both with one pattern (a/{x,y}/*.jsonl), or make two sources"
                )
            taken[found.uri] = found
            reals.add(entry.real)
            paths.add(entry.path)
    files = sorted(taken.values(), key=lambda found: found.uri.encode())
    return Listing(files, sorted(skipped, key=lambda item: (_bytes(item.path), item.reason)))


def _bytes(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")


def _uri(relative: str) -> str:
    r"""The name as valid Unicode, not normalised; bytes that are not UTF-8 are spelled \xff."""
    return _bytes(relative).decode("utf-8", "backslashreplace")


def _matches(pattern: str, base_dir: str, format: str | None, skipped: set[Skipped]) -> Iterator[_Entry]:
    """The entries that the pattern names and a reader takes; the rest goes to `skipped`."""
    place = pattern if is_url(pattern) else os.path.join(base_dir, pattern)
    source: _Local | _Remote = _Remote(place) if is_url(pattern) else _Local()
    kind = source.kind(place)
    if kind == "file":
        yield from source.single(place)
        return
    if kind == "folder":
        root, rest = place, "**"
    elif (wild := _WILD.search(pattern)) is None:
        raise FileNotFoundError(f"there is no file or folder {place}")
    else:
        cut = pattern.rfind("/", 0, wild.start()) + 1
        root, rest = place[: len(place) - len(pattern) + cut], pattern[cut:]
    glob = _Glob(rest)
    for entry in source.walk(root, glob, skipped):
        if glob.matches(entry.relative):
            reason = _unread(entry.relative, format)
            if reason is None:
                yield entry
            else:
                skipped.add(Skipped(entry.path, reason))


def _unread(relative: str, format: str | None) -> str | None:
    """Why no reader takes a file of this name, or None."""
    if format not in (None, "tree"):
        return None
    name = relative.rsplit("/", 1)[-1]
    if is_tree_text(name) if format == "tree" else guess_format(name) is not None:
        return None
    return "binary" if is_binary_name(without_compression(name)) else "unknown-suffix"


class _Glob:
    """A pattern with wildcards, against '/'-separated relative paths."""

    def __init__(self, pattern: str) -> None:
        self._whole = re.compile(_regex(pattern), re.DOTALL)
        steps = pattern.split("/")
        deep = next((i for i, step in enumerate(steps) if "**" in step or "{" in step), None)
        self._steps = [
            re.compile(_regex(step), re.DOTALL) for step in (steps if deep is None else steps[:deep])
        ]
        self._any_depth = deep is not None
        self._hidden = any(step.startswith(".") for step in steps)

    def matches(self, relative: str) -> bool:
        """Whether the pattern names this file."""
        return self._whole.fullmatch(relative) is not None

    def enters(self, relative: str) -> bool:
        """Whether something inside this folder can match."""
        steps = relative.split("/")
        if len(steps) >= len(self._steps) and not self._any_depth:
            return False
        return all(own.fullmatch(step) for own, step in zip(self._steps, steps, strict=False))

    def hides(self, name: str) -> bool:
        """Whether a name is left out because it starts with a dot, as in a shell."""
        return name.startswith(".") and not self._hidden


def _regex(pattern: str) -> str:
    out, place, depth = "", 0, 0
    while place < len(pattern):
        rest = pattern[place:]
        if rest.startswith("**/"):
            token, size = "(?:[^/]+/)*", 3
        elif rest.startswith("**"):
            token, size = ".*", 2
        elif rest[0] == "*":
            token, size = "[^/]*", 1
        elif rest[0] == "?":
            token, size = "[^/]", 1
        elif (group := re.match(r"\[(!?)(\]?[^\]]*)\]", rest)) is not None:
            token = "[" + ("^" if group[1] else "") + _IN_CLASS.sub(r"\\\g<0>", group[2]) + "]"
            size = group.end()
        elif rest[0] == "{" and "}" in rest:
            token, size, depth = "(?:", 1, depth + 1
        elif rest[0] in ",}" and depth:
            token, size, depth = ("|", 1, depth) if rest[0] == "," else (")", 1, depth - 1)
        else:
            token, size = re.escape(rest[0]), 1
        out += token
        place += size
    return out


class _Local:
    """The file system of this machine."""

    def kind(self, path: str) -> str | None:
        return "folder" if os.path.isdir(path) else "file" if os.path.exists(path) else None

    def single(self, path: str) -> Iterator[_Entry]:
        stat = os.stat(path)
        path = os.path.normpath(path)
        real = os.path.realpath(path)
        yield _Entry(os.path.basename(path), path, real, False, stat.st_size, stat.st_mtime_ns)

    def walk(self, root: str, glob: _Glob, skipped: set[Skipped]) -> Iterator[_Entry]:
        """Every file below `root`. Links are followed last; no folder is entered twice."""
        root = os.path.normpath(root)
        todo, links = [(root, "")], list[tuple[str, str]]()
        entered: set[str] = set()
        while todo or links:
            linked = not todo
            folder, prefix = links.pop(0) if linked else todo.pop()
            real = os.path.realpath(folder)
            if real in entered:
                skipped.add(Skipped(folder, "link-loop"))
                continue
            entered.add(real)
            for entry in self._entries(folder, skipped):
                relative = prefix + entry.name
                reason = self._reason(entry, relative, glob)
                if reason:
                    skipped.add(Skipped(entry.path, reason))
                elif not entry.is_dir():
                    if glob.matches(relative):
                        yield self._entry(entry, relative, linked or entry.is_symlink())
                elif glob.enters(relative):
                    (links if linked or entry.is_symlink() else todo).append((entry.path, relative + "/"))

    def _entries(self, folder: str, skipped: set[Skipped]) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(folder) as entries:
                return sorted(entries, key=lambda entry: entry.name)
        except OSError:
            skipped.add(Skipped(folder, "unreadable"))
            return []

    def _reason(self, entry: os.DirEntry[str], relative: str, glob: _Glob) -> str | None:
        """Why a name that the pattern leads to is left out, or None."""
        if entry.is_dir():
            if not glob.enters(relative):
                return None
            return SKIPPED_FOLDERS.get(entry.name) or ("hidden" if glob.hides(entry.name) else None)
        if not glob.matches(relative):
            return None
        if not os.path.exists(entry.path):
            return "broken-link"
        return "not-a-file" if not entry.is_file() else "hidden" if glob.hides(entry.name) else None

    def _entry(self, entry: os.DirEntry[str], relative: str, linked: bool) -> _Entry:
        stat = entry.stat()
        return _Entry(
            relative, entry.path, os.path.realpath(entry.path), linked, stat.st_size, stat.st_mtime_ns
        )


class _Remote:
    """Any store that fsspec knows."""

    def __init__(self, url: str) -> None:
        import fsspec

        self._fs: Any = fsspec.core.url_to_fs(url, **options_of(url))[0]
        self._fs.invalidate_cache()  # what another process has put there since must be seen

    def _ask(self, word: str, path: str, **options: Any) -> Any:
        return patiently(lambda: getattr(self._fs, word)(path, **options), path)

    def kind(self, url: str) -> str | None:
        inner = self._fs._strip_protocol(url)
        return "folder" if self._ask("isdir", inner) else "file" if self._ask("exists", inner) else None

    def single(self, url: str) -> Iterator[_Entry]:
        inner = self._fs._strip_protocol(url)
        yield self._entry(self._ask("info", inner), inner.rsplit("/", 1)[-1])

    def walk(self, root: str, glob: _Glob, skipped: set[Skipped]) -> Iterator[_Entry]:
        """Every file below `root`, with the folders of tools and hidden names left out as in a local walk."""
        inner = self._fs._strip_protocol(root).rstrip("/")
        for path, info in sorted(self._ask("find", inner, detail=True).items()):
            relative = path[len(inner) :].lstrip("/")
            if not relative or not glob.matches(relative):
                continue
            *folders, name = relative.split("/")
            reason = next((SKIPPED_FOLDERS[f] for f in folders if f in SKIPPED_FOLDERS), None)
            if reason is None and any(map(glob.hides, (*folders, name))):
                reason = "hidden"
            if reason is None:
                yield self._entry(info, relative)
            else:
                skipped.add(Skipped(self._fs.unstrip_protocol(path), reason))

    def _entry(self, info: dict[str, Any], relative: str) -> _Entry:
        path = self._fs.unstrip_protocol(info["name"])
        changed = next(
            (info[key] for key in ("mtime", "LastModified", "last_modified", "created") if info.get(key)), 0
        )
        seconds = changed.timestamp() if hasattr(changed, "timestamp") else changed
        mtime_ns = int(seconds * 10**9) if isinstance(seconds, int | float) else 0
        return _Entry(relative, path, path, False, int(info.get("size") or 0), mtime_ns)
