"""Checkpoints: safetensors and JSON, complete or absent, readable by any number of ranks.

    checkpoints/step-00000100/
        model-00000-of-00002.safetensors       each rank's part of every parameter, Hugging Face names
        optimizer-00000-of-00002.safetensors   each rank's part of the optimizer state
        complete.json                          sizes and SHA-256 of these, where each part belongs, step, digests

A save writes into `step-00000100.tmp`; `complete.json` is its last file; then the folder is renamed. So a folder
without `.tmp` is complete, and a kill at any moment leaves the one before. A save in the background copies the tensors
first and writes the copies from a thread; the last part, which needs all ranks, is `finish`. Nothing here is ever
unpickled: torch's own distributed format keeps its index as a pickle, which is why this one has its own.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from stages.contract.files import fsync_folder, sha256_file, write_atomic
from stages.contract.names import canonical_json
from stages.contract.problem import Problem, RunError
from trainer.checkpoint.records import Complete, History, Identity, State, Whole
from trainer.loop.parallel import World, is_copy, local_box

COMPLETE = "complete.json"
_FOLDER = re.compile(r"step-(\d{8,})")
UNFINISHED = ".tmp"


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint on disk."""

    path: Path
    record: Complete

    @property
    def step(self) -> int:
        """Steps done when it was written."""
        return self.record.state.step


@dataclass(frozen=True)
class Skipped:
    """A folder that resume does not use, and why."""

    name: str
    reason: str
    foreign: bool = True  # False: the rest of a save that was killed


def folder_name(step: int) -> str:
    """The folder of a step."""
    return f"step-{step:08d}"


def folders(root: Path) -> dict[int, Path]:
    """Finished folders by step, rising."""
    found = {}
    for path in root.iterdir() if root.is_dir() else ():
        if (match := _FOLDER.fullmatch(path.name)) and path.is_dir():
            found[int(match[1])] = path
    return dict(sorted(found.items()))


def newest(root: Path) -> tuple[Checkpoint | None, list[Skipped]]:
    """The newest checkpoint whose every file is as its record says, and what was passed over on the way to it.

    Reads all bytes of the candidates (SHA-256). RunError when there are folders but none can be used: starting
    again from step 0 is for a person to decide.
    """
    skipped = [
        Skipped(path.name, "its save was not finished", foreign=False)
        for path in sorted(root.glob(f"step-*{UNFINISHED}"))
    ]
    for path in reversed(folders(root).values()):
        found = read(path)
        if isinstance(found, Checkpoint):
            return found, skipped
        skipped.append(Skipped(path.name, found))
    refused = [item for item in skipped if item.foreign]
    if refused:
        listing = "; ".join(f"{item.name}: {item.reason}" for item in refused)
        repairs = ("give another run folder with --out", f"delete {root} to train from the start")
        raise RunError(Problem("T001", f"no checkpoint in {root} can be used: {listing}", repairs=repairs))
    return None, skipped


def agreed(root: Path, world: World) -> tuple[Checkpoint | None, list[Skipped]]:
    """What `newest` finds, on every rank; the first one reads and hashes for all.

    The run folder must be one that all ranks see. RunError on every rank, as `newest` raises it.
    """
    problem: RunError | None = None
    found: Checkpoint | None = None
    skipped: list[Skipped] = []
    if world.first:
        try:
            found, skipped = newest(root)
        except RunError as error:
            problem = error
    name = world.texts("failed" if problem else found.path.name if found else "none")[0]
    if name == "failed":
        raise problem or RunError(Problem("T001", f"rank 0 found no checkpoint in {root} that can be used"))
    if found is None and name != "none":
        found = Checkpoint(root / name, Complete.model_validate_json((root / name / COMPLETE).read_bytes()))
    return found, skipped


