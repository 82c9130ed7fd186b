"""Moving MNIST: handwritten digits that move straight ahead and turn back at the borders, drawn whenever one is wanted.

The generator is the one that everybody's figures refer to. A digit starts anywhere in the unit square, in any
direction. Before each frame it takes a step of 0.1; where that leads to a border or beyond, it stops on the border and
that component of its direction turns round. The unit square times the room that a 28-pixel digit has on the canvas,
truncated, is the corner at which it is drawn; where digits overlap, the brighter pixel shows.

Training draws from MNIST's first 55,000 training digits, validation from the other 5,000, so that it sees digits that
training does not, as testing does; test clips draw from the 10,000 test digits. A clip is a function of (seed, split,
number), so a store of any size is the digits and a few settings. `--seed` is that of training alone: everybody's
validation and test clips are the same.

Positions are float64 on the CPU, whichever device composes the frames: in float32 some would truncate to other pixels.

N clips · D digits of a clip · T frames · H rows · W columns
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from framecast import durable
from framecast.config import from_json
from framecast.data import keyed
from framecast.data.assets import MNIST, fetch
from framecast.data.clip import SPLITS, Clip, Skipped
from framecast.data.manifest import Manifest
from framecast.data.resize import Size
from framecast.errors import UserError

if TYPE_CHECKING:
    from jaxtyping import Int, Int64, UInt8
    from torch import Tensor

DIGIT = 28  # pixels, either way
STEP = 0.1  # of the unit square, a frame
MAX_SIDE = 1024
MAX_DIGITS = 100
MAX_FRAMES = 10_000

ENDLESS = 10_000_000
"""How many training clips there are where nobody says: more than the longest training looks at twice."""
NUM_VALIDATION, NUM_TEST = 10_000, 10_000
DIGITS_OF = {"train": range(55_000), "val": range(55_000, 60_000), "test": range(60_000, 70_000)}
"""Which of MNIST's images, training's before testing's, each split draws from."""


@dataclass(frozen=True)
class MovingMnist:
    """What clips are drawn, wherever the digits came from."""

    size: Size = (64, 64)
    num_digits: int = 2
    num_frames: int = 20
    clips: int | None = None
    """Training clips: the paper has 100,000; endlessly many by default."""
    seed: int = 0
    """Of the training clips."""

    kind: ClassVar[str] = "drawn"

    def __post_init__(self) -> None:
        if not all(DIGIT <= side <= MAX_SIDE for side in self.size):
            raise UserError(f"frames of {self.size} are not possible: each side is from {DIGIT} to {MAX_SIDE} pixels")
        limits = {"num_digits": MAX_DIGITS, "num_frames": MAX_FRAMES, "clips": ENDLESS}
        for name, limit in limits.items():
            if (value := getattr(self, name)) is not None and not 1 <= value <= limit:
                raise UserError(f"{name} is {value}: from 1 to {limit} are possible")

    def write_digits(self, folder: Path, source: str | Path | None = None) -> None:
        """Keep the digits in a store; `source` holds MNIST, where it is not to be downloaded."""
        if source is None and not _digits_damage(folder):
            return
        content = fetch(MNIST, source).read_bytes()
        with durable.temporary(folder / f"{MNIST.name}.tmp") as file:
            if file is None:
                raise UserError(f"another process is preparing {folder}: wait for it")
            durable.write(file, content)
            durable.publish(file, folder / MNIST.name)


