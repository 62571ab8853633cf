"""The memory of a step, traced: the real model, sharding and optimizer run on tensors without content.

PyTorch's tracer (`torch.distributed._tools.fsdp2_mem_tracker`, fake tensors, a fake process group) follows every
storage, so no GPU and no memory is needed. For a plan for GPUs two kernels are put in that a CPU does not have: attention
over variable lengths, and the fused RMSNorm, which keeps its input and one number a token.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.distributed.device_mesh import DeviceMesh
from torch.utils.flop_counter import FlopCounterMode

from stages.contract.problem import Problem, RunError
from trainer import model
from trainer.config import Shard
from trainer.loop import optim, parallel, tensor
from trainer.model import attention, loss
from trainer.model.attention import Segments
from trainer.planned import OptimizerPlan
from trainer.shape import ModelShape

#: The parts of the tracer in the words of the ledger.
PARTS = {
    "SHARDED_PARAM": "weights", "UNSHARDED_PARAM": "gathered layers", "SHARDED_GRAD": "gradients", "OPT": "optimizer",
    "UNSHARDED_GRAD": "transient", "ACT": "activations", "TEMP": "transient", "ALL_GATHER": "gathered layers",
    "REDUCE_SCATTER": "transient", "INP": "activations", "BUFFER": "weights",
}  # fmt: skip


@dataclass(frozen=True)
class Traced:
    """Bytes of one device at the moment of the most, by part."""

    parts: dict[str, int]

    @property
    def total(self) -> int:
        """All parts."""
        return sum(self.parts.values())


@dataclass(frozen=True)
class Case:
    """What is traced: a model on one of `devices`, `rows` sequences in a pass, `passes` passes in a step.

    groups  of `hybrid`;  tensor  devices that share each layer, of which there are so many times `devices`
    """

    shape: ModelShape
    rows: int
    seq_len: int
    devices: int = 1
    recompute: model.Recompute = "none"
    passes: int = 1
    compute: str = "bf16"
    optimizer: str = "AdamW"
    on_cpu: bool = False
    shard: Shard = "full"
    groups: int = 2
    tensor: int = 1


def trace(case: Case) -> Traced:
    """The memory of the second step, when the optimizer has its state. RunError where this torch has no tracer."""
    try:
        from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
        from torch.testing._internal.distributed.fake_pg import FakeStore
    except ImportError as error:
        message = f"torch {torch.__version__} has no memory tracer: {error}"
        raise RunError(Problem("R007", message, repairs=("leave --trace out: the ledger needs no torch",))) from error
    import torch.distributed as dist

    if dist.is_initialized():
        raise RunError(Problem("R009", "a process group is there already; tracing needs a process of its own"))
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=case.devices * case.tensor)
    try:
        groups = {"none": case.devices, "hybrid": case.groups}.get(case.shard, 1)
        axes = dist.device_mesh.init_device_mesh(
            "cpu", (groups, case.devices // groups, case.tensor), mesh_dim_names=("replica", "shard", "tensor")
        )
        with _kernels(case.on_cpu), _real_meshes(), FakeTensorMode(allow_non_fake_inputs=True):
            net = _sharded(case, axes)
            rule = OptimizerPlan(case.optimizer, 0.9, 0.95, 1e-8, 0.1, 1.0)  # type: ignore[arg-type]
            optimizer: Any = optim.Updater(net, rule).parts[-1]
            inputs = _inputs(case)
            _step(case, net, optimizer, inputs)  # makes the optimizer's state, and caches of torch that are no memory
            tracker = FSDPMemTracker(net, optimizer)
            tracker.track_inputs(inputs[:2])
            with tracker:
                _step(case, net, optimizer, inputs, tracker.reset_mod_stats)
            snapshot = tracker.get_tracker_snapshot("peak")
    finally:
        dist.destroy_process_group()
    return Traced(_by_part(snapshot))


def _step(
    case: Case, net: nn.Module, optimizer: Any, inputs: tuple[Any, ...], after: Callable[[], None] | None = None
) -> None:
    for number in range(case.passes):
        parallel.before_pass(net, case.shard, number == case.passes - 1)
        net(*inputs).sum().backward()
        if after is not None:
            after()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def _by_part(snapshot: dict[Any, dict[Any, int]]) -> dict[str, int]:
    found: dict[str, int] = dict.fromkeys(PARTS.values(), 0)
    for device in snapshot.values():
        for kind, size in device.items():
            part = PARTS.get(str(kind).rpartition(".")[2])
            if part is not None:
                found[part] += size
    return found


def _sharded(case: Case, mesh: Any) -> model.Llama:
    """The model, sharded as a run shards it."""
    net = model.Llama(case.shape, case.recompute)
    compute = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(case.compute, torch.float32)
    if case.tensor > 1:
        tensor.share(net, mesh["tensor"])
    parallel.shard(net, net.model.layers, parallel.data_axes(mesh), case.shard, compute)
    return net


def _inputs(case: Case) -> tuple[Tensor, Tensor, Segments, Tensor]:
    tokens = case.rows * case.seq_len
    ids = torch.zeros(tokens, dtype=torch.int64)
    starts = tuple(range(0, tokens + 1, case.seq_len))
    segments = Segments(starts, torch.zeros(case.rows + 1, dtype=torch.int32), case.seq_len)
    return ids, torch.zeros(tokens, dtype=torch.int64), segments, torch.zeros(tokens, dtype=torch.int64)


class _FusedNorm(torch.autograd.Function):
    """What the CUDA kernel of RMSNorm keeps: its input, the weight, and 1 / rms of each token."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Same shape as `x`."""
        scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(x, weight, scale)
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, *_grads: Tensor) -> tuple[Tensor, Tensor, None]:
        """Gradients of `x` and the weight."""
        x, weight, _ = ctx.saved_tensors
        return torch.empty_like(x), torch.empty_like(weight), None


