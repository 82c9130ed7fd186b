"""What people send: written to a file, then decoded by a process of its own with little memory and time to spare.

Run as `python -m framecast.server.uploads FILE HEIGHT WIDTH CHANNELS EVERY`, this module is that process: it writes the
clip's bytes to its standard output, or one sentence to its standard error.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from framecast.errors import UserError
from framecast.server import limits

if TYPE_CHECKING:
    from jaxtyping import UInt8

    from framecast.data.frames import Frame

BEGINNINGS = [
    (4, (b"ftyp", b"styp", b"moov", b"mdat", b"free", b"skip", b"wide", b"pnot")),  # MP4 and its like
    (0, (b"RIFF", b"\x1a\x45\xdf\xa3", b"FLV", b"GIF8", b"G", b"OggS", b"\x30\x26\xb2\x75\x8e\x66\xcf\x11")),
    (0, (b"\x00\x00\x01\xba", b"\x00\x00\x01\xb3")),  # MPEG
    (0, (b"\x89PNG", b"\xff\xd8\xff", b"BM", b"II*\x00", b"MM\x00*", b"P5", b"P6")),
    (0, (b"\x93NUMPY", b"PK\x03\x04")),
]
"""Of everything that is read: playlists and other texts, which name further files, never reach a decoder."""


def suffixes() -> frozenset[str]:
    """What names of uploads end with."""
    from framecast.data import pictures, video_file

    return video_file.SUFFIXES | pictures.STILL


def begins_like_video(head: bytes) -> bool:
    return any(head[at:].startswith(signs) for at, signs in BEGINNINGS)


async def receive(chunks: AsyncIterator[bytes], path: Path) -> None:
    """Write a request's body to a file."""
    with path.open("xb") as file:
        async for chunk in chunks:
            file.write(chunk)


async def decoded(path: Path, shape: tuple[int, int, int], every: int) -> UInt8[np.ndarray, "T H W C"]:
    """The clip in an uploaded file at the model's (H, W, C)."""
    words = [str(path), *map(str, shape), str(every)]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "framecast.server.uploads", *words),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(2 * limits.READ_SECONDS):
            content, complaint = await process.communicate()
    except TimeoutError:
        raise UserError(f"it takes longer than {limits.READ_SECONDS} seconds to decode") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode == 2:
        raise UserError(complaint.decode().strip())
    if process.returncode:
        raise UserError(
            f"it cannot be decoded within {limits.READ_SECONDS} seconds and {limits.READ_BYTES >> 30} GiB of memory"
        )
    return np.frombuffer(content, np.uint8).reshape(-1, *shape)


def main(words: list[str]) -> int:
    import resource

    path, *numbers = words
    height, width, channels, every = map(int, numbers)
    resource.setrlimit(resource.RLIMIT_CPU, (limits.READ_SECONDS, limits.READ_SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (limits.READ_BYTES, limits.READ_BYTES))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # it has nothing to write but to its pipe
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        sys.stdout.buffer.write(read(Path(path), (height, width, channels), every).tobytes())
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def read(path: Path, shape: tuple[int, int, int], every: int) -> UInt8[np.ndarray, "T H W C"]:
    from framecast.data.frames import Selection
    from framecast.data.video_file import read_frames
    from framecast.server.clips import with_channels

    *size, channels = shape
    selection = Selection((size[0], size[1]), every=every)
    try:
        video = selection.clip(_limited(read_frames(path), limits.MAX_CLIP_FRAMES * every))
    except MemoryError:
        raise UserError("it takes too much memory to decode") from None
    return with_channels(video, channels)


def _limited(frames: Iterator[Frame], max_frames: int) -> Iterator[Frame]:
    from framecast.data.frames import Frame

    for number, frame in enumerate(frames):
        if number == max_frames:
            raise UserError(f"it has more than {max_frames} frames: cut it, or take fewer of its frames")
        yield Frame(frame.time, partial(_not_too_large, frame.pixels))


def _not_too_large(pixels: Callable[[], UInt8[np.ndarray, "H W C"]]) -> UInt8[np.ndarray, "H W C"]:
    """Before it is resized, which takes several times its memory."""
    picture = pixels()
    height, width = picture.shape[:2]
    if height * width > limits.MAX_UPLOAD_PIXELS:
        raise UserError(f"its frames are {height}×{width}, more than {limits.MAX_UPLOAD_PIXELS:,} pixels")
    return picture


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
