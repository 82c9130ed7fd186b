"""The two convolutions of §3.2, as matrix products over gathered taps.

The context convolution reads the visible pixels around each pixel of a slice, the masked convolution those of the slice
itself that come before it.

B batch · t h w extents of a slice · i j k extents of a kernel · F features of a pixel · E embedding size
D hidden size
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from framecast.config import Triple

if TYPE_CHECKING:
    from jaxtyping import Float


class ContextConvolution(nn.Module):
    """The strided convolution of the encoder; the stride is in how its taps were gathered (`subscale.context`)."""

    def __init__(self, kernel: Triple, num_features: int, size: int, active_features: int) -> None:
        super().__init__()
        num_taps = math.prod(kernel)
        self.weight = nn.Parameter(torch.randn(num_taps * num_features, size) / math.sqrt(num_taps * active_features))

    def forward(self, taps: Float[Tensor, "B t h w i j k F"]) -> Float[Tensor, "B t h w E"]:
        return taps.flatten(4) @ self.weight


class MaskedConvolution(nn.Module):
    """The convolution of the decoder: of its taps, only those before the centre in raster order are used.

    The weight has all of them, as a convolution's has; those from the centre on are zero and stay so.
    """

    def __init__(self, kernel: Triple, size: int, hidden_size: int) -> None:
        super().__init__()
        self.kernel = kernel
        self.num_past_taps = math.prod(kernel) // 2
        weight = torch.zeros(math.prod(kernel), size, hidden_size)
        if self.num_past_taps:
            weight[: self.num_past_taps].normal_(std=(self.num_past_taps * size) ** -0.5)
        self.weight = nn.Parameter(weight)

    def forward(self, x: Float[Tensor, "B t h w E"]) -> Float[Tensor, "B t h w D"]:
        return self.past(x) @ self.weight[: self.num_past_taps].flatten(0, 1)

    def past(self, x: Float[Tensor, "B t h w E"]) -> Float[Tensor, "B t h w inputs"]:
        """The past taps of every position side by side, zero beyond the slice's border."""
        (t, h, w), (i, j, k) = x.shape[1:4], self.kernel
        padded = functional.pad(x, (0, 0, k // 2, k // 2, j // 2, j // 2, i // 2, 0))
        starts = [divmod(tap, k) for tap in range(self.num_past_taps)]
        shifted = [padded[:, row // j : row // j + t, row % j : row % j + h, c : c + w] for row, c in starts]
        return torch.cat(shifted, dim=-1) if shifted else x.new_zeros(*x.shape[:-1], 0)
