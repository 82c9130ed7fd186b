"""Block-local attention (§3.1, Eq. 3–4): softmax(q kᵀ / √A + B) v within each block of a volume, for every head.

This is the plain form and the definition of right; a kernel for one kind of device stands behind the same name.

B batch · T H W extents of the volume · N heads · A head size · G groups · P positions of a group
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from framecast.config import Triple
from framecast.ops.blocks import from_blocks, raster_mask, to_blocks

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor


def block_attention(
    qkv: Float[Tensor, "B T H W 3 N A"],
    bias: Float[Tensor, "N P P"],
    block: Triple,
    *,
    dilated: bool = False,
    masked: bool = False,
    gate: bool = False,
) -> Float[Tensor, "B T H W N*A"]:
    """Attend within each block; `masked`, to the past alone; `gate`, with the attention matrix times 1 − I."""
    _, T, H, W, _, _, A = qkv.shape
    q, k, v = to_blocks(qkv.permute(4, 0, 5, 1, 2, 3, 6), block, dilated)  # each B N G P A
    if masked:
        bias = bias.masked_fill(~raster_mask(bias.shape[-1], bias.device), -math.inf)
    scores = torch.matmul(q / math.sqrt(A), k.transpose(-1, -2))
    weights = torch.softmax(scores + bias[:, None], dim=-1).to(v.dtype)
    if gate:
        weights = weights * (1 - torch.eye(weights.shape[-1], dtype=weights.dtype, device=weights.device))
    heads = from_blocks(torch.matmul(weights, v), (T, H, W), block, dilated)  # B N T H W A
    return heads.permute(0, 2, 3, 4, 1, 5).flatten(4)
