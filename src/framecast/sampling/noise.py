"""Gumbel noise as a pure function of (seed, sample, pixel, code, value): the same numbers on every device, for every
batch, schedule and number of processes.

The bits are Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011): a counter in, 128
random bits out. What turns them into noise is additions, multiplications and divisions of float64 alone, each a kernel
of its own, since those are rounded alike everywhere and a library's logarithm is not.

A pixel is counted in the video, (frame · H + row) · W + column, which tells its slice and its position there, and goes
on in videos longer than the model.

B samples · n pixels · V values of a code
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor

MASK = 2**32 - 1
CHUNK = 1 << 16
"""Counters that are worked on at a time: they stay in the cache."""


def gumbel(
    seed: int, samples: Int[Tensor, "B"], pixels: Int[Tensor, "n"], code: int, num_values: int
) -> Float[Tensor, "n B V"]:
    """float64. Added to the logits, the largest value is a draw from their softmax."""
    pairs = torch.arange((num_values + 1) // 2, device=pixels.device)  # one counter brings the noise of two values
    shape = (len(pixels), len(samples), len(pairs))
    axes = torch.broadcast_tensors(pixels[:, None, None], samples[:, None], pairs + (code << 16))
    pixel, sample, pair = (axis.flatten() for axis in axes)
    parts = [
        _gumbel_pairs(seed, pixel[i : i + CHUNK], sample[i : i + CHUNK], pair[i : i + CHUNK])
        for i in range(0, len(pixel), CHUNK)
    ]
    noise = torch.cat(parts) if parts else torch.zeros(0, 2, dtype=torch.float64, device=pixels.device)
    return noise.view(*shape[:2], -1)[..., :num_values]


def philox(counter: tuple[Tensor, Tensor, Tensor, Tensor], seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Four random 32-bit words for each counter of four. Products wrap around in int64, as those of uint64 would."""
    c0, c1, c2, c3 = counter
    k0, k1 = seed & MASK, seed >> 32 & MASK
    for _ in range(10):
        first, second = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0 = (second >> 32).bitwise_and_(MASK).bitwise_xor_(c1).bitwise_xor_(k0)
        c2 = (first >> 32).bitwise_and_(MASK).bitwise_xor_(c3).bitwise_xor_(k1)
        c1, c3 = second.bitwise_and_(MASK), first.bitwise_and_(MASK)
        k0, k1 = (k0 + 0x9E3779B9) & MASK, (k1 + 0xBB67AE85) & MASK
    return c0, c1, c2, c3


def log(x: Float[Tensor, "*axes"]) -> Float[Tensor, "*axes"]:
    """The natural logarithm of positive float64 numbers, to 1e-15: 2 artanh((m − 1) / (m + 1)) of the mantissa m as a
    series, plus the exponent."""
    mantissa, exponent = torch.frexp(x)
    low = mantissa < math.sqrt(0.5)
    mantissa = torch.where(low, mantissa * 2, mantissa)
    exponent = torch.where(low, exponent - 1, exponent).to(torch.float64)
    ratio = (mantissa - 1).div_(mantissa + 1)
    square = ratio * ratio
    series = square / 23
    for odd in range(21, 1, -2):
        series.add_(1 / odd).mul_(square)
    return series.add_(1.0).mul_(ratio).mul_(2.0).add_(exponent.mul_(math.log(2)))


def _gumbel_pairs(
    seed: int, pixel: Int[Tensor, "c"], sample: Int[Tensor, "c"], pair: Int[Tensor, "c"]
) -> Float[Tensor, "c 2"]:
    words = philox((pixel, pair, sample & MASK, sample >> 32 & MASK), seed)
    # 52 bits and a half, so that neither 0 nor 1 is drawn and nothing is rounded.
    bits = torch.stack([(words[0] << 20) + (words[1] >> 12), (words[2] << 20) + (words[3] >> 12)], dim=-1)
    uniform = bits.to(torch.float64).add_(0.5).mul_(2.0**-52)
    return log(log(uniform).neg_()).neg_()
