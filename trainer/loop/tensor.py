"""Ranks that share each layer: who holds which part of a matrix, and what they tell each other.

    q, k, v, gate, up    cut by rows: each rank has some heads, some of the feed-forward width
    o, down              cut by columns: each rank's product is a part of a sum
    embedding, head      cut by rows: each rank has some of the vocabulary
    norms                whole

Between these products a rank holds the hidden states of its share of the tokens only (Korthikanti et al. 2022): the tokens
of all are gathered in front of the first product of a half layer, and behind the last one the sums are shared out again. So
a norm sees some tokens, and its gradient on one rank is a part of a sum, which FSDP2 adds up.

Parameters are DTensors, so that sharding, checkpoints and the optimizer know where each part belongs. The arithmetic is on
plain tensors: the same kernels as on one rank, with fewer heads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn import functional

if TYPE_CHECKING:
    from trainer.model import Llama


class _Gathered(ParallelStyle):
    """A module that gets the tokens of all ranks where each holds its share (`inside`), or gives them away so."""

    def __init__(self, inside: bool) -> None:
        self.inside = inside

    def _apply(self, module: nn.Module, mesh: DeviceMesh) -> nn.Module:
        def before(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
            return gathered(inputs[0], mesh, 0, Partial()), *inputs[1:]

        def behind(_: nn.Module, _inputs: tuple[Any, ...], output: Tensor) -> Tensor:
            return gathered(output, mesh, 0, Partial())

        if self.inside:
            module.register_forward_pre_hook(before)
        else:
            module.register_forward_hook(behind)
        return module


def share(model: Llama, axis: DeviceMesh) -> None:
    """Cut the model, in place, over the ranks of an axis, which must divide heads, key heads, feed-forward width and
    vocabulary; the tokens of a pass, too."""
    rows = ColwiseParallel()  # named after the matrix as mathematics writes it: transposed
    layer = {
        "self_attn": _Gathered(inside=True), "mlp": _Gathered(inside=True),
        **{f"self_attn.{name}_proj": rows for name in "qkv"}, "mlp.gate_proj": rows, "mlp.up_proj": rows,
        "self_attn.o_proj": RowwiseParallel(output_layouts=Shard(0)), "mlp.down_proj": RowwiseParallel(output_layouts=Shard(0)),
    }  # fmt: skip
    for block in model.model.blocks:
        parallelize_module(block, axis, layer)
    if hasattr(model.model, "embed_tokens"):
        parallelize_module(model.model.embed_tokens, axis, RowwiseParallel())
    if model.model.last:
        parallelize_module(model, axis, {"model.norm": _Gathered(inside=False), "lm_head": rows})
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            if not isinstance(parameter, DTensor):
                module.register_parameter(name, nn.Parameter(distribute_tensor(parameter, axis, [Replicate()])))
    model.tie()
    model.shared = axis


def part(weight: Tensor) -> Tensor:
    """What this rank multiplies with: its part of a weight that ranks share, or all of it."""
    if not isinstance(weight, DTensor):
        return weight
    # A weight that is whole on every rank has seen some of the tokens or heads only: its gradient is a part of a sum.
    return weight.to_local(grad_placements=[Partial() if one.is_replicate() else one for one in weight.placements])


def lookup(ids_T: Tensor, table: Tensor) -> Tensor:
    """Rows of an embedding, (T, D); of one that ranks share, this rank's share of the tokens."""
    rows = part(table)
    if not isinstance(table, DTensor):
        return functional.embedding(ids_T, rows)
    axis = table.device_mesh
    row_T, here_T = among(ids_T, len(rows), axis)
    found_TD = functional.embedding(row_T, rows).where(here_T[:, None], 0.0)
    # Not torch's `RowwiseParallel`: what it returns is still on its way, and a compiled layer would lose its gradient.
    return DTensor.from_local(found_TD, axis, [Partial()], run_check=False).redistribute(placements=[Shard(0)]).to_local()


def gathered(own: Tensor, axis: DeviceMesh, dim: int, gradient: Placement | None = None) -> Tensor:
    """The parts of all ranks next to each other along `dim`.

    gradient  what comes back: `Partial()` where the ranks go on with different things, the whole on each where they all
              do the same (left out)
    """
    whole = DTensor.from_local(own, axis, [Shard(dim)], run_check=False).redistribute(placements=[Replicate()])
    return whole.to_local(grad_placements=[gradient or Replicate()])


def summed(own: Tensor, axis: DeviceMesh) -> Tensor:
    """The sum over the ranks, which all go on with the same."""
    return DTensor.from_local(own, axis, [Partial()], run_check=False).redistribute(placements=[Replicate()]).to_local()


def among(ids: Tensor, size: int, axis: DeviceMesh) -> tuple[Tensor, Tensor]:
    """Ids as numbers of this rank's rows, of which it has `size`, and whether they are among these; 0 where not."""
    own = ids - axis.get_local_rank() * size
    here = (own >= 0) & (own < size)
    return own.where(here, 0), here
