"""What a model makes of given videos: the nats of each pixel, by its codes and by its expected intensity.

Moving MNIST's nats/frame is the loss −z ln y − (1 − z) ln(1 − y) of a grey target z in [0, 1] (Appendix "Further
benchmarks"). A model with a scalar output predicts y; one with codes has y = E[x] / 255.

B videos · T H W C a video · n any axes · D hidden size · K codes of a pixel · V values of all codes
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from framecast.model.head import CodeHead, ScalarHead
from framecast.model.video_transformer import VideoTransformer
from framecast.ops import channels, subscale
from framecast.ops.windows import windows

if TYPE_CHECKING:
    from jaxtyping import Float, UInt8

AT_ONCE = 4  # videos: more take memory, and are no faster
LEAST_LOG = -100.0  # as PyTorch's binary cross-entropy has it: one certain mistake is not infinite


@dataclass(frozen=True)
class Nats:
    """Of each pixel; zero in the primed frames, which are not looked at."""

    codes: Float[Tensor, "B T H W"] | None
    """−ln p, where the model has a likelihood."""
    intensity: Float[Tensor, "B T H W"] | None
    """The loss of the expected intensity, where videos are grey."""


@torch.no_grad()
def score(
    model: VideoTransformer,
    video: UInt8[np.ndarray, "B T H W C"],
    actions: Float[np.ndarray, "B T A"] | None = None,
    prime_frames: int = 0,
    *,
    intensity: bool = True,
) -> Nats:
    """The same numbers as `model.nats`; slices of primed frames alone are left out, which saves their time."""
    videos, all_actions = model.checked(video, actions)
    intensity = intensity and model.config.num_channels == 1
    parts = []
    for start in range(0, len(videos), AT_ONCE):
        some = slice(start, start + AT_ONCE)
        some_actions = None if all_actions is None else all_actions[some]
        parts.append(_score_chain(model, videos[some], some_actions, prime_frames, intensity))
    return Nats(*(None if column[0] is None else torch.cat(column) for column in zip(*parts, strict=True)))


def _score_chain(
    model: VideoTransformer,
    video: UInt8[Tensor, "B T H W C"],
    actions: Float[Tensor, "B T A"] | None,
    prime_frames: int,
    intensity: bool,
) -> tuple[Float[Tensor, "B T H W"] | None, Float[Tensor, "B T H W"] | None]:
    """Window by window, where the video is longer than the model."""
    config = model.config
    parts = []
    for window in windows(video.shape[1], config.video_shape[0], config.overlap):
        frames = slice(window.start, window.start + config.video_shape[0])
        first_frame = max(window.known, prime_frames - window.start)
        some_actions = None if actions is None else actions[:, frames]
        of_window = _score_window(model, video[:, frames], some_actions, first_frame, intensity)
        parts.append([None if nats is None else nats[:, window.known :] for nats in of_window])
    codes, intensities = (
        None if column[0] is None else torch.cat(column, dim=1) for column in zip(*parts, strict=True)
    )
    return codes, intensities


def _score_window(
    model: VideoTransformer,
    video: UInt8[Tensor, "B T H W C"],
    actions: Float[Tensor, "B T A"] | None,
    first_frame: int,
    intensity: bool,
) -> tuple[Float[Tensor, "B T H W"] | None, Float[Tensor, "B T H W"] | None]:
    """From `first_frame` on, zero before it."""
    config, head = model.config, model.head
    s_t, s_h, s_w = config.subscale_factor
    features = model.features(video)
    codes, intensities = (torch.zeros(video.shape[:-1], dtype=torch.float64, device=video.device) for _ in range(2))
    for index in range(config.num_slices):
        last_frame = config.video_shape[0] - s_t + index // (s_h * s_w)
        if last_frame < first_frame:
            continue
        here = torch.full((len(video),), index, device=video.device)
        y = model.states(features, here, actions)
        pixels = subscale.take(video, here, config.subscale_factor)
        if isinstance(head, ScalarHead):
            subscale.put(intensities, head.nats(y, pixels).sum(-1).double(), here, config.subscale_factor)
            continue
        of_codes = channels.split(pixels, config.code_bits)
        nats = head.nats(y, model.one_hot(of_codes), of_codes).sum(-1).double()
        subscale.put(codes, nats, here, config.subscale_factor)
        if intensity:
            nats = _intensity_nats(head, y, pixels.squeeze(-1), config.code_bits)
            subscale.put(intensities, nats, here, config.subscale_factor)
    for nats in (codes, intensities):
        nats[:, :first_frame] = 0
    scalar = isinstance(head, ScalarHead)
    return None if scalar else codes, intensities if scalar or intensity else None


def _intensity_nats(
    head: CodeHead, y: Float[Tensor, "*n D"], pixels: UInt8[Tensor, "*n"], code_bits: tuple[int, ...]
) -> Float[Tensor, "*n"]:
    maximum = 2 ** sum(code_bits) - 1
    bright, dark = expected_intensity(head, y, code_bits)
    log_bright, log_dark = (expected.log().clamp(min=LEAST_LOG) for expected in (bright, dark))
    z = pixels.double() / maximum
    return -(z * log_bright + (1 - z) * log_dark)


def expected_intensity(
    head: CodeHead, y: Float[Tensor, "*n D"], code_bits: tuple[int, ...]
) -> tuple[Float[Tensor, "*n"], Float[Tensor, "*n"]]:
    """E[x] and E[maximum − x] as fractions of the maximum, each without cancellation, of a grey pixel.

    The last code's distribution rests on the codes before it, so that the head is asked once for each of their values.
    """
    *earlier, last = (2**bits for bits in code_bits)
    maximum = 2 ** sum(code_bits) - 1
    values = torch.arange(last, device=y.device, dtype=torch.float64)
    bright, dark = (torch.zeros(y.shape[:-1], dtype=torch.float64, device=y.device) for _ in range(2))
    for prefix in itertools.product(*map(range, earlier)):
        codes = torch.tensor([*prefix, 0], dtype=torch.uint8, device=y.device).expand(*y.shape[:-1], -1)
        one_hot = channels.one_hot(codes, head.num_code_values, y.dtype)
        log_p = head(y, one_hot).double().log_softmax(dim=-1)
        of_prefix = sum((log_p[..., i, value] for i, value in enumerate(prefix)), torch.zeros_like(bright))
        p = (of_prefix.unsqueeze(-1) + log_p[..., -1, :last]).exp()
        base = _joined(prefix, code_bits)
        bright += p @ ((base + values) / maximum)
        dark += p @ ((maximum - base - values) / maximum)
    return bright, dark


def _joined(prefix: tuple[int, ...], code_bits: tuple[int, ...]) -> int:
    """The smallest value whose codes begin so."""
    value = 0
    for code, bits in itertools.zip_longest(prefix, code_bits, fillvalue=0):
        value = (value << bits) | code
    return value


def floor(video: UInt8[np.ndarray, "B T H W 1"]) -> Float[np.ndarray, "B T"]:
    """The least nats of each frame that any prediction of intensities can reach: the entropy of the targets."""
    z = np.arange(256) / 255
    inner = z[1:-1]
    entropy = np.zeros(256)
    entropy[1:-1] = -(inner * np.log(inner) + (1 - inner) * np.log1p(-inner))
    return entropy[video].sum(axis=(2, 3, 4))


@dataclass(frozen=True)
class Mean:
    """Over videos, with what it may be off by."""

    mean: float
    standard_error: float | None
    """None for a single video."""

    @classmethod
    def of(cls, values: Float[np.ndarray, "B"]) -> Mean:
        spread = float(values.std(ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else None
        return cls(float(values.mean()), spread)


def per_dim(nats: Float[np.ndarray, "B frames"], values_per_frame: int) -> Float[np.ndarray, "B frames"]:
    """Bits per value of a channel, from nats per frame: a uniform model of 8-bit video scores 8."""
    return nats / (math.log(2) * values_per_frame)
