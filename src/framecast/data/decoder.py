"""Video files as FFmpeg decodes them: upright, in RGB, frame by frame, on one thread, and no damage passed over.

Decoders are asked to stop at what they would otherwise conceal. How much they notice is the codec's affair: of single
flipped bits in H.264 and AV1 nearly all, in VP8 and VP9, which have no redundancy to speak of, next to none.

Pixels are the stored ones, so frames of non-square pixels keep their stored shape, as other readers for training do.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from framecast.data.containers import check_length
from framecast.data.frames import MAX_PIXELS, Frame
from framecast.errors import UserError

if TYPE_CHECKING:
    from jaxtyping import UInt8

SUFFIXES = frozenset(
    [".mp4", ".m4v", ".mov", ".3gp", ".mkv", ".webm", ".avi", ".flv", ".ts", ".mts", ".mpg", ".mpeg", ".wmv", ".ogv"]
)

_STRICT = {"err_detect": "crccheck+bitstream+buffer+explode", "max_pixels": str(MAX_PIXELS)}
_CONTAINERS = {"format_whitelist": "mov,matroska,avi,flv,mpegts,mpeg,mpegvideo,m4v,asf,ogg"}
"""Of those suffixes, whatever a file begins like: lists, which name other files to be read in their place, are none."""

_INDEXED = {"avi", "mov,mp4,m4a,3gp,3g2,mj2"}
"""Containers whose index has every frame."""


def decode(path: Path, start: float | None = None) -> Iterator[Frame]:
    """The frames of a file's first video stream; from the last one that can be decoded alone before `start` seconds."""
    import av

    try:
        check_length(path)
        with _open(path) as container:
            stream = _stream(container)
            if start is not None:
                container.seek(int(start / float(stream.time_base)), stream=stream)
            yield from _frames(container, stream, whole=start is None)
    except av.error.FFmpegError as error:
        raise UserError(f"it is damaged, or no video that is known: {error.strerror}") from error
    except OSError as error:
        raise UserError(f"it cannot be read: {error.strerror}") from error


def _open(path: Path) -> Any:
    import av

    # Without `file:`, a name with a colon in it would be that of a protocol.
    try:
        return av.open(f"file:{path}", options=_STRICT | _CONTAINERS)
    except UnicodeDecodeError:  # a title in an old encoding; later versions take it as it is
        return av.open(f"file:{path}", options=_STRICT | _CONTAINERS, metadata_errors="replace")


def _stream(container: Any) -> Any:
    from av.stream import Disposition

    videos = [stream for stream in container.streams.video if not stream.disposition & Disposition.attached_pic]
    if not videos:
        raise UserError("it holds sound only" if container.streams.audio else "it holds no video")
    stream = videos[0]
    context = stream.codec_context
    if context is None:
        raise UserError("its codec is not supported")
    if not 0 < context.width * context.height <= MAX_PIXELS:  # FFmpeg makes nothing of sizes that it must not believe
        raise UserError(f"its header gives its frames no size, or one of more than {MAX_PIXELS} pixels")
    context.thread_count = 1  # `--workers` is how it is spread
    context.options = _STRICT
    return stream


def _frames(container: Any, stream: Any, whole: bool) -> Iterator[Frame]:
    from av.video.reformatter import VideoReformatter

    to_rgb = VideoReformatter()  # one for all, since it is costly to make
    step = 1 / float(stream.guessed_rate or stream.average_rate or 25)
    time: float | None = None
    num_packets = num_frames = 0
    for packet in container.demux(stream):
        num_packets += packet.size > 0 or packet.dts is not None  # the others make the decoder give out what it holds
        if packet.is_corrupt:
            raise UserError(f"it is damaged: frame {num_frames} or one soon after was not read whole")
        for picture in _decoded(packet, num_frames):
            if picture.is_corrupt:
                raise UserError(f"it is damaged: frame {num_frames} decodes with errors only")
            num_frames += 1
            time = _time(picture, time, step)
            yield Frame(time, _Pixels(picture, to_rgb))
    if whole and container.format.name in _INDEXED and num_packets < len(stream.index_entries):
        raise UserError(
            f"it is damaged: {num_packets} of the {len(stream.index_entries)} frames in its index are there"
        )


def _decoded(packet: Any, num_frames: int) -> Any:
    from av.error import FFmpegError

    try:
        return packet.decode()
    except FFmpegError as error:
        raise UserError(f"it is damaged: no frame can be decoded after {num_frames}: {error.strerror}") from error


def _time(picture: Any, before: float | None, step: float) -> float:
    """Some AVI files number frames in the order in which they are decoded, and raw streams do not at all."""
    if picture.pts is not None:
        time = float(picture.pts * picture.time_base)
        if before is None or time > before:
            return time
    return 0.0 if before is None else before + step


class _Pixels:
    """The conversion of one decoded picture, when it is asked for."""

    __slots__ = ("picture", "to_rgb")

    def __init__(self, picture: Any, to_rgb: Any) -> None:
        self.picture, self.to_rgb = picture, to_rgb

    def __call__(self) -> UInt8[np.ndarray, "H W C"]:
        from av.sidedata.sidedata import Type

        rgb = self.to_rgb.reformat(self.picture, format="rgb24", threads=1).to_ndarray()
        matrix = self.picture.side_data.get(Type.DISPLAYMATRIX)
        return rgb if matrix is None else upright(rgb, bytes(matrix))


def upright(stored: UInt8[np.ndarray, "_ _ C"], display_matrix: bytes) -> UInt8[np.ndarray, "H W C"]:
    """A picture turned and mirrored as its display matrix says: stored (x, y) is shown at (ax + cy, bx + dy)."""
    a, b, _, c, d, *_ = struct.unpack("=9i", display_matrix)
    if (a and d and not b and not c) or (b and c and not a and not d):
        picture = stored if a else stored.swapaxes(0, 1)
        rightwards, downwards = (a > 0, d > 0) if a else (c > 0, b > 0)
        return picture[:: 1 if downwards else -1, :: 1 if rightwards else -1]
    raise UserError("it asks to be shown turned by an angle that is no multiple of 90 degrees")
