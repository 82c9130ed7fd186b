"""A shard: one file of clips that carries its own index and checksums. `docs/data.md` has it byte by byte.

    header (192 bytes) | a record a clip: its pixels, then its arrays | index: an entry a clip, texts, what was skipped

The header and the index have a SHA-256 each, looked at whenever a shard is opened; a record has a CRC-32C, looked at by
`verify`. Every claim of header and index is held against the file's size before anything is taken from it.

T frames · H rows · W columns · C channels · A action size
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
import struct
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from framecast import durable
from framecast.data.clip import SPLITS, Clip, Skipped
from framecast.errors import UserError

if TYPE_CHECKING:
    from jaxtyping import Float32, UInt8

MAX_SHARD_BYTES = 1 << 30
HEADER_BYTES = 192
ALIGNMENT = 64  # of a record
ARRAY_ALIGNMENT = 8

ENTRY = np.dtype(
    [
        ("offset", "<u8"),
        ("num_bytes", "<u8"),
        ("shape", "<u4", 4),
        ("text_offset", "<u8"),
        ("text_bytes", "<u4"),
        ("crc32c", "<u4"),
        ("split", "<u4"),
        ("action_size", "<u4"),
        ("zero", "<u4", 2),
    ]
)
_MAGIC = b"framecast shard\n"
_VERSION = 1
# magic, version, part, shard, shards of the part, clips, offset of the index, bytes of texts, bytes of the skipped,
# SHA-256 of the manifest, SHA-256 of the index; zeros; SHA-256 of all this
_HEADER = struct.Struct("<16s4I4Q32s32s32x")
_ARRAY_DTYPES = frozenset(["|b1", "|u1", "|i1", "<u2", "<i2", "<u4", "<i4", "<u8", "<i8", "<f2", "<f4", "<f8"])
_MAX_SIDE = 1 << 16  # of a frame; of an action too, so that no product of what an index claims can overflow
_MAX_RANK = 8


def file_name(part: int, number: int, num_shards: int) -> str:
    return f"{part:06}-{number}-of-{num_shards}.shard"


class Record:
    """A clip as it goes into a shard: its bytes in pieces, and what the index says of it."""

    def __init__(self, clip: Clip):
        named = [(name, array.astype(array.dtype.newbyteorder("<"), copy=False)) for name, array in _named_arrays(clip)]
        described = [[name, array.dtype.str, list(array.shape)] for name, array in named]
        self.text = _json({"name": clip.name, "label": clip.label, "arrays": described})
        self.shape = clip.video.shape
        self.split = SPLITS.index(clip.split)
        self.action_size = 0 if clip.actions is None else clip.actions.shape[1]
        self.num_bytes = 0
        self.pieces: list[np.ndarray] = []
        for array in [clip.video, *(array for _, array in named)]:
            self._pad(ARRAY_ALIGNMENT)
            self._append(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
        self._pad(ALIGNMENT)

    @property
    def index_bytes(self) -> int:
        """What it takes of the index."""
        return ENTRY.itemsize + len(self.text)

    def _pad(self, alignment: int) -> None:
        self._append(np.zeros(-self.num_bytes % alignment, np.uint8))

    def _append(self, piece: UInt8[np.ndarray, "size"]) -> None:
        self.pieces.append(piece)
        self.num_bytes += len(piece)


class ShardWriter:
    """Fills one open, empty file; it is a shard once `finish` has written the header over the place left for it."""

    EMPTY_BYTES = HEADER_BYTES + len("[]")

    def __init__(self, file: BinaryIO):
        self.file = file
        self.offset = HEADER_BYTES
        self.entries: list[tuple[Any, ...]] = []
        self.texts = bytearray()
        self.skipped: list[bytes] = []
        self.index_bytes = len("[]")
        durable.write(file, bytes(HEADER_BYTES))

    @property
    def num_bytes(self) -> int:
        """Of the file, were it finished now."""
        return self.offset + self.index_bytes

    def add(self, record: Record) -> None:
        import google_crc32c

        crc = 0
        for piece in record.pieces:
            crc = google_crc32c.extend(crc, piece)
            durable.write(self.file, piece.data)
        place = (self.offset, record.num_bytes, record.shape, len(self.texts), len(record.text))
        self.entries.append((*place, crc, record.split, record.action_size, (0, 0)))
        self.texts += record.text
        self.offset += record.num_bytes
        self.index_bytes += record.index_bytes

    def skip(self, row: bytes) -> None:
        """Note something that could not become a clip, as `skipped_row` writes it."""
        self.skipped.append(row)
        self.index_bytes += len(row) + len(",")

    def finish(self, manifest: bytes, part: int, number: int, num_shards: int) -> None:
        """`manifest` is the SHA-256 of the store's manifest, which ties the shard to how the store was made."""
        skipped = b"[" + b",".join(self.skipped) + b"]"
        index = np.array(self.entries, ENTRY).tobytes() + bytes(self.texts) + skipped
        durable.write(self.file, index)
        counts = (part, number, num_shards, len(self.entries), self.offset, len(self.texts), len(skipped))
        header = _HEADER.pack(_MAGIC, _VERSION, *counts, manifest, hashlib.sha256(index).digest())
        self.file.seek(0)
        durable.write(self.file, header + hashlib.sha256(header).digest())


