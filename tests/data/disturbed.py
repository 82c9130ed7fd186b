"""A source that does what its files say, also to the process that reads it; imported by processes that are killed."""

from __future__ import annotations

import hashlib
import os
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from framecast.data.clip import Clip, Skipped
from framecast.errors import Unavailable, UserError

HEIGHT, WIDTH = 6, 5


@dataclass(frozen=True)
class Disturbed:
    source: str
    num_frames: int = 3
    seconds: float = 0.0
    """That it takes to read an item."""

    items_per_part: ClassVar[int] = 4

    def items(self) -> Sequence[str]:
        return sorted(path.name for path in Path(self.source).glob("*.txt"))

    def read(self, items: Sequence[str]) -> Iterator[Clip | Skipped]:
        for item in items:
            time.sleep(self.seconds)
            path = Path(self.source, item)
            match path.read_text():
                case "crash":
                    os.kill(os.getpid(), signal.SIGSEGV)
                case "crash once":
                    path.write_text("")
                    os.kill(os.getpid(), signal.SIGKILL)
                case "kill the parent once":
                    path.write_text("")
                    os.kill(os.getppid(), signal.SIGKILL)
                    time.sleep(100)
                case "refuse":
                    raise UserError("it is not to our taste")
                case "lack":
                    raise Unavailable("this machine has no taste")
                case "surprise":
                    raise ZeroDivisionError("surprise")
                case "skip":
                    yield Skipped(item, "it asked for it")
                    continue
                case "wrong":
                    yield Clip(np.zeros((3, 4, 4, 2), np.uint8), item, "train")
                    continue
            yield a_clip(item, self.num_frames)


def a_clip(name: str, num_frames: int = 3) -> Clip:
    noise = np.random.default_rng(list(hashlib.sha256(name.encode()).digest()))
    return Clip(
        video=noise.integers(0, 256, (num_frames, HEIGHT, WIDTH, 3), np.uint8),
        name=name,
        split=("train", "val", "test")[noise.integers(3)],
        actions=noise.normal(size=(num_frames, 2)).astype(np.float32),
    )


@dataclass(frozen=True)
class Tiny:
    """Very many clips of next to nothing."""

    num_clips: int

    items_per_part: ClassVar[int] = 512

    def items(self) -> Sequence[str]:
        return [f"train/class {number % 600}/{number:011}_000000_000010" for number in range(self.num_clips)]

    def read(self, items: Sequence[str]) -> Iterator[Clip | Skipped]:
        return (Clip(TINY, item, "train", "class") for item in items)


TINY = np.zeros((16, 2, 2, 1), np.uint8)
