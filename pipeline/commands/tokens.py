"""Text in tokens, and the report on a tokenizer over the documents of a built corpus."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.engine.sealed import arrow_batches
from pipeline.show import table
from stages.contract.files import write_atomic
from stages.contract.manifest import FILE_NAME, Manifest, ShardEntry, load_manifest
from stages.contract.problem import Problem, SpecError, printable
from stages.contract.shard import read_index, read_tokens
from stages.tokenizer.encode import Encoder
from stages.tokenizer.report import MEASURED, SAMPLE, as_html, report, shown, total

#: Characters of a text that are shown in tokens.
TEXT_SHOWN = 2000


def in_tokens(encoder: Encoder, text: str) -> dict[str, Any]:
    """The ids of a text with what each stands for, for people, and the counts."""
    ids, _ = encoder.encode_batch(pa.array([text], pa.large_string()))
    size = len(text.encode())
    return {
        "bytes": size,
        "characters": len(text),
        "tokens": len(ids),
        "bytes_per_token": round(size / len(ids), 4) if len(ids) else None,
        "roundtrip": encoder.decode(ids) == text,
        "ids": ids.tolist(),
        "pieces": [shown(encoder.token_bytes(number)) for number in ids.tolist()],
    }


def tokens_text(made: dict[str, Any], heading: str) -> str:
    """The tokens with bars between them, line breaks of the text kept, and a line of counts."""
    lines, line, length = [], "", 0
    for piece in made["pieces"]:
        length += len(piece)
        line += ("|" if line else "") + piece
        if piece.endswith("\\n"):
            lines.append(line)
            line = ""
        if length > TEXT_SHOWN:
            line += " \u2026"
            break
    rate = f", {made['bytes_per_token']:.2f} bytes per token" if made["tokens"] else ""
    counts = f"{made['bytes']:,} bytes, {made['characters']:,} characters, {made['tokens']:,} tokens{rate}"
    if not made["roundtrip"]:
        counts += "; decoded, it is another text"
    return "\n".join(printable(one) for one in (f"{heading}: {counts}", *lines, line) if one)


def tokenize_file(path: Path, tokenizer: Path) -> tuple[str, dict[str, Any]]:
    """`(text, data)`: a UTF-8 text file in tokens. SpecError if it cannot be read or is not UTF-8."""
    try:
        text = path.read_bytes().decode("utf-8")
    except OSError as error:
        raise SpecError(Problem("D004", f"{path} cannot be read: {error.strerror}")) from error
    except UnicodeDecodeError as error:
        message = f"{path} is not UTF-8: byte {error.start} is 0x{error.object[error.start]:02X}"
        raise SpecError(Problem("D004", message)) from error
    made = in_tokens(_tokenizer(tokenizer), text)
    return tokens_text(made, str(path)), made


def _tokenizer(path: Path) -> Encoder:
    """The tokenizer that a path means: a tokenizer.json, or the one of an output folder or manifest."""
    if path.is_dir() or path.name == FILE_NAME:
        folder, tokenizer = (path if path.is_dir() else path.parent), load_manifest(path).tokenizer
        return Encoder.load(folder / tokenizer.path, tokenizer.eos_id)
    return Encoder.load(path)


def tokenizer_report(
    path: Path, source: str | None, others: Sequence[Path], html: Path | None
) -> tuple[str, dict[str, Any]]:
    """`(text, data)`: the report on the tokenizer of a corpus over its documents; the page too, if `html` says where."""
    manifest = load_manifest(path)
    folder = path if path.is_dir() else path.parent
    encoder = Encoder.load(folder / manifest.tokenizer.path, manifest.tokenizer.eos_id)
    names = [source] if source else list(manifest.sources)
    rows = [row for name in names for row in _documents(folder, manifest, name, encoder)]
    sample = pa.table([pa.array(column) for column in zip(*rows, strict=True)] or None, schema=SAMPLE)
    loaded = [(str(other), _tokenizer(other)) for other in others]
    made = report(manifest.name, encoder, sample, loaded)
    if html:
        write_atomic(html, as_html(made))
    return _report_text(made), made


def _documents(
    folder: Path, manifest: Manifest, source: str, encoder: Encoder
) -> Iterator[tuple[str, str, str]]:
    """`(source, language, text)` of documents: those held out first, which no tokenizer of this corpus was shown as
    training text of a model, then others, up to MEASURED bytes."""
    dtype = np.dtype("<u2" if manifest.dtype == "uint16" else "<u4")
    entry = manifest.sources[source]
    size = 0
    for shard in (*entry.holdout, *entry.shards):
        for language, text in _texts(folder, shard, encoder, dtype):
            yield source, language, text
            size += len(text.encode())
            if size >= MEASURED:
                return


def _texts(folder: Path, shard: ShardEntry, encoder: Encoder, dtype: np.dtype) -> Iterator[tuple[str, str]]:
    lengths = read_index(shard.path(folder, "idx"), shard.tokens)["length"].astype(np.int64)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    row = 0
    for batch in arrow_batches(shard.path(folder, "docs")):
        known = "lang" in batch.schema.names
        languages = batch.column("lang").to_pylist() if known else [None] * len(batch)
        for language in languages:
            ids = read_tokens(shard.path(folder, "tok"), dtype, int(starts[row]), int(lengths[row]))
            yield language or "", encoder.decode(ids[:-1])
            row += 1


def _report_text(made: dict[str, Any]) -> str:
    """Bytes per token by source and language beside those of the others, and the rest in a line each."""
    others = made["others"]
    rows = []
    for i, group in enumerate(
        [*made["measured"], {"source": "all", "language": "", **total(made["measured"])}]
    ):
        theirs = [(o["measured"][i : i + 1] or [total(o["measured"])])[0] for o in others]
        rows.append(
            (
                group["source"],
                group["language"],
                f"{group['bytes']:,}",
                f"{group['tokens']:,}",
                _rate(group["bytes"], group["tokens"]),
                _rate(group["tokens"], group["characters"]),
                _rate(group["tokens"], group["words"]),
                *(_rate(other["bytes"], other["tokens"]) for other in theirs),
            )
        )
    head = ("source", "language", "bytes", "tokens", "bytes/token", "tokens/char", "tokens/word")
    scripts = ", ".join(f"{s['script']} {100 * s['share']:.1f} %" for s in made["scripts"][:6])
    sizes = ", ".join(
        f"{row['vocab_size']:,}: {row['bytes_per_token']:.2f}"
        for row in made["sizes"]
        if row["bytes_per_token"]
    )
    lines = [
        table((*head, *(Path(other["name"]).name for other in others)), rows, left=(0, 1)),
        f"round trip    {made['roundtrip']['failures']:,} of {made['roundtrip']['documents']:,} documents changed",
        f"vocabulary    {made['vocab_size']:,} tokens: {scripts}",
        f"unused here   {made['unused']['tokens']:,} of {made['unused']['of']:,} tokens",
        f"near copies   {made['near_duplicates']['tokens']:,} tokens",
        f"bytes/token by size of the vocabulary   {sizes or 'not known for this kind of tokenizer'}",
    ]
    return "\n".join(printable(line) for part in lines for line in part.split("\n"))


def _rate(a: int, b: int) -> str:
    return f"{a / b:.3f}" if b else "-"
