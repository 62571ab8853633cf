"""Encoding on one core: the same tokenizer, the same text and equal ids in Gristmill, tokenizers and tiktoken.

    GRISTMILL_DATA=… python -m benchmarks.encode [--quick] [--json]

encode.english …           MB/s of UTF-8 against tokenizers.encode_batch, on unseen text: every second document is encoded
                           first, the others are measured, so that ours has the table of pieces that a worker of a
                           build has after its first seconds
encode.english.tiktoken …  the same against tiktoken with the same vocabulary
encode.english.cold …      ours with an empty table, against tiktoken
encode.english.warm …      ours with the table filled by the same text
encode.start               times a second that the tokenizer can be loaded, tables and all, against tokenizers

The tokenizer is that of Qwen 3 (151,643 tokens), whose ids are the ranks that tiktoken wants.
"""

from __future__ import annotations

import json
from typing import Any

from benchmarks.measure import Report, cpu_seconds, one_core, parser

one_core()

import numpy as np  # noqa: E402
import pyarrow as pa  # noqa: E402
import tiktoken  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402

from benchmarks.texts import KINDS, data_folder, of_kind, unpacked  # noqa: E402
from stages.tokenizer.encode import Encoder  # noqa: E402
from stages.tokenizer.tokenizer_json import token_bytes  # noqa: E402


def _tiktoken(content: bytes) -> tiktoken.Encoding:
    """The same tokenizer for tiktoken."""
    spec: dict[str, Any] = json.loads(content)
    pattern = spec["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"]
    ranks = {token_bytes(token): number for token, number in spec["model"]["vocab"].items()}
    return tiktoken.Encoding("qwen3", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})


def _encoding(
    content: bytes, repeat: int, texts: pa.Array, before: pa.Array | None = None
) -> tuple[float, tuple[np.ndarray, np.ndarray]]:
    """CPU seconds of encoding `texts` with a fresh encoder that has seen `before`, and what came out."""
    encoders = [Encoder.load(content) for _ in range(repeat)]  # freeing one takes longer than encoding
    if before is not None:
        for encoder in encoders:
            encoder.encode_batch(before)
    turns = iter(encoders)
    return cpu_seconds(lambda: next(turns).encode_batch(texts), repeat)


def main() -> None:
    """Ours with three kinds of table, then the peers."""
    options = parser(__doc__).parse_args()
    report = Report("encode", options)
    content = unpacked(data_folder() / "tokenizers" / "qwen3" / "tokenizer.json.zst")
    library, other = Tokenizer.from_buffer(content), _tiktoken(content)
    Encoder.load(content).encode_batch(pa.array(["first call: code is loaded"], pa.large_string()))
    repeat = 1 if options.quick else 3
    for kind in KINDS:
        every = of_kind(kind, 4 if options.quick else 32)
        before, texts = (every.take(pa.array(range(start, len(every), 2))) for start in (0, 1))
        plain: list[str] = texts.to_pylist()
        size = sum(len(text.encode()) for text in plain) / 1e6
        cold, (ids, _) = _encoding(content, repeat, texts)
        steady, _ = _encoding(content, repeat, texts, before)
        warm, _ = _encoding(content, repeat, texts, texts)
        theirs, found = cpu_seconds(lambda plain=plain: library.encode_batch(plain, add_special_tokens=False))
        assert np.array_equal(ids, np.concatenate([encoding.ids for encoding in found])), kind
        report.rate(f"encode.{kind}", size / steady, "MB/s", size / theirs, "tokenizers")
        theirs, found = cpu_seconds(
            lambda plain=plain: [other.encode_ordinary(text) for text in plain], repeat
        )
        same = np.mean([len(a) for a in found]) * len(found) / len(ids)
        assert abs(same - 1) < 0.001, kind  # it does not normalize
        report.rate(f"encode.{kind}.tiktoken", size / steady, "MB/s", size / theirs, "tiktoken")
        report.rate(f"encode.{kind}.cold", size / cold, "MB/s", size / theirs, "tiktoken")
        report.rate(f"encode.{kind}.warm", size / warm, "MB/s")
    ours, _ = cpu_seconds(lambda: Encoder.load(content), repeat)
    theirs, _ = cpu_seconds(lambda: Tokenizer.from_buffer(content), repeat)
    report.rate("encode.start", 1 / ours, "1/s", 1 / theirs, "tokenizers")
    report.close()


if __name__ == "__main__":
    main()
