"""A Llama-shaped decoder (Touvron et al. 2023): RMSNorm, rotary positions, grouped queries, SwiGLU.

Parameter names are those of Hugging Face `LlamaForCausalLM`, so exported weights need no renaming. Tokens are one
flat row of T (several packed rows behind each other); `Segments` keeps documents apart.

Where ranks share each layer (`loop/tensor.py`) a rank computes with its part of every matrix: some of the heads, some of
the feed-forward width, some of the vocabulary. Between these products it holds the hidden states of its share of the tokens.
Where the layers are cut into stages (`loop/pipeline.py`) a model holds those of one stage under the names they have in the whole.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn import functional
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from trainer.loop import tensor
from trainer.loop.parallel import World, data_axes, local_box, mesh_of, seed_of, shard
from trainer.loop.pipeline import Pipeline
from trainer.loop.tensor import lookup, part
from trainer.model.attention import Segments, attend
from trainer.model.loss import drawn_labels, token_losses
from trainer.planned import Plan
from trainer.shape import ModelShape, stages_of

#: What the forward pass keeps for the backward pass: all, the outputs of matrix products, or layer inputs only.
Recompute = Literal["none", "selective", "full"]

_MATMULS = [torch.ops.aten.mm.default, torch.ops.aten.addmm.default]


class RMSNorm(nn.Module):
    """x / rms(x) * weight, computed in float32 (Zhang and Sennrich 2019, eq. 4)."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Same shape and dtype as `x`."""
        return functional.rms_norm(x.float(), (x.shape[-1],), part(self.weight).float(), self.eps).to(x.dtype)


class Attention(nn.Module):
    """Grouped-query self-attention with rotary positions."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.head_width = shape.head_dim
        self.q_proj = nn.Linear(shape.width, shape.heads * shape.head_dim, bias=False)
        self.k_proj = nn.Linear(shape.width, shape.kv_heads * shape.head_dim, bias=False)
        self.v_proj = nn.Linear(shape.width, shape.kv_heads * shape.head_dim, bias=False)
        self.o_proj = nn.Linear(shape.heads * shape.head_dim, shape.width, bias=False)
        self.normed = shape.qk_norm
        if self.normed:
            self.q_norm = RMSNorm(shape.head_dim, shape.norm_eps)
            self.k_norm = RMSNorm(shape.head_dim, shape.norm_eps)

    def forward(self, x_TD: Tensor, rotation: tuple[Tensor, Tensor], segments: Segments) -> Tensor:
        """(T, D) -> (T, D)."""
        tokens = x_TD.shape[0]
        weights = [part(one.weight) for one in (self.q_proj, self.k_proj, self.v_proj)]
        joined = at_once(x_TD, *weights).view(tokens, -1, self.head_width)
        q, k, v = joined.split([len(weight) // self.head_width for weight in weights], dim=1)
        if self.normed:
            q, k = self.q_norm(q), self.k_norm(k)
        out_THD = attend(rotate(q, rotation), rotate(k, rotation), v, segments)
        return self.o_proj(out_THD.reshape(tokens, -1))


class FeedForward(nn.Module):
    """down(silu(gate(x)) * up(x)) (Shazeer 2020, eq. 6)."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.width, shape.ffn, bias=False)
        self.up_proj = nn.Linear(shape.width, shape.ffn, bias=False)
        self.down_proj = nn.Linear(shape.ffn, shape.width, bias=False)

    def forward(self, x_TD: Tensor) -> Tensor:
        """(T, D) -> (T, D)."""
        gate, up = at_once(x_TD, part(self.gate_proj.weight), part(self.up_proj.weight)).chunk(2, dim=-1)
        return self.down_proj(functional.silu(gate) * up)


def at_once(x_TD: Tensor, *weights: Tensor) -> Tensor:
    """The outputs of linear layers next to each other: one large matrix product is faster than several small ones."""
    return functional.linear(x_TD, torch.cat(weights))


