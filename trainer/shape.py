"""The shape of the model, and the rule that finds one for a number of parameters.

Rule: head width 32 below width 256, 64 below 2,048, then 128. Four query heads share a key head from width 2,048
on. Feed-forward width 8/3 of the width, rounded up to a multiple of 64 (256 from width 2,048). Embeddings are tied
below a billion parameters, where they would be a large part of the model. Depth: width / layers near
64 (width / 768)^0.41, the line through GPT-2 (768 x 12) and Llama 7B (4,096 x 32). Of all widths the one that comes
closest to the number of parameters wins, half as much weight lying on the depth.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise

#: Logits of one chunk of the loss, in elements, and of the block of a chunk that is worked on at once, on a GPU and on a CPU:
#: what `model/loss.py` cuts by, and what the ledger of memory counts.
CHUNK_ELEMENTS = 1 << 25
BLOCK_ELEMENTS = (1 << 23, 1 << 19)

#: Rows of the embedding are a multiple of this, so that matrix products stay aligned.
VOCABULARY_MULTIPLE = 64

UNTIED_FROM = 1_000_000_000
GROUPED_FROM = 2048


@dataclass(frozen=True)
class ModelShape:
    """A Llama-shaped decoder: RMSNorm, rotary positions, grouped queries, SwiGLU, no biases."""

    vocab_size: int  # rows of the embedding: the tokenizer's size rounded up to a multiple of 64
    width: int
    layers: int
    heads: int
    kv_heads: int
    ffn: int
    seq_len: int  # the longest of any phase
    tie_embeddings: bool
    rope_theta: float
    norm_eps: float
    qk_norm: bool = False
    dropout: float = 0.0

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.width // self.heads

    @property
    def parameters(self) -> int:
        """Exact number of parameters; an untied output layer counts."""
        kv_width = self.kv_heads * self.head_dim
        attention = 2 * self.width * self.width + 2 * self.width * kv_width
        layer = attention + 3 * self.width * self.ffn + self.vectors
        tables = 1 if self.tie_embeddings else 2
        return tables * self.vocab_size * self.width + self.layers * layer + self.width

    @property
    def matmul_parameters(self) -> int:
        """Parameters of matrix products: linear layers and the output layer, not the lookup."""
        tables = 0 if self.tie_embeddings else self.vocab_size * self.width
        return self.parameters - tables - self.layers * self.vectors - self.width

    @property
    def vectors(self) -> int:
        """Parameters of the norms of a layer."""
        return 2 * self.width + (2 * self.head_dim if self.qk_norm else 0)

    def uneven(self, ranks: int) -> list[str]:
        """What so many ranks cannot share evenly."""
        parts = {"heads": self.heads, "key heads": self.kv_heads, "ffn": self.ffn, "ids": self.vocab_size}
        return [f"{size:,} {name}" for name, size in parts.items() if size % ranks]

    def faults(self) -> Iterator[str]:
        """What cannot work, one sentence each."""
        if self.width % self.heads:
            yield f"{self.heads} heads do not divide the width {self.width:,}"
        elif self.head_dim % 2:
            yield f"heads of width {self.head_dim} are odd; rotary positions turn pairs"
        if self.heads % self.kv_heads:
            yield f"{self.kv_heads} key heads do not divide {self.heads} query heads"


def stages_of(shape: ModelShape, count: int) -> tuple[range, ...]:
    """The layers of each pipeline stage, at least one each, so that the slowest stage has the least to do.

    What a stage has to do is counted in parameters of matrix products: those of its layers, and for the last stage those
    of the output layer, which is worth several layers where the vocabulary is large. The lookup of the first stage is none.
    """
    if count == 1:
        return (range(shape.layers),)
    head = shape.vocab_size * shape.width
    layer = (shape.matmul_parameters - head) / shape.layers

    def slowest(last: int) -> tuple[float, int]:
        return max(-(-(shape.layers - last) // (count - 1)) * layer, last * layer + head), -last

    last = min(range(1, shape.layers - count + 2), key=slowest)
    each, more = divmod(shape.layers - last, count - 1)
    # The first stages hold the most activations, so those behind them take one more.
    sizes = [each + (stage >= count - 1 - more) for stage in range(count - 1)] + [last]
    ends = list(accumulate(sizes, initial=0))
    return tuple(range(a, b) for a, b in pairwise(ends))


@dataclass(frozen=True)
class Given:
    """What plan.yaml says about the shape; None is left to the rule."""

    params: int | None = None
    width: int | None = None
    layers: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    ffn: int | None = None
    tie_embeddings: bool | None = None


def padded_vocabulary(vocab_size: int) -> int:
    """Rows of the embedding for a tokenizer of this size."""
    return -(-vocab_size // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE


def smallest_sensible(vocab_size: int) -> int:
    """Parameters of a model of this vocabulary that is 128 wide and 4 layers deep."""
    width, ffn = 128, 384
    return padded_vocabulary(vocab_size) * width + 4 * (4 * width * width + 3 * width * ffn)


def find_shape(
    given: Given, target: int, vocab_size: int, seq_len: int, rope_theta: float, norm_eps: float
) -> ModelShape:
    """The shape nearest to `target` parameters that keeps to what is given. May have faults if that is given."""

    def build(width: int, layers: int) -> ModelShape:
        wide = width >= GROUPED_FROM
        head = 128 if wide else 64 if width >= 256 else 32
        heads = given.heads or max(1, width // head)
        kv_heads = given.kv_heads or (heads // 4 if wide and heads % 4 == 0 else heads)
        multiple = 256 if wide else 64
        ffn = given.ffn or -(-8 * width // (3 * multiple)) * multiple
        tied = given.tie_embeddings if given.tie_embeddings is not None else target < UNTIED_FROM
        rows = padded_vocabulary(vocab_size)
        return ModelShape(rows, width, layers, heads, kv_heads, ffn, seq_len, tied, rope_theta, norm_eps)

    best, best_score = None, math.inf
    for width in [given.width] if given.width else _widths():
        empty = build(width, 0).parameters
        layer = build(width, 1).parameters - empty
        layers = given.layers or max(1, round((target - empty) / layer))
        shape = build(width, layers)
        depth = width / layers / (64 * (width / 768) ** 0.414)
        score = abs(math.log(shape.parameters / target)) + 0.5 * abs(math.log(depth))
        if score < best_score:
            best, best_score = shape, score
    assert best is not None
    return best


def _widths() -> Iterator[int]:
    yield from range(64, 1024, 64)
    yield from range(1024, 2048, 128)
    yield from range(2048, 32769, 512)
