"""`framecast sample`: continue a video, and write what came of it beside the truth where that is known."""

from __future__ import annotations

import json as json_text
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

if TYPE_CHECKING:
    import numpy as np

    from framecast.config import ModelConfig
    from framecast.model.video_transformer import VideoTransformer
    from framecast.sampling.sampler import Progress
    from framecast.training.distributed import Job

DRAWN_TOGETHER = 8
"""Samples at a time: the base model keeps 0.27 GB of keys and values for each."""

SECONDS_BETWEEN_LINES = 10.0


def sample(
    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN|MODEL")],
    /,
    *,
    prime: str,
    out: Path,
    actions: Path | None = None,
    prime_frames: int | None = None,
    frames: int | None = None,
    samples: int | None = None,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    fps: float = 10.0,
    precision: Literal["fp32", "bf16"] = "fp32",
    device: str | None = None,
    json: bool = False,
) -> None:
    """Continue a video. Where the whole of it is known, the truth stands above the samples, except in npz.

    Stopped by Ctrl-C, it writes what is done. Under torchrun, the processes share the samples.

    Args:
        model: a run's folder, a model's folder, or the name of a model that ships.
        prime: a video, picture or array file, cropped and resized as `prepare` does it; or STORE#INDEX, a clip of a
            store.
        out: what to write: .mp4, .webp, .gif, a .png strip with a sample a row, or .npz (lossless, samples alone).
        actions: .npy or .npz of shape (frames, size), or (samples, frames, size) for a sample each; by default those
            of the clip.
        prime_frames: how many frames are given; by default what the run says, else what the model was trained to be
            given.
        frames: of the whole video, the given ones counted; by default the model's length.
        samples: how many.
        temperature: 0.9 by default; 0 takes the likeliest value always.
        top_k: draw among the k likeliest values of a code.
        top_p: draw among the fewest values of a code that make up this probability.
        seed: of the noise; sample number i is the same however many there are.
        fps: frames a second of what is written.
        precision: of the products.
        device: cpu, cuda or cuda:N; by default a GPU where there is one.
        json: print one JSON object.
    """
    import numpy as np

    from framecast import device as devices
    from framecast import durable, media
    from framecast.model import checkpoint
    from framecast.model.video_transformer import VideoTransformer
    from framecast.training import distributed

    media.check_format(out)
    with distributed.job(device) as job:
        network = VideoTransformer.load(model, job.device).eval()
        config = network.config
        clip, own_actions = _clip(prime, config)
        given = _prime_frames(prime_frames, checkpoint.find(model), model, config, len(clip), prime)
        length = config.video_shape[0] if frames is None else frames
        order = Order(
            network,
            clip[:given] >> (8 - config.bits),
            length,
            _actions(actions, own_actions, config, length),
            {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed},
            precision,
        )
        numbers = np.arange(order.num_samples(samples))
        if job.leads:
            print(f"on {devices.described(job.device, job.world_size)}", file=sys.stderr, flush=True)
        start = time.monotonic()
        videos, stopped = order.carried_out(numbers[job.rank :: job.world_size], _reporter(job.leads))
        seconds = time.monotonic() - start
        videos = _together(videos, len(numbers), job)
    if job.leads:
        shown = _shown(videos, config, clip[:length] if len(clip) >= length else None, out)
        with durable.plain_errors(out.parent, "choose another --out"):
            media.write(out, shown, fps)
        facts = {
            "out": str(out),
            "model": model,
            "prime": prime,
            "samples": len(numbers),
            "frames": length,
            "prime_frames": given,
            "seed": seed,
            "precision": precision,
            "seconds": round(seconds, 3),
            "complete": stopped is None,
        }
        print(json_text.dumps(facts) if json else f"{out}: {len(numbers)} of {length} frames in {seconds:.0f} s")
    if stopped is not None:
        raise stopped


@dataclass(frozen=True)
class Order:
    """What to sample."""

    model: VideoTransformer
    prime: np.ndarray
    num_frames: int
    actions: np.ndarray | None  # (1 or samples, frames, size)
    settings: dict[str, Any]
    precision: str

    def num_samples(self, wanted: int | None) -> int:
        from framecast.errors import UserError

        sequences = 1 if self.actions is None else len(self.actions)
        if wanted is not None and wanted < 1:
            raise UserError(f"--samples is {wanted}: at least 1 must be drawn.")
        if wanted is not None and sequences not in (1, wanted):
            raise UserError(f"--samples is {wanted}, --actions has {sequences} sequences: give 1 or {wanted} of them.")
        if self.model.config.output == "scalar" and (wanted or 1) > sequences:
            raise UserError(
                f"--samples is {wanted}: a model with a scalar output draws nothing, all would be the same."
            )
        return wanted or sequences

    def carried_out(
        self, numbers: np.ndarray, report: Callable[[Progress, float], None]
    ) -> tuple[np.ndarray, BaseException | None]:
        """The samples of these numbers, and what stopped them early, if anything did; what is not drawn is zero."""
        import numpy as np
        import torch

        from framecast.sampling import sampler

        shape = (len(numbers), self.num_frames, *self.prime.shape[1:])
        videos = np.zeros(shape, np.uint8)
        videos[:, : len(self.prime)] = self.prime[: self.num_frames]
        kind = next(self.model.parameters()).device.type
        latest: Progress | None = None
        for first in range(0, len(numbers), DRAWN_TOGETHER):
            here = slice(first, first + DRAWN_TOGETHER)
            groups_left = (len(numbers) - 1 - first) // DRAWN_TOGETHER

            def keep(progress: Progress, groups_left: int = groups_left) -> None:
                nonlocal latest
                latest = progress
                whole = progress.seconds + progress.seconds_left
                report(progress, progress.seconds_left + whole * groups_left)

            actions = self.actions
            if actions is not None and len(actions) > 1:
                actions = actions[numbers[here]]
            try:
                with torch.autocast(kind, dtype=torch.bfloat16, enabled=self.precision == "bf16"):
                    drawn = sampler.sample(
                        self.model,
                        self.prime[None],
                        self.num_frames,
                        actions=actions,
                        samples=numbers[here],
                        progress=keep,
                        **self.settings,
                    )
            except (KeyboardInterrupt, SystemExit) as stop:
                if latest is not None:
                    videos[here] = latest.video().cpu().numpy()
                return videos, stop
            videos[here] = drawn.cpu().numpy()
            latest = None
        return videos, None