def read(path: Path) -> Checkpoint | str:
    """The checkpoint in a folder, every byte checked, or why it is not one."""
    try:
        record = Complete.model_validate_json((path / COMPLETE).read_bytes())
    except FileNotFoundError:
        return f"there is no {COMPLETE}"
    except ValidationError as error:
        first = error.errors()[0]
        return (
            f"{COMPLETE} is not a record of this program ({'.'.join(map(str, first['loc']))}: {first['msg']})"
        )
    present = {entry.name for entry in path.iterdir()} - {COMPLETE}
    if extra := sorted(present - record.files.keys()):
        return f"it holds a file that its record does not name: {extra[0]}"
    for name, file in record.files.items():
        size = (path / name).stat().st_size if name in present else None
        if size != file.bytes:
            return f"{name} has {size or 0:,} bytes, its record says {file.bytes:,}"
        if sha256_file(path / name) != file.sha256:
            return f"the bytes of {name} are not those that were written"
    return Checkpoint(path, record)


Named = Mapping[str, Mapping[str, Tensor]]  # group ("model", "optimizer") -> tensor name -> tensor, sharded or whole


@dataclass(frozen=True)
class Stamp:
    """What a checkpoint says beside its tensors."""

    state: State
    identity: Identity
    history: History
    plan: str


class Save:
    """A checkpoint of `stamp.state.step` on its way to disk: made by all ranks, finished by all ranks.

    background  copy the tensors to host memory now, and write them from a thread
    RunError on every rank, here or from `finish`, when one of them could not write, or when a tensor holds NaN or
    infinity; what was complete before stays.
    """

    def __init__(self, root: Path, tensors: Named, stamp: Stamp, world: World, background: bool = False) -> None:
        self.final = root / folder_name(stamp.state.step)
        self.stamp, self.world = stamp, world
        self._unfinished = self.final.with_name(self.final.name + UNFINISHED)
        self._failed: Exception | None = None
        own = {group: list(_parts(named, world)) for group, named in tensors.items()}
        (needed,) = world.total_int([sum(part.local.nbytes for parts in own.values() for part in parts)])
        with self._together():
            if world.first:
                shutil.rmtree(self._unfinished, ignore_errors=True)
                self._unfinished.mkdir(parents=True)
                _check_space(root, needed)
        mine = {group: [_held(part) for part in parts] for group, parts in own.items()} if background else own
        self._thread = threading.Thread(target=self._write, args=(mine,), name="save") if background else None
        if self._thread is not None:
            self._thread.start()
        else:
            self._write(mine)

    @property
    def written(self) -> bool:
        """Whether this rank's part is on disk, or failed: `finish` will not have to wait for it."""
        return self._thread is None or not self._thread.is_alive()

    def finish(self) -> Path:
        """Wait for the parts of all ranks and make them a checkpoint: its folder."""
        if self._thread is not None:
            self._thread.join()
        with self._together():
            if self._failed is not None:
                raise self._failed
        with self._together():
            if self.world.first:
                record = _merge(self._unfinished, self.world, self.stamp)
                write_atomic(self._unfinished / COMPLETE, record.model_dump_json(indent=1).encode() + b"\n")
                fsync_folder(self._unfinished)
                if self.final.exists():  # a folder that resume refused to use stands where this one belongs
                    remove(self.final)
                os.rename(self._unfinished, self.final)
                fsync_folder(self.final.parent)
        return self.final

    def _write(self, mine: Mapping[str, Sequence[_Part]]) -> None:
        try:
            part = _write_part(self._unfinished, mine, self.world)
            write_atomic(self._unfinished / f"part-{self.world.rank:05d}.json", canonical_json(part))
        except (OSError, SafetensorError, ValueError) as error:
            self._failed = error  # raised by `finish`, where all ranks hear of it

    @contextmanager
    def _together(self) -> Iterator[None]:
        """A block whose failure on one rank fails it on all, so that no rank waits for a peer that gave up."""
        failed: Exception | None = None
        try:
            yield
        except (OSError, SafetensorError, ValueError) as error:
            failed = error
        if self.world.highest([failed is not None])[0]:
            reasons = self.world.texts("" if failed is None else f"rank {self.world.rank}: {failed}")
            if self.world.first:  # its room is needed
                shutil.rmtree(self._unfinished, ignore_errors=True)
            message = f"could not save {self.final}; {'; '.join(filter(None, reasons))}"
            kept = max(folders(self.final.parent), default=None)
            repairs = ["make room or lower checkpoint.keep_last, and run the command again"]
            repairs += [f"{folder_name(kept)} is whole and stays"] if kept is not None else []
            raise RunError(Problem("T002", message, repairs=tuple(repairs))) from failed


