"""Any file of video as frames or as one clip: what its name ends with says which reader it is for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from framecast.data import arrays, decoder, pictures
from framecast.data.frames import Frame, Selection
from framecast.data.resize import Fit, Size
from framecast.errors import UserError

if TYPE_CHECKING:
    from jaxtyping import UInt8

SUFFIXES = decoder.SUFFIXES | pictures.ANIMATED | arrays.SUFFIXES

LUMA = np.array([0.299, 0.587, 0.114])
"""Of red, green and blue in a pixel's grey (ITU-R BT.601)."""


def read_clip(
    path: str | Path,
    size: Size | None,
    fit: Fit = "crop",
    fps: int | float | None = None,
    every: int = 1,
    *,
    grey: bool = False,
) -> UInt8[np.ndarray, "T H W C"]:
    """One clip as `prepare` would make it, of three channels, or of one if `grey`; arrays that hold several: the first.

    `path` is a video, an animated picture, a folder of pictures, or an array.
    """
    path = Path(path)
    selection = Selection(size, fit, fps, every)
    try:
        video = selection.clip(read_frames(path))
    except UserError as error:
        raise UserError(f"{path} cannot be used: {error}") from error
    if grey == (video.shape[-1] == 1):
        return video
    return np.rint(video @ LUMA).astype(np.uint8)[..., None] if grey else video.repeat(3, axis=-1)


def read_frames(path: Path) -> Iterator[Frame]:
    """The frames of the (first) clip that a file or a folder holds."""
    suffix = path.suffix.lower()
    if path.is_dir():
        return pictures.read_sequence(path)
    if not path.exists():
        raise UserError("it does not exist")
    if suffix in arrays.SUFFIXES:
        return arrays.read(path)[0].frames()
    if suffix in pictures.ANIMATED:
        return pictures.read_animated(path)
    if suffix in decoder.SUFFIXES:
        return decoder.decode(path)
    if pictures.is_still(path):
        return pictures.read_still(path)
    raise UserError(f"its name ends with none of {' '.join(sorted(SUFFIXES))}")
