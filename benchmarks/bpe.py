"""Tokenizer training against `tokenizers`: the same text, pattern and vocabulary size.

    GRISTMILL_DATA=… python -m benchmarks.bpe [MB] [VOCAB]

Prints MB/s of counting and of learning, and bytes per token of both vocabularies on text held back.
"""

from __future__ import annotations

import sys
import time

import numpy as np
import pyarrow as pa
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from benchmarks.texts import mixture
from stages.bpe import MIN_COUNT
from stages.document import text_buffers
from stages.encode import Encoder
from stages.learn import learn_merges
from stages.pieces import PieceTable
from stages.pretokenize import named_pattern, pieces
from stages.tokenizer_json import tokenizer_files

PATTERN = named_pattern("llama3")


def ours(texts: pa.Array, vocab_size: int) -> bytes:
    """The tokenizer.json of our own training, times printed."""
    data, offsets = text_buffers(texts)
    megabytes = (offsets[-1] - offsets[0]) / 1e6
    start = time.perf_counter()
    table, counts = PieceTable(), np.zeros(len(data), np.int64)
    for first, ends in pieces(PATTERN, data, offsets):
        np.add.at(counts, table.intern(data, first, ends), 1)
    counted = time.perf_counter()
    merges = learn_merges(
        table.pool[: table.used],
        table.offsets[: table.count + 1],
        counts[: table.count],
        vocab_size - 1,
        MIN_COUNT,
    )
    done = time.perf_counter()
    print(f"gristmill   count {counted - start:6.2f} s ({megabytes / (counted - start):.0f} MB/s), {table.count:,} pieces; "
          f"learn {len(merges):,} merges {done - counted:6.2f} s; in all {megabytes / (done - start):.1f} MB/s")  # fmt: skip
    return tokenizer_files(merges, ("<|endoftext|>",), PATTERN)["tokenizer.json"]


def theirs(texts: pa.Array, vocab_size: int) -> bytes:
    """The same by the library."""
    library = Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN.regex), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    library.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=MIN_COUNT,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    start = time.perf_counter()
    library.train_from_iterator(texts.to_pylist(), trainer)
    seconds = time.perf_counter() - start
    print(f"tokenizers  in all {seconds:6.2f} s, {texts.nbytes / 1e6 / seconds:.1f} MB/s")
    return library.to_str().encode()


def main() -> None:
    """Train both, then count tokens of the last tenth of the text, which neither saw."""
    megabytes = float(sys.argv[1]) if len(sys.argv) > 1 else 20.0
    vocab_size = int(sys.argv[2]) if len(sys.argv) > 2 else 32_768
    texts = mixture(megabytes)
    cut = len(texts) * 9 // 10
    trained, held = texts[:cut], texts[cut:]
    size = int(np.diff(text_buffers(held)[1]).sum())
    for make in (ours, theirs):
        encoder = Encoder.load(make(trained, vocab_size))
        ids, _ = encoder.encode_batch(held)
        print(
            f"            {encoder.vocab_size:,} tokens, {size / len(ids):.4f} bytes per token on text held back"
        )


if __name__ == "__main__":
    main()
