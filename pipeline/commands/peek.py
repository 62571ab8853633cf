"""A look at the first records of a file: which field holds the text.

A guess, for a config that a person then reads. It goes by names that public corpora use, and else by which
field holds the longest strings; it never decides how a file is read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from stages.contract.problem import printable
from stages.readers.streams import head

#: Records that are looked at, and decompressed bytes they may take.
SAMPLE_RECORDS = 20
SAMPLE_BYTES = 4 << 20
#: What is read of a file whose first record is longer than that.
LONGEST_RECORD = 64 << 20

#: Names of the field with the text, best first; other fields are judged by the length of what they hold.
TEXT_FIELDS = ("text", "content", "body", "raw_content", "article", "document", "markdown", "code")
CHAT_FIELDS = ("messages", "conversations", "conversation")
#: Shorter texts than this, on average, are titles and labels.
SHORTEST_MEAN = 40

#: Keys of a source in corpus.yaml, each with its value as YAML text.
Settings = tuple[tuple[str, str], ...]


def first_records(path: Path, kind: str) -> list[dict[str, Any]]:
    """Up to 20 records from the start of a file; lines that are no JSON objects are passed over.

    Raises OSError or ValueError (pyarrow's errors are both) if the file is damaged.
    """
    if kind in ("jsonl", "json"):
        start = head(str(path), SAMPLE_BYTES)
        return _first_objects(start if b"\n" in start else head(str(path), LONGEST_RECORD))
    import pyarrow as pa
    import pyarrow.parquet as pq

    if kind == "parquet":
        with pq.ParquetFile(path) as file:
            batch = next(file.iter_batches(batch_size=SAMPLE_RECORDS), None)
    else:
        with pa.OSFile(str(path)) as file:
            try:
                reader = pa.ipc.open_file(file)
                batch = reader.get_batch(0) if reader.num_record_batches else None
            except pa.ArrowInvalid:
                file.seek(0)
                batch = next(iter(pa.ipc.open_stream(file)), None)
            return [] if batch is None else batch.slice(0, SAMPLE_RECORDS).to_pylist()
    return [] if batch is None else batch.to_pylist()


def _first_objects(content: bytes) -> list[dict[str, Any]]:
    """Objects of JSON Lines, or of one array, at the start of a file."""
    try:
        whole = json.loads(content)
    except ValueError:
        return list(islice(_objects(content.split(b"\n")), SAMPLE_RECORDS))
    values = whole if isinstance(whole, list) else [whole]
    return [value for value in values if isinstance(value, dict)][:SAMPLE_RECORDS]


def _objects(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """The lines that are JSON objects; a bad record, or the cut at the end, is the reader's business."""
    for line in lines:
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            yield value


def guess_fields(records: Sequence[dict[str, Any]]) -> tuple[Settings, str]:
    """`(settings, comment)`: which field holds the text, judged by name, then by the mean length of its values.

    Raises ValueError with a sentence if no field looks like text.
    """
    if not records:
        raise ValueError("no record was found at the start of the largest file")
    names = list(dict.fromkeys(key for record in records for key in record))
    strings = {name: found for name in names if (found := _strings(records, name))}
    named = [name for name in TEXT_FIELDS if name in strings]
    by_length = sorted(strings, key=lambda name: -_mean(strings[name]))
    if named:
        choice, comment = named[0], f"text is the field `{named[0]}`"
    elif chats := [
        name for name in CHAT_FIELDS if any(isinstance(record.get(name), list) for record in records)
    ]:
        return (
            *_text(chats[0], "messages"),
            ("messages", "chatml"),
        ), f"chat records in the field `{chats[0]}`"
    elif by_length and _mean(strings[by_length[0]]) >= SHORTEST_MEAN:
        choice = by_length[0]
        mean = f"{_mean(strings[choice]):.0f} characters on average"
        comment = f"guessed: `{printable(choice)}` holds the longest text, {mean}"
    else:
        fields = ", ".join(printable(str(name)) for name in names[:12]) or "none"
        raise ValueError(
            f"no field looks like text; fields are {fields}. Add a source with `text:` set to the right one"
        )
    settings = _text(choice, "text")
    if "url" in names:
        settings += (("keep_meta", "[url]"),)
    others = [name for name in by_length if name != choice and _mean(strings[name]) >= SHORTEST_MEAN]
    if others:
        comment += f"; text too: {', '.join(f'`{printable(name)}`' for name in others[:4])}"
    return settings, comment


def _text(name: str, default: str) -> Settings:
    """The `text` setting for a field, nothing if it is the default."""
    if "{" in name or "}" in name:
        raise ValueError(f"the field {name!r} has braces, which a template cannot name")
    return () if name == default else (("text", yaml_text(name)),)


def _strings(records: Iterable[dict[str, Any]], name: str) -> list[str]:
    """The values of a field if they are strings or null and most look written, else nothing.

    Written: it has a space, or a letter beyond ASCII; digests, addresses and codes have neither.
    """
    values = [record[name] for record in records if record.get(name) is not None]
    if not all(isinstance(value, str) for value in values):
        return []
    written = sum(" " in value or not value.isascii() for value in values)
    return values if written * 2 > len(values) else []


def _mean(values: Sequence[str]) -> float:
    return sum(map(len, values)) / len(values)


def yaml_text(text: str) -> str:
    """The string as a YAML scalar: plain if it is harmless, else in double quotes with escapes."""
    if re.fullmatch(r"[A-Za-z/][A-Za-z0-9_./-]*", text) and text.lower() not in {
        "null",
        "true",
        "false",
        "yes",
        "no",
        "on",
        "off",
    }:
        return text
    return '"' + "".join(c if c.isprintable() and c not in '"\\' else f"\\U{ord(c):08x}" for c in text) + '"'
