"""Robotic pushing: ten arms pushing objects in bins, with test sets of objects seen and not seen in training.

Folders `push_train`, `push_testseen` and `push_testnovel` of TFRecord files, one Example a trajectory. A step has a
JPEG of 512×640, the commanded pose (the action) and the end effector's pose (the state), five numbers each: x, y, z,
pitch and yaw. As in the paper: the first 20 frames, each whole frame resized to 64×64. Later steps may lack an image; a
clip ends before the first that does, so a trajectory without 20 images becomes a shorter clip.

TensorFlow decodes JPEG by a quicker, coarser transform unless it is asked for INTEGER_ACCURATE; this is the accurate
one. What that changes in single pixels, the resizing averages over eighty.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from framecast.data.clip import Clip, Skipped
from framecast.data.resize import Resizer, Size
from framecast.data.tfrecord import Example, read_examples
from framecast.errors import UserError

FOLDER = "push"
SUBSETS = {"push_train": "train", "push_testseen": "test", "push_testnovel": "test"}
MAX_FRAMES = 20
FRAME_SHAPE = (512, 640, 3)
POSE_SIZE = 5

VALIDATION_EVERY = 128
"""The data has no validation split: of each training file, the last trajectory of every so many is set aside for it."""


@dataclass(frozen=True)
class RoboticPushing:
    source: str
    """The folder that holds `push_train` and its siblings, or the one above it."""
    size: Size = (64, 64)

    items_per_part: ClassVar[int] = 1

    @property
    def folder(self) -> Path:
        inner = Path(self.source, FOLDER)
        return inner if inner.is_dir() else Path(self.source)

    def items(self) -> Sequence[str]:
        files = [path for subset in SUBSETS for path in self.folder.glob(f"{subset}/*.tfrecord-*")]
        if not files:
            raise UserError(f"{self.source} has no files *.tfrecord-* in {', '.join(SUBSETS)}")
        return sorted(path.relative_to(self.folder).as_posix() for path in files)

    def read(self, items: Sequence[str]) -> Iterator[Clip | Skipped]:
        resizer = Resizer(FRAME_SHAPE, self.size, "stretch")
        for item in items:
            subset = Path(item).parts[0]
            for number, example in enumerate(read_examples(self.folder / item)):
                validates = subset == "push_train" and number % VALIDATION_EVERY == VALIDATION_EVERY - 1
                split = "val" if validates else SUBSETS[subset]
                name = f"{item}#{number}"
                try:
                    yield _clip(example, name, split, subset.removeprefix("push_"), resizer)
                except UserError as error:
                    yield Skipped(name, str(error))


def _clip(example: Example | UserError, name: str, split: str, label: str, resizer: Resizer) -> Clip:
    if isinstance(example, UserError):
        raise example
    jpegs = _leading_images(example)
    if len(jpegs) < 2:
        raise UserError("its first two steps do not both have an image")
    steps = range(len(jpegs))
    actions = np.stack([example.floats(f"move/{t}/commanded_pose/vec_pitch_yaw", POSE_SIZE) for t in steps])
    states = np.stack([example.floats(f"move/{t}/endeffector/vec_pitch_yaw", POSE_SIZE) for t in steps])
    if not (np.isfinite(actions).all() and np.isfinite(states).all()):
        raise UserError("an action or a state is not a finite number")
    video = np.stack([resizer(_decode(jpeg, t)) for t, jpeg in enumerate(jpegs)])
    return Clip(video, name, split, label, actions, states)


def _leading_images(example: Example) -> list[memoryview]:
    """The JPEG files of the first steps, up to the first step without one."""
    jpegs: list[memoryview] = []
    while len(jpegs) < MAX_FRAMES and (name := f"move/{len(jpegs)}/image/encoded") in example:
        jpeg = example.one_bytes(name)
        if not jpeg:
            break
        jpegs.append(jpeg)
    return jpegs


def _decode(jpeg: memoryview, step: int) -> np.ndarray:
    from PIL import Image

    try:
        with Image.open(io.BytesIO(jpeg), formats=["JPEG"]) as image:
            height, width, _ = FRAME_SHAPE
            if image.size != (width, height) or image.mode != "RGB":  # before the pixels are decoded
                what = f"{image.height}×{image.width} {image.mode}"
                raise UserError(f"the image of step {step} is {what} where {height}×{width} RGB is expected")
            return np.asarray(image)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise UserError(f"the image of step {step} cannot be decoded: {error}") from error
