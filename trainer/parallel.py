"""Ranks, the device mesh, sharding: everything that knows there is more than one process.

One `DeviceMesh` with the axis `data`; FSDP2 shards over it, also when it has one rank, so that there is one
code path. Further axes (tensor, pipeline) become further mesh dimensions; nothing outside this file counts ranks.
"""

from __future__ import annotations

import datetime
import hashlib
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard

from stages.contract.problem import Problem, RunError
from trainer.launch import cores

#: How long a collective may wait for a silent peer. A dead one is noticed at once: its connection closes.
PATIENCE = datetime.timedelta(minutes=10)


@dataclass(frozen=True)
class World:
    """This process among its peers."""

    rank: int
    size: int
    device: torch.device
    mesh: DeviceMesh

    @property
    def first(self) -> bool:
        """Whether this is the rank that writes and talks."""
        return self.rank == 0

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
        dist.all_gather_object(found, text)
        return found

    def _reduce(self, values: Sequence, dtype: torch.dtype, op: dist.ReduceOp.RedOpType) -> list:
        vector = torch.tensor(values, dtype=dtype, device=self.device)
        dist.all_reduce(vector, op)
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
    if kind == "cuda":
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
    return World(rank, size, device, init_device_mesh(device.type, (size,), mesh_dim_names=("data",)))


def explained(error: RuntimeError, world: World, step: int, micro: int) -> RuntimeError | RunError:
    """A RunError for what a person can act on (memory, dead peers); any other error as it is."""
    if isinstance(error, torch.OutOfMemoryError):
        message = f"rank {world.rank} ran out of memory on {world.device} at step {step:,}"
        repairs = (
            [f"set batch.micro_batch_size below {micro}: the result stays the same"] if micro > 1 else []
        )
        repairs.append("set parallel.activation_checkpointing to selective or full")
        return RunError(Problem("T005", message, repairs=tuple(repairs)))
    if world.size > 1 and re.search(r"gloo|NCCL|[Cc]onnection", str(error)):
        return RunError(
            Problem("T004", f"rank {world.rank} lost its peers at step {step:,}; one of them ended")
        )
    return error


def leave() -> None:
    """End the process group, if there is one."""
    if dist.is_initialized():
        dist.destroy_process_group()


def shard(model: nn.Module, blocks: Iterable[nn.Module], world: World, compute: torch.dtype) -> None:
    """Shard the model in place: each block is one group, the rest the last. Weights stay float32.

    Gradients are summed over ranks in float32, never averaged: the loss is already divided by the label tokens
    of all ranks, and an average would divide once more.
    """
    policy = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=torch.float32)
    for module in (*blocks, model):
        fully_shard(module, mesh=world.mesh["data"], mp_policy=policy)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            # Gloo has no pre-multiplied sum; a factor of 1 is a plain sum on every backend.
            module.set_force_sum_reduction_for_comms(True)


def local_box(tensor: Tensor) -> tuple[Tensor, tuple[int, ...]]:
    """`(local, offset)`: this rank's part of a tensor, and where in the whole tensor it begins."""
    if not isinstance(tensor, DTensor):
        return tensor, (0,) * tensor.ndim
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    _, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return tensor.to_local(), tuple(offset)


def is_copy(tensor: Tensor, world: World) -> bool:
    """Whether another rank writes this very content: whole tensors belong to rank 0."""
    sharded = isinstance(tensor, DTensor) and any(isinstance(p, Shard) for p in tensor.placements)
    return not sharded and not world.first


def seed_of(*parts: str | int) -> int:
    """A 63-bit seed from names and numbers: random numbers are a function of what they are for."""
    text = "\0".join(str(part) for part in parts).encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "little") >> 1
