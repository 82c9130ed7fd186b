"""Which precision a product runs in, and where more is kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor


def product_dtype(weight: Tensor) -> torch.dtype:
    """The precision of a matrix product with this weight here: autocast's where it is on, else the weight's own."""
    kind = weight.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype


def at_least_float32(x: Float[Tensor, "*axes"]) -> Float[Tensor, "*axes"]:
    """Softmax and loss are never computed in less."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
