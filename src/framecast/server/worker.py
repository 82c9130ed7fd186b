"""The process that computes: it draws videos and measures surprise, one order after the other, as a pipe tells it.

It is a process of its own so that the page stays quick, and so that whatever a computation does to it ends with it.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from framecast.errors import UserError
from framecast.server.packing import pack
from framecast.server.surprise import palette, quantised

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    import torch

    from framecast.model.video_transformer import VideoTransformer
    from framecast.sampling.choose import Chooser, Where
    from framecast.sampling.sampler import Progress

PICTURE_SECONDS = 0.12
"""Between two pictures of what is drawn so far."""


@dataclass(frozen=True, eq=False)
class Sampling:
    """Continue a clip."""

    model: Path
    prime: np.ndarray
    num_frames: int
    samples: int
    temperature: float | None
    """None where the model draws nothing."""
    seed: int
    actions: np.ndarray | None


@dataclass(frozen=True, eq=False)
class Surprise:
    """Measure the bits of each pixel of a clip."""

    model: Path
    video: np.ndarray
    actions: np.ndarray | None


Order = Sampling | Surprise


@dataclass(frozen=True)
class Stage:
    """How far an order is: what the page is told."""

    facts: dict[str, Any]


@dataclass(frozen=True, eq=False)
class Done:
    result: np.ndarray
    """uint8 samples, or float32 bits."""


@dataclass(frozen=True)
class Failed:
    sentence: str


@dataclass(frozen=True)
class Stopped:
    """As it was asked to."""


Report = Stage | Done | Failed | Stopped


class Flag(Protocol):
    """One byte that the server sets when the order under way is to stop."""

    value: int


class StopNow(Exception):
    """The order under way is not wanted any more."""


def work(pipe: Connection, stop: Flag) -> None:
    """What the process runs, until the server hangs up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group: the server ends us
    import_module("framecast.sampling.sampler")  # so that the first order does not wait for it

    try:
        while True:
            order = pipe.recv()
            pipe.send(carry_out(order, pipe.send, stop))
    except (EOFError, OSError):
        return


def carry_out(order: Order, tell: Callable[[Report], None], stop: Flag) -> Report:
    try:
        return sampled(order, tell, stop) if isinstance(order, Sampling) else measured(order, tell, stop)
    except UserError as error:
        return Failed(str(error))
    except StopNow:
        return Stopped()
    except MemoryError:
        return Failed("this takes more memory than there is: take fewer samples or frames.")
    except RuntimeError as error:  # PyTorch's, which also stands for memory that there is not
        return Failed(f"the computation failed: {str(error).splitlines()[0][:200]}")


@lru_cache(maxsize=1)
def loaded(folder: Path) -> VideoTransformer:
    from framecast import device
    from framecast.model.video_transformer import VideoTransformer

    return VideoTransformer.load(folder, device.choose()).eval()


def sampled(order: Sampling, tell: Callable[[Report], None], stop: Flag) -> Report:
    import torch

    from framecast.model.head import ScalarHead
    from framecast.sampling import sampler

    tell(Stage({"doing": "loading the model"}))
    model = loaded(order.model)
    video_shape = (order.num_frames, *order.prime.shape[1:])
    drawn = torch.zeros(video_shape[:3], dtype=torch.bool, device=model.decoder.embedding.weight.device)
    drawn[: len(order.prime)] = True
    chooser = None if isinstance(model.head, ScalarHead) else Watched(order.temperature or 0.0, drawn)
    last_picture = 0.0

    def report(progress: Progress) -> None:
        nonlocal last_picture
        if stop.value:
            raise StopNow
        drawn[list(progress.new_frames)] = True  # all there is to see of a model that draws nothing
        if time.monotonic() - last_picture > PICTURE_SECONDS:
            tell(Stage({**_facts(progress), **_picture(progress.video(), drawn)}))
            last_picture = time.monotonic()

    video = sampler.sample(
        model,
        order.prime[None],
        order.num_frames,
        choose=chooser,
        seed=order.seed,
        actions=None if order.actions is None else order.actions[None],
        samples=np.arange(order.samples),
        progress=report,
    )
    drawn[:] = True
    tell(Stage({"doing": "done", **_picture(video, drawn)}))
    return Done(video.cpu().numpy())


class Watched:
    """Draws with a temperature, and notes which pixels have been drawn."""

    def __init__(self, temperature: float, drawn: torch.Tensor) -> None:
        from framecast.sampling.choose import draw

        self.choose: Chooser = draw(temperature)
        self.drawn = drawn.view(-1)

    def __call__(self, logits: torch.Tensor, where: Where) -> torch.Tensor:
        self.drawn[where.pixels] = True
        return self.choose(logits, where)


def measured(order: Surprise, tell: Callable[[Report], None], stop: Flag) -> Report:
    import math

    import torch

    tell(Stage({"doing": "loading the model"}))
    model = loaded(order.model)
    num_slices, done = slices_to_score(model, len(order.video)), 0
    start = time.monotonic()

    def before_slice(*_: Any) -> None:
        nonlocal done
        if stop.value:
            raise StopNow
        seconds = time.monotonic() - start
        left = {"seconds_left": seconds / done * (num_slices - done)} if done else {}
        tell(Stage({"doing": "measuring", "slice": done, "num_slices": num_slices, "seconds": seconds, **left}))
        done += 1

    hook = model.register_forward_pre_hook(before_slice)
    try:
        actions = None if order.actions is None else torch.from_numpy(order.actions)[None]
        nats = -model.log_prob(torch.from_numpy(order.video)[None], actions)
    finally:
        hook.remove()
    if not torch.isfinite(nats).all():
        return Failed("the model's log-probability of this clip is not finite.")
    bits = (nats[0] / math.log(2)).float().cpu().numpy()
    prime_frames = model.config.prime_frames
    picture, scale = quantised(bits, prime_frames)
    facts = {
        "doing": "done",
        "map": pack(picture),
        "palette": pack(palette()),
        "bits_at_255": scale,
        "bits_per_frame": [round(float(frame.mean()), 4) for frame in bits],
        "bits_per_dim": float(bits[prime_frames:].mean()) / model.config.num_channels,
        "prime_frames": prime_frames,
    }
    tell(Stage(facts))
    return Done(bits)


def slices_to_score(model: VideoTransformer, num_frames: int) -> int:
    """How many slices the likelihood of a video of this length takes: those with a frame that no earlier window had."""
    from framecast.ops.windows import windows

    config = model.config
    length, (s_t, s_h, s_w) = config.video_shape[0], config.subscale_factor
    return sum(
        length - s_t + index // (s_h * s_w) >= window.known
        for window in windows(max(num_frames, length), length, config.overlap)
        for index in range(config.num_slices)
    )


def _facts(progress: Progress) -> dict[str, Any]:
    return {
        "doing": "drawing",
        "slice": progress.slice,
        "num_slices": progress.num_slices,
        "wave": progress.wave,
        "num_waves": progress.num_waves,
        "seconds": progress.seconds,
        "seconds_left": progress.seconds_left,
    }


def _picture(video: torch.Tensor, drawn: torch.Tensor) -> dict[str, Any]:
    """The videos so far, and which of their pixels are drawn, a bit each."""
    return {
        "shape": list(video.shape),
        "video": pack(video.cpu().numpy()),
        "drawn": pack(np.packbits(drawn.cpu().numpy())),
    }
