"""Multi-head block-local self-attention with a relative position bias (§3.1, Eq. 2–5).

B batch · T H W extents of the volume · D hidden size · N heads · A head size · P positions of a group
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from framecast.config import LayerConfig, Triple
from framecast.ops.attention import block_attention
from framecast.ops.blocks import axis_distances, group_shape

if TYPE_CHECKING:
    from jaxtyping import Float


class RelativeBias(nn.Module):
    """B: a learned bias per head for each relative distance along each axis, summed over the axes."""

    def __init__(self, num_heads: int, group: Triple) -> None:
        super().__init__()
        self.group = group
        self.time, self.height, self.width = (nn.Parameter(torch.zeros(num_heads, 2 * size - 1)) for size in group)

    def forward(self) -> Float[Tensor, "N P P"]:
        (t, h, w), num_heads = self.group, len(self.time)
        bias = (
            _by_pair(self.time, t).view(num_heads, t, 1, 1, t, 1, 1)
            + _by_pair(self.height, h).view(num_heads, 1, h, 1, 1, h, 1)
            + _by_pair(self.width, w).view(num_heads, 1, 1, w, 1, 1, w)
        )
        return bias.flatten(4, 6).flatten(1, 3)


def _by_pair(table: Float[Tensor, "N distances"], size: int) -> Float[Tensor, "N pairs"]:
    """A table's entry for each pair of places along an axis: a product with one-hot vectors rather than a look-up, so
    that the gradient is summed in a fixed order on every device; never in less than the table's own precision."""
    pairs = functional.one_hot(axis_distances(size, table.device).flatten(), 2 * size - 1).to(table.dtype)
    with torch.autocast(table.device.type, enabled=False):
        return table @ pairs.T


class BlockAttention(nn.Module):
    """Every head attends within the layer's blocks; the heads' outputs are concatenated and projected (Eq. 5)."""

    def __init__(self, layer: LayerConfig, extent: Triple, hidden_size: int, head_size: int, gate: bool) -> None:
        super().__init__()
        self.layer, self.head_size, self.gate = layer, head_size, gate
        self.qkv = nn.Linear(hidden_size, 3 * layer.num_heads * head_size, bias=False)
        self.bias = RelativeBias(layer.num_heads, group_shape(extent, layer.block, layer.dilated))
        self.project = nn.Linear(layer.num_heads * head_size, hidden_size, bias=False)

    def forward(self, x: Float[Tensor, "B T H W D"], masked: bool) -> Float[Tensor, "B T H W D"]:
        qkv = self.qkv(x).unflatten(-1, (3, self.layer.num_heads, self.head_size))
        heads = block_attention(
            qkv, self.bias(), self.layer.block, dilated=self.layer.dilated, masked=masked, gate=self.gate
        )
        return self.project(heads)
