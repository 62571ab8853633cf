"""The memory ledger: bytes of one device by part, at each moment of a step that can be the fullest.

Symbols: N parameters, P those of a block or of the root (embedding, last norm, head), L layers, D width, K width of the
keys, F feed-forward, H heads, V vocabulary, T tokens of a pass, S devices that a copy of the weights is spread over, c
bytes of the compute format. Weights, gradients and moments are fp32; no copy in another format stays.

A layer keeps for the backward pass, for each token (flash attention, fused norms):
    none       18 D + 6 K + 8 F + 4 H + 8     the norms keep an fp32 copy of their input, 4 D each
    selective   8 D + 4 K + 4 F               the results of matrix products, and the input of the layer
    full        2 D                           the input of the layer
and, without checkpointing, c (D (D + 2 K) + 2 D F) whatever the tokens: weights that are multiplied at once are copied
next to each other, and the copy is kept.

Devices that share a layer (tensor parallel) divide all of this but two states of all tokens, 2 c D (1 - 1/t) a token: what goes into
attention and feed-forward (none), what comes out of them (selective). A pipeline stage keeps the passes that are on their way
behind it, stages - its number at most, and has room for the states that it gets and sends of every pass of a step. The ledger is
that of the fullest stage.
The moments: the loss (all activations, logits of a chunk), the backward pass of the last, the last but one and the first
layer (what it computes again, gathered weights, gradients on their way), the last reduction (gradients of embedding and
head), the update. `trainer plan --trace` checks them against PyTorch's tracer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from trainer.config import Compute, OptimizerName, Recompute, Shard
from trainer.shape import BLOCK_ELEMENTS, CHUNK_ELEMENTS, ModelShape, stages_of

#: Reserve: what CUDA and its libraries take, and the share that lies idle between blocks of the allocator.
CONTEXT = 1 << 30
FRAGMENTS = 0.05

#: GPUs of a machine: the group that `hybrid` shards over.
MACHINE = 8

PARTS = ("weights", "master copy", "gradients", "optimizer", "activations", "gathered layers", "logits", "working set")


@dataclass(frozen=True)
class Setting:
    """What decides the memory of a device."""

    shape: ModelShape
    rows: int  # sequences in a pass
    seq_len: int
    passes: int = 1  # in a step
    devices: int = 1  # data parallel
    shard: Shard = "full"
    replicas: int | None = None
    tensor: int = 1
    pipeline: int = 1
    recompute: Recompute = "none"
    compute: Compute = "bf16"
    optimizer: OptimizerName = "AdamW"
    on_cpu: bool = False

    @property
    def tokens(self) -> int:
        """Tokens of a pass."""
        return self.rows * self.seq_len

    @property
    def spread(self) -> int:
        """Devices that a copy of the weights is spread over."""
        if self.shard == "none":
            return 1
        if self.shard == "hybrid":
            groups = self.replicas or (self.devices // MACHINE if self.devices > MACHINE else min(2, self.devices))
            return max(1, self.devices // groups)
        return self.devices


@dataclass(frozen=True)
class Ledger:
    """Bytes of one device at its fullest moment, by part."""

    moment: str
    parts: dict[str, float]
    on_cpu: bool = False

    @property
    def used(self) -> float:
        """All parts."""
        return sum(self.parts.values())

    @property
    def reserve(self) -> float:
        """What the device's libraries and allocator take beside."""
        return 0.0 if self.on_cpu else CONTEXT + FRAGMENTS * self.used

    @property
    def total(self) -> float:
        """All parts and the reserve."""
        return self.used + self.reserve


def state_bytes(optimizer: str, shape: ModelShape) -> float:
    """Bytes of optimizer state for each parameter, on average."""
    whole = {"AdamW": 8.0, "Sophia": 8.0, "Lion": 4.0, "AdamW8bit": 2.0}
    if optimizer in whole:
        return whole[optimizer]
    matrices = shape.matmul_parameters - shape.vocab_size * shape.width
    return 8.0 - 4.0 * matrices / shape.parameters


