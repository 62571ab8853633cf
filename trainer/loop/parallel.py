"""Ranks, the device mesh, sharding: everything that knows there is more than one process.

The mesh has four axes, the last one running fastest over the ranks:

    stage     the layers are cut into stages (`pipeline`)
    replica   copies of a stage, or of a group's parts of it
    shard     ranks that hold parts of it; FSDP2 shards over these and sums gradients over both
    tensor    ranks that share each layer (`tensor`): they read the same sequences

A **reader** is a place on replica x shard: its ranks, over all stages and the tensor axis, read the same rows of a step.
So what is read depends on the number of readers alone, and sums over ranks count one rank of each reader: the one
that `speaks`. Nothing outside of this file counts ranks.

    parallel.shard   replicas x shard   what a rank holds at rest      gathered
    none             N x 1              everything                     never
    optimizer        1 x N              1/N of weights and moments     once a step; gradients whole until the last pass
    gradients        1 x N              the same, and of gradients     once a forward and backward pass
    full             1 x N              the same                       once in the forward, once in the backward pass
    hybrid           R x N/R            R/N of all                     as full, within a group

What must be known on the host goes over a group of its own on the CPU (gloo), so that asking does not wait for the
device; sums that stay on the device are enqueued there.
"""

from __future__ import annotations

import datetime
import functools
import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from stages.contract.problem import Problem, RunError, SpecError
from trainer.launch import cores, keep_freed_memory

#: How long a collective may wait for a silent peer. A dead one is noticed at once: its connection closes.
PATIENCE = datetime.timedelta(minutes=10)

Mode = Literal["none", "optimizer", "gradients", "full", "hybrid"]


@dataclass(frozen=True)
class World:
    """This process among its peers. `control` is the group that the host asks over; None is the default group."""

    rank: int
    size: int
    device: torch.device
    beside: int = 1  # ranks on this machine
    control: dist.ProcessGroup | None = None
    tensor: int = 1  # ranks that share each layer
    stages: int = 1  # that the layers are cut into

    def laid_out(self, tensor: int, stages: int) -> World:
        """The same ranks in this layout, which must divide them. A single process holds everything whatever is asked."""
        if self.size == 1:
            return self
        assert self.size % (tensor * stages) == 0, "`planning.ranks` lets no other number of ranks begin"
        return replace(self, tensor=tensor, stages=stages)

    @property
    def first(self) -> bool:
        """Whether this is the rank that writes and talks."""
        return self.rank == 0

    @property
    def readers(self) -> int:
        """Groups of ranks that each read sequences of their own."""
        return self.size // (self.tensor * self.stages)

    @property
    def reader(self) -> int:
        """The number of this rank's group among these."""
        return self.rank // self.tensor % self.readers

    @property
    def stage(self) -> int:
        """The stage that this rank holds (a part of)."""
        return self.rank // (self.tensor * self.readers)

    @property
    def leads(self) -> bool:
        """Whether this is the first rank of its stage."""
        return self.rank % (self.tensor * self.readers) == 0

    @property
    def speaks(self) -> bool:
        """Whether this rank stands for its reader in sums over ranks: one of those that know the losses."""
        return self.rank % self.tensor == 0 and self.stage == self.stages - 1

    def memory(self) -> int:
        """Bytes of this rank's device; on a CPU its part of the machine's."""
        if self.device.type == "cuda":
            return int(torch.cuda.get_device_properties(self.device).total_memory)
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // self.beside

    def total(self, values: Sequence[float]) -> list[float]:
        """Each value summed over the ranks, in float64: the same bits on every rank."""
        return self._reduce(values, torch.float64, dist.ReduceOp.SUM)

    def total_int(self, values: Sequence[int]) -> list[int]:
        """Each int64 summed over the ranks, modulo 2**64."""
        return self._reduce(values, torch.int64, dist.ReduceOp.SUM)

    def highest(self, values: Sequence[int]) -> list[int]:
        """The largest of each value over the ranks."""
        return self._reduce(values, torch.int64, dist.ReduceOp.MAX)

    def texts(self, text: str) -> list[str]:
        """The text of every rank, in rank order; for messages, not for the hot path."""
        found: list[str] = [""] * self.size
        dist.all_gather_object(found, text, group=self.control)
        return found

    def summed(self, values: Tensor) -> Tensor:
        """A tensor on the device, summed over the ranks in place, without waiting for it."""
        dist.all_reduce(values)
        return values

    def worst(self, values: Tensor) -> Tensor:
        """A tensor on the device, the largest over the ranks in place, without waiting for it."""
        dist.all_reduce(values, dist.ReduceOp.MAX)
        return values

    def _reduce(self, values: Sequence, dtype: torch.dtype, op: dist.ReduceOp.RedOpType) -> list:
        vector = torch.tensor(values, dtype=dtype)
        dist.all_reduce(vector, op, group=self.control)
        return vector.tolist()


