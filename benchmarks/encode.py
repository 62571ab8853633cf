"""Encoding against `tokenizers`, one thread each: the same tokenizer.json, the same text, equal ids.

    GRISTMILL_DATA=... python -m benchmarks.encode [MB] [TOKENIZER]

TOKENIZER is a folder of data/tokenizers with a tokenizer.json.zst; default qwen3.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import numpy as np
import zstandard

from benchmarks.texts import mixture
from stages.document import text_buffers
from stages.encode import Encoder
from stages.pieces import PieceTable
from stages.pretokenize import named_pattern, pieces


def main() -> None:
    """Cold and warm passes of ours, the splitting alone, then the library on a tenth of the text."""
    megabytes = float(sys.argv[1]) if len(sys.argv) > 1 else 20.0
    folder = (
        Path(os.environ["GRISTMILL_DATA"])
        / "data"
        / "tokenizers"
        / (sys.argv[2] if len(sys.argv) > 2 else "qwen3")
    )
    with (folder / "tokenizer.json.zst").open("rb") as file:
        encoder = Encoder.load(zstandard.ZstdDecompressor().stream_reader(file).read())
    texts = mixture(megabytes)
    data, offsets = text_buffers(texts)
    size = (offsets[-1] - offsets[0]) / 1e6
    print(f"{size:.1f} MB, {len(texts):,} documents; {encoder.why_slow or 'fast path'}")
    for name in ("cold", "warm"):
        start = time.process_time()
        ids, bounds = encoder.encode_batch(texts)
        seconds = time.process_time() - start
        print(f"gristmill {name}   {size / seconds:6.1f} MB/s of CPU, {len(ids) / seconds / 1e6:.1f} Mtok/s")
    start = time.process_time()
    table = PieceTable()
    for first, ends in pieces(named_pattern("qwen2"), data, offsets):
        table.intern(data, first, ends)
    print(
        f"split, number    {size / (time.process_time() - start):6.1f} MB/s of CPU, {table.count:,} distinct pieces"
    )
    some = range(0, len(texts), 10)
    plain = [texts[i].as_py() for i in some]
    start = time.process_time()
    theirs = [encoder._library.encode(text, add_special_tokens=False).ids for text in plain]
    seconds = time.process_time() - start
    part = sum(int(offsets[i + 1] - offsets[i]) for i in some) / 1e6
    equal = all(
        np.array_equal(ids[bounds[i] : bounds[i + 1]], own) for i, own in zip(some, theirs, strict=True)
    )
    print(f"tokenizers       {part / seconds:6.1f} MB/s of CPU; ids equal: {equal}")


if __name__ == "__main__":
    main()