def skipped_row(skipped: Skipped) -> bytes:
    return _json([skipped.name, skipped.reason])


class Shard:
    """A finished shard. Opening it reads the header and the index; the pixels are mapped when they are first wanted."""

    def __init__(self, path: Path):
        self.path = path
        with open_inside(path) as file:
            size = os.fstat(file.fileno()).st_size
            header = file.read(HEADER_BYTES)
            self._read_header(header, size)
            file.seek(self.index_offset)
            index = file.read(size - self.index_offset)
        if len(index) != size - self.index_offset or hashlib.sha256(index).digest() != self.index_sha256:
            raise self._damaged("its index does not have the checksum that its header gives")
        self.entries = np.frombuffer(index, ENTRY, self.num_clips).copy()  # the texts stay in the file
        self._check_entries()
        self.skipped = self._read_skipped(index[len(index) - self._skipped_bytes :])
        self._places = np.column_stack([self.entries["offset"], self.entries["shape"]]).astype(np.int64)
        self.shapes = self._places[:, 1:]

    @cached_property
    def mapped(self) -> UInt8[np.ndarray, "size"]:
        """The whole file, mapped and read-only. PyTorch's mapping keeps no descriptor, so thousands of shards can be
        open at once where a process may hold a thousand files."""
        import torch

        size = self._text_offset + self._text_bytes + self._skipped_bytes
        try:
            mapped = torch.from_file(str(self.path), shared=False, size=size, dtype=torch.uint8).numpy()
        except RuntimeError as error:
            raise UserError(f"{self.path} was removed or cut short since the store was opened") from error
        mapped.flags.writeable = False
        return mapped

    def frames(self, index: int, start: int = 0, stop: int | None = None) -> UInt8[np.ndarray, "T H W C"]:
        """Frames start … stop − 1 of one clip, straight out of the mapped file."""
        offset, num_frames, height, width, channels = self._places[index].tolist()
        if stop is None:
            stop = num_frames
        if not 0 <= start <= stop <= num_frames:
            raise UserError(f"frames {start} to {stop} were asked of a clip of {num_frames} frames")
        frame = height * width * channels
        pixels = self.mapped[offset + start * frame : offset + stop * frame]
        return pixels.reshape(stop - start, height, width, channels)

    def actions(self, index: int, start: int = 0, stop: int | None = None) -> Float32[np.ndarray, "T A"]:
        """The actions of frames start … stop − 1 of one clip, which has some."""
        offset, num_frames, height, width, channels = self._places[index].tolist()
        action_size = self.entries["action_size"].item(index)
        offset += _aligned(num_frames * height * width * channels, ARRAY_ALIGNMENT)
        return np.ndarray((num_frames, action_size), "<f4", self.mapped, offset)[start:stop]

    def clip(self, index: int) -> Clip:
        about = self._about(index)
        arrays = dict(self._arrays(index, about["arrays"]))
        return Clip(
            video=self.frames(index),
            name=about["name"],
            split=SPLITS[self.entries["split"].item(index)],
            label=about["label"],
            actions=arrays.pop("actions", None),
            states=arrays.pop("states", None),
            extras={name.removeprefix("extras/"): array for name, array in arrays.items()},
        )

    def damage(self) -> Iterator[str]:
        """Every clip whose bytes are not those that were written, and everything in it that cannot be read."""
        import google_crc32c

        for index, entry in enumerate(self.entries):
            start, size = int(entry["offset"]), int(entry["num_bytes"])
            crc, written = google_crc32c.value(self.mapped[start : start + size]), int(entry["crc32c"])
            if crc != written:
                yield f"{self.path}: clip {index} is damaged: its CRC-32C is {crc:08x}, written was {written:08x}"
            try:
                self.clip(index)
            except UserError as error:
                yield str(error)

    def _read_header(self, header: bytes, size: int) -> None:
        if size > MAX_SHARD_BYTES:
            raise self._damaged(f"it has {size} bytes, more than the {MAX_SHARD_BYTES} of the largest shard")
        if len(header) < HEADER_BYTES or size < HEADER_BYTES:
            raise self._damaged(f"it has {size} bytes, fewer than its header of {HEADER_BYTES}")
        if hashlib.sha256(header[: _HEADER.size]).digest() != header[_HEADER.size :]:
            raise self._damaged("its header does not have the checksum that it gives")
        magic, version, *numbers, self.manifest_sha256, self.index_sha256 = _HEADER.unpack(header[: _HEADER.size])
        if magic != _MAGIC:
            raise self._damaged("it does not begin as a shard does")
        if version != _VERSION:
            raise UserError(f"{self.path} has format {version}, this framecast reads format {_VERSION}: update it")
        part, number, num_shards, self.num_clips, self.index_offset, self._text_bytes, self._skipped_bytes = numbers
        self._text_offset = self.index_offset + self.num_clips * ENTRY.itemsize
        if self._text_offset + self._text_bytes + self._skipped_bytes != size or self.index_offset < HEADER_BYTES:
            raise self._damaged(
                f"its header speaks of {self._text_offset + self._text_bytes + self._skipped_bytes} bytes, "
                f"the file has {size}"
            )
        if self.path.name != file_name(part, number, num_shards):
            raise self._damaged(f"it was written as {file_name(part, number, num_shards)}")

    def _check_entries(self) -> None:
        """Records one after the other from header to index, each with room for its pixels; no sum may overflow."""
        offset, num_bytes = self.entries["offset"], self.entries["num_bytes"]
        limit = np.uint64(self.index_offset)
        inside = bool((offset <= limit).all() and (num_bytes <= limit).all())
        ends = np.concatenate([[np.uint64(HEADER_BYTES)], offset + num_bytes]) if inside else np.zeros(1, np.uint64)
        if not inside or (ends[:-1] != offset).any() or ends[-1] != limit:
            raise self._damaged("its records do not follow each other")
        num_frames, height, width, channels = self.entries["shape"].astype(np.uint64).T
        frame = height * width * channels
        sides = (height > 0) & (height <= _MAX_SIDE) & (width > 0) & (width <= _MAX_SIDE)
        if not (sides & ((channels == 1) | (channels == 3)) & (num_frames > 0)).all():
            raise self._damaged("a clip has an impossible shape")
        if (num_frames > num_bytes // frame).any():
            raise self._damaged("a clip has more pixels than bytes")
        arrays = num_frames * frame + np.uint64(ARRAY_ALIGNMENT - 1) & ~np.uint64(ARRAY_ALIGNMENT - 1)
        action_size = self.entries["action_size"].astype(np.uint64)
        if (action_size > _MAX_SIDE).any() or (arrays + 4 * num_frames * action_size > num_bytes).any():
            raise self._damaged("a clip has more actions than bytes")
        text_offset, text_bytes = self.entries["text_offset"], self.entries["text_bytes"].astype(np.uint64)
        if (text_offset > self._text_bytes).any() or (text_offset + text_bytes > self._text_bytes).any():
            raise self._damaged("the text of a clip lies outside the index")
        if (self.entries["split"] >= len(SPLITS)).any():
            raise self._damaged("a clip is of no known split")

    def _read_skipped(self, text: bytes) -> list[Skipped]:
        rows = _parse(text)
        if not isinstance(rows, list) or not all(
            isinstance(row, list) and len(row) == 2 and all(isinstance(word, str) for word in row) for row in rows
        ):
            raise self._damaged("its list of what was skipped is no list of names and reasons")
        return [Skipped(name, reason) for name, reason in rows]

    def _about(self, index: int) -> dict[str, Any]:
        entry = self.entries[index]
        start = self._text_offset + int(entry["text_offset"])
        about = _parse(self.mapped[start : start + int(entry["text_bytes"])].tobytes())
        if (
            not isinstance(about, dict)
            or about.keys() != {"name", "label", "arrays"}
            or not isinstance(about["name"], str)
            or not isinstance(about["label"], str)
            or not isinstance(about["arrays"], list)
        ):
            raise self._damaged(f"what its index says of clip {index} is not understood")
        return about

    def _arrays(self, index: int, described: list[Any]) -> Iterator[tuple[str, np.ndarray]]:
        """The arrays behind the pixels, each where the ones before it end."""
        entry = self.entries[index]
        num_frames = int(entry["shape"][0])
        at = int(entry["offset"]) + int(np.prod(entry["shape"], dtype=np.int64))
        action_size = int(entry["action_size"])
        if described[:1] != [["actions", "<f4", [num_frames, action_size]]] and action_size:
            raise self._damaged(f"its index does not describe the actions of clip {index}")
        end = int(entry["offset"]) + int(entry["num_bytes"])
        for row in described:
            match row:
                case [str(name), str(dtype), [int(), *_] as shape] if (
                    dtype in _ARRAY_DTYPES
                    and len(shape) <= _MAX_RANK
                    and all(type(length) is int and 0 <= length <= end for length in shape)
                    and shape[0] == num_frames
                    and (name in ("actions", "states") or name.startswith("extras/"))
                ):
                    start = _aligned(at, ARRAY_ALIGNMENT)
                    num_bytes = np.dtype(dtype).itemsize
                    for length in shape:
                        num_bytes *= length
                    at = start + num_bytes
                    if at > end:
                        raise self._damaged(f"array {name!r} of clip {index} goes beyond its record")
                    yield name, self.mapped[start:at].view(dtype).reshape(shape)
                case _:
                    raise self._damaged(f"what its index says of an array of clip {index} is not understood")

    def _damaged(self, what: str) -> UserError:
        return UserError(
            f"{self.path} is damaged: {what}. Remove it and repeat the prepare command that made the store: "
            f"only this part is made again."
        )


def check(clip: Clip) -> None:
    """What a source promises of a clip."""
    video = clip.video
    if video.dtype != np.uint8 or video.ndim != 4 or video.shape[3] not in (1, 3) or 0 in video.shape:
        raise UserError(f"clip {clip.name!r} is {video.dtype} {video.shape}, not uint8 (T, H, W, 1 or 3)")
    if max(video.shape[1:3]) > _MAX_SIDE:
        raise UserError(f"clip {clip.name!r} has frames of {video.shape[1:3]}; a side is at most {_MAX_SIDE}")
    if clip.split not in SPLITS:
        raise UserError(f"clip {clip.name!r} is of split {clip.split!r}; there are {', '.join(SPLITS)}")
    for name, array in _named_arrays(clip):
        if array.dtype.newbyteorder("<").str not in _ARRAY_DTYPES or not 1 <= array.ndim <= _MAX_RANK:
            raise UserError(f"{name} of clip {clip.name!r} is {array.dtype} with {array.ndim} axes: not kept in stores")
        if len(array) != len(video):
            raise UserError(f"{name} of clip {clip.name!r} has {len(array)} rows for {len(video)} frames")
        if name in ("actions", "states") and not (
            array.dtype.newbyteorder("=") == np.float32 and array.ndim == 2 and 0 < array.shape[1] <= _MAX_SIDE
        ):
            raise UserError(f"{name} of clip {clip.name!r} is {array.dtype} {array.shape}, not float32 (T, size)")
        if name in ("actions", "states") and not np.isfinite(array).all():
            raise UserError(f"{name} of clip {clip.name!r} hold a number that is not finite")


def _named_arrays(clip: Clip) -> Iterator[tuple[str, np.ndarray]]:
    if clip.actions is not None:
        yield "actions", clip.actions
    if clip.states is not None:
        yield "states", clip.states
    for name, array in clip.extras.items():
        yield f"extras/{name}", array


def _aligned(offset: int, alignment: int) -> int:
    return offset + -offset % alignment


def _json(value: Any) -> bytes:
    """ASCII, so that names which are no valid Unicode come back as they were."""
    return json.dumps(value, separators=(",", ":")).encode("ascii")


def _parse(text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # a checksum can be right and the text still be somebody's nonsense
        return None


def open_inside(path: Path) -> BinaryIO:
    """A regular file, never through a symbolic link: a store holds what it shows."""
    try:
        file = open(path, "rb", opener=_no_link)  # noqa: SIM115
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise UserError(f"{path} is a symbolic link: a store does not point outside its folder") from error
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise UserError(f"{path} is no regular file")
    return file


def _no_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)  # nor wait for a pipe
