"""The Fréchet Video Distance (Unterthiner et al., 2018): two sets of clips, each taken as a Gaussian of I3D's features.

Frames are resized to 224×224 as TensorFlow 1's `resize_bilinear` did, without half-pixel centres, since the published
numbers were computed so. PyTorch ports interpolate between pixel centres instead: `resize="half-pixel"` is theirs.

N clips · T H W C frames · F features · S source size
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import Tensor

from framecast.device import choose
from framecast.errors import UserError
from framecast.evaluation import i3d
from framecast.evaluation.i3d import I3D

if TYPE_CHECKING:
    from jaxtyping import Float, UInt8

Resize = Literal["tf1", "half-pixel"]

NUM_FRAMES = 16  # of a clip as the published numbers have it
ENOUGH_CLIPS = 256  # of the smallest set that numbers were published of, BAIR's test set
BATCH_CLIPS = {"cpu": 4, "cuda": 16}


def fvd(
    real: np.ndarray | Tensor,
    generated: np.ndarray | Tensor,
    *,
    weights: str | Path | None = None,
    resize: Resize = "tf1",
    device: str | None = None,
) -> float:
    """The distance of two sets of clips, uint8 (N, T, H, W, C) each, over all their frames; 0 for identical sets.

    `weights` is the published file of I3D's weights; without it they come from the cache, or are fetched.
    """
    for name, videos in (("real", real), ("generated", generated)):
        check_clips(name, videos)
    if real.shape[1:4] != generated.shape[1:4]:
        shapes = [tuple(videos.shape[1:4]) for videos in (real, generated)]
        raise UserError(
            f"the two sets must be of one length and size: (frames, height, width) {shapes[0]}, {shapes[1]}."
        )
    for complaint in complaints(len(real), len(generated), real.shape[1]):
        warnings.warn(complaint, stacklevel=2)
    network = i3d.load(weights, choose(device))
    first, second = (Moments.of(features(network, videos, resize)) for videos in (real, generated))
    return frechet(first, second)


def check_clips(name: str, videos: np.ndarray | Tensor) -> None:
    """Refuse what the network cannot read."""
    if videos.dtype not in (np.uint8, torch.uint8):
        raise UserError(f"the {name} clips must be uint8, not {str(videos.dtype).removeprefix('torch.')}.")
    if videos.ndim != 5 or videos.shape[-1] not in (1, 3):
        raise UserError(
            f"the {name} clips must be (clips, frames, height, width, 1 or 3 channels), not {tuple(videos.shape)}."
        )
    if len(videos) < 2:
        raise UserError(f"the {name} set has {len(videos)} clip(s): a covariance takes at least 2, FVD some hundreds.")
    if videos.shape[1] < i3d.MIN_FRAMES:
        raise UserError(
            f"the {name} clips have {videos.shape[1]} frames: I3D reads at least {i3d.MIN_FRAMES}, "
            f"and FVD is published for {NUM_FRAMES}."
        )


def complaints(num_real: int, num_generated: int, num_frames: int) -> list[str]:
    """Why a number may not mean what it seems to."""
    found = []
    if min(num_real, num_generated) < ENOUGH_CLIPS:
        found.append(
            f"FVD of {num_real} real against {num_generated} generated clips says little: its bias grows as sets "
            f"shrink, and the covariance of {i3d.NUM_FEATURES} features takes more than {i3d.NUM_FEATURES} clips. "
            f"Published numbers use {ENOUGH_CLIPS} or more."
        )
    if num_frames < NUM_FRAMES:
        found.append(f"FVD of {num_frames} frames is not comparable with published numbers, which use {NUM_FRAMES}.")
    return found


@dataclass(frozen=True)
class Moments:
    """Mean and covariance of features, in float64; those of a union are the sum of those of its parts."""

    count: int
    mean: Float[Tensor, "F"]
    scatter: Float[Tensor, "F F"]
    """Σ (x − mean)(x − mean)ᵀ"""

    @classmethod
    def of(cls, features: Float[Tensor, "N F"]) -> Moments:
        x = features.double().cpu()
        mean = x.mean(dim=0)
        centred = x - mean
        return cls(len(x), mean, centred.T @ centred)

    def __add__(self, other: Moments) -> Moments:
        count = self.count + other.count
        step = other.mean - self.mean
        between = torch.outer(step, step) * (self.count * other.count / count)
        return Moments(count, self.mean + step * (other.count / count), self.scatter + other.scatter + between)

    @property
    def covariance(self) -> Float[Tensor, "F F"]:
        return self.scatter / (self.count - 1)

    @cached_property
    def root(self) -> Float[Tensor, "F F"]:
        """R with RRᵀ the covariance, without the directions whose variance is rounding: a root would magnify it."""
        values, vectors = torch.linalg.eigh(self.covariance)
        rounding = len(values) * torch.finfo(values.dtype).eps * values.abs().max()
        return vectors * values.where(values > rounding, 0).sqrt()


def frechet(first: Moments, second: Moments) -> float:
    """|μ₁ − μ₂|² + tr(Σ₁ + Σ₂ − 2 (Σ₁Σ₂)^½).

    With Σ = RRᵀ, the trace of the root is the sum of the singular values of R₁ᵀR₂, which exists for covariances of any
    rank; the root of the product itself, by Schur's method, is noise when there are fewer clips than features.
    """
    singular = torch.linalg.svdvals(first.root.T @ second.root)
    spread = first.covariance.trace() + second.covariance.trace() - 2 * singular.sum()
    distance = (first.mean - second.mean).square().sum() + spread
    return max(float(distance), 0.0)  # below 0 by rounding alone


@torch.no_grad()
def features(
    network: I3D,
    videos: UInt8[np.ndarray, "N T H W C"] | UInt8[Tensor, "N T H W C"],
    resize: Resize = "tf1",
) -> Float[Tensor, "N F"]:
    """I3D's logits of each clip, a few clips at a time, whatever their number."""
    device = network.Logits.weight.device
    size = BATCH_CLIPS.get(device.type, 4)
    rows = []
    # A GPU's convolutions round to TF32 unless told otherwise, which the features show in the third digit.
    with torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=False):
        for start in range(0, len(videos), size):
            part = videos[start : start + size]
            part = (torch.from_numpy(np.array(part)) if isinstance(part, np.ndarray) else part).to(device)
            rows.append(network(network_input(part, resize)).cpu())
    return torch.cat(rows)


