"""Lanczos-3 resizing with antialiasing: `tf.image.resize(method="lanczos3", antialias=True)`, rounded and clamped.

Resizing is linear in each direction, so it is two matrix products: rows, then columns. A Lanczos window is narrow and
the matrices are bands, so each product is cut into a few outputs at a time with just the inputs that they read.

N frames · H W rows and columns of a frame · h w those of the result · C channels
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

import numpy as np

from framecast.errors import UserError

if TYPE_CHECKING:
    from jaxtyping import Float, Float32, UInt8

Fit = Literal["crop", "stretch"]
Size = tuple[int, int]
"""Rows and columns, in this order."""

RADIUS = 3
BAND = 8  # fewer and the products are too small to be quick, more and the bands hold mostly zeros


def resize(frames: UInt8[np.ndarray, "N H W C"], size: Size, fit: Fit = "crop") -> UInt8[np.ndarray, "N h w C"]:
    """Frames at `size`: the largest centred box of its aspect ("crop"), or the whole frame ("stretch")."""
    resizer = Resizer(frames.shape[1:], size, fit)
    return np.stack([resizer(frame) for frame in frames])


class Resizer:
    """Resizes frames of one shape, one at a time, so that what becomes of one cannot depend on its neighbours.

    It works in buffers of its own: fresh ones for every frame would cost more in page faults than the arithmetic.
    """

    def __init__(self, frame_shape: tuple[int, ...], size: Size, fit: Fit) -> None:
        (height, width, channels), (rows, columns) = frame_shape, size
        if min(height, width, rows, columns) < 1:
            raise UserError(f"frames of {height}×{width} cannot be resized to {rows}×{columns}: a side has no pixels")
        self.frame_shape = frame_shape
        self.result_shape = (rows, columns, channels)
        self.box = centred_box((height, width), size) if fit == "crop" else (slice(0, height), slice(0, width))
        box_height, box_width = (side.stop - side.start for side in self.box)

        self.source = np.empty((box_height, box_width, channels), np.float32)
        short = np.empty((rows, box_width * channels), np.float32)
        self.small = np.empty((rows, columns * channels), np.float32)
        # The columns' product mixes (column, channel) pairs, so that no axis has to be moved.
        self.products = [
            (band.weights, self.source.reshape(box_height, -1)[band.reads], short[band.writes])
            for band in bands(box_height, rows, 1)
        ] + [
            (short[:, band.reads], band.weights.T, self.small[:, band.writes])
            for band in bands(box_width, columns, channels)
        ]

    def __call__(self, frame: UInt8[np.ndarray, "H W C"]) -> UInt8[np.ndarray, "h w C"]:
        assert frame.shape == self.frame_shape, f"a frame of {frame.shape} for a resizer of {self.frame_shape}"
        np.copyto(self.source, frame[self.box])
        for left, right, result in self.products:
            np.matmul(left, right, out=result)
        np.clip(np.rint(self.small, out=self.small), 0, 255, out=self.small)
        return self.small.astype(np.uint8).reshape(self.result_shape)


def centred_box(frame: Size, size: Size) -> tuple[slice, slice]:
    """The largest centred part of a frame that has the aspect of `size`."""
    (height, width), (rows, columns) = frame, size
    box_height = min(height, max(1, round(width * rows / columns)))
    box_width = min(width, max(1, round(height * columns / rows)))
    top, left = (height - box_height) // 2, (width - box_width) // 2
    return slice(top, top + box_height), slice(left, left + box_width)


@dataclass(frozen=True, eq=False)
class Band:
    """Some neighbouring outputs, the inputs they read, and with what weights."""

    writes: slice
    reads: slice
    weights: Float32[np.ndarray, "outputs inputs"]


@lru_cache(maxsize=64)
def bands(num_inputs: int, num_outputs: int, channels: int) -> tuple[Band, ...]:
    """The resizing matrix of one direction as bands; `channels` interleaved values are resized alike."""
    weights_OI = lanczos_weights(num_inputs, num_outputs)
    cut = []
    for start in range(0, num_outputs, BAND):
        stop = min(start + BAND, num_outputs)
        read = np.flatnonzero(weights_OI[start:stop].any(axis=0))
        first, last = int(read[0]), int(read[-1]) + 1
        weights = np.kron(weights_OI[start:stop, first:last], np.eye(channels)).astype(np.float32)
        cut.append(
            Band(
                slice(start * channels, stop * channels),
                slice(first * channels, last * channels),
                weights,
            )
        )
    return tuple(cut)


def lanczos_weights(num_inputs: int, num_outputs: int) -> Float[np.ndarray, "outputs inputs"]:
    """Row o holds the weights of the inputs in output o; each row sums to one, at the borders too.

    Antialiasing widens the window by the factor of the reduction; enlarging leaves it as it is.
    """
    scale = num_inputs / num_outputs
    centre_O1 = (np.arange(num_outputs)[:, None] + 0.5) * scale
    distance_OI = np.abs(np.arange(num_inputs) + 0.5 - centre_O1) / max(scale, 1.0)
    weights_OI = np.where(distance_OI < RADIUS, np.sinc(distance_OI) * np.sinc(distance_OI / RADIUS), 0.0)
    normalised: np.ndarray = weights_OI / weights_OI.sum(axis=1, keepdims=True)
    return normalised
