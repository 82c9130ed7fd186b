"""Block-local attention (§3.1, Eq. 3–4): softmax(q kᵀ / √A + B) v within each block of a volume, for every head.

The plain form is the definition of right, and what runs wherever the kernel for GPUs does not fit.

B batch · T H W extents of the volume · N heads · A head size · G groups · P positions of a group
"""

from __future__ import annotations

import importlib.util
import math
from functools import cache
from typing import TYPE_CHECKING

import torch

from framecast.config import Triple
from framecast.ops.blocks import from_blocks, raster_mask, to_blocks

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor


MAX_GROUP = 256
"""Positions of the largest group that the kernel takes."""
TILE = 128 * 128
"""Scores that one program of the kernel keeps in registers: of all rows of a group, or of some."""


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
    attend = plain_attention
    if suits_the_kernel(qkv.device, qkv.dtype, bias.shape[-1], qkv.shape[-1]):
        from framecast.ops.attention_triton import block_attention as attend
    # On a CPU one volume after the other: no slower, and a quarter less memory for a batch of four.
    at_once = 1 if qkv.device.type == "cpu" else max(len(qkv), 1)
    parts = [attend(part, bias, block, dilated=dilated, masked=masked, gate=gate) for part in qkv.split(at_once)]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def suits_the_kernel(device: torch.device, dtype: torch.dtype, num_positions: int, head_size: int) -> bool:
    """Whether the kernel takes groups and heads of these sizes there: in half precision, where they fit on the chip."""
    if device.type != "cuda" or dtype not in (torch.bfloat16, torch.float16) or num_positions > MAX_GROUP:
        return False
    return bytes_on_chip(num_positions, head_size, dtype.itemsize) <= _room_on_chip(device)


def bytes_on_chip(num_positions: int, head_size: int, itemsize: int) -> int:
    """What a program of the backward pass has there at most: a tile's queries, keys, values and gradients, and its
    scores on their way from one product to the next; each side as long as the next power of two."""
    columns, width = (max(16, 1 << (size - 1).bit_length()) for size in (num_positions, head_size))
    rows = min(columns, TILE // columns)
    return (2 * (rows + columns) * width + rows * columns) * itemsize


@cache
def _room_on_chip(device: torch.device) -> int:
    """Bytes that one program can have; none where the kernel cannot be had or the GPU is older than an A100."""
    if importlib.util.find_spec("triton") is None or torch.cuda.get_device_capability(device) < (8, 0):
        return 0
    properties = torch.cuda.get_device_properties(device)
    return int(getattr(properties, "shared_memory_per_block_optin", properties.shared_memory_per_block))


def plain_attention(
    qkv: Float[Tensor, "B T H W 3 N A"],
    bias: Float[Tensor, "N P P"],
    block: Triple,
    *,
    dilated: bool = False,
    masked: bool = False,
    gate: bool = False,
) -> Float[Tensor, "B T H W N*A"]:
    """As it is written: a product, a softmax, a product."""
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
