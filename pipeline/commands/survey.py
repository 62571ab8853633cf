"""What lies in a folder of raw text, seen as the sources of a corpus.

Sub-folders become sources, file names tell the format, and the first records of a file tell which field
holds the text. What was guessed becomes a comment in the config; what was not understood is counted in a note.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.commands.peek import Settings, first_records, guess_fields
from stages.contract.names import check_source_name, path_name
from stages.contract.problem import Problem, SpecError, printable
from stages.readers import Found, guess_format, list_files
from stages.readers.guess import without_compression
from stages.readers.tree import is_code, is_tree_text

#: More sub-folders than this are parts of one source rather than sources.
MOST_SOURCES = 16
#: Kinds beside the formats of the readers: files of code, other text of a source tree, and a whole such tree.
CODE, MARKUP, TREE = "code", "markup", "tree"
UNKNOWN = "not understood"
#: Text that is less than this share of the records beside it is a read-me.
SMALL_BESIDE = 0.05
TABLES = ("jsonl", "json", "parquet", "arrow")


@dataclass(frozen=True)
class InitSource:
    """One source of the new config.

    patterns  as they stand in the file; several when one glob cannot say it
    comment   what it is, or what was guessed
    settings  further keys, each with its value as YAML text
    prose     whether it is running text, as opposed to code
    pages     whether it may hold web pages, whose text has to be taken out
    """

    name: str
    patterns: tuple[str, ...]
    comment: str
    files: int
    bytes: int
    settings: Settings = ()
    prose: bool = True
    pages: bool = False


@dataclass
class _Group:
    """Files of one kind below one sub-folder, counted by ending; and the largest of each ending."""

    bytes: int = 0
    endings: Counter[str] = field(default_factory=Counter)
    largest: dict[str, Found] = field(default_factory=dict)

    @property
    def files(self) -> int:
        return self.endings.total()

    def add(self, file: Found) -> None:
        ending = _ending(os.path.basename(file.path))
        self.bytes += file.size
        self.endings[ending] += 1
        self._offer(ending, file)

    def absorb(self, other: _Group) -> None:
        self.bytes += other.bytes
        self.endings += other.endings
        for ending, file in other.largest.items():
            self._offer(ending, file)

    def _offer(self, ending: str, file: Found) -> None:
        if ending not in self.largest or file.size > self.largest[ending].size:
            self.largest[ending] = file


#: (sub-folder, or "" for the folder itself; kind) -> files
Groups = dict[tuple[str, str], _Group]


def look_at(origin: Path, folder: Path) -> tuple[list[InitSource], list[str]]:
    """Sources for what lies below `origin`, with paths as a config in `folder` needs them; and notes.

    A note is a sentence. Nothing is written. Raises SpecError if nothing there can be read.
    """
    _check_places(origin, folder)
    root = _skip_lone_folders(origin.resolve())
    groups, left_out = _walk(root)
    notes = []
    tops = len({top for top, _ in groups})
    if tops > MOST_SOURCES:
        groups = _merge(groups)
        notes.append(
            f"{tops} sub-folders became one source; more than {MOST_SOURCES} are taken for its parts"
        )
    groups = _trees(groups, left_out[UNKNOWN])
    groups = _without_readmes(groups, left_out)
    notes += [f"{names.total()} {why}: {_listed(names)}" for why, names in left_out.items() if names]
    if not groups:
        raise SpecError(Problem("D005", f"{origin} holds no file that a reader knows", repairs=tuple(notes)))
    sources = _sources(groups, root, folder, notes)
    if not sources:
        raise SpecError(
            Problem("D005", f"no field of any file in {origin} looks like text", repairs=tuple(notes))
        )
    return sources, notes


def _check_places(origin: Path, folder: Path) -> None:
    if not origin.is_dir():
        what = "is a file; name the folder it lies in" if origin.exists() else "is not there"
        raise SpecError(Problem("D005", f"{origin} {what}"))
    if folder.resolve().is_relative_to(origin.resolve()):
        message = f"the new corpus would lie inside of {origin}, and a build would read its own output"
        raise SpecError(Problem("C005", message, repairs=("name a folder outside of it for the corpus",)))


def _sources(groups: Groups, root: Path, folder: Path, notes: list[str]) -> list[InitSource]:
    """A source per group: the largest of a sub-folder has its name, the others `<name>-<kind>`; adds to notes."""
    taken: set[str] = set()
    sources = []
    named: set[str] = set()
    single = len({top for top, _ in groups}) == 1
    for (top, kind), group in sorted(
        groups.items(), key=lambda item: (item[0][0], -item[1].bytes, item[0][1])
    ):
        label = top or root.name
        try:
            settings, comment = _describe(kind, group)
        except ValueError as error:
            notes.append(f"{_files(group)} of {printable(label)} left out: {error}")
            continue
        name = source_name(f"{label}-{kind}" if top in named else label, taken)
        named.add(top)
        patterns = _patterns(_shown(root / top, folder), kind, group, deep=bool(top) or single)
        prose = kind not in (TREE, CODE)
        pages = kind in ("warc", "html")
        sources.append(InitSource(name, patterns, comment, group.files, group.bytes, settings, prose, pages))
    return sources


def _files(group: _Group) -> str:
    return f"{group.files} file{'s' * (group.files != 1)} ({_listed(group.endings)})"


def source_name(text: str, taken: set[str]) -> str:
    """A name for a source, as near to the text as the rules allow, in no case in `taken`; it is added there."""
    composed = unicodedata.normalize("NFC", text)
    name = "".join(c if c in "_-" or unicodedata.category(c)[0] in "LMN" else "-" for c in composed).strip(
        "-"
    )
    if check_source_name(f"{name}-99") is not None or check_source_name(name) is not None:
        name = path_name(text)[:60]
    number, unique = 2, name
    while unique.casefold() in taken:
        unique, number = f"{name}-{number}", number + 1
    taken.add(unique.casefold())
    return unique


def escape(path: str) -> str:
    """The path as a pattern that matches it alone."""
    return re.sub(r"([*?\[{])", r"[\1]", path)


# --- walking ------------------------------------------------------------------------------------------------


def _skip_lone_folders(root: Path) -> Path:
    """The first folder on the way down that holds more than one other folder."""
    while True:
        entries = [e for e in os.scandir(root) if not e.name.startswith(".")]
        if len(entries) != 1 or not entries[0].is_dir(follow_symlinks=False):
            return root
        root = root / entries[0].name


def _walk(root: Path) -> tuple[Groups, dict[str, Counter[str]]]:
    """Files by sub-folder and kind, as the readers list them; what was left out: why -> ending or name -> count."""
    listing = list_files(root.as_posix(), "/", "text")  # this format takes files of any name
    groups: Groups = {}
    left_out: dict[str, Counter[str]] = {UNKNOWN: Counter()}
    for skipped in listing.skipped:
        left_out.setdefault(f"left out as {skipped.reason}", Counter())[os.path.basename(skipped.path)] += 1
    for file in listing.files:
        top, slash, _ = file.uri.partition("/")
        name = os.path.basename(file.path)
        kind = _kind(name)
        if kind is None:
            left_out[UNKNOWN][_ending(name)] += 1
        else:
            groups.setdefault((top if slash else "", kind), _Group()).add(file)
    return groups, left_out


def _kind(name: str) -> str | None:
    """What to read a file as: a format of the readers, code, or markup; None if its name says nothing."""
    plain = without_compression(name)
    if is_code(plain) and os.path.splitext(plain)[1]:
        return CODE
    return guess_format(name) or (MARKUP if is_tree_text(name) else None)


def _trees(groups: Groups, unknown: Counter[str]) -> Groups:
    """The same groups, but a folder with more files of code than of records and text is one source tree.

    For the files in the outer folder that holds only if there are no others: a tree reaches below it. Markup
    and settings are text in a tree; elsewhere they are not understood, and go to `unknown`.
    """
    result = dict(groups)
    tops = sorted({top for top, _ in groups})
    for top in tops:
        inside = {kind: group for (t, kind), group in groups.items() if t == top}
        code = inside.get(CODE, _Group())
        others = sum(group.files for kind, group in inside.items() if kind not in (CODE, MARKUP))
        if (top or len(tops) == 1) and code.files > others:
            whole = result.setdefault((top, TREE), _Group())
            for kind in (CODE, MARKUP, "text", "json", "html"):
                if kind in inside:
                    whole.absorb(inside[kind])
                    del result[top, kind]
        elif MARKUP in inside:
            unknown.update(result.pop((top, MARKUP)).endings)
    return result


def _without_readmes(groups: Groups, left_out: dict[str, Counter[str]]) -> Groups:
    """The same groups without text that is small beside records: it describes the data."""
    kept = dict(groups)
    for (top, kind), group in groups.items():
        records = sum(g.bytes for (t, k), g in groups.items() if k in TABLES and (t == top or not top))
        if kind == "text" and group.bytes < records * SMALL_BESIDE:
            left_out.setdefault("left out as notes beside records", Counter()).update(group.endings)
            del kept[top, kind]
    return kept


def _ending(name: str) -> str:
    """`.jsonl.gz` of `a.b.jsonl.gz`, `.txt` of `a.txt`, the whole name if it has no ending."""
    plain = without_compression(name)
    ending = os.path.splitext(plain)[1]
    return ending + name[len(plain) :] if ending else name


def _merge(groups: Groups) -> Groups:
    """The groups of all sub-folders as one per kind."""
    merged: Groups = {}
    for (_, kind), group in sorted(groups.items()):
        merged.setdefault(("", kind), _Group()).absorb(group)
    return merged


def _shown(path: Path, folder: Path) -> str:
    """The path as a config in `folder` writes it: relative where it lies below, else absolute."""
    own = folder.resolve()
    return path.relative_to(own).as_posix() if path.is_relative_to(own) else path.as_posix()


def _patterns(base: str, kind: str, group: _Group, deep: bool) -> tuple[str, ...]:
    """A tree as its folder (what exists is never read as a glob), else a glob per ending, at any depth if `deep`."""
    if kind == TREE:
        return (base,)
    inside = f"{escape(base)}/{'**/' if deep else ''}"
    return tuple(
        f"{inside}{'*' * ending.startswith('.')}{escape(ending)}" for ending in sorted(group.endings)
    )


def _listed(names: Counter[str]) -> str:
    """`.pdf (12), .docx (3)` and how many more, most frequent first."""
    first = sorted(names.items(), key=lambda item: (-item[1], item[0]))
    more = f" and {len(first) - 8} other names" if len(first) > 8 else ""
    return ", ".join(f"{printable(name)} ({count})" for name, count in first[:8]) + more


# --- the field with the text --------------------------------------------------------------------------------


def _describe(kind: str, group: _Group) -> tuple[Settings, str]:
    """Settings of a source and the comment that says how they were found.

    Raises ValueError with the reason if the files hold records and no field of them looks like text.
    """
    if kind == TREE:
        return (("format", TREE),), "a source tree, one document per file"
    if kind in ("warc", "wet"):
        return (), "web archives, one document per page"
    if kind not in TABLES:
        return (), "one document per file"
    path = Path(max(group.largest.values(), key=lambda file: file.size).path)
    try:
        records = first_records(path, kind)
    except OSError as error:
        raise ValueError(f"{printable(path.name)} cannot be read: {printable(str(error))[:200]}") from error
    settings, comment = guess_fields(records)
    return settings, f"{comment} (seen in {printable(path.name)})"
