"""A window of steps under torch's profiler: where the time went, in one sentence, and a trace to look at."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

#: Kinds of work by the name of an operator or kernel, the first match wins; anything else is `other compute`.
KINDS = {
    "communication": re.compile(r"nccl|gloo|c10d|all_?gather|reduce_?scatter|all_?reduce|broadcast", re.IGNORECASE),
    "matrix products": re.compile(r"(^|::|_)(mm|addmm|bmm|baddbmm|matmul|linear)($|_)|gemm|cutlass|scaled_dot_product|flash|fmha", re.IGNORECASE),
}  # fmt: skip


def shares(averages: Iterable[Any], on_device: bool) -> dict[str, float]:
    """Seconds of own time by kind of work, from `key_averages()` of a profiler."""
    found = dict.fromkeys((*KINDS, "other compute"), 0.0)
    for one in averages:
        micros = one.self_device_time_total if on_device else one.self_cpu_time_total
        kind = next((name for name, words in KINDS.items() if words.search(one.key)), "other compute")
        found[kind] += micros / 1e6
    return found


class Window:
    """Profiles steps [first, last) of a run; nothing happens on other steps, or without a window."""

    def __init__(self, steps: tuple[int, int] | None, folder: Path, rank: int, device: torch.device) -> None:
        self._steps, self._folder, self._rank, self._device = steps, folder, rank, device
        self._running: profile | None = None
        self._waited = 0.0

    def before(self, step: int) -> None:
        """Start with the first step of the window (0-based)."""
        if self._steps is None or self._running is not None or not self._steps[0] <= step < self._steps[1]:
            return
        kinds = [ProfilerActivity.CPU]
        kinds += [ProfilerActivity.CUDA] if self._device.type == "cuda" else []
        self._running = profile(activities=kinds)
        self._running.start()

    def after(self, step: int, waited: float, say: Callable[[str], None]) -> None:
        """Stop behind the last step of the window; `waited` is how long this step waited for its batch, in seconds."""
        if self._running is None or self._steps is None:
            return
        self._waited += waited
        if step + 1 < self._steps[1]:
            return
        running, self._running = self._running, None
        running.stop()
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"profile-{self._steps[0]:08d}-rank-{self._rank:05d}.json"
        running.export_chrome_trace(str(path))
        found = {"data": self._waited} | shares(running.key_averages(), self._device.type == "cuda")
        total = sum(found.values()) or 1.0
        parts = ", ".join(f"{name} {seconds / total:.0%}" for name, seconds in found.items())
        say(f"profile of steps {self._steps[0]:,} to {step:,}: {parts}; trace in {path}")
