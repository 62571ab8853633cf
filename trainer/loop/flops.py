"""What a step costs in floating point operations, and the share of a device's peak that a run reaches.

    F   = 6 N + 12 L D E        a token, forward and backward (Chowdhery et al. 2022, appendix B)
    MFU = tokens/s x F / (devices x peak)

N parameters of matrix products (linear layers and head; the lookup is none), L layers, D width of all heads together, E mean
length of the documents that tokens stand in: attention looks inside of documents only. Causality is not taken off, as
is usual; recomputation is not added.
"""

from __future__ import annotations

from trainer.planning.devices import find_gpu
from trainer.shape import ModelShape

DEFINITION = (
    "MFU = tokens/s x (6 x {n:,} matrix parameters + 12 x {layers} layers x {width:,} wide x mean document length) / "
    "({devices} x {peak:.0f} TFLOP/s), causality not taken off"
)


def token_flops(shape: ModelShape, context: float) -> float:
    """Operations of a token, forward and backward; `context` is E."""
    return 6 * shape.matmul_parameters + 12 * shape.layers * shape.heads * shape.head_dim * context


def peak_of(device_name: str) -> float | None:
    """FLOP/s of dense bf16 matrix products, None where the name of the device is not known."""
    gpu = find_gpu(device_name)
    return None if gpu is None else gpu.flops


def definition(shape: ModelShape, devices: int, peak: float) -> str:
    """The sentence that says what the number means, with the numbers in it."""
    return DEFINITION.format(
        n=shape.matmul_parameters, layers=shape.layers, width=shape.width, devices=devices, peak=peak / 1e12
    )
