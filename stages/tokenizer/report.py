"""What a tokenizer does to text: how many tokens it takes, what its vocabulary holds, what another size would cost.

    measured         bytes, characters, words and tokens of documents, by source and language; round trips
    scripts          the vocabulary by the script of its tokens
    unused           tokens that the measured text has none of
    near_duplicates  tokens that differ in case, width or white space around them alone
    sizes            bytes per token with fewer merges (the first of a merge list are the list of a smaller tokenizer),
                     beside the parameters of the embedding at several widths: too small makes texts long, too large
                     makes the model wide where it learns little

Everything is counted from the text and the files alone; `as_html` makes a page without scripts of it.
"""

from __future__ import annotations

import math
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stages.document import text_buffers
from stages.text import word_hashes
from stages.text.scripts import SCRIPTS, letter_bytes
from stages.tokenizer.encode import Encoder

#: Columns of the documents that are measured.
SAMPLE = pa.schema([("source", pa.string()), ("language", pa.string()), ("text", pa.large_string())])

#: Text measured per source, in bytes, when there is more.
MEASURED = 4 << 20

#: Widths of a model for which the embedding is priced.
WIDTHS = (768, 2048, 4096)
_SIZES = (1 << 10, 1 << 12, 1 << 13, 1 << 14, 1 << 15, 1 << 16, 100_000, 1 << 17, 200_000)
_SHOWN = 24
_COUNTS = ("documents", "bytes", "characters", "words", "tokens")
#: Of the text on which sizes are compared.
_SIZED_ON = 2 << 20


def report(
    name: str, encoder: Encoder, sample: pa.Table, others: Sequence[tuple[str, Encoder]] = ()
) -> dict[str, Any]:
    """The report on a tokenizer over documents (SAMPLE), as JSON values; others are measured on the same text."""
    groups, used, failures = measure(encoder, sample)
    return {
        "name": name,
        "vocab_size": encoder.vocab_size,
        "eos": encoder.eos_token,
        "fast": encoder.fast,
        "measured": groups,
        "roundtrip": {"documents": sample.num_rows, "failures": failures},
        "others": [_other(other, loaded, sample) for other, loaded in others],
        "scripts": _scripts(encoder),
        "unused": _unused(encoder, used),
        "near_duplicates": _near_duplicates(encoder),
        "widths": list(WIDTHS),
        "sizes": _sizes(encoder, sample),
    }


def _other(name: str, encoder: Encoder, sample: pa.Table) -> dict[str, Any]:
    groups, _, failures = measure(encoder, sample)
    return {"name": name, "vocab_size": encoder.vocab_size, "measured": groups, "failures": failures}


def measure(encoder: Encoder, sample: pa.Table) -> tuple[list[dict[str, Any]], np.ndarray, int]:
    """`(groups, used, failures)`: counts by source and language; int64 by id, how often; texts that decode to others.

    A text in Unicode normal form C is expected back from tokenizers that normalize.
    """
    totals: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0] * len(_COUNTS))
    used = np.zeros(encoder.vocab_size, np.int64)
    failures = 0
    for batch in sample.to_batches(max_chunksize=1024):
        texts = batch.column("text")
        data, offsets = text_buffers(texts)
        ids, bounds = encoder.encode_batch(texts)
        used += np.bincount(ids, minlength=len(used))
        counts = np.stack(
            [
                np.ones(len(texts), np.int64),
                np.diff(offsets),
                pc.utf8_length(texts).to_numpy(),
                np.diff(word_hashes(data, offsets)[1]),
                np.diff(bounds),
            ],
            axis=1,
        )
        keys = zip(batch.column("source").to_pylist(), batch.column("language").to_pylist(), strict=True)
        for row, (source, language) in enumerate(keys):
            total = totals[source, language or ""]
            for column in range(len(_COUNTS)):
                total[column] += int(counts[row, column])
            text = texts[row].as_py()
            back = encoder.decode(ids[bounds[row] : bounds[row + 1]])
            failures += back != text and back != unicodedata.normalize("NFC", text)
    groups = [
        {"source": source, "language": language, **dict(zip(_COUNTS, total, strict=True))}
        for (source, language), total in sorted(totals.items())
    ]
    return groups, used, failures


def total(groups: Iterable[dict[str, Any]]) -> dict[str, int]:
    """The counts of several groups added up."""
    groups = list(groups)
    return {name: sum(group[name] for group in groups) for name in _COUNTS}


def _ordinary(encoder: Encoder) -> list[tuple[int, bytes]]:
    """`(id, bytes)` of the tokens that text becomes."""
    special = encoder.special_ids
    every = ((number, encoder.token_bytes(number)) for number in range(encoder.vocab_size))
    return [(number, token) for number, token in every if token and number not in special]