class Block(nn.Module):
    """One decoder layer; what it does not keep for the backward pass (`recompute`) it computes again there."""

    def __init__(self, shape: ModelShape, recompute: Recompute) -> None:
        super().__init__()
        self.recompute = recompute
        self.dropout = shape.dropout
        self.input_layernorm = RMSNorm(shape.width, shape.norm_eps)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = RMSNorm(shape.width, shape.norm_eps)
        self.mlp = FeedForward(shape)

    def forward(self, x_TD: Tensor, rotation: tuple[Tensor, Tensor], segments: Segments) -> Tensor:
        """(T, D) -> (T, D)."""
        if self.recompute == "none" or not torch.is_grad_enabled():
            return self._layer(x_TD, rotation, segments)
        if self.recompute == "full":
            return checkpoint(self._layer, x_TD, rotation, segments, use_reentrant=False)
        keep = partial(create_selective_checkpoint_contexts, _MATMULS)
        return checkpoint(self._layer, x_TD, rotation, segments, use_reentrant=False, context_fn=keep)

    def _layer(self, x_TD: Tensor, rotation: tuple[Tensor, Tensor], segments: Segments) -> Tensor:
        x_TD = x_TD + self._drop(self.self_attn(self.input_layernorm(x_TD), rotation, segments))
        return x_TD + self._drop(self.mlp(self.post_attention_layernorm(x_TD)))

    def _drop(self, x_TD: Tensor) -> Tensor:
        return functional.dropout(x_TD, self.dropout, self.training) if self.dropout else x_TD


class Decoder(nn.Module):
    """Embedding, layers, last norm; or those of them that stand in a stage."""

    def __init__(self, shape: ModelShape, recompute: Recompute, layers: range) -> None:
        super().__init__()
        self.first, self.last = layers.start == 0, layers.stop == shape.layers
        if self.first or (self.last and shape.tie_embeddings):
            self.embed_tokens = nn.Embedding(shape.vocab_size, shape.width)
        # An empty module keeps the number of a layer that is elsewhere.
        self.layers = nn.ModuleList(Block(shape, recompute) if i in layers else nn.Module() for i in range(shape.layers))
        if self.last:
            self.norm = RMSNorm(shape.width, shape.norm_eps)
        self.head_width, self.theta = shape.head_dim, shape.rope_theta

    @property
    def blocks(self) -> list[Block]:
        """The layers that are here."""
        return [layer for layer in self.layers if isinstance(layer, Block)]

    def forward(self, entry: Tensor, positions_T: Tensor, segments: Segments) -> Tensor:
        """Hidden states (T, D), after the last norm if it is here; `entry` is token ids (T,) or the states of the stage before."""
        x_TD = lookup(entry, self.embed_tokens.weight) if self.first else entry
        cos, sin = rotary(positions_T, self.head_width, self.theta)
        rotation = (cos.to(x_TD.dtype), sin.to(x_TD.dtype))
        for layer in self.blocks:
            x_TD = layer(x_TD, rotation, segments)
        return self.norm(x_TD) if self.last else x_TD


