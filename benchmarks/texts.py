"""Text for benchmarks: the mixture in the shared data, shuffled by a fixed seed."""

from __future__ import annotations

import os
import random
from pathlib import Path

import orjson
import pyarrow as pa
import zstandard


def mixture(megabytes: float, pattern: str = "*") -> pa.Array:
    """large_string array of whole documents of about that size in all, from the domains of GRISTMILL_DATA.

    pattern  of the names of domains to take: `zh`, `[!z]*`
    """
    folder = Path(os.environ["GRISTMILL_DATA"]) / "data" / "mixture"
    texts: list[str] = []
    for path in sorted(folder.glob(f"{pattern}/*.jsonl.zst")):
        with path.open("rb") as file:
            lines = zstandard.ZstdDecompressor().stream_reader(file).read().splitlines()
        texts.extend(orjson.loads(line)["text"] for line in lines)
    random.Random(0).shuffle(texts)
    chosen, size = [], 0
    for text in texts:
        if size >= megabytes * 1e6:
            break
        chosen.append(text)
        size += len(text.encode())
    return pa.array(chosen, pa.large_string())
