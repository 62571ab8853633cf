"""What is known of GPUs: peak speed and memory by model, and how much of the peak training reaches."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Gpu:
    """A model of GPU. `flops` is its dense bf16 peak, as its data sheet states it."""

    name: str
    flops: float
    memory: int


def _gib(count: float) -> int:
    return int(count * 2**30)


#: By words of the name, the more special first.
GPUS: tuple[Gpu, ...] = (
    Gpu("B200", 2250e12, _gib(180)),
    Gpu("H200", 989e12, _gib(141)),
    Gpu("H100 NVL", 835e12, _gib(94)),
    Gpu("H100 PCIe", 756e12, _gib(80)),
    Gpu("H100", 989e12, _gib(80)),
    Gpu("H800", 989e12, _gib(80)),
    Gpu("H20", 148e12, _gib(96)),
    Gpu("A100 40GB", 312e12, _gib(40)),
    Gpu("A100", 312e12, _gib(80)),
    Gpu("A800", 312e12, _gib(80)),
    Gpu("L40S", 362e12, _gib(48)),
    Gpu("A10G", 70e12, _gib(24)),
    Gpu("RTX 4090", 165e12, _gib(24)),
    Gpu("RTX 3090", 71e12, _gib(24)),
)

#: Assumed where nothing names a GPU.
ASSUMED = "H100"

#: What a CPU core does with small models, in FLOP/s.
CORE = 25e9


def find_gpu(name: str) -> Gpu | None:
    """The GPU that a name such as `NVIDIA H100 80GB HBM3` means."""
    words = name.casefold().replace("-", " ").split()
    return next((gpu for gpu in GPUS if set(gpu.name.casefold().split()) <= set(words)), None)


def gpu_here() -> str | None:
    """The model of the first GPU of this machine, without asking torch."""
    folder = Path("/proc/driver/nvidia/gpus")
    for entry in sorted(folder.iterdir()) if folder.is_dir() else ():
        for line in (entry / "information").read_text(errors="replace").splitlines():
            if line.startswith("Model:"):
                return line.partition(":")[2].strip()
    return None


def usual_mfu(parameters: float) -> float:
    """What training of this size reaches without tuning: 30 % of the peak below 200 M parameters, 40 % from 1 B on.

    A prior, no measurement: published runs on A100 and H100 lie between 0.3 and 0.55 (PaLM 0.46, Llama 3 0.38 to 0.43).
    """
    return 0.30 if parameters < 2e8 else 0.35 if parameters < 1e9 else 0.40