class MovingMnistClips:
    """The clips of a store that keeps digits and settings: test clips first, then validation, then training."""

    missing_parts: ClassVar[list[int]] = []

    def __init__(self, folder: Path, manifest: Manifest):
        self.folder = folder
        self.settings = from_json(MovingMnist, manifest.source, f"the source in the manifest of {folder}")
        path = folder / MNIST.name
        if path.is_symlink() or not path.is_file() or path.stat().st_size != MNIST_BYTES:  # a store holds what it shows
            raise UserError(f"{path} is missing or damaged: repeat the command that prepared {folder}")
        content = np.memmap(path, np.uint8, "r")
        self.digits, self.labels = np.split(content, [NUM_DIGITS * DIGIT * DIGIT])
        self.digits = self.digits.reshape(NUM_DIGITS, DIGIT, DIGIT)
        num_train = self.settings.clips or ENDLESS
        self._splits = {
            "test": range(NUM_TEST),
            "val": range(NUM_TEST, NUM_TEST + NUM_VALIDATION),
            "train": range(NUM_TEST + NUM_VALIDATION, NUM_TEST + NUM_VALIDATION + num_train),
        }

    def __len__(self) -> int:
        return self._splits["train"].stop

    def indices(self, split: str) -> range:
        return self._splits[split]

    def split(self, index: int) -> str:
        return next(split for split, clips in self._splits.items() if index < clips.stop)

    def num_frames(self, index: int) -> int:
        return self.settings.num_frames

    @property
    def shapes(self) -> Int64[np.ndarray, "N 4"]:
        return np.broadcast_to(np.array([self.settings.num_frames, *self.settings.size, 1]), (len(self), 4))

    @property
    def action_sizes(self) -> Int64[np.ndarray, "N"]:
        return np.broadcast_to(np.int64(0), (len(self),))

    def frames(self, index: int, start: int = 0, stop: int | None = None) -> UInt8[np.ndarray, "T H W 1"]:
        numbers, corners = self.draw(index)
        return compose(self.digits[numbers], corners[:, start:stop], self.settings.size)

    def actions(self, index: int, start: int = 0, stop: int | None = None) -> np.ndarray:
        raise UserError(f"the clips of {self.folder} have no actions")

    def clip(self, index: int) -> Clip:
        numbers, corners = self.draw(index)
        split = self.split(index)
        return Clip(
            compose(self.digits[numbers], corners, self.settings.size),
            f"{split}-{index - self._splits[split].start:08}",
            split,
            label=" ".join(str(label) for label in self.labels[numbers]),
            extras={"corners": corners.swapaxes(0, 1)},
        )

    def draw(self, index: int) -> tuple[Int64[np.ndarray, "D"], Int64[np.ndarray, "D T 2"]]:
        """Which digits clip `index` has, and where the upper left corner of each is in every frame."""
        split = self.split(index)
        images, number = DIGITS_OF[split], index - self._splits[split].start
        seed = self.settings.seed if split == "train" else 0
        key = (seed, SPLITS.index(split), number)
        words = keyed.words(*key, np.arange(4 * self.settings.num_digits)).reshape(-1, 4)
        numbers = images.start + keyed.below(words[:, 0], len(images))
        return numbers, corners_of(keyed.unit(words[:, 1:]), self.settings.num_frames, self.settings.size)

    @cached_property
    def fingerprint(self) -> str:
        settings = json.dumps(asdict(self.settings), sort_keys=True)
        return hashlib.sha256(f"moving-mnist {settings} {MNIST.sha256}".encode()).hexdigest()

    def skipped(self) -> list[Skipped]:
        return []

    def damage(self) -> Iterator[str]:
        if complaint := _digits_damage(self.folder):
            yield complaint


NUM_DIGITS = DIGITS_OF["test"].stop
MNIST_BYTES = NUM_DIGITS * (DIGIT * DIGIT + 1)  # with a label each


def _digits_damage(folder: Path) -> str:
    path = folder / MNIST.name
    try:
        found = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}"
    return "" if found == MNIST.sha256 else f"{path} is damaged: its SHA-256 is {found}, not {MNIST.sha256}"


def corners_of(chances: np.ndarray, num_frames: int, size: Size) -> Int64[np.ndarray, "D T 2"]:
    """The path of each digit from three numbers in [0, 1): where it starts, down and right, and its direction.

    Plain floats: for a clip's few digits they are ten times as quick as arrays of them.
    """
    room = [side - DIGIT for side in size]
    paths = []
    for *start, turn in chances.tolist():
        angle = 2 * math.pi * turn
        velocity = (STEP * math.sin(angle), STEP * math.cos(angle))
        paths.append([_path(*each, num_frames) for each in zip(start, velocity, room, strict=True)])
    return np.array(paths).swapaxes(1, 2)