def _clip(prime: str, config: ModelConfig) -> tuple[np.ndarray, np.ndarray | None]:
    """The frames that are named, at the model's size, and their actions if they come with some."""
    from framecast.data.resize import resize
    from framecast.data.store import Store
    from framecast.data.video_file import read_clip
    from framecast.errors import UserError

    size, grey = (config.video_shape[1], config.video_shape[2]), config.num_channels == 1
    folder, mark, number = prime.rpartition("#")
    if not mark or Path(prime).exists():
        return read_clip(prime, size, grey=grey), None
    if not number.isdigit():
        raise UserError(f"--prime {prime} must end in the number of a clip, as in STORE#0, not in {number!r}.")
    store = Store(folder)
    if int(number) >= len(store):
        raise UserError(f"--prime {prime}: {folder} has {len(store)} clips, numbered from 0.")
    clip = store.clip(int(number))
    channels = clip.video.shape[-1]
    if channels != config.num_channels:
        raise UserError(
            f"the clips of {folder} have {channels} channel(s), this model takes {config.num_channels}: use a store "
            "that was made for it."
        )
    video = clip.video if clip.video.shape[1:3] == size else resize(clip.video, size)
    return video, clip.actions


def _prime_frames(wanted: int | None, folder: Path, run: str, config: ModelConfig, length: int, prime: str) -> int:
    from framecast.errors import UserError
    from framecast.training.run import read_config

    if wanted is not None and wanted < 0:
        raise UserError(f"--prime-frames is {wanted}: it counts the frames that are given, 0 for none.")
    if wanted is None:
        is_run = folder == Path(run) / "model"
        wanted = read_config(Path(run))[0].evaluation.prime_frames_samples if is_run else config.prime_frames
    if wanted > length:
        raise UserError(f"{prime} has {length} frame(s), {wanted} shall be given: choose with --prime-frames.")
    return wanted


def _actions(path: Path | None, own: np.ndarray | None, config: ModelConfig, length: int) -> np.ndarray | None:
    import numpy as np

    from framecast.errors import UserError

    if path is None:
        return None if own is None or not config.action_size else own[None, :length]
    try:
        loaded = np.load(path, allow_pickle=False)
        array = loaded if isinstance(loaded, np.ndarray) else loaded[loaded.files[0]]
    except (OSError, ValueError, IndexError) as error:
        raise UserError(f"--actions {path} is no .npy or .npz file: {error}.") from None
    if array.ndim not in (2, 3) or array.shape[-1] != config.action_size or not np.isrealobj(array):
        raise UserError(
            f"--actions {path} holds an array of shape {array.shape}; this model takes (frames, {config.action_size}) "
            f"or (samples, frames, {config.action_size})."
        )
    actions: np.ndarray = (array if array.ndim == 3 else array[None])[:, :length].astype(np.float32)
    return actions


def _together(videos: np.ndarray, num_samples: int, job: Job) -> np.ndarray:
    """Every process's samples, in order, where they are written."""
    import numpy as np
    from torch import distributed

    if job.world_size == 1:
        return videos
    parts: list[Any] | None = [None] * job.world_size if job.leads else None
    distributed.gather_object(videos, parts)
    if parts is None:
        return videos
    whole = np.zeros((num_samples, *videos.shape[1:]), np.uint8)
    for rank, part in enumerate(parts):
        whole[rank :: job.world_size] = part
    return whole


def _shown(videos: np.ndarray, config: ModelConfig, truth: np.ndarray | None, out: Path) -> np.ndarray:
    """What is written: the samples, and except in npz, the truth above them; at the full range of brightness."""
    import numpy as np

    from framecast import media

    kind = media.check_format(out)
    if kind == "npz":
        return videos
    maximum = 2**config.bits - 1
    videos = (videos.astype(np.uint16) * 255 // maximum).astype(np.uint8)
    if truth is None:
        return videos if kind == "png" else media.grid(videos)
    if kind == "png":
        return np.concatenate([truth[None], videos])
    return media.grid(np.concatenate([truth[None].repeat(len(videos), axis=0), videos]), columns=len(videos))


def _reporter(leads: bool) -> Callable[[Progress, float], None]:
    """Says now and then how far it is and how long it will take: on a terminal in place, else in lines."""
    last, on_terminal = time.monotonic(), sys.stderr.isatty()

    def report(progress: Progress, seconds_left: float) -> None:
        nonlocal last
        now = time.monotonic()
        if not leads or now - last < (0.2 if on_terminal else SECONDS_BETWEEN_LINES):
            return
        last = now
        line = (
            f"slice {progress.slice + 1} of {progress.num_slices}, wave {progress.wave} of {progress.num_waves}, "
            f"{seconds_left:.0f} s left"
        )
        print(f"\r\033[K{line}" if on_terminal else line, end="" if on_terminal else "\n", file=sys.stderr, flush=True)

    return report
