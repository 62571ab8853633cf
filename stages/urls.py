"""Drops pages by where they come from: blocked domains and paths, words and patterns in addresses, from lists of the user."""

from __future__ import annotations

import gzip
import os
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Annotated, Any, ClassVar, NamedTuple
from urllib.parse import unquote

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BeforeValidator, Field, WithJsonSchema

from stages.contract.config import FilePath
from stages.contract.files import sha256_file
from stages.document import with_column
from stages.stage import RowStage
from stages.verdict import give_verdict, mark_column


def _listed(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else (value,)


_ONE = {"type": "string", "minLength": 1}
Files = Annotated[
    tuple[FilePath, ...],
    BeforeValidator(_listed),
    WithJsonSchema({"anyOf": [_ONE, {"type": "array", "items": _ONE}]}),
]


class Urls(RowStage):
    """Drops `urls.domain`, `urls.path`, `urls.word` and `urls.pattern`; reads `url` from `meta`, adds its `host`.

    Rows without an address are kept; their `host` is null, which is how they are counted.
    A domain stands for itself and all its subdomains; `allow` wins over every other list. Internationalized names
    match in both of their spellings. Lists are UTF-8, one entry a line, `#` starts a comment, `.gz` is read too.
    """

    name: ClassVar[str] = "urls"
    version: ClassVar[int] = 1

    block: Annotated[
        Files, Field(description="Lists of domains (example.com) and addresses (example.com/path, with all below them).")
    ] = ()
    words: Annotated[
        Files, Field(description="Lists of words that drop a page whose address has them; /…/ is a regular expression.")
    ] = ()
    allow: Annotated[Files, Field(description="Lists of domains and addresses that are never dropped here.")] = ()
    least_words: Annotated[
        int, Field(ge=1, description="So many different words of the lists must be in an address to drop it.")
    ] = 1

    def adds(self) -> dict[str, pa.DataType]:
        return {"host": pa.string()} | mark_column(self)

    def recipe(self) -> dict[str, str]:
        return {
            f"{field}.{number}": sha256_file(path)
            for field in ("block", "words", "allow")
            for number, path in enumerate(getattr(self, field))
        }

    def problems(self) -> list[str]:
        if not (self.block or self.words):
            return ["urls has neither `block` nor `words`, so it would drop nothing"]
        found = []
        for path in (*self.block, *self.words, *self.allow):
            try:
                if not sum(1 for _ in list_entries(path)):
                    found.append(f"the list `{path.written}` has no entries")
            except (OSError, UnicodeDecodeError, EOFError) as error:
                found.append(f"the list `{path.written}` cannot be read: {getattr(error, 'strerror', None) or error}")
        for path in self.words if not found else ():
            found += [f"{path.written}:{number}: {error}" for number, error in _bad_patterns(path)]
        return found

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        rules = _rules(stamped(self.block), stamped(self.words), stamped(self.allow))
        urls = [_url_of(meta) for meta in batch.column("meta").to_pylist()]
        addresses = [None if url is None else parse_url(url) for url in urls]
        hosts = [address.host or None if address else None for address in addresses]
        patterns = rules.matched(urls)
        reasons, values = [""] * len(batch), [""] * len(batch)
        for row, address in enumerate(addresses):
            if address is not None and (found := rules.verdict(address, patterns[row], self.least_words)) is not None:
                reasons[row], values[row] = found
        batch = with_column(batch, "host", pa.array(hosts, pa.string()))
        return give_verdict(self, batch, np.array([bool(reason) for reason in reasons], bool), reasons, values)


def _url_of(meta: str | None) -> str | None:
    if meta is None or '"url"' not in meta:
        return None
    url = orjson.loads(meta).get("url")
    return url if isinstance(url, str) else None


class Address(NamedTuple):
    """Host in lower case and ASCII, and the rest as written without scheme, port and fragment; "" for none."""

    host: str
    rest: str


def parse_url(url: str) -> Address:
    """The parts of an address; one without a scheme (`example.com/a`) is fine."""
    _, slashes, after = url.strip().partition("://")
    after = after if slashes else url.strip().removeprefix("//")
    end = min((at for mark in "/?#" if (at := after.find(mark)) >= 0), default=len(after))
    host = after[:end].rpartition("@")[2]
    if host.startswith("["):
        host = host.partition("]")[0] + "]"
    else:
        host = host.partition(":")[0]
    return Address(ascii_host(host), after[end:].partition("#")[0])


@lru_cache(maxsize=65_536)
def ascii_host(host: str) -> str:
    """The host in lower case, without a final dot, international labels as `xn--…` (IDNA 2003, as Python has it)."""
    host = host.strip().rstrip(".").lower()
    if host.isascii():
        return host
    try:
        return host.encode("idna").decode("ascii").lower()
    except UnicodeError:
        return host


class _Rules(NamedTuple):
    """What the lists say.

    blocked, allowed  host -> "" for the whole host, or the paths below which it holds
    words             ASCII words, matched as whole words; others are in `pieces`, matched anywhere
    patterns          of RE2: linear in the address, whatever the pattern
    """

    blocked: dict[str, tuple[str, ...]]
    allowed: dict[str, tuple[str, ...]]
    words: frozenset[str]
    pieces: tuple[str, ...]
    patterns: tuple[str, ...]

    def matched(self, urls: list[str | None]) -> list[str | None]:
        """Per address the first pattern that it matches, or None."""
        found: list[str | None] = [None] * len(urls)
        column = pa.array(urls, pa.string())
        for pattern in reversed(self.patterns):
            for row in np.flatnonzero(pc.fill_null(_matches(column, pattern), False)).tolist():
                found[row] = pattern
        return found

    def verdict(self, address: Address, pattern: str | None, least_words: int) -> tuple[str, str] | None:
        """`(reason, value)` if the page goes. `pattern` is the one that the address matches."""
        if _match(self.allowed, address) is not None:
            return None
        if (entry := _match(self.blocked, address)) is not None:
            return ("urls.path" if "/" in entry else "urls.domain"), f"{address.host}: {entry} is listed"
        if self.words or self.pieces:
            spelled = unquote(f"{_unicode(address.host)}{address.rest}").lower()
            found = sorted({w for w in _WORD.findall(spelled) if w in self.words} | {p for p in self.pieces if p in spelled})
            if len(found) >= least_words:
                return "urls.word", ", ".join(found[:5])
        return None if pattern is None else ("urls.pattern", f"/{pattern}/")


_WORD = re.compile(r"[a-z]+|\d+|[^\W\d_a-z]+")


def _match(entries: dict[str, tuple[str, ...]], address: Address) -> str | None:
    """The entry that names the host, a domain above it, or a path of either; None if none does."""
    if not entries:
        return None
    domain = address.host
    path = address.rest or "/"
    while domain:
        for start in entries.get(domain, ()):
            if not start or (path.startswith(start) and (start.endswith("/") or path[len(start) :][:1] in "/?")):
                return domain + start
        domain = domain.partition(".")[2]
    return None


def _unicode(host: str) -> str:
    if "xn--" not in host:
        return host
    try:
        return host.encode("ascii").decode("idna")
    except UnicodeError:
        return host


#: Path of a list, with its time and size: a list that changes is read again.
Stamped = tuple[tuple[str, int, int], ...]


def stamped(paths: tuple[FilePath, ...]) -> Stamped:
    return tuple((str(path), (stat := os.stat(path)).st_mtime_ns, stat.st_size) for path in paths)


@lru_cache(maxsize=8)
def _rules(block: Stamped, words: Stamped, allow: Stamped) -> _Rules:
    plain, pieces, patterns = set[str](), set[str](), list[str]()
    for path, _, _ in words:
        for _, line in list_entries(path):
            if len(line) > 2 and line.startswith("/") and line.endswith("/"):
                patterns.append(line[1:-1])
            elif _WORD.fullmatch(line.lower()) and line.isascii():
                plain.add(line.lower())
            else:
                pieces.add(line.lower())
    return _Rules(_entries(block), _entries(allow), frozenset(plain), tuple(sorted(pieces)), tuple(patterns))


def _entries(lists: Stamped) -> dict[str, tuple[str, ...]]:
    found: dict[str, set[str]] = {}
    for path, _, _ in lists:
        for _, line in list_entries(path):
            host, rest = parse_url(_entry(line))
            if host:
                found.setdefault(host, set()).add("" if rest in ("", "/") else rest)
    return {host: ("",) if "" in rests else tuple(sorted(rests)) for host, rests in found.items()}


def _entry(line: str) -> str:
    """The domain or address of a line; also as hosts files (`0.0.0.0 example.com`) and ad blockers (`||…^`) write it."""
    line = line.split()[-1] if re.match(r"(?:0\.0\.0\.0|127\.0\.0\.1|::1?)\s", line) else line
    line = line.removeprefix("||").removesuffix("^")
    return line.removeprefix("*.").removeprefix(".")


def list_entries(path: str) -> Iterator[tuple[int, str]]:
    """`(line number, entry)` of a list. Raises OSError, UnicodeDecodeError."""
    opened = gzip.open(path, "rb") if path.endswith(".gz") else open(path, "rb")
    with opened as file:
        for number, raw in enumerate(file, 1):
            line = raw.decode("utf-8-sig" if number == 1 else "utf-8").strip()
            if not line.startswith(("/", "#", "!")):
                line = line.partition(" #")[0].strip()
            if line and line[0] not in "#!":
                yield number, line


def _matches(urls: pa.Array, pattern: str) -> pa.Array:
    """Raises ArrowInvalid if the pattern is none."""
    return pc.match_substring_regex(urls, pattern, ignore_case=True)


def _bad_patterns(path: str) -> Iterator[tuple[int, str]]:
    for number, line in list_entries(path):
        if len(line) > 2 and line.startswith("/") and line.endswith("/"):
            try:
                _matches(pa.array([""]), line[1:-1])
            except pa.ArrowInvalid as error:
                yield number, f"not a regular expression of RE2: {error}"


if __name__ == "__main__":
    from stages.attempt import main

    main("urls")
