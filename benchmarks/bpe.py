"""Training byte-level BPE on one core: the same text, pattern and vocabulary size as tokenizers and rustbpe.

    GRISTMILL_DATA=… python -m benchmarks.bpe [--quick] [--json] [--megabytes N]

bpe.train32k …              MB/s from raw text to merges against tokenizers; bpe.train100k with 100,000 tokens
bpe.train32k.rustbpe …      against rustbpe
bpe.count                   MB/s of cutting and counting alone
bpe.memory …                MB of memory that counting and learning take at their peak, beside the text, and distinct
                            pieces; like the training stage, the benchmark learns from 48 MiB of them at most
bpe.compression.english …   bytes per token on text that was not trained on, against the vocabulary of tokenizers
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from benchmarks.measure import Report, cpu_seconds, one_core, parser

one_core()

import numpy as np  # noqa: E402
import pyarrow as pa  # noqa: E402
import pyarrow.compute as pc  # noqa: E402
import rustbpe  # noqa: E402
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers  # noqa: E402

from benchmarks.texts import KINDS, mixture, of_kind, of_this_machine  # noqa: E402
from stages.document import text_buffers  # noqa: E402
from stages.tokenizer.bpe import MIN_COUNT, TrainTokenizer, thin  # noqa: E402
from stages.tokenizer.encode import Encoder  # noqa: E402
from stages.tokenizer.learn import learn_merges  # noqa: E402
from stages.tokenizer.patterns import named_pattern  # noqa: E402
from stages.tokenizer.pieces import PieceTable  # noqa: E402
from stages.tokenizer.pretokenize import cut_long, pieces  # noqa: E402
from stages.tokenizer.tokenizer_json import tokenizer_files  # noqa: E402

PATTERN = named_pattern("llama3")
END = "<|endoftext|>"
#: Megabytes of the shared mixture to train on; what is left of it is held back.
MIXTURE = 40


def count(texts: pa.Array) -> PieceTable:
    """The pieces of the texts, counted as the training stage does it."""
    data, offsets = text_buffers(texts)
    table = PieceTable()
    for start, ends in pieces(PATTERN, data, offsets):
        table.tally(data, start, cut_long(data, start, ends, 32)[0])
    return table


def ours(texts: pa.Array, vocab_size: int) -> np.ndarray:
    """The merges."""
    table = count(texts)
    flat, offsets = table.pool[: table.used], table.offsets[: table.count + 1]
    weights, _ = thin(np.diff(offsets), table.tallied(), table.hashes(), TrainTokenizer().max_counted)
    if (weights == 0).any():
        keep = np.flatnonzero(weights)
        pool = pa.Array.from_buffers(pa.large_binary(), table.count, [None, pa.py_buffer(offsets), pa.py_buffer(flat)])
        flat, offsets = text_buffers(pool.take(pa.array(keep)).view(pa.large_string()))
        weights = weights[keep]
    return learn_merges(flat, offsets, weights, vocab_size - 1, MIN_COUNT)


def peak_megabytes(work: Callable[[], object]) -> float | None:
    """How far the memory of this process grows while `work` runs; None where the system does not tell."""
    try:
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        before = _status("VmRSS")
        work()
        return _status("VmHWM") - before
    except OSError:
        return None


def _status(name: str) -> float:
    """MB of a line of /proc/self/status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) * 1024 / 1e6


def by_library(texts: list[str], vocab_size: int) -> Tokenizer:
    """The same by tokenizers."""
    library = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(PATTERN.regexes[0]), "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    library.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    library.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=MIN_COUNT,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    library.train_from_iterator(texts, trainer)
    return library


def by_rustbpe(texts: list[str], vocab_size: int) -> rustbpe.Tokenizer:
    """The same by rustbpe."""
    made = rustbpe.Tokenizer()
    made.train_from_iterator(iter(texts), vocab_size - 1, pattern=PATTERN.regexes[0])
    return made


def main() -> None:
    """Train three times at each size, then count tokens of text held back."""
    options = parser(__doc__)
    options.add_argument(
        "--megabytes", type=float, default=0, help="how much text to train on; beyond 40 of this machine's"
    )
    options = options.parse_args()
    report = Report("bpe", options)
    texts = mixture(min(options.megabytes or MIXTURE, 6 if options.quick else MIXTURE))
    if options.megabytes > MIXTURE:
        texts = pa.concat_arrays([texts, of_this_machine(options.megabytes - MIXTURE)])
    size = int(pc.sum(pc.binary_length(texts)).as_py()) / 1e6
    plain: list[str] = texts.to_pylist()
    ours(texts[:10], 300)  # code is loaded
    repeat = 1 if options.quick or options.megabytes > MIXTURE else 2
    seconds, _ = cpu_seconds(lambda: count(texts), repeat)
    report.rate("bpe.count", size / seconds, "MB/s")
    peak = peak_megabytes(lambda: ours(texts, 100_000))
    if peak is not None:
        report.rate("bpe.memory", peak, "MB")
    report.rate("bpe.distinct", count(texts).count, "pieces")
    encoders = {}
    for name, vocab_size in {"32k": 1 << 15, "100k": 100_000}.items():
        seconds, merges = cpu_seconds(lambda n=vocab_size: ours(texts, n), repeat)
        theirs, library = cpu_seconds(lambda n=vocab_size: by_library(plain, n))
        report.rate(f"bpe.train{name}", size / seconds, "MB/s", size / theirs, "tokenizers")
        theirs, _ = cpu_seconds(lambda n=vocab_size: by_rustbpe(plain, n))
        report.rate(f"bpe.train{name}.rustbpe", size / seconds, "MB/s", size / theirs, "rustbpe")
        files = tokenizer_files(merges, (END,), PATTERN)
        encoders[name] = Encoder.load(files["tokenizer.json"]), Encoder.load(library.to_str().encode())
    trained = pa.array(sorted(set(plain)), pa.large_string())
    for kind in KINDS:
        held = of_kind(kind, 100)
        held = held.filter(pc.invert(pc.is_in(held, trained)))
        size = int(pc.sum(pc.binary_length(held)).as_py() or 0)
        if size < 100_000:
            continue
        for name, pair in encoders.items():
            mine, their = (size / len(encoder.encode_batch(held)[0]) for encoder in pair)
            report.rate(f"bpe.compression.{kind}.{name}", mine, "bytes/token", their, "tokenizers")
    report.close()


if __name__ == "__main__":
    main()