def _scripts(encoder: Encoder) -> list[dict[str, Any]]:
    """How many tokens are of which script, the largest first."""
    kinds: Counter[str] = Counter()
    whole: list[str] = []
    for _, token in _ordinary(encoder):
        try:
            whole.append(token.decode())
        except UnicodeDecodeError:
            kinds["parts of characters"] += 1
    weights = letter_bytes(*text_buffers(pa.array(whole, pa.large_string())))
    for text, weight in zip(whole, weights, strict=True):
        kinds[SCRIPTS[int(weight.argmax())] if weight.any() else _without_letters(text)] += 1
    every = sum(kinds.values()) or 1
    ordered = sorted(kinds.items(), key=lambda item: (-item[1], item[0]))
    return [{"script": kind, "tokens": n, "share": round(n / every, 6)} for kind, n in ordered]


def _without_letters(text: str) -> str:
    if text.isspace():
        return "white space"
    return "digits" if any(char.isnumeric() for char in text) else "punctuation and symbols"


def _unused(encoder: Encoder, used: np.ndarray) -> dict[str, Any]:
    """Ordinary tokens of more than a byte that never occurred; examples are those with the highest ids."""
    ordinary = [(number, token) for number, token in _ordinary(encoder) if len(token) > 1]
    idle = [(number, token) for number, token in ordinary if not used[number]]
    return {
        "of": len(ordinary),
        "tokens": len(idle),
        "examples": [shown(token) for _, token in idle[-_SHOWN:]],
    }


def _near_duplicates(encoder: Encoder) -> dict[str, Any]:
    """Groups of tokens that are the same but for case, width and white space around them; the largest as examples."""
    groups: dict[str, list[bytes]] = defaultdict(list)
    for _, token in _ordinary(encoder):
        try:
            text = token.decode()
        except UnicodeDecodeError:
            continue
        key = unicodedata.normalize("NFKC", text).strip().casefold()
        if key:
            groups[key].append(token)
    several = {key: tokens for key, tokens in groups.items() if len(tokens) > 1}
    largest = sorted(several, key=lambda key: (-len(several[key]), key))[:_SHOWN]
    return {
        "groups": len(several),
        "tokens": sum(len(tokens) - 1 for tokens in several.values()),
        "examples": [[shown(token) for token in several[key]] for key in largest],
    }


def _sizes(encoder: Encoder, sample: pa.Table) -> list[dict[str, Any]]:
    """Bytes per token at sizes up to that of the tokenizer, and parameters of the embedding at WIDTHS."""
    lengths = np.cumsum(pc.binary_length(sample.column("text")).to_numpy())
    texts = sample.column("text").combine_chunks()[: int(np.searchsorted(lengths, _SIZED_ON)) + 1]
    size = int(pc.sum(pc.binary_length(texts)).as_py() or 0)
    rows = []
    for vocab_size in [*(size for size in _SIZES if size < encoder.vocab_size), encoder.vocab_size]:
        tokens = encoder.tokens_with(texts, vocab_size) if encoder.fast else None
        rows.append(
            {
                "vocab_size": vocab_size,
                "bytes_per_token": round(size / tokens, 4) if tokens else None,
                "parameters": [vocab_size * width for width in WIDTHS],
            }
        )
    return rows


def shown(token: bytes) -> str:
    """A token for people: spaces as a middle dot, other white space and controls escaped, broken UTF-8 in hexadecimal."""
    try:
        text = token.decode()
    except UnicodeDecodeError:
        return "<" + token.hex(" ").upper() + ">"
    return "".join(
        "\u00b7" if char == " " else char if char.isprintable() else char.encode("unicode_escape").decode()
        for char in text
    )


def as_html(made: dict[str, Any]) -> bytes:
    """The report as one page that holds everything it shows."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = lambda n: f"{n:,}"
    page = environment.get_template("report.html").render(
        made=made,
        total=total,
        plot=_plot(made["sizes"]) if any(r["bytes_per_token"] for r in made["sizes"]) else None,
    )
    return page.encode("utf-8", "replace")


def _plot(sizes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Coordinates of the plot: bytes per token, and parameters at the middle width, over the logarithm of the size."""
    width, height, margin = 640.0, 260.0, 46.0
    logs = [math.log2(row["vocab_size"]) for row in sizes]
    low, high = min(logs), max(max(logs), min(logs) + 1)
    best = max(row["bytes_per_token"] or 0 for row in sizes)
    cost = max(row["parameters"][1] for row in sizes)

    def points(values: Sequence[float], top: float) -> list[tuple[float, float]]:
        return [
            (
                round(margin + (log - low) / (high - low) * (width - 2 * margin), 1),
                round(height - margin - value / top * (height - 2 * margin), 1),
            )
            for log, value in zip(logs, values, strict=True)
        ]

    return {
        "width": width,
        "height": height,
        "base": height - margin,
        "gain": points([row["bytes_per_token"] or 0 for row in sizes], best),
        "cost": points([row["parameters"][1] for row in sizes], cost),
        "labels": [f"{row['vocab_size']:,}" for row in sizes],
        "best": f"{best:.2f} bytes per token",
        "most": f"{cost / 1e6:,.0f} M parameters at width {WIDTHS[1]:,}",
    }
