"""Text to MinHash signatures on one core: ours, rensa, datasketch, datatrove with its defaults.

    GRISTMILL_DATA=... python -m benchmarks.minhash [--quick] [--json]

minhash.text*    MB/s from text to signatures, each contender over the same documents. Ours makes band keys, the
                 verification sketch and a twin hash; the others make 112 MinHash rows. Peers get word 5-grams (5-grams
                 of characters for Chinese) made in Python, which is how they are used, or make their own.
minhash.kernel*  documents/s from shingles that are hashed already: `rows` only MinHash rows, `kernel` all we make.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from benchmarks.measure import Report, cpu_seconds, one_core, parser

one_core()

import numpy as np  # noqa: E402
import pyarrow as pa  # noqa: E402
from numba import njit  # noqa: E402

from benchmarks.texts import of_kind  # noqa: E402
from stages.dedup import signature  # noqa: E402
from stages.dedup.minhash import MinhashDedup  # noqa: E402
from stages.dedup.minima import minima  # noqa: E402
from stages.document import text_buffers  # noqa: E402
from stages.text import shingle_hashes  # noqa: E402

PERMUTATIONS = 112
WORD = re.compile(r"\w+")


def shingles(text: str, unspaced: bool) -> list[str]:
    """Word or character 5-grams as strings."""
    words = WORD.findall(text.lower())
    if unspaced:
        joined = "".join(words)
        return [joined[i : i + 5] for i in range(max(len(joined) - 4, 0))]
    return [" ".join(words[i : i + 5]) for i in range(max(len(words) - 4, 0))]


def ours(texts: pa.Array) -> Callable[[], object]:
    """The emission of the stage, bands for a threshold of 0.8."""
    stage, batch = MinhashDedup(), pa.record_batch({"text": texts})
    return lambda: stage.emit(batch, 0)


def rensa(texts: list[str], unspaced: bool, rho: bool) -> Callable[[], object]:
    """A matrix of digests by its batch call."""
    from rensa import RMinHash

    make = RMinHash.digest_matrix_from_token_sets_rho if rho else RMinHash.digest_matrix_from_token_sets
    return lambda: make([shingles(text, unspaced) for text in texts], PERMUTATIONS, 1)


def datasketch(texts: list[str], unspaced: bool, fast: bool) -> Callable[[], object]:
    """`update_batch` per document, with the default hash (sha1) or xxh32."""
    from datasketch import MinHash
    from xxhash import xxh32_intdigest

    options = {"hashfunc": xxh32_intdigest} if fast else {}

    def run() -> list[MinHash]:
        made = []
        for text in texts:
            sketch = MinHash(num_perm=PERMUTATIONS, seed=1, **options)
            sketch.update_batch([s.encode() for s in shingles(text, unspaced)])
            made.append(sketch)
        return made

    return run


def datatrove(texts: list[str], folder: str) -> Callable[[], object]:
    """Shingles and signature of its first stage: spaCy words, 14 x 8 rows of 64 bits."""
    from datatrove.pipeline.dedup.minhash import MinhashDedupSignature

    stage = MinhashDedupSignature(folder)
    stage.get_shingles("Loads the tokenizer, which is not to be counted.")
    return lambda: [stage.get_signature(stage.get_shingles(text)) for text in texts]


def from_text(report: Report, name: str, texts: pa.Array, quick: bool, unspaced: bool) -> None:
    """MB/s of everybody on a language; peers get as many documents as they can do in some seconds."""
    import tempfile

    texts = texts.filter(pa.compute.greater(pa.compute.utf8_length(texts), 100))
    ours(texts)()
    everything = texts.nbytes / 1e6
    seconds, _ = cpu_seconds(ours(texts), 5)
    peers = [
        ("rensa", lambda t: rensa(t, unspaced, rho=False), 3.0),
        ("rensa rho", lambda t: rensa(t, unspaced, rho=True), 3.0),
        ("datasketch", lambda t: datasketch(t, unspaced, fast=False), 1.5),
        ("datasketch xxh32", lambda t: datasketch(t, unspaced, fast=True), 1.5),
    ]
    with tempfile.TemporaryDirectory() as folder:
        if not unspaced:
            peers.append(("datatrove", lambda t: datatrove(t, folder), 1.0))
        for peer_name, peer, megabytes in peers:
            size = np.cumsum(np.diff(text_buffers(texts)[1])) / 1e6
            some = texts[: int(np.searchsorted(size, megabytes / (5 if quick else 1))) + 1]
            part = int(np.diff(text_buffers(some)[1]).sum()) / 1e6
            theirs, _ = cpu_seconds(peer(some.to_pylist()), 1 if quick else 3)
            mine, _ = cpu_seconds(ours(some), 15)
            label = f"minhash.{name}.{peer_name.replace(' ', '-')}" if peer_name != "rensa" else f"minhash.{name}"
            report.rate(label, part / mine, "MB/s", part / theirs, peer_name)
    report.rate(f"minhash.{name}.whole", everything / seconds, "MB/s")


@njit
def _rows(shingle_hashes, offsets, multipliers, additions, rows):
    for i in range(len(offsets) - 1):
        minima(shingle_hashes[offsets[i] : offsets[i + 1]], offsets[i + 1] - offsets[i], multipliers, additions, rows[i])


def kernel(report: Report, texts: pa.Array) -> None:
    """Documents a second over hashes of shingles."""
    from rensa import RMinHash

    hashes, offsets = shingle_hashes(*text_buffers(texts), 5)
    constants = signature.Permutations.make(0, PERMUTATIONS)
    rows = np.empty((len(texts), PERMUTATIONS), np.uint32)
    flat, bounds = hashes, offsets.astype(np.uint64)
    _rows(hashes, offsets[:3], constants.multipliers, constants.offsets, rows)
    only, _ = cpu_seconds(lambda: _rows(hashes, offsets, constants.multipliers, constants.offsets, rows), 5)
    all_of_it, _ = cpu_seconds(lambda: signature.sign(hashes, offsets, 1, 14, 8, constants), 5)
    plain, _ = cpu_seconds(
        lambda: RMinHash.digest_matrix_from_flat_token_hashes(flat, bounds, PERMUTATIONS, 1), 5
    )
    rho, _ = cpu_seconds(
        lambda: RMinHash.digest_matrix_from_flat_token_hashes_rho(flat, bounds, PERMUTATIONS, 1), 5
    )
    n = len(texts)
    report.rate("minhash.kernel.rows", n / only, "documents/s", n / plain, "rensa")
    report.rate("minhash.kernel", n / all_of_it, "documents/s", n / plain, "rensa")
    report.rate("minhash.kernel.rho", n / all_of_it, "documents/s", n / rho, "rensa rho")


def main() -> None:
    """English (and code), Chinese, then kernels."""
    options = parser(__doc__).parse_args()
    report = Report("minhash", options)
    size = 4.0 if options.quick else 20.0
    english = of_kind("english", size)
    from_text(report, "text", english, options.quick, unspaced=False)
    from_text(report, "text.zh", of_kind("chinese", size / 4), options.quick, unspaced=True)
    kernel(report, english)
    report.close()


if __name__ == "__main__":
    main()
