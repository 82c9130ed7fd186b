"""Bits per pixel as a picture: quantised to bytes, and coloured from dark (expected) to light (a surprise).

T frames · H W rows and columns
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Float32, UInt8

MOST = 99.5
"""Per cent of the pixels that the scale covers: a few outliers would leave all others dark."""

_COLOURS = np.array([(10, 10, 24), (66, 32, 112), (174, 52, 104), (242, 138, 52), (252, 246, 196)])


def quantised(bits: Float32[np.ndarray, "T H W"], prime_frames: int) -> tuple[UInt8[np.ndarray, "T H W"], float]:
    """Each pixel as a byte, and how many bits 255 stands for; frames that training never scored set no scale."""
    scale = max(float(np.percentile(bits[prime_frames:], MOST)), 1e-6)
    return np.clip(np.rint(bits * (255 / scale)), 0, 255).astype(np.uint8), scale


def palette() -> UInt8[np.ndarray, "256 3"]:
    places = np.linspace(0, 255, len(_COLOURS))
    channels = [np.interp(np.arange(256), places, _COLOURS[:, channel]) for channel in range(3)]
    return np.rint(np.stack(channels, axis=-1)).astype(np.uint8)