def window_features(
    network: I3D, videos: UInt8[np.ndarray, "N T H W C"], resize: Resize = "tf1"
) -> Float[np.ndarray, "N windows F"]:
    """Features of every contiguous window of 16 frames."""
    windows = range(videos.shape[1] - NUM_FRAMES + 1)
    of_windows = [features(network, videos[:, start : start + NUM_FRAMES], resize) for start in windows]
    return torch.stack(of_windows, dim=1).numpy()


def network_input(videos: UInt8[Tensor, "N T H W C"], resize: Resize = "tf1") -> Float[Tensor, "N T 224 224 3"]:
    """Grey repeated to three channels, resized, 0 … 255 to −1 … 1."""
    count, num_frames, height, width, _ = videos.shape
    frames = videos.float().expand(-1, -1, -1, -1, 3).flatten(0, 1)
    rows = _interpolation(height, resize, videos.device)
    columns = torch.kron(_interpolation(width, resize, videos.device), torch.eye(3, device=videos.device))
    resized = rows @ frames.flatten(-2) @ columns.T
    return (resized * (2 / 255) - 1).view(count, num_frames, i3d.SIZE, i3d.SIZE, 3)


@cache
def _interpolation(size: int, resize: Resize, device: torch.device) -> Float[Tensor, "224 S"]:
    """Linear interpolation along one axis as a matrix."""
    place = torch.arange(i3d.SIZE, dtype=torch.float64)
    offset = 0.0 if resize == "tf1" else 0.5
    source = ((place + offset) * (size / i3d.SIZE) - offset).clamp(min=0)
    lower = source.floor().long()
    upper = (lower + 1).clamp(max=size - 1)
    share = (source - lower).float()
    matrix = torch.zeros(i3d.SIZE, size)
    matrix[torch.arange(i3d.SIZE), lower] += 1 - share
    matrix[torch.arange(i3d.SIZE), upper] += share
    return matrix.to(device)
