"""What is added to a representation to say where it is: positions along each axis, and the slice index (§3.2).

B batch · t h w extents of a slice · E embedding (or hidden) size
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from framecast.config import Triple
from framecast.ops import subscale

if TYPE_CHECKING:
    from jaxtyping import Float, Int

DEVIATION = 0.1  # of a fresh table, beside representations of variance one


class AxisPositions(nn.Module):
    """Learned positions, one table per axis, summed."""

    def __init__(self, extent: Triple, size: int) -> None:
        super().__init__()
        self.time, self.height, self.width = (_table(length, size) for length in extent)

    def forward(self) -> Float[Tensor, "t h w E"]:
        return self.time[:, None, None] + self.height[:, None] + self.width


class SliceIndex(nn.Module):
    """Learned embeddings of a slice's offsets (a, b, c), one table per axis, summed."""

    def __init__(self, factor: Triple, size: int) -> None:
        super().__init__()
        self.factor = factor
        self.time, self.height, self.width = (_table(length, size) for length in factor)

    def forward(self, slice_index: Int[Tensor, "B"]) -> Float[Tensor, "B 1 1 1 E"]:
        a, b, c = subscale.offset_of(slice_index, self.factor)
        return (self.time[a] + self.height[b] + self.width[c])[:, None, None, None]


def _table(length: int, size: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(length, size) * DEVIATION)
