"""Clips in NumPy files: .npy with one clip or many, .npz with `video` and what goes with it.

N clips · T frames · H W C a frame (C 1 or 3, or left out where it is 1) · A action size · S state size
"""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tokenize import TokenError
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

import numpy as np

from framecast.data.frames import MAX_PIXELS, Frame
from framecast.errors import UserError

if TYPE_CHECKING:
    from jaxtyping import Float, UInt8

SUFFIXES = frozenset({".npy", ".npz"})

_DAMAGE = (
    OSError, ValueError, OverflowError, EOFError, KeyError, RuntimeError, BadZipFile, zlib.error, struct.error,
    TokenError,
)  # fmt: skip
"""What NumPy and its zip files raise on damaged ones; headers are parsed as Python."""

MAX_BYTES = 4 << 30
"""Of one array in an .npz, which is unpacked in memory; an .npy is mapped and may be of any size."""


@dataclass(frozen=True, eq=False)
class Recorded:
    video: UInt8[np.ndarray, "T H W C"]
    actions: Float[np.ndarray, "T A"] | None
    states: Float[np.ndarray, "T S"] | None

    def frames(self) -> Iterator[Frame]:
        return (Frame(None, partial(np.asarray, picture)) for picture in self.video)


def read(path: Path) -> list[Recorded]:
    """The clips in a file; one of five axes holds several."""
    try:
        arrays = _mapped(path) if path.suffix.lower() == ".npy" else _unpacked(path)
    except FileNotFoundError as error:
        raise UserError("it does not exist") from error
    except _DAMAGE as error:
        raise UserError(f"it cannot be read: {error}") from error

    video = _checked_video(arrays["video"])
    actions, states = (_checked_rows(arrays[name], name, video) for name in ("action", "state"))
    return [
        Recorded(video[i], None if actions is None else actions[i], None if states is None else states[i])
        for i in range(len(video))
    ]


def _mapped(path: Path) -> dict[str, Any]:
    with np.errstate(over="ignore"):  # of a size that is only claimed
        video = np.lib.format.open_memmap(path, mode="r")  # `np.load` would open an archive under this name too
    return {"video": video, "action": None, "state": None}


def _unpacked(path: Path) -> dict[str, Any]:
    if not zipfile.is_zipfile(path):
        raise UserError("it is no .npz file, or one that is cut short" if path.stat().st_size else "it is empty")
    with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
        names = {name: _named(file.files, name) for name in ("video", "action", "state")}
        if names["video"] is None and len(file.files) == 1:
            names["video"] = file.files[0]
        if names["video"] is None:
            raise UserError(f"it holds {', '.join(file.files) or 'nothing'}, and no array named video")
        assert file.zip is not None, "an open file"
        for name in filter(None, names.values()):
            _check_size(file.zip, name if name in file.zip.namelist() else f"{name}.npy")
        return {kind: None if name is None else file[name] for kind, name in names.items()}


def _named(names: list[str], kind: str) -> str | None:
    """An array of this name, or of its plural."""
    return next((name for name in (kind, f"{kind}s") if name in names), None)


def _check_size(file: zipfile.ZipFile, name: str) -> None:
    """NumPy takes the memory that an array's header asks for before it sees how much is there."""
    there = file.getinfo(name).file_size
    with file.open(name) as member:
        version = np.lib.format.read_magic(member)
        read_header = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }.get(version)
        if read_header is None:
            raise UserError(f"its array {name} is of a kind that holds no video")
        shape, _, dtype = read_header(member)
    claimed = dtype.itemsize
    for extent in shape:
        claimed *= extent
    if claimed > there:
        raise UserError(f"its array {name} is said to have {claimed} bytes and has {there}")
    if claimed > MAX_BYTES:
        raise UserError(f"its array {name} has {claimed} bytes, more than {MAX_BYTES}: give it as an .npy file")


def _checked_video(video: Any) -> UInt8[np.ndarray, "N T H W C"]:
    if video.dtype != np.uint8:
        raise UserError(f"its video is {video.dtype}, not uint8")
    shape = video.shape
    if video.ndim == 3:
        video = video[..., None]
    if video.ndim == 4:
        video = video[None]
    if video.ndim != 5 or video.shape[-1] not in (1, 3):
        raise UserError(
            f"its video has shape {shape}, not (frames, rows, columns, 1 or 3), with clips before it or not"
        )
    if 0 in shape:
        raise UserError(f"its video is empty: it has shape {shape}")
    if video.shape[2] * video.shape[3] > MAX_PIXELS:
        raise UserError(f"its frames are {video.shape[2]}×{video.shape[3]}, more than {MAX_PIXELS} pixels")
    checked: np.ndarray = video
    return checked


def _checked_rows(rows: Any, name: str, video: np.ndarray) -> Float[np.ndarray, "N T A"] | None:
    if rows is None:
        return None
    shape = rows.shape
    if rows.ndim == 2 and len(video) == 1:
        rows = rows[None]
    if rows.ndim != 3 or rows.shape[:2] != video.shape[:2] or rows.dtype.kind not in "fiub":
        raise UserError(f"its {name} has shape {shape} and type {rows.dtype}, not numbers for {video.shape[:2]} frames")
    checked: np.ndarray = rows.astype(np.float32)
    if not np.isfinite(checked).all():
        raise UserError(f"its {name} holds a number that is not finite")
    return checked