def kept_bytes(setting: Setting, mode: Recompute) -> float:
    """Bytes that a layer keeps of each token for its backward pass."""
    shape = setting.shape
    width, keys, ffn = shape.width, shape.kv_heads * shape.head_dim, shape.ffn
    size = 4 if setting.compute == "fp32" else 2
    if mode == "full":
        return size * width
    if mode == "selective":
        return size * (4 * width + 2 * keys + 2 * ffn)
    norm = 4 * width
    if setting.on_cpu:  # no fused norm, and keys are repeated for the queries that share them
        norm, keys = 8 * width, width
    return 2 * norm + size * (5 * width + 3 * keys + 4 * ffn) + 4 * shape.heads + 8


def joined_bytes(setting: Setting) -> float:
    """Bytes of the weights of a layer that lie next to each other for one product: query, key, value; gate, up."""
    shape = setting.shape
    keys = shape.kv_heads * shape.head_dim
    size = 4 if setting.compute == "fp32" else 2
    return size * shape.width * (shape.width + 2 * keys + 2 * shape.ffn) / setting.tensor


def ledger(setting: Setting) -> Ledger:
    """The fullest moment of a step."""
    return max(moments(setting), key=lambda one: one.used)


def moments(setting: Setting) -> Iterator[Ledger]:
    """Every moment that can be the fullest, of every stage."""
    stages = min(setting.pipeline, setting.shape.layers)
    for stage in range(stages):
        sizes = _sizes(setting, stage, stages)
        found = [*_backward(setting, sizes), _reduction(setting, sizes)]
        if sizes.last:
            found.insert(0, _loss(setting, sizes))
        held = _held(setting, sizes, sizes.parameters)
        found.append(Ledger("update", held, setting.on_cpu))
        yield from found if stages == 1 else (replace(one, moment=f"{one.moment}, stage {stage + 1}") for one in found)


@dataclass(frozen=True)
class _Sizes:
    """Of one device: parameters, those of a block and of the root, its tables (embedding, head), layers, passes on their
    way; whether it is of the first and of the last stage."""

    parameters: float
    block: float
    root: float
    tables: int
    layers: int
    flight: int
    size: int  # bytes of the compute format
    first: bool
    last: bool


def _sizes(setting: Setting, stage: int, stages: int) -> _Sizes:
    shape, first, last = setting.shape, stage == 0, stage == stages - 1
    layers = len(stages_of(shape, stages)[stage])
    tables = int(first or last) if shape.tie_embeddings else first + last
    root = (tables * shape.vocab_size * shape.width) / setting.tensor + last * shape.width
    whole = shape.parameters - (1 if shape.tie_embeddings else 2) * shape.vocab_size * shape.width - shape.width
    block = (whole / shape.layers - shape.vectors) / setting.tensor + shape.vectors
    size = 4 if setting.compute == "fp32" else 2
    flight = min(stages - stage, setting.passes)
    return _Sizes(layers * block + root, block, root, tables, layers, flight, size, first, last)


def _held(setting: Setting, sizes: _Sizes, reduced: float) -> dict[str, float]:
    """What stays from step to step, and the gradients of `reduced` parameters (of all, from the second pass on)."""
    spread = setting.spread
    accumulated = setting.passes > 1
    gradients = 4 * (sizes.parameters if accumulated else reduced)
    whole = accumulated and setting.shard in ("none", "optimizer")  # summed over devices in the last pass only
    state = state_bytes(setting.optimizer, setting.shape)
    parts = dict.fromkeys(PARTS, 0.0)
    parts["weights"] = 4 * sizes.parameters / spread
    parts["gradients"] = gradients if whole else gradients / spread
    parts["optimizer"] = state * sizes.parameters / spread
    return parts


def _gathered(setting: Setting, sizes: _Sizes, blocks: float) -> float:
    """Weights in the compute format: of the root and of so many blocks, or of all where they are not dropped."""
    if setting.shard in ("none", "optimizer", "gradients"):
        return sizes.size * sizes.parameters
    return sizes.size * (sizes.root + blocks * sizes.block)


def _beside(setting: Setting, sizes: _Sizes) -> float:
    """Rotations, ids, labels and losses of a pass; with several stages of all passes, and the states that they send."""
    ends = (not sizes.first) + (not sizes.last)
    rows, passes = (33, 1) if not ends else (33 + ends * sizes.size * setting.shape.width / setting.tensor, setting.passes)
    return setting.tokens * (sizes.flight * sizes.size * setting.shape.head_dim + passes * rows)


