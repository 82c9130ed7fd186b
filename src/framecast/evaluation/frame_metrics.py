"""PSNR and SSIM of 8-bit frames as `tf.image` defines them, one number per frame.

SSIM of Wang et al. (2004): a Gaussian window of 11×11 and σ 1.5, only where it lies wholly inside the frame, with the
biased covariance; the mean over places, then over channels. Other packages pad, or use another window or covariance.

n any axes · H W C one frame · P places of the window
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from framecast.errors import UserError

if TYPE_CHECKING:
    from jaxtyping import Float, UInt8

MAXIMUM = 255.0
WINDOW, SIGMA = 11, 1.5
C1, C2 = (0.01 * MAXIMUM) ** 2, (0.03 * MAXIMUM) ** 2
MAX_FRAMES = 256  # held in float64 at a time


def psnr(first: Tensor | np.ndarray, second: Tensor | np.ndarray) -> Float[Tensor, "*n"]:
    """The peak signal-to-noise ratio of each frame in dB, infinite where frames are equal; of uint8 (*n, H, W, C)."""
    return _per_frame(_psnr, *_checked(first, second))


def ssim(first: Tensor | np.ndarray, second: Tensor | np.ndarray) -> Float[Tensor, "*n"]:
    """The mean structural similarity of each frame, 1 where frames are equal; of uint8 (*n, H, W, C)."""
    first, second = _checked(first, second)
    if min(first.shape[-3:-1]) < WINDOW:
        height, width = first.shape[-3:-1]
        raise UserError(f"SSIM has a window of {WINDOW}×{WINDOW}: frames of {height}×{width} are too small for it.")
    return _per_frame(_ssim, first, second)


def _psnr(x: Float[Tensor, "F H W C"], y: Float[Tensor, "F H W C"]) -> Float[Tensor, "F"]:
    return 20 * math.log10(MAXIMUM) - 10 * (x - y).square().mean(dim=(-3, -2, -1)).log10()


def _ssim(x: Float[Tensor, "F H W C"], y: Float[Tensor, "F H W C"]) -> Float[Tensor, "F"]:
    product = _blurred(x) * _blurred(y)
    squares = _blurred(x).square() + _blurred(y).square()
    luminance = (2 * product + C1) / (squares + C1)
    contrast = (2 * (_blurred(x * y) - product) + C2) / (_blurred(x * x + y * y) - squares + C2)
    return (luminance * contrast).mean(dim=(-3, -2, -1))


def _blurred(x: Float[Tensor, "F H W C"]) -> Float[Tensor, "F P Q C"]:
    """The Gaussian window at every place, rows and columns each as one product."""
    rows, columns = _window(x.shape[1], x.device), _window(x.shape[2], x.device)
    return torch.einsum("ph,fhwc,qw->fpqc", rows, x, columns)


@cache
def _window(size: int, device: torch.device) -> Float[Tensor, "P size"]:
    """The window at each place along one axis, a row each."""
    offsets = torch.arange(WINDOW, dtype=torch.float64) - WINDOW // 2
    weights = torch.softmax(-offsets.square() / (2 * SIGMA**2), dim=0)
    places = torch.zeros(size - WINDOW + 1, size, dtype=torch.float64)
    for place in range(len(places)):
        places[place, place : place + WINDOW] = weights
    return places.to(device)


def _per_frame(
    metric: Callable[[Tensor, Tensor], Tensor], first: UInt8[Tensor, "*n H W C"], second: UInt8[Tensor, "*n H W C"]
) -> Float[Tensor, "*n"]:
    """In float64, since a variance is a small difference of large squares; a bounded number of frames at a time."""
    parts = [frames.reshape(-1, *frames.shape[-3:]).split(MAX_FRAMES) for frames in (first, second)]
    scores = [metric(x.double(), y.double()) for x, y in zip(*parts, strict=True)]
    return torch.cat(scores).view(first.shape[:-3])


def _checked(first: Tensor | np.ndarray, second: Tensor | np.ndarray) -> tuple[Tensor, Tensor]:
    pair = (first, second)
    x, y = (torch.from_numpy(np.array(frames)) if isinstance(frames, np.ndarray) else frames for frames in pair)
    for frames in (x, y):
        if frames.dtype != torch.uint8:
            raise UserError(f"frames hold uint8 values, these {str(frames.dtype).removeprefix('torch.')}.")
    if x.shape != y.shape:
        raise UserError(f"frames are compared one with one: {tuple(x.shape)} and {tuple(y.shape)} do not match.")
    if x.ndim < 3 or not x.numel():
        raise UserError(f"a frame has height, width and channels: there is none in an array of shape {tuple(x.shape)}.")
    return x, y.to(x.device)
