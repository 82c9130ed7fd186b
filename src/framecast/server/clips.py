"""The clips that are there from the start: those of a store, or for grey models digits that move.

T frames · H rows · W columns · C channels · A action size
"""

from __future__ import annotations

import math
import threading
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from framecast.config import ModelConfig, to_json
from framecast.data.clip import Clip
from framecast.data.resize import resize
from framecast.data.video_file import LUMA
from framecast.errors import UserError
from framecast.server import limits

if TYPE_CHECKING:
    from jaxtyping import UInt8

    from framecast.data.sources.moving_mnist import MovingMnistClips
    from framecast.data.store import Store

FETCH_SECONDS = 5


@dataclass(frozen=True, eq=False)
class LoadedClip:
    """A clip at the size of the model that it was loaded for."""

    model: int
    name: str
    video: UInt8[np.ndarray, "T H W C"]
    actions: np.ndarray | None = None


@dataclass(frozen=True)
class StoreClips:
    """The test clips of a store, or where it has none those of validation or training."""

    store: Store

    @cached_property
    def _split(self) -> str:
        return next((split for split in ("test", "val") if len(self.store.indices_or_range(split))), "train")

    @property
    def what(self) -> str:
        return f"{self._split} clips of {self.store.path.name}"

    def count(self, config: ModelConfig) -> int:
        return len(self.store.indices_or_range(self._split))

    def clip(self, number: int, config: ModelConfig) -> tuple[str, np.ndarray, np.ndarray | None]:
        index = int(self.store.indices_or_range(self._split)[number])
        length, *frame_shape = self.store.shapes[index].tolist()
        num_frames = min(length, limits.MAX_CLIP_FRAMES, max(1, limits.MAX_STORE_BYTES // math.prod(frame_shape)))
        video = fitted(self.store.frames(index, 0, num_frames), config)
        actions = self.store.actions(index, 0, num_frames) if config.action_size else None
        return f"{self._split} clip {number}", video, actions


@dataclass(frozen=True)
class DrawnClips:
    """Test clips of Moving MNIST, for grey models of any size that a digit fits in."""

    what: ClassVar[str] = "test clips of Moving MNIST"

    def count(self, config: ModelConfig) -> int:
        height, width = config.video_shape[1:]
        return len(_drawn(self._digits(), height, width, 1).indices("test")) if _suits_digits(config) else 0

    def clip(self, number: int, config: ModelConfig) -> tuple[str, np.ndarray, np.ndarray | None]:
        num_frames, height, width = config.video_shape
        clip: Clip = _drawn(self._digits(), height, width, min(2 * num_frames, limits.MAX_FRAMES)).clip(number)
        return f"digits {' and '.join(clip.label.split())}", clip.video, None

    def _digits(self) -> Path:
        """The folder with the digits; while they are on their way nobody waits for long."""
        try:
            if failure := self._fetched.exception(timeout=FETCH_SECONDS):
                raise UserError(str(failure))
            return self._fetched.result().parent
        except TimeoutError:
            raise UserError("the digits of MNIST are still on their way: reload the page in a minute.") from None

    @cached_property
    def _fetched(self) -> Future[Path]:
        from framecast.data.assets import MNIST, fetch

        file: Future[Path] = Future()

        def bring() -> None:
            try:
                file.set_result(fetch(MNIST))
            except Exception as error:
                file.set_exception(error)

        threading.Thread(target=bring, daemon=True).start()  # which does not keep a server from ending
        return file


Clips = StoreClips | DrawnClips


def fitted(video: UInt8[np.ndarray, "T h w c"], config: ModelConfig) -> UInt8[np.ndarray, "T H W C"]:
    """A clip cropped and resized as `prepare` does it, in the model's channels."""
    height, width = config.video_shape[1:]
    if video.shape[1:3] != (height, width):
        video = resize(video, (height, width))
    return with_channels(video, config.num_channels)


def with_channels(video: UInt8[np.ndarray, "T H W c"], channels: int) -> UInt8[np.ndarray, "T H W C"]:
    if video.shape[-1] == channels:
        return video
    return np.rint(video @ LUMA).astype(np.uint8)[..., None] if channels == 1 else video.repeat(channels, axis=-1)


def _suits_digits(config: ModelConfig) -> bool:
    from framecast.data.sources.moving_mnist import DIGIT, MAX_SIDE

    sides = config.video_shape[1:]
    return config.num_channels == 1 and not config.action_size and all(DIGIT <= side <= MAX_SIDE for side in sides)


@lru_cache(maxsize=8)
def _drawn(digits: Path, height: int, width: int, num_frames: int) -> MovingMnistClips:
    from framecast.data.manifest import Manifest
    from framecast.data.sources.moving_mnist import MovingMnist, MovingMnistClips

    settings = MovingMnist((height, width), num_frames=num_frames)
    manifest = Manifest("moving-mnist", settings.kind, to_json(settings), 0, "", 1, {})
    return MovingMnistClips(digits, manifest)


def checked_number(number: int, count: int) -> int:
    if not 0 <= number < count:
        raise UserError(f"there is no clip {number}: there are {count}, from 0 on.")
    return number