def _path(place: float, velocity: float, room: int, num_frames: int) -> list[int]:
    """One coordinate of a corner in every frame, in pixels."""
    pixels = []
    for _ in range(num_frames):
        place += velocity
        if not 0 < place < 1:
            place = 0.0 if place <= 0 else 1.0
            velocity = -velocity
        pixels.append(int(place * room))
    return pixels


def compose(
    digits: UInt8[np.ndarray, "D 28 28"], corners: Int[np.ndarray, "D T 2"], size: Size
) -> UInt8[np.ndarray, "T H W 1"]:
    """The frames of one clip, from its digits and where they are."""
    canvas = np.zeros((corners.shape[1], *size, 1), np.uint8)
    for digit, path in zip(digits[..., None], corners.tolist(), strict=True):
        for frame, (top, left) in zip(canvas, path, strict=True):
            window = frame[top : top + DIGIT, left : left + DIGIT]
            np.maximum(window, digit, out=window)
    return canvas


def compose_many(
    digits: UInt8[Tensor, "N D 28 28"], corners: Int[Tensor, "N D T 2"], size: Size
) -> UInt8[Tensor, "N T H W 1"]:
    """The frames of many clips at once, on the device of `digits`; the same bytes as `compose` of each."""
    import torch

    framed = torch.nn.functional.pad(digits, (1, 1, 1, 1)).flatten(2)  # a dark edge, for whatever lies outside
    canvas: Tensor | None = None
    for digit in range(digits.shape[1]):
        corner = corners[:, digit].to(digits.device)
        row, column = (
            (torch.arange(side, device=digits.device) - corner[..., axis, None] + 1).clamp(0, DIGIT + 1)
            for axis, side in enumerate(size)
        )
        place = row[..., :, None] * (DIGIT + 2) + column[..., None, :]
        layer = framed[:, digit].gather(1, place.flatten(1)).view(place.shape)
        canvas = layer if canvas is None else torch.maximum(canvas, layer)
    assert canvas is not None, "a clip has digits"
    return canvas[..., None]


@dataclass(frozen=True)
class PublishedMovingMnist:
    """The test clips as they were published: `mnist_test_seq.npy`, 20 frames × 10,000 clips × 64 × 64."""

    source: str

    items_per_part: ClassVar[int] = 512

    def items(self) -> Sequence[str]:
        return [f"{number:05}" for number in range(self._clips().shape[1])]

    def read(self, items: Sequence[str]) -> Iterator[Clip | Skipped]:
        clips = self._clips()
        for item in items:
            yield Clip(np.ascontiguousarray(clips[:, int(item), ..., None]), item, "test")

    def _clips(self) -> np.ndarray:
        try:
            clips: Any = np.load(self.source, mmap_mode="r")
        except (OSError, ValueError, EOFError) as error:
            raise UserError(f"{self.source} cannot be read: {error}") from error
        if not isinstance(clips, np.ndarray) or clips.dtype != np.uint8 or clips.ndim != 4:
            raise UserError(f"{self.source} is no array of uint8 clips: the published one is 20 × 10000 × 64 × 64")
        if (clips.shape[0], *clips.shape[2:]) != (20, 64, 64):
            found = " × ".join(map(str, clips.shape))
            raise UserError(f"{self.source} is {found}, not 20 × N × 64 × 64 as published: frames come first")
        return clips


def source_of(path: str | Path | None, settings: MovingMnist) -> MovingMnist | PublishedMovingMnist:
    """What `prepare moving-mnist --source PATH` is of: clips that are published, or digits to draw clips from."""
    if path is None or Path(path).suffix != ".npy":
        return settings
    return PublishedMovingMnist(str(path))