def save(root: Path, tensors: Named, stamp: Stamp, world: World) -> Path:
    """Write a checkpoint and come back when it is on disk: its folder. As `Save`."""
    return Save(root, tensors, stamp, world).finish()


def _check_space(root: Path, needed: int) -> None:
    free = shutil.disk_usage(root).free
    if free < needed * 1.05:
        raise OSError(f"it needs {needed:,} bytes and {free:,} are free")


@dataclass(frozen=True)
class _Part:
    """This rank's part of a tensor, and where it belongs."""

    name: str
    local: Tensor
    start: tuple[int, ...]
    shape: list[int]
    dtype: str


def _parts(named: Mapping[str, Tensor], world: World) -> Iterator[_Part]:
    """What this rank writes of these tensors."""
    for name, tensor in named.items():
        local, start = local_box(tensor.detach())
        if is_copy(tensor, world) or local.numel() == 0:
            continue
        yield _Part(name, local, start, list(tensor.shape), str(tensor.dtype).removeprefix("torch."))


def _held(part: _Part) -> _Part:
    """A copy on the host, which stays as it is while training goes on."""
    return replace(part, local=part.local.to("cpu", copy=True))


def _write_part(folder: Path, mine: Mapping[str, Sequence[_Part]], world: World) -> dict[str, Any]:
    """This rank's files, and its share of the record."""
    files, pieces = {}, {}
    for group, parts in mine.items():
        file = f"{group}-{world.rank:05d}-of-{world.size:05d}.safetensors"
        content = {}
        for part in parts:
            if part.local.is_floating_point() and not bool(torch.isfinite(part.local).all()):
                raise ValueError(f"{part.name} holds NaN or infinity, which is never saved")
            content[part.name] = part.local.contiguous()
            pieces[f"{group}/{part.name}"] = {
                "dtype": part.dtype,
                "shape": part.shape,
                "piece": {"file": file, "start": list(part.start), "size": list(part.local.shape)},
            }
        save_file(content, folder / file, metadata={"format": "pt"})
        _fsync(folder / file)
        files[file] = {"bytes": (folder / file).stat().st_size, "sha256": sha256_file(folder / file)}
    return {"files": files, "pieces": pieces}


def _merge(folder: Path, world: World, stamp: Stamp) -> Complete:
    """The record of all ranks' parts; their own notes are removed."""
    files: dict[str, Any] = {}
    tensors: dict[str, Any] = {}
    for rank in range(world.size):
        path = folder / f"part-{rank:05d}.json"
        part = json.loads(path.read_bytes())
        path.unlink()
        files |= part["files"]
        for name, entry in part["pieces"].items():
            whole = tensors.setdefault(name, {"dtype": entry["dtype"], "shape": entry["shape"], "pieces": []})
            whole["pieces"].append(entry["piece"])
    return Complete.model_validate(
        {
            "format": 2, "state": stamp.state.model_dump(), "identity": stamp.identity.model_dump(),
            "history": stamp.history.model_dump(), "plan": stamp.plan, "world": world.size,
            "made_with": versions(world.device), "files": files, "tensors": dict(sorted(tensors.items())),
        }
    )  # fmt: skip


def versions(device: torch.device) -> dict[str, str]:
    """What the bits of a run depend on beside its plan."""
    found = {"torch": torch.__version__, "python": platform.python_version(), "machine": platform.machine()}
    found["device"] = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return found | ({"cuda": str(torch.version.cuda)} if device.type == "cuda" else {})


