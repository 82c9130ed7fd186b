"""Channel prediction (§3.3): from a pixel's state to the distribution of its codes, or to one grey intensity.

n any axes of positions · D hidden size · K codes of a pixel · V values of all codes together · v of the largest code
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from framecast.config import ModelConfig
from framecast.ops.precision import at_least_float32

if TYPE_CHECKING:
    from jaxtyping import Float, UInt8

OUTPUT_SCALE = 0.1  # a fresh model is nearly uniform: 8 bits/dim and little more


class CodeHead(nn.Module):
    """One MLP per code: U_k reads layernorm(y) and the one-hots of the pixel's earlier codes; all share P (Eq. 7–8)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        size = config.hidden_size
        self.num_code_values = config.num_code_values
        num_codes = len(self.num_code_values)
        self.norm = nn.LayerNorm(size)
        # The U_k in two parts: those that layernorm(y) meets side by side, since they are one product; and for each
        # code but the first, the part that meets the one-hots of the codes before it.
        self.upper = nn.Parameter(torch.randn(size, num_codes * size) / math.sqrt(size))
        self.lower = nn.ParameterList(
            nn.Parameter(torch.randn(num_values, size) / math.sqrt(size))
            for num_values in itertools.accumulate(self.num_code_values[:-1])
        )
        self.output = nn.Linear(size, max(self.num_code_values), bias=False)  # P
        nn.init.normal_(self.output.weight, std=OUTPUT_SCALE * size**-0.5)

    def forward(self, y: Float[Tensor, "*n D"], codes: Float[Tensor, "*n V"]) -> Float[Tensor, "*n K v"]:
        """Logits of every code, each given the codes before it. `codes` are one-hot; values that a code cannot take
        have a logit of minus infinity."""
        num_earlier = sum(self.num_code_values[:-1])
        given = torch.cat([self.norm(y), codes[..., :num_earlier]], dim=-1)
        u = (given @ self._weight()).unflatten(-1, (len(self.num_code_values), -1))
        logits = self.output(functional.relu(u, inplace=True))
        for code, num_values in enumerate(self.num_code_values):
            if num_values < logits.shape[-1]:
                logits[..., code, num_values:] = -math.inf
        return logits

    def _weight(self) -> Float[Tensor, "inputs units"]:
        """All U_k side by side, zero where a code would meet its own one-hot or a later one."""
        num_earlier = sum(self.num_code_values[:-1])
        lower = [functional.pad(part, (0, 0, 0, num_earlier - len(part))) for part in self.lower]
        first = self.upper.new_zeros(num_earlier, self.upper.shape[0])
        return torch.cat([self.upper, torch.cat([first, *lower], dim=1)])

    def nats(
        self, y: Float[Tensor, "*n D"], one_hot: Float[Tensor, "*n V"], codes: UInt8[Tensor, "*n K"]
    ) -> Float[Tensor, "*n K"]:
        """−ln p of each code (Eq. 9)."""
        logits = at_least_float32(self(y, one_hot)).flatten(0, -2)
        return functional.cross_entropy(logits, codes.flatten().long(), reduction="none").view(codes.shape)


class ScalarHead(nn.Module):
    """One grey intensity y in (0, 1), for Moving MNIST's loss −z ln y − (1 − z) ln(1 − y)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        size = config.hidden_size
        self.maximum = 2**config.bits - 1
        self.norm = nn.LayerNorm(size)
        self.hidden = nn.Linear(size, size, bias=False)
        self.output = nn.Linear(size, 1)
        nn.init.normal_(self.hidden.weight, std=size**-0.5)
        nn.init.normal_(self.output.weight, std=OUTPUT_SCALE * size**-0.5)
        nn.init.zeros_(self.output.bias)

    def forward(self, y: Float[Tensor, "*n D"]) -> Float[Tensor, "*n 1"]:
        """The logit of the intensity."""
        return self.output(functional.relu(self.hidden(self.norm(y)), inplace=True))

    def nats(self, y: Float[Tensor, "*n D"], pixels: UInt8[Tensor, "*n 1"]) -> Float[Tensor, "*n 1"]:
        """The loss of each pixel. It is no normalised likelihood: its floor is the entropy of the targets."""
        logits = at_least_float32(self(y))
        z = pixels.to(logits.dtype) / self.maximum
        return functional.binary_cross_entropy_with_logits(logits, z, reduction="none")
