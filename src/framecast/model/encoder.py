"""The slice encoder (§3.2): what earlier slices show, seen from the pixels of the slice that comes next.

B batch · T H W extents of the video · t h w extents of a slice · F features of a pixel · A numbers of an action
D hidden size
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from framecast.config import ModelConfig
from framecast.model.convolutions import ContextConvolution
from framecast.model.embeddings import AxisPositions, SliceIndex
from framecast.model.layer import LayerStack
from framecast.ops import subscale
from framecast.ops.precision import product_dtype

if TYPE_CHECKING:
    from jaxtyping import Float, Int


class Actions(nn.Module):
    """The standardised actions of the frames that a slice holds: each frame's own, or those that lead up to it."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        size = config.action_size
        # Of the configuration, not of the weights: what people pass is raw.
        self.register_buffer("mean", torch.tensor(config.action_mean or [0.0] * size), persistent=False)
        self.register_buffer("deviation", torch.tensor(config.action_deviation or [1.0] * size), persistent=False)

    def forward(
        self, actions: Float[Tensor, "B T A"], slice_index: Int[Tensor, "B"]
    ) -> Float[Tensor, "B t 1 1 inputs"]:
        frames = (actions - self.mean) / self.deviation
        if self.config.actions == "window":
            # action[t] leads from frame t to t + 1, so those of frames f − n … f − 1 lead up to f; zeros before frame 0
            earlier = functional.pad(frames, (0, 0, self.config.action_window, 0))
            frames = earlier.unfold(1, self.config.action_window, 1)[:, :-1].flatten(2)
        factor = self.config.subscale_factor
        a, _, _ = subscale.offset_of(slice_index, factor)
        return subscale.take(frames[:, :, None, None], a, (factor[0], 1, 1))


class SliceEncoder(nn.Module):
    def __init__(self, config: ModelConfig, num_features: int, active_features: int) -> None:
        super().__init__()
        self.config = config
        size = config.embedding_size
        self.convolution = ContextConvolution(config.kernel, num_features, size, active_features)
        self.positions = AxisPositions(config.slice_shape, size)
        self.slice_index = SliceIndex(config.subscale_factor, size)
        self.actions = Actions(config) if config.action_size else None
        input_size = size + config.action_window * config.action_size
        self.project = nn.Linear(input_size, config.hidden_size, bias=False)
        self.layers = LayerStack(config, config.encoder_layers, masked=False)
        nn.init.normal_(self.project.weight, std=input_size**-0.5)

    def forward(
        self,
        features: Float[Tensor, "B T H W F"],
        slice_index: Int[Tensor, "B"],
        actions: Float[Tensor, "B T A"] | None = None,
    ) -> Float[Tensor, "B t h w D"]:
        """z^L. `features` are those of the whole video; pixels of this slice and of later ones are not looked at."""
        config = self.config
        taps, visible = subscale.context(features, slice_index, config.subscale_factor, config.kernel)
        # Selected, not multiplied: whatever stands in a hidden pixel, even a NaN, is not read.
        z = self.convolution(torch.where(visible[..., None], taps, 0).to(product_dtype(self.convolution.weight)))
        z = z + self.positions() + self.slice_index(slice_index)
        if self.actions is not None:
            assert actions is not None, "checked with the video"
            z = torch.cat([z, self.actions(actions, slice_index).expand(*z.shape[:-1], -1).to(z.dtype)], dim=-1)
        return self.layers(self.project(z))