def digests(checkpoint: Checkpoint) -> dict[str, str]:
    """SHA-256 (hex) over each component of the inventory, tensors whole: the same whatever number of ranks wrote it."""
    hashes: dict[str, Any] = {}
    opened: dict[str, Any] = {}
    for key, whole in checkpoint.record.tensors.items():
        group, _, name = key.partition("/")
        component = group if group == "model" else f"{group} {name.rpartition('.')[2]}"
        tensor = torch.empty(whole.shape, dtype=getattr(torch, whole.dtype))
        _fill(checkpoint, name, tensor, whole, opened)
        found = hashes.setdefault(component, hashlib.sha256())
        found.update(f"{name} {whole.dtype} {whole.shape}\n".encode())
        found.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    found = {name: one.hexdigest() for name, one in hashes.items()}
    for name, value in checkpoint.record.state.model_dump().items():
        found[f"state {name}"] = hashlib.sha256(canonical_json({name: value})).hexdigest()
    return found


def load(checkpoint: Checkpoint, tensors: Named) -> None:
    """Fill this rank's part of each tensor in place, from whatever pieces overlap it.

    RunError when a tensor is missing, has another shape or dtype, or is not covered by its pieces.
    """
    opened: dict[str, Any] = {}
    for group, named in tensors.items():
        for name, tensor in named.items():
            whole = checkpoint.record.tensors.get(f"{group}/{name}")
            dtype = str(tensor.dtype).removeprefix("torch.")
            if whole is None or whole.shape != list(tensor.shape) or whole.dtype != dtype:
                had = f"{whole.dtype} {whole.shape}" if whole else "nothing"
                raise _unusable(
                    checkpoint, f"{group}/{name} is {had}, the model wants {dtype} {list(tensor.shape)}"
                )
            try:
                _fill(checkpoint, name, tensor.detach(), whole, opened)
            except SafetensorError as error:
                raise _unusable(checkpoint, f"{group}/{name}: {error}") from error


def _fill(checkpoint: Checkpoint, name: str, tensor: Tensor, whole: Whole, opened: dict[str, Any]) -> None:
    local, start = local_box(tensor)
    missing = local.numel()
    for piece in whole.pieces:
        low = [max(a, b) for a, b in zip(start, piece.start, strict=True)]
        ends = zip(start, local.shape, piece.start, piece.size, strict=True)
        high = [min(a + n, b + m) for a, n, b, m in ends]
        if any(a >= b for a, b in zip(low, high, strict=True)):
            continue
        if piece.file not in opened:
            opened[piece.file] = safe_open(checkpoint.path / piece.file, "pt", device="cpu")
        here = tuple(slice(a - s, b - s) for a, b, s in zip(low, high, start, strict=True))
        there = tuple(slice(a - s, b - s) for a, b, s in zip(low, high, piece.start, strict=True))
        source = opened[piece.file]
        part = source.get_slice(name)[there] if there else source.get_tensor(name)
        if part.numel() != local[here].numel():
            raise _unusable(checkpoint, f"{name} is shorter in {piece.file} than the record says")
        local[here] = part.to(local.device)
        missing -= part.numel()
    if missing:
        raise _unusable(checkpoint, f"{missing:,} numbers of {name} are in no file")


def _unusable(checkpoint: Checkpoint, why: str) -> RunError:
    return RunError(Problem("T001", f"{checkpoint.path} cannot be loaded: {why}"))


def remove(path: Path) -> None:
    """Delete a checkpoint. It is renamed first: a kill in the middle leaves something that is plainly unfinished."""
    doomed = path.with_name(path.name + UNFINISHED)
    shutil.rmtree(doomed, ignore_errors=True)
    os.rename(path, doomed)
    shutil.rmtree(doomed)


def _fsync(path: Path) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())
