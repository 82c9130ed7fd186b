"""Who is scored, on what: a model with its settings, and the clips of a store.

B clips of a block · T H W C a clip · A numbers of an action
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from framecast.config import EvaluationConfig, ModelConfig, PaperFigures
from framecast.data.store import Store
from framecast.errors import UserError
from framecast.evaluation import fvd
from framecast.evaluation.frame_metrics import WINDOW
from framecast.model.video_transformer import VideoTransformer
from framecast.presets import preset

if TYPE_CHECKING:
    from jaxtyping import Float32, UInt8

METRICS = ("bits", "nats", "fvd", "psnr", "ssim")
BLOCK = 16  # clips of a piece of work

# Presets whose settings stand for those of a dataset, where a model comes without its run.
TYPICAL = {
    "bair": "bair-spatiotemporal-base",
    "kinetics600": "kinetics-spatiotemporal-base",
    "moving-mnist": "moving-mnist-single-frame-base",
    "robotic-pushing": "robotic-pushing-spatiotemporal-large",
}


@dataclass(frozen=True)
class Subject:
    """A model, and how it is to be scored."""

    name: str
    path: str
    sha256: str
    """Of its configuration, which holds that of its weights."""
    model: VideoTransformer
    settings: EvaluationConfig
    preset: str = ""
    paper: PaperFigures = field(default_factory=PaperFigures)

    @property
    def draws(self) -> bool:
        """A scalar output predicts one intensity and draws nothing."""
        return self.model.config.output == "codes"


@dataclass(frozen=True)
class Clips:
    """Clips of a store in the order in which they are scored."""

    store: Store
    split: str
    indices: Sequence[int]

    def __len__(self) -> int:
        return len(self.indices)

    @cached_property
    def shortest(self) -> int:
        return min(self.store.num_frames(index) for index in self.indices)

    @property
    def blocks(self) -> list[range]:
        """Positions in `indices`, not numbers of clips."""
        return [range(start, min(start + BLOCK, len(self))) for start in range(0, len(self), BLOCK)]

    def videos(self, block: range, num_frames: int) -> UInt8[np.ndarray, "B T H W C"]:
        return np.stack([self.store.frames(self.indices[i], 0, num_frames) for i in block])

    def actions(self, block: range, num_frames: int) -> Float32[np.ndarray, "B T A"] | None:
        if not self.store.action_size:
            return None
        return np.stack([self.store.actions(self.indices[i], 0, num_frames) for i in block])


def choose_clips(store: Store, split: str, num_videos: int | None) -> Clips:
    """The first clips of a split."""
    indices = store.indices_or_range(split)
    if not len(indices):
        counts = ", ".join(f"{len(store.indices_or_range(other))} of {other}" for other in ("train", "val", "test"))
        raise UserError(f"{store.path} has no clips of the split {split!r}: it has {counts}. Choose another --split.")
    if num_videos is not None and not 1 <= num_videos <= len(indices):
        raise UserError(f"--num-videos is {num_videos}: the split {split!r} of {store.path} has {len(indices)} clips.")
    return Clips(store, split, [int(index) for index in indices[:num_videos]])


def check_match(subject: Subject, clips: Clips, metrics: Sequence[str]) -> None:
    """Refuse a model and a store that do not belong together, or clips too short for what is asked."""
    config, store = subject.model.config, clips.store
    expected = (*config.video_shape[1:], config.num_channels)
    if store.frame_shape != expected:
        raise UserError(
            f"{subject.name} models frames of {_times(expected)} and {store.path} holds {_times(store.frame_shape)}: "
            "prepare the store with --size, or evaluate on the store that the model was trained on."
        )
    if store.action_size < config.action_size:
        raise UserError(
            f"{subject.name} takes actions of {config.action_size} numbers and those of {store.path} have "
            f"{store.action_size}: evaluate it on a store with such actions."
        )
    needed = {"the model's own length": config.video_shape[0]}
    if {"bits", "nats"} & set(metrics):
        needed["the likelihood"] = subject.settings.num_frames_likelihood
    if {"fvd", "psnr", "ssim"} & set(metrics):
        needed["sampling"] = subject.settings.num_frames_samples
    if "fvd" in metrics:
        needed["FVD"] = fvd.NUM_FRAMES
        if (sampled := subject.settings.num_frames_samples) < fvd.NUM_FRAMES <= clips.shortest:
            raise UserError(f"FVD reads {fvd.NUM_FRAMES} frames and {sampled} are sampled: give more --frames.")
    for what, num_frames in needed.items():
        if clips.shortest < num_frames:
            raise UserError(
                f"the shortest clip of the split {clips.split!r} of {store.path} has {clips.shortest} frames, and "
                f"{what} takes {num_frames}: prepare longer clips, or choose other --metrics than {', '.join(metrics)}."
            )
    if "ssim" in metrics and min(expected[:2]) < WINDOW:
        raise UserError(f"SSIM has a window of {WINDOW}×{WINDOW}, the frames are {expected[0]}×{expected[1]}.")


def applicable(subject: Subject, clips: Clips) -> list[str]:
    """The metrics that mean something for this model and these clips."""
    config = subject.model.config
    ways = {
        "bits": subject.draws,
        "nats": config.num_channels == 1,
        "fvd": clips.shortest >= fvd.NUM_FRAMES,
        "psnr": True,
        "ssim": min(config.video_shape[1:]) >= WINDOW,
    }
    return [metric for metric in METRICS if ways[metric]]


def typical_settings(store: Store) -> EvaluationConfig:
    """How models of such data are scored, for a model that comes without its run."""
    return preset(TYPICAL[store.dataset]).evaluation if store.dataset in TYPICAL else EvaluationConfig()


def fitted(
    settings: EvaluationConfig, config: ModelConfig, shortest: int, changes: Mapping[str, Any] | None = None
) -> EvaluationConfig:
    """The settings for clips that may be shorter than they ask for, and for a model that may be longer.

    Frames that training never scores are not scored here either. What a person says of it (`changes`) goes first.
    """
    prime_likelihood = max(settings.prime_frames_likelihood, config.prime_frames)
    prime_samples = max(settings.prime_frames_samples, config.prime_frames)
    length = config.video_shape[0]
    fitting = {
        "prime_frames_likelihood": prime_likelihood,
        "prime_frames_samples": prime_samples,
        "num_frames_likelihood": max(min(settings.num_frames_likelihood, shortest), length),
        "num_frames_samples": max(min(settings.num_frames_samples, shortest), length),
        "trials": settings.trials if config.output == "codes" else 1,
    }
    return replace(settings, **{**fitting, **(changes or {})})


def _times(extent: Sequence[int]) -> str:
    return "×".join(map(str, extent))