@contextlib.contextmanager
def _kernels(on_cpu: bool) -> Iterator[None]:
    """Inside, the model uses the kernels that it would use on a GPU, unless the plan is for a CPU."""
    kernel = None if on_cpu else attention._varlen()
    if kernel is None:
        yield
        return
    attend, norm = model.attend, model.RMSNorm.forward

    def fused(self: model.RMSNorm, x: Tensor) -> Tensor:
        return _FusedNorm.apply(x.float(), self.weight.float(), self.eps).to(x.dtype)

    model.attend, model.RMSNorm.forward = kernel, fused  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        model.attend, model.RMSNorm.forward = attend, norm  # type: ignore[method-assign]


@contextlib.contextmanager
def _real_meshes() -> Iterator[None]:
    """Inside, FSDP2 can join its axes to that of shared layers: a mesh is made of numbers, also while tensors are fake."""
    joined: Any = DeviceMesh._concatenate

    def real(meshes: list[DeviceMesh]) -> DeviceMesh:
        with unset_fake_temporarily():
            return joined(meshes)

    DeviceMesh._concatenate = staticmethod(real)  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        DeviceMesh._concatenate = joined  # type: ignore[method-assign]


@contextlib.contextmanager
def _whole_logits() -> Iterator[None]:
    """Inside, the loss is not cut into chunks, which would compute the head twice."""
    chunk = loss.CHUNK_ELEMENTS
    loss.CHUNK_ELEMENTS = 1 << 62
    try:
        yield
    finally:
        loss.CHUNK_ELEMENTS = chunk


def flops_per_token(shape: ModelShape, seq_len: int) -> float:
    """FLOP of forward and backward pass for a token of one document, counted by torch operation by operation."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    counter = FlopCounterMode(display=False)
    with _whole_logits(), FakeTensorMode(), sdpa_kernel(SDPBackend.MATH), counter:
        net = model.Llama(shape)
        ids = torch.zeros(seq_len, dtype=torch.int64)
        segments = Segments((0, seq_len), torch.zeros(2, dtype=torch.int32), seq_len)
        net(ids, ids, segments, ids).sum().backward()
    return counter.get_total_flops() / seq_len
