"""The Video Transformer (§3): a video's probability as the product of its slices', pixels' and codes' probabilities.

B batch · T H W C a video · t h w extents of a slice · K codes of a pixel · F features of a pixel
V values of all codes
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from framecast.config import ModelConfig
from framecast.errors import UserError
from framecast.model import checkpoint
from framecast.model.decoder import SliceDecoder
from framecast.model.encoder import SliceEncoder
from framecast.model.head import CodeHead, ScalarHead
from framecast.model.layer import LayerStack
from framecast.ops import channels, subscale
from framecast.ops.precision import product_dtype
from framecast.ops.windows import windows

if TYPE_CHECKING:
    from jaxtyping import Float, Int, UInt8


class VideoTransformer(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        continuous = config.inputs == "continuous"
        # One-hot codes, of which one value each is active; or the channels' intensities and a one for "visible".
        num_features = config.num_channels + 1 if continuous else sum(config.num_code_values)
        active_features = config.num_channels + 1 if continuous else len(config.num_code_values)
        self.encoder = SliceEncoder(config, num_features, active_features)
        self.decoder = SliceDecoder(config, config.decoder_layers, num_features, active_features)
        self.first_slice_decoder = (
            SliceDecoder(config, config.first_slice_layers, num_features, active_features, conditioned=False)
            if config.first_slice_layers
            else None
        )
        self.head = ScalarHead(config) if config.output == "scalar" else CodeHead(config)

    def forward(
        self,
        video: UInt8[Tensor, "B T H W C"],
        slice_index: Int[Tensor, "B"],
        actions: Float[Tensor, "B T A"] | None = None,
    ) -> Float[Tensor, "B t h w K"]:
        """The loss in nats of each code (or scalar) of one slice of each video, given the slices before it.

        The videos are the model's own length, their pixels in range: `checked` answers for what people pass.
        """
        config = self.config
        features = self.features(video)
        here = subscale.take(video, slice_index, config.subscale_factor)
        y = self.states(features, slice_index, actions)
        if isinstance(self.head, ScalarHead):
            return self.head.nats(y, here)
        codes = channels.split(here, config.code_bits)
        return self.head.nats(y, self.one_hot(codes), codes)

    def features(self, video: UInt8[Tensor, "B T H W C"]) -> Float[Tensor, "B T H W F"]:
        """What the encoder and the decoder see of a pixel that they may see; hidden pixels are all zero."""
        config = self.config
        if config.inputs == "onehot":
            return self.one_hot(channels.split(video, config.code_bits))
        dtype = product_dtype(self.decoder.embedding.weight)
        intensities = video.to(dtype) * (2 / (2**config.bits - 1)) - 1
        return torch.cat([intensities, torch.ones_like(intensities[..., :1])], dim=-1)

    def one_hot(self, codes: UInt8[Tensor, "*n K"]) -> Float[Tensor, "*n V"]:
        """In the precision of the products that read it."""
        return channels.one_hot(codes, self.config.num_code_values, product_dtype(self.decoder.embedding.weight))

    def states(
        self,
        features: Float[Tensor, "B T H W F"],
        slice_index: Int[Tensor, "B"],
        actions: Float[Tensor, "B T A"] | None = None,
    ) -> Float[Tensor, "B t h w D"]:
        """y^L of one slice of each video: what its pixels are predicted from."""
        here = subscale.take(features, slice_index, self.config.subscale_factor)
        if self.first_slice_decoder is None:
            return self.decoder(here, self.encoder(features, slice_index, actions))
        # Both decoders run, on nothing if need be, so that every parameter has a gradient on every rank.
        first, later = (slice_index == 0).nonzero().flatten(), (slice_index != 0).nonzero().flatten()
        later_actions = None if actions is None else actions[later]
        y_first = self.first_slice_decoder(here[first])
        y_later = self.decoder(here[later], self.encoder(features[later], slice_index[later], later_actions))
        return torch.cat([y_first, y_later])[torch.cat([first, later]).argsort()]

    def checkpoint_activations(self) -> None:
        """From now on, compute each layer again in the backward pass rather than keep what it computed."""
        for module in self.modules():
            if isinstance(module, LayerStack):
                module.checkpointing = True

    @torch.no_grad()
    def log_prob(
        self,
        video: UInt8[Tensor, "B frames H W C"] | np.ndarray,
        actions: Float[Tensor, "B frames A"] | np.ndarray | None = None,
    ) -> Float[Tensor, "B frames H W"]:
        """ln p of each pixel given those before it, in the order of slices and of the raster scan within a slice.

        A longer video than the model's is read in chained windows. The frames that training always masks
        (`config.prime_frames`) were never learned: their numbers mean nothing beyond being a probability.
        """
        if isinstance(self.head, ScalarHead):
            raise UserError(
                "a model with a scalar output has no log_prob: its loss is no normalised likelihood. Use a model with "
                "output='codes', or measure nats/frame."
            )
        return -self.nats(video, actions)

    @torch.no_grad()
    def nats(
        self,
        video: UInt8[Tensor, "B frames H W C"] | np.ndarray,
        actions: Float[Tensor, "B frames A"] | np.ndarray | None = None,
    ) -> Float[Tensor, "B frames H W"]:
        """The loss in nats of each pixel: −ln p of its codes, or the scalar head's loss."""
        video, actions = self.checked(video, actions)
        config = self.config
        length = config.video_shape[0]
        s_t, s_h, s_w = config.subscale_factor
        nats = []
        for window in windows(video.shape[1], length, config.overlap):
            frames = slice(window.start, window.start + length)
            clip, clip_actions = video[:, frames], None if actions is None else actions[:, frames]
            scores = torch.zeros(clip.shape[:-1], device=video.device, dtype=torch.float64)
            for index in range(config.num_slices):
                last_frame = length - s_t + index // (s_h * s_w)
                if last_frame >= window.known:  # else all of the slice's frames were scored before
                    here = torch.full((len(clip),), index, device=video.device)
                    of_slice = self(clip, here, clip_actions).sum(-1)
                    subscale.put(scores, of_slice.double(), here, config.subscale_factor)
            nats.append(scores[:, window.known :])
        return torch.cat(nats, dim=1)

    def checked(
        self, video: Tensor | np.ndarray, actions: Tensor | np.ndarray | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """What a person passed, on the model's device; or one sentence on why it cannot be a video of this model."""
        weight = self.decoder.embedding.weight
        video = torch.from_numpy(np.array(video)) if isinstance(video, np.ndarray) else video
        _check_video(video, self.config)
        if actions is None and not self.config.action_size:
            return video.to(weight.device), None
        if actions is None:
            raise UserError(
                f"this model needs actions of shape (batch, frames, {self.config.action_size}): none given."
            )
        actions = torch.from_numpy(np.array(actions)) if isinstance(actions, np.ndarray) else actions
        _check_actions(actions, video, self.config)
        return video.to(weight.device), actions.to(weight)

    def save(self, path: str | Path) -> None:
        """Write a folder with model.safetensors and config.json, whole or not at all."""
        checkpoint.write(Path(path), self.config, self.state_dict())

    @classmethod
    def load(cls, path: str | Path, device: str | torch.device = "cpu") -> VideoTransformer:
        """The model in a folder (or a run's, or one that ships), strictly: every weight there, none besides."""
        folder = checkpoint.find(path)
        config, weights = checkpoint.read(folder)
        with torch.device("meta"):  # what a file claims is held against its weights before memory is taken
            checkpoint.check_fits(weights, cls(config).state_dict(), folder)
        model = cls(config)
        model = model.to(next(iter(weights.values())).dtype)
        model.load_state_dict(weights)
        return model.to(device)


def bits_per_dim(
    model: VideoTransformer,
    video: UInt8[Tensor, "B frames H W C"] | np.ndarray,
    prime_frames: int = 1,
    actions: Float[Tensor, "B frames A"] | np.ndarray | None = None,
) -> Float[Tensor, "B"]:
    """−log2 p per value of a channel, over all frames but the first `prime_frames`: one number per video.

    Per (RGB) value and not per code: a uniform model of 8-bit video scores 8.
    """
    frames = video.shape[1] if video.ndim == 5 else 0
    log_prob = model.log_prob(video, actions)
    if not 0 <= prime_frames < frames:
        raise UserError(f"prime_frames is {prime_frames}: of {frames} frames, one must be predicted.")
    return -log_prob[:, prime_frames:].mean(dim=(1, 2, 3)) / (math.log(2) * video.shape[-1])


def _check_video(video: Tensor, config: ModelConfig) -> None:
    length, *size = config.video_shape
    expected = f"(batch, frames, {size[0]}, {size[1]}, {config.num_channels})"
    if video.dtype != torch.uint8:
        raise UserError(f"a video holds uint8 values, this one {_name(video.dtype)}.")
    if video.ndim != 5 or list(video.shape[2:4]) != size:
        raise UserError(f"this model takes videos of shape {expected}, not {tuple(video.shape)}.")
    if video.shape[-1] != config.num_channels:
        raise UserError(f"this model takes {config.num_channels} channel(s), the video has {video.shape[-1]}.")
    if not len(video):
        raise UserError(f"there is no video in a batch of shape {tuple(video.shape)}.")
    if video.shape[1] < length:
        raise UserError(f"this model takes videos of at least {length} frames, this one has {video.shape[1]}.")
    if config.bits < 8 and (largest := int(video.max())) >= 2**config.bits:
        raise UserError(f"a value of {config.bits} bit(s) is at most {2**config.bits - 1}, the video has {largest}.")


def _check_actions(actions: Tensor, video: Tensor, config: ModelConfig) -> None:
    expected = (*video.shape[:2], config.action_size)
    if not config.action_size:
        raise UserError(f"this model takes no actions, and was given some of shape {tuple(actions.shape)}.")
    if tuple(actions.shape) != expected:
        raise UserError(f"this video needs actions of shape {expected}, not {tuple(actions.shape)}.")
    if not actions.is_floating_point():
        raise UserError(f"actions are floating-point numbers, not {_name(actions.dtype)}.")
    if not torch.isfinite(actions).all():
        raise UserError("actions must be finite: there is a NaN or an infinity among them.")


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
