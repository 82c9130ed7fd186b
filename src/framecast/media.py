"""Clips for people to look at: uint8 frames as mp4, webp, gif, a png strip, or an npz that keeps every value.

webp, png and npz are lossless, gif is where a frame has at most 256 colours (grey always), mp4 is not. Formats made for
screens show a pause as one long frame, so frames may be merged there; npz keeps them as they were.

N clips · T frames · H W C a frame (C 1 or 3)
"""

from __future__ import annotations

import io
import math
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from framecast.errors import UserError

if TYPE_CHECKING:
    from jaxtyping import UInt8

FORMATS = ("mp4", "webp", "gif", "png", "npz")
GAP = 2
"""Pixels between the clips of a picture."""


def write(path: str | Path, clips: UInt8[np.ndarray, "... T H W C"], fps: int | float = 10) -> None:
    """Write a clip, or several side by side, in the format that the name ends with; whole or not at all."""
    path = Path(path)
    data = encode(clips, check_format(path), fps)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.unfinished")
    unfinished.write_bytes(data)
    unfinished.replace(path)


def check_format(path: str | Path) -> str:
    """The format that a file's name asks for; ask before the work, so that a typing error does not cost it."""
    kind = Path(path).suffix.lower().removeprefix(".")
    if kind not in FORMATS:
        raise UserError(f"{path} names no format that can be written: it must end in .{', .'.join(FORMATS)}.")
    return kind


def encode(clips: UInt8[np.ndarray, "... T H W C"], kind: str, fps: int | float = 10) -> bytes:
    """The bytes of such a file: several clips make a strip of one row each in png, an array in npz, else a grid."""
    clips = np.asarray(clips)
    assert clips.dtype == np.uint8, "clips are uint8"
    assert clips.ndim in (4, 5), "one clip or several"
    assert clips.size, "there must be something to show"
    if kind == "npz":
        return _npz(clips)
    if kind == "png":
        return _png(strip(clips[None] if clips.ndim == 4 else clips))
    clip = clips if clips.ndim == 4 else grid(clips)
    return _mp4(clip, fps) if kind == "mp4" else _animation(clip, kind, fps)


def strip(clips: UInt8[np.ndarray, "N T H W C"]) -> UInt8[np.ndarray, "rows columns C"]:
    """One picture, as in the paper's figures: a clip a row, its frames from left to right."""
    frames = clips.swapaxes(0, 1)  # every frame is what a clip is to a grid
    return grid(frames.reshape(-1, 1, *clips.shape[2:]), columns=clips.shape[1], by_column=True)[0]


def grid(
    clips: UInt8[np.ndarray, "N T H W C"], columns: int | None = None, *, by_column: bool = False
) -> UInt8[np.ndarray, "T rows columns C"]:
    """One clip that shows several, by default in about as many rows as columns; white where none is left."""
    num_clips, T, H, W, C = clips.shape
    columns = columns or math.ceil(math.sqrt(num_clips))
    rows = math.ceil(num_clips / columns)
    canvas = np.full((T, rows * (H + GAP) - GAP, columns * (W + GAP) - GAP, C), 255, np.uint8)
    for i, clip in enumerate(clips):
        row, column = reversed(divmod(i, rows)) if by_column else divmod(i, columns)
        top, left = row * (H + GAP), column * (W + GAP)
        canvas[:, top : top + H, left : left + W] = clip
    return canvas


def beside(*groups: UInt8[np.ndarray, "_ _ H W C"]) -> UInt8[np.ndarray, "N T H W C"]:
    """Groups of clips as one, such as the truth and what was sampled; shorter clips hold their last frame."""
    length = max(clips.shape[1] for clips in groups)
    padded = [np.concatenate([clips, clips[:, -1:].repeat(length - clips.shape[1], axis=1)], 1) for clips in groups]
    return np.concatenate(padded)


def _npz(clips: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, video=clips)
    return file.getvalue()


def _png(picture: np.ndarray) -> bytes:
    file = io.BytesIO()
    _image(picture).save(file, format="png")
    return file.getvalue()


def _animation(clip: np.ndarray, kind: str, fps: int | float) -> bytes:
    first, *others = map(_image, clip)
    how: dict[str, Any] = {"lossless": True, "quality": 0, "method": 0} if kind == "webp" else {"disposal": 1}
    file = io.BytesIO()
    duration = max(1000 / fps, 20) if kind == "gif" else 1000 / fps  # viewers slow down gifs that ask for less
    first.save(file, format=kind, save_all=True, append_images=others, duration=round(duration), loop=0, **how)
    return file.getvalue()


def _mp4(clip: np.ndarray, fps: int | float) -> bytes:
    import av

    if clip.shape[-1] == 1:
        clip = clip.repeat(3, axis=-1)
    H, W = clip.shape[1:3]
    # The format that every player shows halves the colour's resolution, so both sides must be even.
    clip = np.pad(clip, ((0, 0), (0, H % 2), (0, W % 2), (0, 0)), mode="edge")
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream: Any = container.add_stream("libx264", rate=Fraction(fps).limit_denominator(1001))
        stream.height, stream.width = clip.shape[1:3]
        stream.pix_fmt = "yuv420p"
        stream.options = {"crf": "10", "preset": "medium"}
        # Said in the file, so that players turn it back into the same red, green and blue.
        stream.codec_context.colorspace = av.video.reformatter.Colorspace.ITU709
        stream.codec_context.color_range = av.video.reformatter.ColorRange.MPEG
        for frame in clip:
            picture = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), format="rgb24")
            picture = picture.reformat(format="yuv420p", dst_colorspace="ITU709", dst_color_range="MPEG")
            container.mux(stream.encode(picture))
        container.mux(stream.encode(None))
    return file.getvalue()


def _image(frame: np.ndarray) -> Any:
    from PIL import Image

    return Image.fromarray(np.ascontiguousarray(frame[..., 0] if frame.shape[-1] == 1 else frame))
