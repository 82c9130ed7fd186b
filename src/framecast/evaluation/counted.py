"""What bits/dim are compared with: two distributions of a value, counted in training clips rather than learned.

Independent pixels: p(x) of a value, wherever it stands. Previous frame: p(x | the same channel of the same pixel one
frame before), which is what copying the last frame is worth as a likelihood. Both begin with one count of everything,
so that nothing is impossible.

N clips · F predicted frames · T H W C a clip · V values a channel can have
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Float, UInt8

NUM_CLIPS = 64
"""Of the training split: a few million values, for a table of 65,536."""


@dataclass(frozen=True, eq=False)
class Counted:
    independent: Float[np.ndarray, "C V"]
    """−log2 p(x), by channel."""
    previous_frame: Float[np.ndarray, "C V V"]
    """−log2 p(x | before), by channel, then the value before."""

    def bits(
        self, video: UInt8[np.ndarray, "T H W C"], prime_frames: int
    ) -> tuple[Float[np.ndarray, "F"], Float[np.ndarray, "F"]]:
        """Bits/dim of each predicted frame by either; the first frame of a video has none before it, so it is given."""
        first = max(prime_frames, 1)
        values, before = video[first:], video[first - 1 : -1]
        channel = np.arange(video.shape[-1])
        axes = (1, 2, 3)
        return (
            self.independent[channel, values].mean(axis=axes),
            self.previous_frame[channel, before, values].mean(axis=axes),
        )


def count(videos: Sequence[UInt8[np.ndarray, "_ H W C"]], num_values: int) -> Counted:
    """Of the first training clips."""
    num_channels = videos[0].shape[-1]
    pairs = np.ones((num_channels, num_values, num_values))
    single = np.ones((num_channels, num_values))
    for video in videos:
        for channel in range(num_channels):
            values = video[..., channel].astype(np.int64)
            single[channel] += np.bincount(values.ravel(), minlength=num_values)
            both = values[:-1] * num_values + values[1:]
            pairs[channel] += np.bincount(both.ravel(), minlength=num_values**2).reshape(num_values, num_values)
    return Counted(_code_lengths(single), _code_lengths(pairs))


def _code_lengths(counts: Float[np.ndarray, "*axes V"]) -> Float[np.ndarray, "*axes V"]:
    return -np.log2(counts / counts.sum(axis=-1, keepdims=True))
