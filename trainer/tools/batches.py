"""What can be told from batches and shards alone, before a model sees them."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from stages.contract.manifest import Manifest, ShardEntry
from stages.contract.shard import token_dtype
from stages.shards.assemble import IGNORE
from stages.shards.stream import SPAN, Shelf

#: Shifts that labels are compared at: labels[t] against input_ids[t + shift].
SHIFTS = (-2, -1, 0, 1, 2, 3)

#: Tokens looked at in each piece of a source, and pieces that a source is cut into at least, if it can be.
PIECE_TOKENS = 1 << 16
PIECES = 8

#: How unlike the rest of its source a piece must be: Jensen-Shannon divergence in bits, and robust deviations of it.
STRANGE_BITS, STRANGE_Z = 0.15, 8.0

#: Compressed size of a token, in bits: noise comes near log2(vocabulary) and is above its source, a text that repeats
#: itself is far below it. Languages and genres of one source lay within 0.6 and 1.45 of its median where it was measured.
NOISE_SHARE, NOISE_RATIO, REPEATED_RATIO = 0.95, 1.2, 0.35

#: Fewer tokens say nothing about a piece.
LEAST_TOKENS = 512


def label_shares(micros: Iterable[Mapping[str, Any]]) -> dict[int, float]:
    """For each shift the share of labels that are the input so many places on, in the same document; 1 is right.

    Documents with one repeated token fit every shift, so compare shares.
    """
    same, seen = dict.fromkeys(SHIFTS, 0), dict.fromkeys(SHIFTS, 0)
    for micro in micros:
        ids, labels = (np.asarray(micro[name]).reshape(-1) for name in ("input_ids", "labels"))
        span_T = np.searchsorted(np.asarray(micro["cu_seqlens"]), np.arange(len(ids)), side="right")
        for shift in SHIFTS:
            at = np.arange(max(0, -shift), len(ids) - max(0, shift))
            at = at[(labels[at] != IGNORE) & (span_T[at] == span_T[at + shift])]
            same[shift] += int((labels[at] == ids[at + shift]).sum())
            seen[shift] += len(at)
    return {shift: same[shift] / seen[shift] if seen[shift] else 0.0 for shift in SHIFTS}


def label_fault(shares: Mapping[int, float]) -> str | None:
    """A sentence when labels are not the next token; None when they are."""
    best = max(shares, key=lambda shift: (shares[shift], shift == 1))
    if shares[1] > 0.999:
        return None
    if shares[best] > 0.9 and best != 1:
        what = {0: "the token itself", -1: "the token before", 2: "the token after the next one"}.get(best, f"the token {best:+d} places away")
        return f"{shares[best]:.1%} of labels are {what}; {shares[1]:.1%} are the next token"
    return f"only {shares[1]:.1%} of labels are the next token of their document"


def single_tokens(manifest: Manifest) -> dict[str, tuple[int, int]]:
    """By source, documents of one token (their end alone), and all documents."""
    return {
        name: (entry.lengths.documents[0] if entry.lengths.edges[:1] == (1,) else 0, entry.documents)
        for name, entry in manifest.sources.items()
    }


@dataclass(frozen=True)
class Piece:
    """A part of a source whose tokens are unlike the rest.

    kind   `noise`, `repeated`, or `unlike`: other frequencies alone, which another language has too
    shard  its name;  first, last  its tokens in the shard;  bits  the divergence, beside the median of all pieces
    packed  compressed bits of a token, beside that median
    """

    kind: str
    source: str
    shard: str
    first: int
    last: int
    bits: float
    usual: float
    packed: float
    usual_packed: float

    @property
    def rubbish(self) -> bool:
        """Whether it cannot be text of any language."""
        return self.kind != "unlike"

    def sentence(self) -> str:
        """Where it is and what is strange."""
        what = {"noise": "like noise", "repeated": "the same again and again", "unlike": "other tokens than the rest"}[self.kind]
        return (
            f"{self.shard} of {self.source}, tokens {self.first:,} to {self.last:,}: {what} ({self.packed:.1f} bits a token compressed, "
            f"usual {self.usual_packed:.1f}; frequencies {self.bits:.2f} bits from the rest, usual {self.usual:.2f})"
        )


def strange_pieces(manifests: Sequence[Manifest], folders: Sequence[Path]) -> list[Piece]:
    """Pieces of each source (a shard, or an eighth of one) unlike its others, rubbish first, then by how far they are. Reads
    up to 64 Ki tokens of each piece."""
    found: list[Piece] = []
    for manifest, folder in zip(manifests, folders, strict=True):
        for name, entry in manifest.sources.items():
            found += _strange(name, folder, entry.shards, manifest.tokenizer.vocab_size)
    return sorted(found, key=lambda piece: (not piece.rubbish, -piece.bits))


def _strange(source: str, folder: Path, shards: Sequence[ShardEntry], vocab: int) -> list[Piece]:
    cuts = max(1, -(-PIECES // max(1, len(shards))))
    shelf = Shelf(token_dtype(vocab))
    places, counts, sizes = [], [], []
    try:
        for shard in shards:
            number = shelf.add(folder, shard)
            edges = np.linspace(0, shard.tokens, cuts + 1).astype(np.int64).tolist()
            for first, last in pairwise(edges):
                if last - first >= LEAST_TOKENS:
                    tokens = _some(shelf, number, first, last)
                    places.append((shard.name, first, last))
                    counts.append(np.bincount(tokens, minlength=vocab).astype(np.float64))
                    sizes.append(8 * len(zlib.compress(tokens.tobytes(), 6)) / len(tokens))
    finally:
        shelf.close()
    if len(counts) < 3:
        return []
    table = np.array(counts)
    total = table.sum(0)
    bits = np.array([_divergence(row, total - row) for row in table])
    middle, packed = float(np.median(bits)), float(np.median(sizes))
    spread = max(1.4826 * float(np.median(np.abs(bits - middle))), 0.01)
    found = []
    for place, far, size in zip(places, bits.tolist(), sizes, strict=True):
        noise = size >= NOISE_SHARE * np.log2(vocab) and size >= NOISE_RATIO * packed
        unlike = far > STRANGE_BITS and far - middle > STRANGE_Z * spread
        kind = "noise" if noise else "repeated" if size <= REPEATED_RATIO * packed else "unlike" if unlike else ""
        if kind:
            found.append(Piece(kind, source, *place, far, middle, size, packed))
    return found


def _some(shelf: Shelf, shard: int, first: int, last: int) -> np.ndarray:
    """Up to `PIECE_TOKENS` tokens in runs spread over the range."""
    runs = min(16, max(1, (last - first) // 64))
    size = min(PIECE_TOKENS // runs, (last - first) // runs)
    spans = np.zeros(runs, SPAN)
    spans["shard"], spans["count"] = shard, size
    spans["start"] = np.linspace(first, last - size, runs).astype(np.int64)
    tokens, at = shelf.gather(spans)
    return np.concatenate([tokens[a : a + size] for a in at.tolist()])


def _entropy(count_V: np.ndarray) -> float:
    p = count_V[count_V > 0] / count_V.sum()
    return float(-(p * np.log2(p)).sum())


def _divergence(a_V: np.ndarray, b_V: np.ndarray) -> float:
    """Jensen-Shannon divergence of two counts, bits: 0 the same, 1 nothing in common."""
    if not a_V.sum() or not b_V.sum():
        return 0.0
    p, q = a_V / a_V.sum(), b_V / b_V.sum()
    return _entropy((p + q) / 2) - (_entropy(p) + _entropy(q)) / 2
