"""Subscaling (§3.2): a video is s = s_t·s_h·s_w slices, each every s-th pixel, generated one after the other.

Slices are ordered by their offsets (a, b, c), lexicographically; `slice_index` is a slice's place in that order. Each
video of a batch may be at a slice of its own.

B batch · T H W extents of the video · t h w extents of a slice · i j k extents of the context kernel
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from framecast.config import Triple

if TYPE_CHECKING:
    from jaxtyping import Bool, Int, Shaped
    from torch import Tensor


def offset_of(slice_index: Int[Tensor, "B"], factor: Triple) -> tuple[Tensor, Tensor, Tensor]:
    """The offsets a, b, c of slices."""
    _, s_h, s_w = factor
    return slice_index // (s_h * s_w), slice_index // s_w % s_h, slice_index % s_w


def take(
    volume: Shaped[Tensor, "B T H W *features"], slice_index: Int[Tensor, "B"], factor: Triple
) -> Shaped[Tensor, "B t h w *features"]:
    """One slice of each volume."""
    batch, (a, b, c) = _batch(volume), offset_of(slice_index, factor)
    return _cells(volume, factor)[batch, :, a, :, b, :, c]


def put(
    volume: Shaped[Tensor, "B T H W *features"],
    values: Shaped[Tensor, "B t h w *features"],
    slice_index: Int[Tensor, "B"],
    factor: Triple,
) -> None:
    """Write one slice into each volume, in place."""
    batch, (a, b, c) = _batch(volume), offset_of(slice_index, factor)
    _cells(volume, factor)[batch, :, a, :, b, :, c] = values


def context(
    volume: Shaped[Tensor, "B T H W *features"], slice_index: Int[Tensor, "B"], factor: Triple, kernel: Triple
) -> tuple[Shaped[Tensor, "B t h w i j k *features"], Bool[Tensor, "B t h w i j k"]]:
    """What a kernel centred on each pixel of a slice covers, and which of it is visible: inside the video, and of an
    earlier slice.

    The paper pads by ⌊k/2⌋ − offset before a convolution of stride s, so that tap i of output n lies at
    n·s + offset − ⌊k/2⌋ + i. Where the padding is negative, it crops: nothing is read besides these taps.
    """
    pixels, inside, rank = [], [], torch.zeros((), dtype=torch.int64, device=volume.device)
    for axis, offset in enumerate(offset_of(slice_index, factor)):
        taps = offset[:, None] - kernel[axis] // 2 + torch.arange(kernel[axis], device=volume.device)
        starts = torch.arange(0, volume.shape[1 + axis], factor[axis], device=volume.device)
        place = _along(axis, starts[:, None] + taps[:, None, :])
        pixels.append(place.clamp(0, volume.shape[1 + axis] - 1))
        inside.append((place >= 0) & (place < volume.shape[1 + axis]))
        rank = rank * factor[axis] + _along(axis, taps[:, None, :] % factor[axis])
    earlier = rank < slice_index.view(-1, *[1] * 6)
    return volume[_batch(volume).view(-1, *[1] * 6), *pixels], inside[0] & inside[1] & inside[2] & earlier


def dropped(extent: Triple, factor: Triple, kernel: Triple) -> tuple[dict[int, list[int]], ...]:
    """What the context convolution never reads though an earlier slice shows it: for each axis, by the slice's offset
    along it, the planes out of every tap's reach."""
    axes = []
    for axis, (size, step, length) in enumerate(zip(extent, factor, kernel, strict=True)):
        # Along the first subscaled axis, planes of larger offsets are of later slices and so hidden from all taps.
        first = not any(earlier > 1 for earlier in factor[:axis])
        planes = {}
        for offset in range(step):
            taps = range(offset - length // 2, offset - length // 2 + length)
            reached = {start + tap for start in range(0, size, step) for tap in taps}
            missed = [place for place in range(size) if place not in reached and not (first and place % step > offset)]
            if missed:
                planes[offset] = missed
        axes.append(planes)
    return tuple(axes)


def _along(axis: int, index: Shaped[Tensor, "B n k"]) -> Shaped[Tensor, "B t h w i j k"]:
    """An axis' index by output and tap, broadcast over the other axes."""
    shape = [len(index), 1, 1, 1, 1, 1, 1]
    shape[1 + axis], shape[4 + axis] = index.shape[1:]
    return index.view(shape)


def _cells(volume: Tensor, factor: Triple) -> Shaped[Tensor, "B t a h b w c *features"]:
    """The volume with each of its axes cut in two: which cell, and which offset in the cell."""
    s_t, s_h, s_w = factor
    return volume.unflatten(3, (-1, s_w)).unflatten(2, (-1, s_h)).unflatten(1, (-1, s_t))


def _batch(volume: Tensor) -> Int[Tensor, "B"]:
    return torch.arange(len(volume), device=volume.device)