class Llama(nn.Module):
    """The language model, or a stage of it. Build it on the `meta` device, spread it over the ranks, then call `fill`.

    layers    those of the stage; None: all
    shared    the axis of ranks that share each layer; None: this rank has whole layers
    pipeline  what runs all stages together; None: there is one
    """

    def __init__(
        self, shape: ModelShape, recompute: Recompute = "none", z_loss: float = 0.0, layers: range | None = None
    ) -> None:
        super().__init__()
        self.shape = shape
        self.z_loss = z_loss
        self.shared: DeviceMesh | None = None
        self.pipeline: Pipeline | None = None
        self.model = Decoder(shape, recompute, layers or range(shape.layers))
        if self.model.last:
            self.lm_head = nn.Linear(shape.width, shape.vocab_size, bias=False)
        self.tie()

    def tie(self) -> None:
        """Make head and embedding one parameter, if the shape says so; again after storage was allocated."""
        if self.shape.tie_embeddings and self.model.last:
            self.lm_head.weight = self.model.embed_tokens.weight

    @property
    def lent(self) -> Tensor | None:
        """The embedding where it is only the head: the first stage has the same one, and there it counts."""
        lent = self.model.last and not self.model.first and self.shape.tie_embeddings
        return self.model.embed_tokens.weight if lent else None

    def forward(
        self,
        entry: Tensor,
        positions_T: Tensor,
        segments: Segments,
        labels_T: Tensor | None = None,
        chance_T: Tensor | None = None,
    ) -> Tensor:
        """With labels the loss of each token, float32 (T,); without them the logits, float32 (T, vocab).

        With `chance` (uniform in [0, 1)) too, labels that predict something are replaced by draws of the model. A stage that
        is not the last gives hidden states for the next one; one that is not the first takes them instead of tokens.
        """
        hidden_TD = self.model(entry, positions_T, segments)
        if not self.model.last:
            return hidden_TD
        if labels_T is None:
            return self._logits(hidden_TD).float()
        if chance_T is not None:
            labels_T = drawn_labels(hidden_TD, self._logits, labels_T, chance_T, self.shape.vocab_size)
        return token_losses(hidden_TD, self._own_logits, labels_T, self.shape.vocab_size, self.z_loss, self.shared)

    def _own_logits(self, hidden_ND: Tensor) -> Tensor:
        """Of this rank's part of the vocabulary."""
        return functional.linear(hidden_ND, part(self.lm_head.weight))

    def _logits(self, hidden_ND: Tensor) -> Tensor:
        own = self._own_logits(hidden_ND)
        return own if self.shared is None else tensor.gathered(own, self.shared, dim=1)


def rotary(positions_T: Tensor, width: int, theta: float) -> tuple[Tensor, Tensor]:
    """`(cos, sin)`, float32 (T, 1, width/2): angle i of position p is p / theta**(2i/width) (Su et al. 2021, eq. 15)."""
    powers = torch.arange(0, width, 2, dtype=torch.float32, device=positions_T.device) / width
    angles = (positions_T.float()[:, None] / theta**powers)[:, None, :]
    return angles.cos(), angles.sin()


def rotate(x_THD: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Each pair (x[i], x[i + D/2]) turned by its angle: the half-split layout that Llama weights use."""
    cos, sin = rotation
    a, b = x_THD.chunk(2, dim=-1)
    return torch.cat((torch.addcmul(a * cos, b, sin, value=-1), torch.addcmul(b * cos, a, sin)), dim=-1)


@torch.no_grad()
def fill(model: Llama, seed: int) -> None:
    """First weights: normal with deviation 0.02; projections into the residual stream 0.02 / sqrt(2 * layers)
    (Radford et al. 2019, section 2.3); norms 1.

    Each parameter has a generator seeded by its name, and a rank keeps its part: the weights do not depend on
    the number of ranks. One whole parameter at a time exists in host memory.
    """
    for name, parameter in model.named_parameters():
        local, offset = local_box(parameter)
        if name.endswith("norm.weight"):
            local.fill_(1.0)
            continue
        deviation = 0.02
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            deviation /= math.sqrt(2 * model.shape.layers)
        generator = torch.Generator().manual_seed(seed_of("weights", seed, name))
        whole = torch.empty(parameter.shape).normal_(0.0, deviation, generator=generator)
        box = tuple(slice(start, start + size) for start, size in zip(offset, local.shape, strict=True))
        local.copy_(whole[box])


def build(plan: Plan, world: World) -> Llama:
    """What this rank holds of a plan's model, with its first weights: its stage, its part of each layer, compiled where the
    plan says so, sharded over the ranks that hold the same."""
    mesh = mesh_of(world, plan.shard, plan.replicas)
    stages = stages_of(plan.model, world.stages)
    with torch.device("meta"):
        model = Llama(plan.model, plan.activation_checkpointing, plan.optimizer.z_loss, stages[world.stage])
    if world.tensor > 1:
        tensor.share(model, mesh["tensor"])
    if plan.compile or (plan.compile is None and world.device.type == "cuda"):
        for layer in model.model.blocks:
            layer.compile()
    compute = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[plan.compute]
    shard(model, model.model.blocks, data_axes(mesh), plan.shard, compute)
    model.to_empty(device=world.device)
    model.tie()
    fill(model, plan.seed)
    if world.stages > 1:
        model.pipeline = Pipeline(model, mesh["stage"], world, plan.shard, compute)
    return model
