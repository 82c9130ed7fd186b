"""The definition of right: for every pixel the whole model, for every code the whole head, nothing kept. Far too slow.

B samples · F frames of the video · H W C a frame · K codes of a pixel
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch

from framecast.model.head import ScalarHead
from framecast.ops import channels, subscale
from framecast.ops.precision import at_least_float32
from framecast.ops.windows import windows
from framecast.sampling import noise
from framecast.sampling.choose import Chooser, Where

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int, UInt8
    from torch import Tensor

    from framecast.model.video_transformer import VideoTransformer


@torch.no_grad()
def sample(
    model: VideoTransformer,
    video: UInt8[Tensor, "B F H W C"],
    known: Bool[Tensor, "B F H W"],
    choose: Chooser,
    seed: int,
    samples: Int[Tensor, "B"],
    actions: Float[Tensor, "B F A"] | None = None,
) -> UInt8[Tensor, "B F H W C"]:
    """The video with every pixel drawn that is not known, in the order of slices and of the raster scan within one."""
    config, video = model.config, video.clone()
    pixels = video.view(len(video), -1, config.num_channels)
    numbers = torch.arange(pixels.shape[1]).view(1, *video.shape[1:4])
    for window in windows(video.shape[1], config.video_shape[0], config.overlap):
        frames = slice(window.start, window.start + config.video_shape[0])
        first_new = numbers[0, window.start + window.known, 0, 0]  # those before it belong to earlier windows
        clip_actions = None if actions is None else actions[:, frames]
        for slice_index in torch.arange(config.num_slices).view(-1, 1):
            of_slice = subscale.take(numbers[:, frames], slice_index, config.subscale_factor).flatten()
            for position, number in enumerate(of_slice):
                if number < first_new:
                    continue
                y = model.states(model.features(video[:, frames]), slice_index.expand(len(video)), clip_actions)
                drawn = _pixel(model, y.flatten(1, 3)[:, position], choose, seed, samples, number[None])
                free = ~known.flatten(1)[:, number, None]
                pixels[:, number] = torch.where(free, drawn, pixels[:, number])
    return video


def _pixel(
    model: VideoTransformer,
    y: Float[Tensor, "B D"],
    choose: Chooser,
    seed: int,
    samples: Int[Tensor, "B"],
    number: Int[Tensor, "1"],
) -> UInt8[Tensor, "B C"]:
    if isinstance(model.head, ScalarHead):
        return torch.round(torch.sigmoid(model.head(y)) * model.head.maximum).to(torch.uint8)
    num_code_values = model.config.num_code_values
    codes = torch.zeros(len(y), len(num_code_values), dtype=torch.uint8)
    for code, num_values in enumerate(num_code_values):
        logits = at_least_float32(model.head(y, model.one_hot(codes))[:, code, :num_values])
        gumbel = partial(noise.gumbel, seed, samples, number, code, num_values)
        codes[:, code] = choose(logits[None], Where(samples, number, code, gumbel))[0]
    return channels.join(codes, model.config.code_bits)
