"""Block attention alone, at the size of the base model's training: 32 slices, 8 heads, groups of 128, heads of 128.

`python benchmarks/attention.py [--device cuda]` prints one JSON object. On a GPU in half precision the kernel stands
beside the plain form and PyTorch's own; on a CPU there is the plain form. Each case names what it is compared with.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from common import DEVICE, memory_bandwidth, report, timed
from torch import Tensor
from torch.nn import functional

from framecast.ops.attention import plain_attention, suits_the_kernel
from framecast.ops.blocks import from_blocks, raster_mask, to_blocks

NUM_SLICES = 32 if DEVICE == "cuda" else 1
EXTENT, BLOCK, NUM_HEADS, HEAD_SIZE = (4, 32, 32), (4, 8, 4), 8, 128
ROUNDS = 20 if DEVICE == "cuda" else 3


def of_pytorch(qkv: Tensor, bias: Tensor, block: tuple[int, int, int], *, masked: bool) -> Tensor:
    """`scaled_dot_product_attention` with the bias as its mask."""
    assert masked
    q, k, v = to_blocks(qkv.permute(4, 0, 5, 1, 2, 3, 6), block).transpose(2, 3).flatten(1, 2)  # each B·G N P A
    bias = bias.masked_fill(~raster_mask(bias.shape[-1], bias.device), -math.inf).to(q.dtype)
    heads = functional.scaled_dot_product_attention(q, k, v, bias[None])
    heads = heads.unflatten(0, (len(qkv), -1)).transpose(1, 2)
    return from_blocks(heads, EXTENT, block).permute(0, 2, 3, 4, 1, 5).flatten(4)


def cases() -> Iterator[dict[str, Any]]:
    torch.manual_seed(0)
    dtype = torch.bfloat16 if DEVICE == "cuda" else torch.float32
    num_positions = math.prod(BLOCK)
    qkv = torch.randn(NUM_SLICES, *EXTENT, 3, NUM_HEADS, HEAD_SIZE, dtype=dtype, device=DEVICE, requires_grad=True)
    bias = torch.randn(NUM_HEADS, num_positions, num_positions, device=DEVICE, requires_grad=True)
    gradient = torch.randn(NUM_SLICES, *EXTENT, NUM_HEADS * HEAD_SIZE, dtype=dtype, device=DEVICE)
    forms: dict[str, Callable[..., Tensor]] = {"plain": plain_attention, "pytorch": of_pytorch}
    if suits_the_kernel(qkv.device, dtype, num_positions, HEAD_SIZE):
        from framecast.ops.attention_triton import block_attention

        forms["kernel"] = block_attention
    with torch.no_grad():
        exact = plain_attention(qkv[:2].double(), bias.double(), BLOCK, masked=True)
    # In sizes of the output, if each value is moved once: q, k, v and the output; then q, k, v, four gradients.
    moved = {"forward": 4, "forward+backward": 4 + 7}
    bandwidth, plain = memory_bandwidth(), {}
    for name, form in forms.items():

        def forward() -> None:
            with torch.no_grad():
                form(qkv, bias, BLOCK, masked=True)  # noqa: B023

        def both() -> None:
            form(qkv, bias, BLOCK, masked=True).backward(gradient)  # noqa: B023
            qkv.grad = bias.grad = None

        with torch.no_grad():
            error = (form(qkv[:2], bias, BLOCK, masked=True) - exact).norm() / exact.norm()
        for what, work in (("forward", forward), ("forward+backward", both)):
            work()
            seconds = min(timed(work) for _ in range(ROUNDS))
            plain.setdefault(what, seconds)
            yield {
                "name": f"{name} {what}",
                "precision": "bf16" if dtype == torch.bfloat16 else "fp32",
                "batch": NUM_SLICES,
                "seconds": seconds,
                "against": f"plain {what}",
                "speedup": plain[what] / seconds,
                "times_the_floor": seconds * bandwidth / (moved[what] * gradient.nbytes),
                "error": error.item(),
            }


if __name__ == "__main__":
    report("attention", list(cases()))