def join(kind: Literal["cpu", "cuda"], rendezvous: str | None = None, threads: int | None = None) -> World:
    """The world that `RANK`, `WORLD_SIZE`, `LOCAL_RANK` name (none set: a world of one).

    kind        the device to train on; RunError when torch cannot use it
    rendezvous  path of a file that all ranks of one machine share; None = what torchrun set in the environment
    threads     CPU threads of this rank; None = cores / ranks on this machine
    """
    rank, size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    local, beside = int(os.environ.get("LOCAL_RANK", rank)), int(os.environ.get("LOCAL_WORLD_SIZE", size))
    torch.set_num_threads(threads or max(1, cores() // beside))
    device = torch.device("cpu")
    if kind == "cpu":
        keep_freed_memory()
    else:
        if not torch.cuda.is_available():
            message = f"there is a GPU, but torch {torch.__version__} cannot use it"
            raise RunError(
                Problem("R007", message, repairs=("install a torch for the driver's CUDA version",))
            )
        device = torch.device("cuda", local)
        torch.cuda.set_device(device)
    backend = "nccl" if kind == "cuda" else "gloo"
    if size == 1 and rendezvous is None:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1, timeout=PATIENCE)
    else:
        where = f"file://{rendezvous}" if rendezvous else "env://"
        dist.init_process_group(backend, init_method=where, rank=rank, world_size=size, timeout=PATIENCE)
    control = dist.new_group(backend="gloo", timeout=PATIENCE) if kind == "cuda" else None
    return World(rank, size, device, beside, control)


def leave() -> None:
    """End the process group, if there is one."""
    _mesh.cache_clear()
    if dist.is_initialized():
        dist.destroy_process_group()


def mesh_of(world: World, mode: Mode, replicas: int | None = None) -> DeviceMesh:
    """The mesh of all ranks, axes as above. SpecError when the readers cannot be cut into so many groups.

    hybrid without `replicas`: a group on each machine; on a single machine two of them.
    """
    readers, groups = world.readers, 1
    if mode == "none":
        groups = readers
    elif mode == "hybrid":
        machines = world.size // world.stages // world.beside  # that a stage is spread over
        groups = replicas or (machines if machines > 1 else min(2, readers))
        if readers % groups:
            fitting = ", ".join(str(n) for n in range(1, readers + 1) if readers % n == 0)
            what = f"{readers} ranks" if readers == world.size else f"{readers} data-parallel groups"
            message = f"{what} cannot be cut into {groups} equal groups"
            raise SpecError(Problem("P001", message, repairs=(f"parallel.replicas may be {fitting}",)))
    return _mesh(world.device.type, world.stages, groups, readers // groups, world.tensor)


def data_axes(mesh: DeviceMesh) -> DeviceMesh:
    """The axes that FSDP2 works over."""
    return mesh["replica", "shard"] if mesh["replica"].size() > 1 else mesh["shard"]


@functools.cache
def _mesh(kind: str, *sizes: int) -> DeviceMesh:
    """Made once for a shape: every mesh has connections of its own."""
    return init_device_mesh(kind, sizes, mesh_dim_names=("stage", "replica", "shard", "tensor"))


def shard(
    model: nn.Module, blocks: Iterable[nn.Module], mesh: DeviceMesh, mode: Mode, compute: torch.dtype
) -> None:
    """Shard the model in place: each block is one group, the rest the last. Weights stay float32.

    Gradients are summed over ranks in float32, never averaged: the loss is already divided by the label tokens
    of all ranks, and an average would divide once more.
    """
    policy = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=torch.float32)
    drop = mode in ("full", "hybrid")
    for module in (*blocks, model):
        fully_shard(module, mesh=mesh, mp_policy=policy, reshard_after_forward=drop)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            # Gloo has no pre-multiplied sum; a factor of 1 is a plain sum on every backend.
            module.set_force_sum_reduction_for_comms(True)


def before_pass(model: nn.Module, mode: Mode, last: bool) -> None:
    """Before each forward and backward pass of a step: what may wait for the `last` one, waits."""
    assert isinstance(model, FSDPModule)
    if mode in ("none", "optimizer"):
        model.set_requires_gradient_sync(last)
    if mode not in ("full", "hybrid"):
        model.set_reshard_after_backward(last)


def after_look(model: nn.Module) -> None:
    """After forward passes without a backward pass: groups that are still gathered let go of it, so that the parameters
    are again those of the optimizer."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def local_box(tensor: Tensor) -> tuple[Tensor, tuple[int, ...]]:
    """`(local, offset)`: this rank's part of a tensor, and where in the whole tensor it begins."""
    if not isinstance(tensor, DTensor):
        return tensor, (0,) * tensor.ndim
    place, sizes = tensor.device_mesh.get_coordinate(), tensor.device_mesh.shape
    assert place is not None
    # Ranks that share a layer have cut it first; FSDP2 cuts what each of them holds.
    axes = sorted(range(len(sizes)), key=lambda axis: tensor.device_mesh.mesh_dim_names[axis] != "tensor")  # type: ignore[index]
    start, left = [0] * tensor.ndim, list(tensor.shape)
    for axis in axes:
        dim = _cut_along(tensor, axis)
        if dim is not None:
            each = -(-left[dim] // sizes[axis])
            before = min(each * place[axis], left[dim])
            start[dim] += before
            left[dim] = min(each, left[dim] - before)
    return tensor.to_local(), tuple(start)


def _cut_along(tensor: DTensor, axis: int) -> int | None:
    """The dimension of a tensor that is cut along an axis of its mesh."""
    return getattr(tensor.placements[axis], "dim", None)  # of `Shard` and of FSDP2's own `_StridedShard`


def is_copy(tensor: Tensor, world: World) -> bool:
    """Whether another rank of the stage holds this very content and comes first; of what is no DTensor the first rank's counts."""
    return repeats(tensor) if isinstance(tensor, DTensor) else not world.leads


def repeats(tensor: Tensor) -> bool:
    """Whether a rank that comes first on the tensor's own mesh holds the same part of it."""
    if not isinstance(tensor, DTensor):
        return False
    place = tensor.device_mesh.get_coordinate()
    assert place is not None
    return any(at and _cut_along(tensor, axis) is None for axis, at in enumerate(place))


def seed_of(*parts: str | int) -> int:
    """A 63-bit seed from names and numbers: random numbers are a function of what they are for."""
    text = "\0".join(str(part) for part in parts).encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "little") >> 1
