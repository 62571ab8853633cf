"""Checkpoints: safetensors and JSON, complete or absent, readable by any number of ranks.

    checkpoints/step-00000100/
        model-00000-of-00002.safetensors       each rank's part of every parameter, Hugging Face names
        optimizer-00000-of-00002.safetensors   each rank's part of the optimizer state
        complete.json                          sizes and SHA-256 of these, where each part belongs, step, digests

A save writes into `step-00000100.tmp`; `complete.json` is its last file; then the folder is renamed. So a folder
without `.tmp` is complete, and a kill at any moment leaves the one before. Nothing here is ever unpickled:
torch's own distributed format keeps its index as a pickle, which is why this one has its own.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
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
from trainer.parallel import World, is_copy, local_box
from trainer.records import Complete, Identity, State, Whole

COMPLETE = "complete.json"
_FOLDER = re.compile(r"step-(\d{8,})")
_UNFINISHED = ".tmp"


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
        for path in sorted(root.glob(f"step-*{_UNFINISHED}"))
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


def save(
    root: Path,
    tensors: Mapping[str, Mapping[str, Tensor]],
    state: State,
    identity: Identity,
    plan: str,
    world: World,
) -> Path:
    """Write the checkpoint of `state.step`, all ranks together, and come back when it is on disk: its folder.

    tensors  group name ("model", "optimizer") -> tensor name -> tensor, sharded or whole
    RunError on every rank when one of them could not write, or when a tensor holds NaN or infinity.
    """
    final = root / folder_name(state.step)
    unfinished = final.with_name(final.name + _UNFINISHED)
    with _together(world, f"could not save {final}"):
        if world.first:
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir(parents=True)
            _check_space(root, tensors)
    with _together(world, f"could not save {final}"):
        part = _write_part(unfinished, tensors, world)
        write_atomic(unfinished / f"part-{world.rank:05d}.json", canonical_json(part))
    with _together(world, f"could not save {final}"):
        if world.first:
            record = _merge(unfinished, world.size, state, identity, plan)
            write_atomic(unfinished / COMPLETE, record.model_dump_json(indent=1).encode() + b"\n")
            fsync_folder(unfinished)
            if final.exists():  # a folder that resume refused to use stands where this one belongs
                _remove(final)
            os.rename(unfinished, final)
            fsync_folder(root)
    return final


@contextmanager
def _together(world: World, what: str) -> Iterator[None]:
    """A block whose failure on one rank fails it on all, so that no rank waits for a peer that gave up."""
    failed: Exception | None = None
    try:
        yield
    except (OSError, SafetensorError, ValueError) as error:
        failed = error
    if world.highest([failed is not None])[0]:
        reasons = world.texts("" if failed is None else f"rank {world.rank}: {failed}")
        raise RunError(Problem("T002", f"{what}; {'; '.join(filter(None, reasons))}")) from failed


def _check_space(root: Path, tensors: Mapping[str, Mapping[str, Tensor]]) -> None:
    needed = sum(t.numel() * t.element_size() for group in tensors.values() for t in group.values())
    free = shutil.disk_usage(root).free
    if free < needed * 1.05:
        raise OSError(f"it needs {needed:,} bytes and {free:,} are free")


def _write_part(folder: Path, tensors: Mapping[str, Mapping[str, Tensor]], world: World) -> dict[str, Any]:
    """This rank's files, and its share of the record."""
    files, pieces = {}, {}
    for group, named in tensors.items():
        file = f"{group}-{world.rank:05d}-of-{world.size:05d}.safetensors"
        content = {}
        for name, tensor in named.items():
            local, start = local_box(tensor.detach())
            if is_copy(tensor, world) or local.numel() == 0:
                continue
            if not bool(torch.isfinite(local).all()):
                raise ValueError(f"{name} holds NaN or infinity, which is never saved")
            content[name] = local.contiguous()
            pieces[f"{group}/{name}"] = {
                "dtype": str(tensor.dtype).removeprefix("torch."),
                "shape": list(tensor.shape),
                "piece": {"file": file, "start": list(start), "size": list(local.shape)},
            }
        save_file(content, folder / file, metadata={"format": "pt"})
        _fsync(folder / file)
        files[file] = {"bytes": (folder / file).stat().st_size, "sha256": sha256_file(folder / file)}
    return {"files": files, "pieces": pieces}


def _merge(folder: Path, ranks: int, state: State, identity: Identity, plan: str) -> Complete:
    """The record of all ranks' parts; their own notes are removed."""
    files: dict[str, Any] = {}
    tensors: dict[str, Any] = {}
    for rank in range(ranks):
        path = folder / f"part-{rank:05d}.json"
        part = json.loads(path.read_bytes())
        path.unlink()
        files |= part["files"]
        for name, entry in part["pieces"].items():
            whole = tensors.setdefault(name, {"dtype": entry["dtype"], "shape": entry["shape"], "pieces": []})
            whole["pieces"].append(entry["piece"])
    return Complete.model_validate(
        {
            "format": 1, "state": state.model_dump(), "identity": identity.model_dump(), "plan": plan,
            "world": ranks, "torch": torch.__version__, "files": files, "tensors": dict(sorted(tensors.items())),
        }
    )  # fmt: skip


def load(checkpoint: Checkpoint, tensors: Mapping[str, Mapping[str, Tensor]]) -> None:
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


def outdated(steps: Sequence[int], keep_last: int, best: int | None) -> list[int]:
    """Which of these steps rotation deletes: all but the last `keep_last` (at least one) by number, and the best."""
    rising = sorted(steps)
    kept = set(rising[-max(1, keep_last) :]) | {best}
    return [step for step in rising if step not in kept]


def rotate(root: Path, keep_last: int, best: int | None) -> list[int]:
    """Delete outdated checkpoints; called after a newer one is complete. The steps deleted."""
    present = folders(root)
    deleted = outdated(list(present), keep_last, best)
    for step in deleted:
        _remove(present[step])
    return deleted


def clear_unfinished(root: Path) -> None:
    """Delete what killed saves and killed deletions left."""
    for path in root.glob(f"step-*{_UNFINISHED}"):
        shutil.rmtree(path)


def _remove(path: Path) -> None:
    """Rename first: a kill in the middle leaves something that is plainly unfinished."""
    doomed = path.with_name(path.name + _UNFINISHED)
    shutil.rmtree(doomed, ignore_errors=True)
    os.rename(path, doomed)
    shutil.rmtree(doomed)


def _fsync(path: Path) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())
