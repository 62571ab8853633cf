"""What stands in a run folder beside checkpoints and metrics: the plan that runs, and where and when it ran."""

from __future__ import annotations

import datetime
import json
import resource
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from stages.contract.files import write_atomic
from trainer.checkpoint import versions
from trainer.loop.parallel import World
from trainer.planned import Plan


def describe_run(out: Path, plan: Plan, world: World, step: int, corpora: Sequence[Any] = ()) -> None:
    """plan.json: the plan that runs. run.json: where and when, and where the corpora lie (folders or addresses), one entry per start;
    the run itself reads neither."""
    write_atomic(
        out / "plan.json",
        json.dumps(plan.to_json(), indent=1, sort_keys=True, ensure_ascii=False).encode() + b"\n",
    )
    path = out / "run.json"
    starts = json.loads(path.read_bytes())["starts"] if path.exists() else []
    starts.append(
        {
            "step": step,
            "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "host": socket.gethostname(),
            "ranks": world.size,
            "threads": torch.get_num_threads(),
            "deterministic": plan.deterministic,
            "manifests": [str(folder.resolve() if isinstance(folder, Path) else folder) for folder in corpora],
        }
        | versions(world.device)
    )
    write_atomic(path, json.dumps({"starts": starts}, indent=1).encode() + b"\n")


def peak_memory(device: torch.device) -> int:
    """Bytes that this rank has used at most: of the device, on a CPU of the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
