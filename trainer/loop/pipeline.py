"""Stages: the layers cut in pieces, and the passes of a step going through them behind each other (1F1B).

The passes of a step are its gradient accumulation: each goes through all stages, and its gradient comes back. Every stage
reads the same rows, so what a layer must know of them (positions, where documents begin) is there, and only hidden states
travel. `torch.distributed.pipelining` decides who does what when; here stands what it runs.

A tied embedding is held by two stages, as lookup and as head. Their gradients are added up behind the passes, so that both
copies take the same step; norm and checkpoints count the first stage's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.pipelining.schedules import PipelineScheduleSingle

from trainer.loop.parallel import Mode, World, before_pass, local_box

if TYPE_CHECKING:
    from trainer.model import Llama

#: What a model is called with: tokens, positions, segments, labels, and chances where labels are drawn.
Inputs = tuple[Any, ...]


class Pipeline:
    """All stages together, seen from one of them. Calls are collective over the ranks of `axis`."""

    def __init__(self, model: Llama, axis: DeviceMesh, world: World, mode: Mode, compute: torch.dtype) -> None:
        self.model, self.group, self.world = model, axis.get_group(), world
        self.mode: Mode = mode
        self.compute = compute
        self.passes = _Passes(model)
        self.factor: Tensor | float = 1.0
        self.losses: list[Tensor] = []
        self._schedules: dict[tuple[int, int, bool], PipelineScheduleSingle] = {}

    def train(self, passes: Sequence[Inputs], factor: Tensor | float) -> list[Tensor]:
        """All passes of a step, forward and backward: the loss of each token for each of them; zeros where this is not the
        last stage. What is differentiated is their sum times `factor`. As many passes as stages at least."""
        self.factor, self.losses = factor, []
        self._run(passes, learn=True)
        self._share_tied()
        return self.losses if self.model.model.last else [torch.zeros(len(one[0]), device=self.world.device) for one in passes]

    def look(self, inputs: Inputs) -> Tensor:
        """One pass forward: the loss of each token; zeros where this is not the last stage."""
        found = self._run([inputs], learn=False)
        return found if found is not None else torch.zeros(len(inputs[0]), device=self.world.device)

    def _run(self, passes: Sequence[Inputs], learn: bool) -> Any:
        self.passes.inputs = passes
        shape = (len(passes), len(passes[0][0]), learn)
        if shape not in self._schedules:  # the one before of its kind goes: it has room for every pass
            self._schedules = {other: one for other, one in self._schedules.items() if other[2] != learn}
            self._schedules[shape] = self._schedule(*shape)
        numbers = torch.arange(len(passes))
        first = (numbers,) if self.model.model.first else ()
        try:
            return self._schedules[shape].step(*first, number=numbers, target=numbers if learn else None)
        except RuntimeError as error:  # of the schedule, around the one that says what is wrong
            raise error.__cause__ or error from None
        finally:
            self.passes.inputs = ()

    def _schedule(self, passes: int, tokens: int, learn: bool) -> PipelineScheduleSingle:
        """What runs so many passes of so many tokens; its buffers are made once."""
        decoder, shape = self.model.model, self.model.shape
        states = torch.empty(tokens // self.world.tensor, shape.width, dtype=self.compute, device="meta", requires_grad=True)
        entry = torch.arange(1) if decoder.first else states
        leaving = torch.empty(tokens, device="meta", requires_grad=True) if decoder.last else states
        stage = _Stage(
            self.passes, self.world.stage, self.world.stages, self.world.device, input_args=entry, output_args=leaving, group=self.group
        )
        stage.spread = self.model, self.mode
        if not learn:
            return ScheduleGPipe(stage, passes, scale_grads=False)
        return Schedule1F1B(stage, passes, loss_fn=self._loss, scale_grads=False)

    def _loss(self, losses_T: Tensor, _target: Tensor) -> Tensor:
        self.losses.append(losses_T.detach())
        return losses_T.sum() * self.factor

    def _share_tied(self) -> None:
        """Add up the gradients of the two copies of a tied embedding."""
        decoder = self.model.model
        if not self.model.shape.tie_embeddings or not (decoder.first or decoder.last):
            return
        gradient = decoder.embed_tokens.weight.grad
        assert gradient is not None
        own = local_box(gradient)[0]
        other = torch.empty_like(own)
        peer = dist.get_global_rank(self.group, self.world.stages - 1 if decoder.first else 0)
        if decoder.first:
            dist.send(own, peer, self.group)
        dist.recv(other, peer, self.group)
        if decoder.last:
            dist.send(own, peer, self.group)
        own += other  # the same bits on both: a sum of two does not depend on their order


def looked(inputs: Inputs, model: Llama) -> Tensor:
    """The loss of each token in one pass forward, through all stages where there are several: zeros on all but the last."""
    return model(*inputs) if model.pipeline is None else model.pipeline.look(inputs)


class _Passes(nn.Module):
    """The stage as its schedule calls it: with the states of the stage before, and the number of the pass."""

    inputs: Sequence[Inputs] = ()

    def __init__(self, model: Llama) -> None:
        super().__init__()
        self.model = model

    def forward(self, states: Tensor, number: Tensor) -> Tensor:
        """Hidden states for the next stage, or the losses."""
        tokens, *rest = self.inputs[int(number)]
        return self.model(tokens if self.model.model.first else states, *rest)


class _Stage(PipelineStage):
    """A stage that shards as `parallel.shard` says: torch's own would keep whole gradients of all passes in every mode."""

    spread: tuple[nn.Module, Mode]

    def backward_maybe_with_nosync(self, backward_type: Any, bwd_kwargs: dict, last_backward: bool = False) -> Any:
        """The backward pass of one pass."""
        before_pass(*self.spread, last=last_backward)
        return super().backward_maybe_with_nosync(backward_type, bwd_kwargs, last_backward)
