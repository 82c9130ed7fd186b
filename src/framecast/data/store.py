"""A store: a folder with a manifest and the clips that were made by it. `docs/data.md` has its format.

The clips of a store stand in the order of its parts, so clip i is the same one however the store was made: in one go,
in pieces, or on many machines. In memory there is an index of some hundred bytes a clip and nothing else; pixels are
mapped.

T frames · H rows · W columns · C channels · A action size · N clips
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from framecast.data.clip import SPLITS, Clip, Skipped
from framecast.data.manifest import Manifest, read_manifest
from framecast.data.shard import Shard
from framecast.errors import UserError

if TYPE_CHECKING:
    from jaxtyping import Float32, Int64, UInt8

_SHARD_NAME = re.compile(r"(\d{6})-(\d{1,6})-of-(\d{1,6})\.shard")


class Store:
    """The clips of a prepared store. `len(store)`, `store[i]` and `for video in store` treat it as a list of videos."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.manifest = read_manifest(self.path)
        if self.manifest.kind == "drawn":
            from framecast.data.sources.moving_mnist import MovingMnistClips

            self._clips: Shards | MovingMnistClips = MovingMnistClips(self.path, self.manifest)
        else:
            self._clips = Shards(self.path, self.manifest)

    def __len__(self) -> int:
        return len(self._clips)

    def __getitem__(self, index: int) -> UInt8[np.ndarray, "T H W C"]:
        """The video of one clip; memory-mapped and read-only, where it is on disk."""
        return self.frames(index)

    def __iter__(self) -> Iterator[UInt8[np.ndarray, "T H W C"]]:
        return map(self.frames, range(len(self)))

    @property
    def dataset(self) -> str:
        """What it is a store of, as `framecast prepare` names it."""
        return self.manifest.dataset

    @property
    def missing_parts(self) -> list[int]:
        """What `prepare` has not made yet; the clips of the other parts can be used."""
        return self._clips.missing_parts

    def frames(self, index: int, start: int = 0, stop: int | None = None) -> UInt8[np.ndarray, "T H W C"]:
        """Frames start … stop − 1 of clip `index`; all of them by default."""
        return self._clips.frames(self._checked(index), start, stop)

    def actions(self, index: int, start: int = 0, stop: int | None = None) -> Float32[np.ndarray, "T A"]:
        """The actions of frames start … stop − 1 of a clip that has some."""
        return self._clips.actions(self._checked(index), start, stop)

    def clip(self, index: int) -> Clip:
        """The clip with all that is kept of it."""
        return self._clips.clip(self._checked(index))

    def num_frames(self, index: int) -> int:
        return self.shapes.item(self._checked(index), 0)

    @property
    def shapes(self) -> Int64[np.ndarray, "N 4"]:
        """(T, H, W, C) of every clip."""
        return self._clips.shapes

    def indices(self, split: str) -> Int64[np.ndarray, "n"]:
        """The clips of one split, in order."""
        return np.asarray(self.indices_or_range(split), np.int64)

    def indices_or_range(self, split: str) -> Int64[np.ndarray, "n"] | range:
        """The same without writing down those of a split that is drawn endlessly."""
        if split not in SPLITS:
            raise UserError(f"there is no split {split!r}: a clip is of {', '.join(SPLITS)}")
        return self._clips.indices(split)

    @cached_property
    def frame_shape(self) -> tuple[int, int, int]:
        """(H, W, C), the same for all clips."""
        height, width, channels = self._alike(self.shapes[:, 1:], "frames", "Prepare them with --size")
        return height, width, channels

    @cached_property
    def action_size(self) -> int:
        """How many numbers one action has, the same for all clips; 0 where they have none."""
        return self._alike(self._clips.action_sizes[:, None], "actions", "Prepare them apart")[0] if len(self) else 0

    def action_statistics(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and deviation of each number of the training split's actions; the deviation of a constant is 1."""
        clips = self.indices("train") if self.action_size else np.zeros(0, np.int64)
        if not len(clips):
            raise UserError(f"{self.path} has no training clips with actions")
        pivot = self.actions(int(clips[0]))[0].astype(np.float64)  # near the mean, so that squares lose no digits
        count, total, squares = 0, np.zeros(self.action_size), np.zeros(self.action_size)
        for index in clips:
            actions = self.actions(int(index)) - pivot
            count += len(actions)
            total += actions.sum(axis=0)
            squares += (actions**2).sum(axis=0)
        mean = total / count
        deviation = np.sqrt(np.maximum(squares / count - mean**2, 0))
        return tuple((pivot + mean).tolist()), tuple(np.where(deviation > 0, deviation, 1.0).tolist())

    @property
    def fingerprint(self) -> str:
        """SHA-256 over what the clips are."""
        return self._clips.fingerprint

    def skipped(self) -> list[Skipped]:
        """What could not become a clip, and why."""
        return self._clips.skipped()

    def damage(self) -> Iterator[str]:
        """Whatever is not as it was written, a sentence each; every byte of the store is read for it."""
        return self._clips.damage()

    def _checked(self, index: int) -> int:
        if 0 <= index < len(self._clips):
            return index
        if -len(self) <= index < 0:
            return index + len(self)
        raise IndexError(f"{self.path} has {len(self)} clips, not one of number {index}")

    def _alike(self, rows: Int64[np.ndarray, "N n"], what: str, way_out: str) -> list[int]:
        """The row that all rows are."""
        if not len(rows):
            raise UserError(f"{self.path} has no clips")
        if (others := np.flatnonzero((rows != rows[0]).any(axis=1))).size:
            first, other = tuple(rows[0].tolist()), tuple(rows[others[0]].tolist())
            raise UserError(
                f"the clips of {self.path} have different {what}: "
                f"clip 0 has {first}, clip {others[0]} has {other}. {way_out}."
            )
        return rows[0].tolist()


class Shards:
    """The clips of all shards of a folder as one list."""

    def __init__(self, folder: Path, manifest: Manifest):
        parts = finished_parts(folder)
        self.missing_parts = sorted(set(range(manifest.num_parts)) - parts.keys())
        if beyond := sorted(part for part in parts if part >= manifest.num_parts):
            raise UserError(f"{folder} has shards of part {beyond[0]}, but its manifest has {manifest.num_parts} parts")
        self.shards = [Shard(folder / name) for part in sorted(parts) for name in parts[part]]
        sha256 = manifest.sha256()
        if strange := [shard.path for shard in self.shards if shard.manifest_sha256 != sha256]:
            raise UserError(f"{strange[0]} belongs to another store: its manifest is not the one in {folder}")
        sizes = [shard.num_clips for shard in self.shards]
        self._first = np.cumsum([0, *sizes])[:-1]
        self._shard_of = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)

    def __len__(self) -> int:
        return len(self._shard_of)

    def frames(self, index: int, start: int, stop: int | None) -> UInt8[np.ndarray, "T H W C"]:
        shard = self._shard_of.item(index)
        return self.shards[shard].frames(index - self._first.item(shard), start, stop)

    def actions(self, index: int, start: int, stop: int | None) -> Float32[np.ndarray, "T A"]:
        shard = self._shard_of.item(index)
        return self.shards[shard].actions(index - self._first.item(shard), start, stop)

    def clip(self, index: int) -> Clip:
        shard = self._shard_of.item(index)
        return self.shards[shard].clip(index - self._first.item(shard))

    @cached_property
    def shapes(self) -> Int64[np.ndarray, "N 4"]:
        return np.concatenate([np.zeros((0, 4), np.int64), *(shard.shapes for shard in self.shards)])

    @cached_property
    def action_sizes(self) -> Int64[np.ndarray, "N"]:
        return self._gather("action_size").astype(np.int64)

    def indices(self, split: str) -> Int64[np.ndarray, "n"]:
        return np.flatnonzero(self._gather("split") == SPLITS.index(split))

    @cached_property
    def fingerprint(self) -> str:
        return hashlib.sha256(b"".join(shard.index_sha256 for shard in self.shards)).hexdigest()

    def skipped(self) -> list[Skipped]:
        return [each for shard in self.shards for each in shard.skipped]

    def damage(self) -> Iterator[str]:
        for shard in self.shards:
            yield from shard.damage()

    def _gather(self, field: str) -> np.ndarray:
        """One column of the index, over all shards."""
        return np.concatenate([np.zeros(0, np.uint32), *(shard.entries[field] for shard in self.shards)])


def finished_parts(folder: Path) -> dict[int, list[str]]:
    """The shards of every part that is done, by names alone: a part is done when the last of its shards is there."""
    found: dict[tuple[int, int], dict[int, str]] = {}
    for name in os.listdir(folder):
        if match := _SHARD_NAME.fullmatch(name):
            part, number, num_shards = map(int, match.groups())
            if number < num_shards:
                found.setdefault((part, num_shards), {})[number] = name
    parts: dict[int, list[str]] = {}
    for (part, num_shards), names in sorted(found.items()):
        if len(names) < num_shards:
            continue
        if part in parts:
            raise UserError(
                f"{folder} has part {part} twice: remove {parts[part][0]} or {names[0]}, and all named alike"
            )
        parts[part] = [names[number] for number in range(num_shards)]
    return parts