def _layer_bytes(setting: Setting) -> float:
    """Bytes that a device keeps of a layer, for each token of a pass, for the backward pass."""
    return kept_bytes(setting, setting.recompute) / setting.tensor + (_whole_states(setting) if setting.recompute != "full" else 0.0)


def _whole_states(setting: Setting) -> float:
    """Bytes for each token of the two states of a layer that are not shared out, above their share."""
    size = 4 if setting.compute == "fp32" else 2
    return 2 * size * setting.shape.width * (1 - 1 / setting.tensor)


def _loss(setting: Setting, sizes: _Sizes) -> Ledger:
    """Start of the backward pass: all activations, and the logits of one chunk."""
    shape, tokens, size = setting.shape, setting.tokens, sizes.size
    chunk = min(tokens, max(1, CHUNK_ELEMENTS // shape.vocab_size))
    parts = _held(setting, sizes, 0.0)
    kept = sizes.flight * sizes.layers * _layer_bytes(setting) * tokens
    last = tokens * ((4 * shape.width + 4) / setting.tensor + size * shape.width)
    joined = sizes.flight * sizes.layers * joined_bytes(setting) if setting.recompute == "none" else 0.0
    parts["activations"] = kept + last + joined + _beside(setting, sizes)
    parts["gathered layers"] = _gathered(setting, sizes, 1 if setting.spread > 1 else 0)
    logits = chunk * shape.vocab_size / setting.tensor
    block = 4 * min(BLOCK_ELEMENTS[setting.on_cpu], logits)
    parts["logits"] = size * (logits + shape.vocab_size * shape.width / setting.tensor) + block
    parts["working set"] = size * shape.width * max(0, tokens - chunk)
    return Ledger("loss", parts, setting.on_cpu)


def _backward(setting: Setting, sizes: _Sizes) -> Iterator[Ledger]:
    """The backward pass of the last, the last but one and the first layer: in its feed-forward part, and at its end."""
    shape, alone, last = setting.shape, setting.spread == 1, sizes.layers - 1
    own, again = _own_layer(setting, sizes)
    joined = joined_bytes(setting)
    held = joined if setting.recompute == "none" else 0.0
    head = sizes.last * sizes.size * shape.vocab_size * shape.width / setting.tensor
    inside = setting.tokens * again + sizes.size * shape.width * shape.ffn / setting.tensor + joined - held
    end = (10 * shape.width / setting.tensor + _whole_states(setting)) * setting.tokens
    for layer in sorted({last, max(0, last - 1), 0}, reverse=True):
        on_its_way = 4 * sizes.block if layer < last else 0.0  # the gradients of the layer behind
        stored = sizes.flight * sizes.layers - (sizes.layers - layer)
        kept = setting.tokens * stored * _layer_bytes(setting) + stored * held
        reduced = 12.5 * sizes.block if alone else on_its_way + sizes.size * sizes.block
        moments = (
            (kept + setting.tokens * own + held, head + on_its_way + inside, 1 if alone else 2),
            (kept, head + reduced + end, 0 if alone else 2),
        )
        for activations, new, blocks in moments:
            parts = _held(setting, sizes, (last - layer) * sizes.block)
            parts["gathered layers"] = _gathered(setting, sizes, blocks)
            parts["activations"] = activations + _beside(setting, sizes)
            parts["working set"] = new
            yield Ledger(f"backward pass of layer {layer + 1}", parts, setting.on_cpu)


def _own_layer(setting: Setting, sizes: _Sizes) -> tuple[float, float]:
    """Of each token in the layer whose backward pass runs: what was kept of it, and what is computed again or new."""
    shape, size = setting.shape, sizes.size
    width, keys, ffn = shape.width, shape.kv_heads * shape.head_dim, shape.ffn
    whole, shared, extra = kept_bytes(setting, "none"), setting.tensor, _whole_states(setting)
    if setting.recompute == "none":
        return (whole - size * ffn) / shared + extra, size * (3 * ffn + width) / shared
    if setting.recompute == "full":
        return size * width / shared, (whole + size * (2 * ffn + width)) / shared + extra
    kept = size * (2 * ffn + 2 * keys + 3 * width)
    again = whole - size * (width + 2 * keys + 2 * ffn) + size * (2 * ffn + width)
    return kept / shared + extra, again / shared + extra


def _reduction(setting: Setting, sizes: _Sizes) -> Ledger:
    """The end of the backward pass: the gradients of embedding and head, in both formats."""
    parts = _held(setting, sizes, sizes.parameters - sizes.root)
    copies = sizes.size + 4.0
    if setting.spread == 1:
        copies = 13.0 if sizes.tables == 2 else 12.0
    elif sizes.tables == 1:
        copies = 7.0
        parts["gathered layers"] = sizes.size * sizes.root
    parts["working set"] = copies * sizes.root
    return Ledger("last reduction", parts, setting.on_cpu)


# ---- the bill --------------------------------------------------------------------------------------------------

#: Bytes of each parameter, unsharded: mixed precision as it is usually described, and as it is here.
BILL = {
    "weights": (2, 4), "gradients": (2, 4), "master copy": (4, 0), "first moment": (4, 4), "second moment": (4, 4),
}  # fmt: skip


# ---- what to change --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Way:
    """One change that frees memory: the key and its value, the bytes of the total that it frees, and its price."""

    key: str
    value: str
    frees: float
    price: str
    setting: Setting


def fits(setting: Setting, budget: float) -> bool:
    """Whether the fullest moment, reserve and all, stays in `budget` bytes."""
    return ledger(setting).total <= budget


def with_rows(setting: Setting, rows: int) -> Setting:
    """The same step in passes of `rows` sequences."""
    return replace(setting, rows=rows, passes=-(-setting.rows * setting.passes // rows))


def largest_rows(setting: Setting, budget: float) -> int | None:
    """The most sequences of a pass that fit, at most those of a step; None where not even one does."""
    share = setting.rows * setting.passes
    if not fits(with_rows(setting, 1), budget):
        return None
    low, high = 1, share + 1  # `low` fits
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(with_rows(setting, middle), budget) else (low, middle)
    return low


def ways_out(setting: Setting, budget: float) -> list[Way]:
    """What to change when memory runs out, in the order in which to try it; each frees something by itself."""
    now = ledger(setting).total
    found: list[Way] = []

    def add(key: str, value: str, price: str, changed: Setting) -> None:
        frees = now - ledger(changed).total
        if frees > 0:
            found.append(Way(key, value, frees, price, changed))

    if setting.rows > 1:
        rows = largest_rows(setting, budget) or 1
        rows = rows if rows < setting.rows else setting.rows // 2
        add("batch.micro_batch_size", str(rows), "the result stays the same", with_rows(setting, rows))
    for mode, price in (("selective", "some computation"), ("full", "a third more computation")):
        if kept_bytes(setting, mode) < kept_bytes(setting, setting.recompute):  # type: ignore[arg-type]
            changed = replace(setting, recompute=mode)  # type: ignore[arg-type]
            add("parallel.activation_checkpointing", mode, price, changed)
    if setting.compute == "fp32" and not setting.on_cpu:
        add("precision.compute", "bf16", "rounding", replace(setting, compute="bf16"))
    if setting.seq_len > 1024:
        shorter = replace(setting, seq_len=setting.seq_len // 2)
        add("model.seq_len", str(shorter.seq_len), "long documents are cut", shorter)
    if setting.shard != "full" and setting.devices > 1:
        add("parallel.shard", "full", "more communication", replace(setting, shard="full", replicas=None))
    more = replace(setting, devices=2 * setting.devices, passes=max(1, -(-setting.passes // 2)))
    add("batch.data_parallel", str(more.devices), "twice the devices", more)
    if not setting.shape.uneven(2 * setting.tensor):
        shared = replace(setting, tensor=2 * setting.tensor)
        add("parallel.tensor_parallel", str(shared.tensor), "twice the devices, much communication", shared)
    if state_bytes(setting.optimizer, setting.shape) > 2:
        add("optimizer.type", "AdamW8bit", "another update rule, in a new run", replace(setting, optimizer="AdamW8bit"))
    return found
