"""One layer (§3.1, Eq. 5–6): pre-norm block-local attention, then a square ReLU feed-forward, each with a residual.

B batch · T H W extents of the volume · D hidden size
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from framecast.config import LayerConfig, ModelConfig
from framecast.model.attention import BlockAttention

if TYPE_CHECKING:
    from jaxtyping import Float


class Layer(nn.Module):
    def __init__(self, config: ModelConfig, layer: LayerConfig, *, masked: bool) -> None:
        super().__init__()
        size = config.hidden_size
        self.masked = masked
        self.attention_norm = nn.LayerNorm(size)
        self.attention = BlockAttention(layer, config.slice_shape, size, config.head_size, config.gate)
        self.feed_forward_norm = nn.LayerNorm(size)
        self.feed_forward = nn.Sequential(
            nn.Linear(size, size, bias=False), nn.ReLU(inplace=True), nn.Linear(size, size, bias=False)
        )

    def forward(self, x: Float[Tensor, "B T H W D"]) -> Float[Tensor, "B T H W D"]:
        x = x + self.attention(self.attention_norm(x), self.masked)
        return x + self.feed_forward(self.feed_forward_norm(x))


class LayerStack(nn.ModuleList):
    """Layers one after the other; with `checkpointing`, each is computed again in the backward pass instead of kept."""

    checkpointing = False

    def __init__(self, config: ModelConfig, layers: Iterable[LayerConfig], *, masked: bool) -> None:
        super().__init__(Layer(config, layer, masked=masked) for layer in layers)
        # What the layers add to the residual stream keeps a variance of about one, however many there are.
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=module.in_features**-0.5)
        for layer in self:
            assert isinstance(layer, Layer)
            for last in (layer.attention.project, layer.feed_forward[-1]):
                assert isinstance(last, nn.Linear)
                last.weight.data /= math.sqrt(2 * len(self))

    def forward(self, x: Float[Tensor, "B T H W D"]) -> Float[Tensor, "B T H W D"]:
        for layer in self:
            if self.checkpointing and torch.is_grad_enabled():
                x = checkpoint(layer, x, use_reentrant=False)
            else:
                x = layer(x)
        return x
