"""Bits per byte on the holdout: a model of about 10 M parameters against an n-gram model of the same tokens.

    python -m benchmarks.bits --data FOLDER [--quick] [--json] [--keep FOLDER]

FOLDER holds `mixture.json`, a list of {"domain": ..., "path": ...}, and beside it are the files (JSON lines with `text`).
The corpus is built by `pipeline build`, trained on by `trainer fit` for 2 M tokens, half an hour of two cores (--quick:
400,000), and the last checkpoint is measured by `trainer eval`. The baseline is an interpolated trigram with Witten-Bell
smoothing (Witten and Bell 1991; Chen and Goodman 1998, section 2.5):

    ngram      of the tokens that the model has read, no others
    ngram.all  of all training tokens, ten times as many: what counting a whole corpus in a second comes to

All are measured on the same label tokens of the holdout, in bits per byte of their text.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.measure import Report, parser
from benchmarks.train import reading

ORDER = 3
SPACE = 1 << 21  # more than any token id


class NGram:
    """Counts of up to `ORDER` tokens, and interpolated Witten-Bell probabilities of them.

    p(w | h) = (c(h w) + t(h) p(w | h')) / (c(h) + t(h)), t(h) the number of different tokens behind h, h' the history
    without its first token; p(w) of no history at all is uniform over the vocabulary.
    """

    def __init__(self, documents: list[np.ndarray], vocab: int) -> None:
        self.vocab = vocab
        self._grams: list[tuple[np.ndarray, np.ndarray]] = []
        self._heads: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        for n in range(1, ORDER + 1):
            keys = np.concatenate([_keys(one, n) for one in documents])
            grams, counts = np.unique(keys, return_counts=True)
            heads, first = np.unique(grams // SPACE, return_index=True)
            totals = np.add.reduceat(counts, first)
            kinds = np.diff(np.append(first, len(grams)))
            self._grams.append((grams, counts))
            self._heads.append((heads, totals, kinds))

    def bits(self, document: np.ndarray) -> float:
        """Bits of all tokens of a document but its first, each given those before it."""
        p = np.full(len(document), 1 / self.vocab)
        for n in range(1, ORDER + 1):
            keys = _keys(document, n)
            count = _found(*self._grams[n - 1], keys)
            heads, totals, kinds = self._heads[n - 1]
            c, t = _found(heads, totals, keys // SPACE), _found(heads, kinds, keys // SPACE)
            seen = c > 0
            tail = p[n - 1 :]
            tail[seen] = (count[seen] + t[seen] * tail[seen]) / (c[seen] + t[seen])
        return float(-np.log2(p[1:]).sum())


def _keys(document: np.ndarray, n: int) -> np.ndarray:
    """Each run of n tokens as one number, int64."""
    ids = document.astype(np.int64)
    keys = np.zeros(max(0, len(ids) - n + 1), np.int64)
    for i in range(n):
        keys = keys * SPACE + ids[i : len(ids) - n + 1 + i]
    return keys


def _found(keys: np.ndarray, values: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    at = np.minimum(np.searchsorted(keys, wanted), max(0, len(keys) - 1))
    return np.where(keys[at] == wanted, values[at], 0) if len(keys) else np.zeros(len(wanted), np.int64)


def build(data: Path, folder: Path, only: list[str]) -> Path:
    """The corpus of a mixture folder, or of some of its domains: its manifest."""
    files: dict[str, list[str]] = {}
    for one in json.loads((data / "mixture.json").read_bytes()):
        if only and one["domain"] not in only:
            continue
        files.setdefault(one["domain"], []).append(str(data.parent / one["path"]))
    sources = ", ".join(f"{name}: {{path: {json.dumps(paths)}}}" for name, paths in sorted(files.items()))
    text = (
        f"name: bits\nsources: {{{sources}}}\nstages: [normalize, exact-dedup]\ntokenizer: {{vocab_size: 8192}}\n"
        "holdout: {share: 2%}\noutput: {path: out}\n"
    )
    (folder / "corpus.yaml").write_text(text, encoding="utf-8")
    _run("pipeline.cli", "build", str(folder / "corpus.yaml"))
    return folder / "out" / "manifest.json"


def documents(manifest: Path, held: bool) -> dict[str, list[np.ndarray]]:
    """The documents of each source, or of its holdout, as token ids with their EOS."""
    from stages.contract.manifest import load_manifest
    from stages.contract.shard import read_index, token_dtype

    loaded = load_manifest(manifest)
    found: dict[str, list[np.ndarray]] = {}
    for name, source in loaded.sources.items():
        for shard in source.holdout if held else source.shards:
            ids = np.fromfile(shard.path(manifest.parent, "tok"), token_dtype(loaded.tokenizer.vocab_size))
            lengths = read_index(shard.path(manifest.parent, "idx"), shard.tokens)["length"].astype(np.int64)
            found.setdefault(name, []).extend(np.split(ids, np.cumsum(lengths)[:-1]))
    return found


def read_by(manifest: Path, sets: tuple[str, ...]) -> list[np.ndarray]:
    """Every piece of a document that a run over this plan reads, as token ids."""
    _, loader = reading(manifest, list(sets))
    pieces: list[np.ndarray] = []
    with loader:
        for batch in loader.batches(0, micro=8):
            for micro in batch.micros:
                pieces += np.split(micro["input_ids"].reshape(-1), micro["cu_seqlens"][1:-1])
    return pieces


def baseline(manifest: Path, training: list[np.ndarray]) -> dict[str, tuple[float, int]]:
    """Source -> (bits, bytes) of the holdout by the n-gram model of some tokens."""
    from stages.contract.manifest import load_manifest
    from trainer.loop.evaluate import byte_lengths

    tokenizer = load_manifest(manifest).tokenizer
    lengths = byte_lengths(manifest.parent / tokenizer.path, tokenizer.vocab_size)
    assert lengths is not None
    model = NGram(training, tokenizer.vocab_size)
    return {
        name: (sum(map(model.bits, some)), int(sum(lengths[one[1:]].sum() for one in some)))
        for name, some in documents(manifest, held=True).items()
    }


def _run(module: str, *words: str) -> str:
    done = subprocess.run([sys.executable, "-m", module, *words], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(done.returncode)
    return done.stdout


def main(options: argparse.Namespace) -> None:
    """Build, count, train, measure."""
    report = Report("bits", options)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        manifest = folder / "out" / "manifest.json"
        if not manifest.exists():
            manifest = build(options.data, folder, options.only)
        from stages.contract.manifest import load_manifest

        tokens = sum(source.tokens for source in load_manifest(manifest).sources.values())
        total = min(tokens, 400_000 if options.quick else 2_000_000)
        small = ("model.params=10M", f"data.total_tokens={total}", "model.seq_len=256", "batch.global_tokens=8192",
                 "optimizer.type=Muon", "lr_schedule.peak_lr=3e-3", "lr_schedule.decay=wsd", "lr_schedule.min_lr_ratio=0",
                 "data.packing=concat", *options.set)  # fmt: skip
        sets = [part for text in small for part in ("--set", text)]
        rest = ["--manifest", str(manifest), *sets, "--out", str(folder / "run")]
        _run("trainer.cli", "fit", *rest)
        measured = json.loads(_run("trainer.cli", "eval", *rest, "--json").splitlines()[-1])["sources"]
        every = [one for some in documents(manifest, held=False).values() for one in some]
        bits = {"": {name: (one["loss"] * one["targets"] / math.log(2), one["bytes"]) for name, one in measured.items()}}
        bits[".ngram"] = baseline(manifest, read_by(manifest, small))
        bits[".ngram.all"] = baseline(manifest, every)
    assert len({tuple(sorted((name, size) for name, (_, size) in one.items())) for one in bits.values()}) == 1
    for name in (*measured, "all"):
        for kind, sources in bits.items():
            chosen = list(sources.values()) if name == "all" else [sources[name]]
            value = sum(lost for lost, _ in chosen) / sum(size for _, size in chosen)
            report.accuracy(f"bits.{name}{kind}", "bits per byte", value, sum(size for _, size in chosen))
    report.close()


if __name__ == "__main__":
    arguments = parser(__doc__)
    data = os.environ.get("GRISTMILL_DATA")
    arguments.add_argument("--data", type=Path, default=Path(data) / "data/mixture" if data else None, help="the folder with mixture.json")
    arguments.add_argument("--keep", type=Path, help="work in this folder and keep it; a corpus that is there is used")
    arguments.add_argument("--only", action="append", default=[], metavar="DOMAIN", help="only this domain; may be repeated")
    arguments.add_argument("--set", action="append", default=[], metavar="a.b=c", help="override a value of the plan")
    given = arguments.parse_args()
    if given.data is None:
        arguments.error("--data is needed, or GRISTMILL_DATA")
    main(given)
