"""Coarse and fine codes (§3.3): an 8-bit channel becomes a 4-bit coarse and a 4-bit fine code, or any other split.

The coarse codes of all channels come before the fine ones, since that is the order in which they are predicted.

C channels · K codes of a pixel, C times the number of parts of a channel · V values of all codes together
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int, UInt8
    from torch import Tensor


def split(pixels: UInt8[Tensor, "*axes C"], code_bits: tuple[int, ...]) -> UInt8[Tensor, "*axes K"]:
    """Values of sum(code_bits) bits as codes: the most significant part of every channel first."""
    return torch.cat([(pixels >> shift) & (2**bits - 1) for bits, shift in _parts(code_bits)], dim=-1)


def join(codes: UInt8[Tensor, "*axes K"], code_bits: tuple[int, ...]) -> UInt8[Tensor, "*axes C"]:
    """The values whose codes these are: the inverse of `split`."""
    parts = codes.chunk(len(code_bits), dim=-1)
    pixels = torch.zeros_like(parts[0])
    for part, (_, shift) in zip(parts, _parts(code_bits), strict=True):
        pixels |= part << shift
    return pixels


def rows(codes: UInt8[Tensor, "*axes K"], num_code_values: tuple[int, ...]) -> Int[Tensor, "*axes K"]:
    """Each code's row in a table that holds the values of the first code, then those of the second, and so on."""
    starts = torch.tensor([0, *itertools.accumulate(num_code_values[:-1])], device=codes.device)
    return codes + starts


def one_hot(
    codes: UInt8[Tensor, "*axes K"],
    num_code_values: tuple[int, ...],
    dtype: torch.dtype,
    present: Bool[Tensor, "*axes"] | None = None,
) -> Float[Tensor, "*axes V"]:
    """The codes' one-hot vectors, concatenated; all zero where a pixel is not present."""
    index = rows(codes, num_code_values)
    zeros = torch.zeros(*codes.shape[:-1], sum(num_code_values), dtype=dtype, device=codes.device)
    if present is None:
        return zeros.scatter_(-1, index, 1.0)
    return zeros.scatter_(-1, index, present.to(dtype).unsqueeze(-1).expand(index.shape))


def _parts(code_bits: tuple[int, ...]) -> list[tuple[int, int]]:
    """(bits, shift) of each part of a channel, coarse to fine."""
    return [(bits, sum(code_bits[i + 1 :])) for i, bits in enumerate(code_bits)]
