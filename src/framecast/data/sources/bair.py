"""BAIR robot pushing (softmotion30_44k): a Sawyer arm moving at random among objects in a bin, seen by two cameras.

Folders `train` and `test` of TFRecord files `traj_A_to_B.tfrecords`, each with the trajectories A to B: 30 frames of
64×64, stored raw, with the action (4) and the end effector's position (3) of every frame. 43,264 to train on, 256 to
test.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from framecast.data.clip import Clip, Skipped
from framecast.data.tfrecord import Example, read_examples
from framecast.errors import UserError

FOLDER = "softmotion30_44k"
CAMERAS = ("aux1", "main")
FRAMES = 30
FRAME_SHAPE = (64, 64, 3)
FRAME_BYTES = math.prod(FRAME_SHAPE)
ACTION_SIZE = 4
STATE_SIZE = 3

VALIDATION_EVERY = 43_264 // 256
"""One training trajectory of so many validates: 256 in all, and the same ones whichever files are there."""


@dataclass(frozen=True)
class Bair:
    source: str
    """The folder that holds `train` and `test`, or the one above it."""
    camera: str = "aux1"
    """The auxiliary camera, which published work reads, or "main"."""

    items_per_part: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if self.camera not in CAMERAS:
            raise UserError(f"BAIR has no camera {self.camera!r}; it has {' and '.join(CAMERAS)}")

    @property
    def folder(self) -> Path:
        inner = Path(self.source, FOLDER)
        return inner if inner.is_dir() else Path(self.source)

    def items(self) -> Sequence[str]:
        files = [path for split in ("train", "test") for path in self.folder.glob(f"{split}/traj_*.tfrecords")]
        if not files:
            raise UserError(f"{self.source} holds no train/traj_*.tfrecords and no test/traj_*.tfrecords")
        return sorted(path.relative_to(self.folder).as_posix() for path in files)

    def read(self, items: Sequence[str]) -> Iterator[Clip | Skipped]:
        for item in items:
            numbers = re.fullmatch(r"(train|test)/traj_(\d+)_to_(\d+)\.tfrecords", item)
            if numbers is None:
                yield Skipped(item, "its name does not say which trajectories it holds")
                continue
            first, last = int(numbers[2]), int(numbers[3])
            found = -1
            for found, example in enumerate(read_examples(self.folder / item)):
                yield self._clip(example, f"{item}#{found}", split_of(numbers[1], first + found))
            if found != last - first:  # cut exactly between two records, a file is otherwise a whole one
                promised = last - first + 1
                yield Skipped(item, f"it ends with trajectory {found + 1} where its name promises {promised}")

    def _clip(self, example: Example | UserError, name: str, split: str) -> Clip | Skipped:
        try:
            if isinstance(example, UserError):
                raise example
            frames = [_frame(example, f"{t}/image_{self.camera}/encoded") for t in range(FRAMES)]
            actions = np.stack([example.floats(f"{t}/action", ACTION_SIZE) for t in range(FRAMES)])
            states = np.stack([example.floats(f"{t}/endeffector_pos", STATE_SIZE) for t in range(FRAMES)])
        except UserError as error:
            return Skipped(name, str(error))
        if not (np.isfinite(actions).all() and np.isfinite(states).all()):
            return Skipped(name, "an action or a position is not a finite number")
        return Clip(np.stack(frames), name, split, actions=actions, states=states)


def split_of(folder: str, number: int) -> str:
    """The split of the trajectory of this number, of the folder `train` or `test`."""
    return "val" if folder == "train" and number % VALIDATION_EVERY == VALIDATION_EVERY - 1 else folder


def _frame(example: Example, feature: str) -> np.ndarray:
    values = example.one_bytes(feature)
    if len(values) != FRAME_BYTES:
        raise UserError(f"feature {feature!r} has {len(values)} bytes, not the {FRAME_BYTES} of a frame")
    return np.frombuffer(values, np.uint8).reshape(FRAME_SHAPE)
