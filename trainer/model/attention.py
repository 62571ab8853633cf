"""Causal attention inside documents: a token sees its own document up to itself, and nothing else.

Several documents stand behind each other in one row of T tokens; `Segments` says where each begins. On CUDA in
half precision the variable-length flash kernel takes all of them at once. Elsewhere each document gets its own
causal scaled-dot-product call: exact, because no call ever sees a second document, and faster than one call
with a block-diagonal mask (whose work grows with the square of the row).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


def carried(values: Sequence[int], dtype: torch.dtype, device: torch.device | str) -> Tensor:
    """Host numbers as a tensor on a device, without waiting for what the device is doing."""
    made = torch.tensor(values, dtype=dtype)
    return made if torch.device(device).type == "cpu" else made.pin_memory().to(device, non_blocking=True)


@dataclass(frozen=True)
class Segments:
    """Where documents begin in T tokens laid end to end.

    starts   host numbers, first 0, last T, rising: segment i is starts[i] .. starts[i + 1]
    cu       the same as int32 on the device, the form that the flash kernel takes
    longest  tokens of the longest segment, rounded up to a power of two: a compiled layer sees few values of it, and
             the kernel only needs to know that none is longer
    """

    starts: tuple[int, ...]
    cu: Tensor
    longest: int

    @classmethod
    def of(cls, starts: list[int], device: torch.device | str) -> Segments:
        """Segments on a device. ValueError if the starts do not rise from 0."""
        lengths = [b - a for a, b in pairwise(starts)]
        if not lengths or starts[0] != 0 or min(lengths) <= 0:
            raise ValueError(f"segment starts must rise from 0, got {starts[:8]}")
        return cls(tuple(starts), carried(starts, torch.int32, device), 1 << (max(lengths) - 1).bit_length())


def attend(q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, segments: Segments) -> Tensor:
    """Attention output (T, H, D), dtype of `q`; H query heads share K key/value heads (H a multiple of K).

    Scale 1/sqrt(D) (Vaswani et al. 2017, eq. 1); query head h reads key head h // (H // K) (Ainslie et al. 2023).
    """
    fits = q_THD.is_cuda and q_THD.dtype in (torch.bfloat16, torch.float16) and q_THD.shape[-1] % 8 == 0
    if fits and (kernel := _varlen()) is not None:
        return kernel(q_THD, k_TKD, v_TKD, segments)
    return _per_document(q_THD, k_TKD, v_TKD, segments)


@torch.compiler.disable  # its loop follows the documents of a batch: compiled, it would be compiled for each batch
def _per_document(q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, segments: Segments) -> Tensor:
    q_HTD = q_THD.transpose(0, 1)
    k_HTD = _spread(k_TKD, q_THD.shape[1]).transpose(0, 1)
    v_HTD = _spread(v_TKD, q_THD.shape[1]).transpose(0, 1)
    # Split and not sliced: the gradient of a slice is as large as the whole, and filled with zeros for each document.
    lengths = [b - a for a, b in pairwise(segments.starts)]
    documents = zip(*(x_HTD[None].split(lengths, dim=2) for x_HTD in (q_HTD, k_HTD, v_HTD)), strict=True)
    # One call a document: batching documents of equal length would make a kernel's blocking depend on neighbours.
    parts = [functional.scaled_dot_product_attention(q, k, v, is_causal=True)[0] for q, k, v in documents]
    return torch.cat(parts, dim=1).transpose(0, 1)


def _spread(x_TKD: Tensor, heads: int) -> Tensor:
    """(T, H, D): each key/value head repeated for the query heads that share it."""
    tokens, shared, width = x_TKD.shape
    if shared == heads:
        return x_TKD
    return x_TKD[:, :, None].expand(tokens, shared, heads // shared, width).reshape(tokens, heads, width)


@functools.cache
def _varlen() -> Callable[[Tensor, Tensor, Tensor, Segments], Tensor] | None:
    """The flash kernel behind one signature, or None where this torch has none.

    torch 2.10 says causal by `is_causal=True`, later ones by `window_size=(-1, 0)`; `enable_gqa` came with 2.12.
    """
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    known = inspect.signature(varlen_attn).parameters
    causal: dict[str, Any] = {"window_size": (-1, 0)} if "window_size" in known else {"is_causal": True}

    def call(q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, segments: Segments) -> Tensor:
        options = dict(causal)
        if k_TKD.shape[1] != q_THD.shape[1]:
            if "enable_gqa" in known:
                options["enable_gqa"] = True
            else:
                k_TKD, v_TKD = _spread(k_TKD, q_THD.shape[1]), _spread(v_TKD, q_THD.shape[1])
        n = segments.longest
        out = varlen_attn(q_THD, k_TKD, v_TKD, segments.cu, segments.cu, n, n, **options)
        assert isinstance(out, Tensor)  # a pair only when asked for
        return out

    return call
