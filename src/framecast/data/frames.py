"""Frames of a recording, one after the other, and what of them becomes a clip: which ones, of what size.

Readers yield frames whose pixels are made when they are asked for, so that a frame that is not kept costs no
conversion, and so that a recording of any length takes the memory of its clip and of one frame.

T frames · H W rows and columns · C channels · A action size · joined, that of n of them
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from framecast.data.resize import Fit, Resizer, Size
from framecast.errors import UserError

if TYPE_CHECKING:
    from jaxtyping import Float, UInt8

MAX_PIXELS = 1 << 26
"""Of a frame, 8192×8192: headers that claim more are refused before any memory is taken."""
MAX_CLIP_BYTES = 1 << 30
"""Of a clip, once resized: as much as a shard of a store takes."""

ON_TIME = 0.3
"""A frame due at 0.3 of a frame's time or less after a moment counts as shown then: cameras and containers are not
exact to the millisecond, and a third and half a frame are differences that rates have on purpose."""


@dataclass(frozen=True, eq=False, slots=True)
class Frame:
    time: int | float | None
    """Seconds, growing from frame to frame; None where the recording holds no times."""
    pixels: Callable[[], UInt8[np.ndarray, "H W C"]]


@dataclass(frozen=True)
class Selection:
    """What becomes of a recording's frames: one a `1/fps` seconds, of those every `every`th, at `size`."""

    size: Size | None
    """None leaves frames as large as they are."""
    fit: Fit = "crop"
    fps: int | float | None = None
    """None leaves the frames at their own times."""
    every: int = 1

    def __post_init__(self) -> None:
        if self.fps is not None and not 0 < self.fps < 1e6:
            raise UserError(f"--fps {self.fps} is no number of frames a second")
        if self.every < 1:
            raise UserError(f"--every {self.every} keeps no frame: it must be 1 or more")
        if self.size is not None and (min(self.size) < 1 or self.size[0] * self.size[1] > MAX_PIXELS):
            raise UserError(
                f"frames of {self.size[0]}×{self.size[1]} cannot be made: --size has 1 to {MAX_PIXELS} pixels"
            )
        if self.fit not in ("crop", "stretch"):
            raise UserError(f"--fit {self.fit} is neither crop nor stretch")

    def clip(self, frames: Iterable[Frame]) -> UInt8[np.ndarray, "T H W C"]:
        if self.fps is not None:
            frames = at_rate(frames, self.fps)
        video: list[np.ndarray] = []
        before: Frame | None = None
        resizer: Resizer | None = None
        for frame in islice(frames, 0, None, self.every):
            if frame is not before:  # else it is shown for longer than 1/fps
                picture, before = frame.pixels(), frame
                if self.size is not None:
                    if resizer is None or resizer.frame_shape != picture.shape:
                        resizer = Resizer(picture.shape, self.size, self.fit)
                    picture = resizer(picture)
            if video and picture.shape != video[0].shape:
                raise UserError(
                    f"its frames change from {_shape(video[0])} to {_shape(picture)}; --size makes them alike"
                )
            if (len(video) + 1) * picture.nbytes > MAX_CLIP_BYTES:
                raise UserError(f"its frames take more than {MAX_CLIP_BYTES >> 20} MiB; a smaller --size takes less")
            video.append(picture)
        if not video:
            raise UserError("it has no frames")
        return np.stack(video)

    def along(self, values: Any) -> Float[np.ndarray, "T A"]:
        """What goes with the kept frames, of one row for each frame there was."""
        rows: np.ndarray = np.asarray(values)[:: self.every]
        return rows

    def actions(self, actions: Float[np.ndarray, "_ A"]) -> Float[np.ndarray, "T joined"]:
        """The n actions that lead from one kept frame to the next, as one.

        After the last kept frame there may be fewer; the last action stands for those that are missing. It leads to no
        frame of the clip, and zeros would be actions that nobody took.
        """
        missing = -len(actions) % self.every
        padded = np.concatenate([actions, np.repeat(actions[-1:], missing, axis=0)])
        return padded.reshape(len(padded) // self.every, -1)


def at_rate(frames: Iterable[Frame], fps: int | float) -> Iterator[Frame]:
    """The frame that is shown at each multiple of 1/fps, from the first on; the same one again where it stays."""
    shown: Frame | None = None
    start = gap = 0.0
    num = 0
    for frame in frames:
        if frame.time is None:
            raise UserError("it holds no times, so --fps cannot be told; --every can")
        if shown is None or shown.time is None:
            start = frame.time
        else:
            gap = frame.time - shown.time
            until = frame.time - start - ON_TIME * min(gap, 1 / fps)
            while num / fps < until:
                yield shown
                num += 1
        shown = frame
    if shown is not None and shown.time is not None:  # the last frame stays as long as the one before it
        until = shown.time - start + gap - ON_TIME * min(gap, 1 / fps)
        while num == 0 or num / fps < until:
            yield shown
            num += 1


def _shape(picture: np.ndarray) -> str:
    return "×".join(map(str, picture.shape))
