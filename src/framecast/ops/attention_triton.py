"""Block-local attention (§3.1, Eq. 3–4) as one Triton kernel each way: what `attention.block_attention` is on a GPU.

A program holds the scores of one group (or of some rows of it) and one head on the chip. Its queries, keys and values
are gathered from the volume by index arithmetic, so that nothing is permuted or copied; the backward pass computes the
scores again. The gradient of the bias is summed group after group in a program, then over programs, always in the same
order: two runs give the same bits.

B batch · T H W extents of the volume · N heads · A head size · G groups · P positions of a group
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from framecast.config import Triple
from framecast.ops.attention import TILE
from framecast.ops.blocks import group_shape

if TYPE_CHECKING:
    from jaxtyping import Float

CHAINS = 264
"""Programs among which the groups of all heads are shared out in the backward pass: two for each processor of an H100
or H200. It is the same everywhere, since it decides in which order the gradient of the bias is summed."""


def block_attention(
    qkv: Float[Tensor, "B T H W 3 N A"],
    bias: Float[Tensor, "N P P"],
    block: Triple,
    *,
    dilated: bool = False,
    masked: bool = False,
    gate: bool = False,
) -> Float[Tensor, "B T H W N*A"]:
    return torch.ops.framecast.block_attention(qkv.contiguous(), bias.contiguous(), block, dilated, masked, gate)[0]


@torch.library.custom_op(
    "framecast::block_attention",
    mutates_args=(),
    schema="(Tensor qkv, Tensor bias, int[] block, bool dilated, bool masked, bool gate) -> (Tensor, Tensor)",
)
def _attend(qkv, bias, block, dilated, masked, gate):
    """The heads' outputs, and the logarithm of each row's sum, from which the backward pass finds its weights."""
    out, sums = _attend_shapes(qkv, bias, block, dilated, masked, gate)
    geometry = _geometry(qkv, tuple(block), dilated, masked, gate)
    grid = (qkv.shape[5] * geometry["TILES"] * sums.shape[0],)
    _forward_kernel[grid](qkv, bias, out, sums, **geometry, num_warps=8)
    return out, sums


@_attend.register_fake
def _attend_shapes(qkv, bias, block, dilated, masked, gate):
    num_positions, num_heads = bias.shape[-1], qkv.shape[5]
    out = qkv.new_empty(*qkv.shape[:4], num_heads * qkv.shape[6])
    num_groups = math.prod(qkv.shape[:4]) // num_positions  # of the whole batch
    return out, bias.new_empty(num_groups, num_heads, num_positions)


@torch.library.custom_op(
    "framecast::block_attention_backward",
    mutates_args=(),
    schema="(Tensor gradient, Tensor qkv, Tensor bias, Tensor sums, int[] block, bool dilated, bool masked, bool gate)"
    " -> (Tensor, Tensor)",
)
def _attend_back(gradient, qkv, bias, sums, block, dilated, masked, gate):
    """The gradients of queries, keys and values, and of the bias."""
    geometry = _geometry(qkv, tuple(block), dilated, masked, gate)
    num_groups, num_heads, num_positions = sums.shape
    tiles, num_chains = geometry["TILES"], max(1, min(num_groups, CHAINS // num_heads))
    of_qkv = torch.empty_like(qkv)
    # Keys and values are met by every tile of rows: where there are several, each writes its share.
    shares = qkv.new_empty(tiles, *qkv.shape[:4], 2, *qkv.shape[5:], dtype=bias.dtype) if tiles > 1 else of_qkv
    of_bias = bias.new_empty(num_chains, num_heads, num_positions, num_positions)
    _backward_kernel[(num_heads * tiles * num_chains,)](
        gradient, qkv, bias, sums, of_qkv, shares, of_bias, num_groups, num_chains, **geometry, num_warps=8
    )
    if tiles > 1:
        of_qkv[..., 1:, :, :] = shares.sum(0)
    return of_qkv, of_bias.sum(0)


@_attend_back.register_fake
def _attend_back_shapes(gradient, qkv, bias, sums, block, dilated, masked, gate):
    return torch.empty_like(qkv), torch.empty_like(bias)


def _keep_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    qkv, bias, *ctx.settings = inputs
    ctx.save_for_backward(qkv, bias, output[1])


def _backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    of_qkv, of_bias = torch.ops.framecast.block_attention_backward(
        gradient.contiguous(), *ctx.saved_tensors, *ctx.settings
    )
    return of_qkv, of_bias, None, None, None, None


_attend.register_autograd(_backward, setup_context=_keep_for_backward)


def _geometry(qkv: Tensor, block: Triple, dilated: bool, masked: bool, gate: bool) -> dict[str, Any]:
    """What a kernel is compiled for. Along each axis, place p of group g lies at g·(step of groups) + p·(step of
    places), with p counted in the group's extents and g in the number of groups."""
    T, H, W = qkv.shape[1:4]
    extent = (T, H, W)
    inner, outer = group_shape(extent, block, dilated), group_shape(extent, block, not dilated)
    ones = (1, 1, 1)
    of_groups, of_places = (ones, block) if dilated else (block, ones)
    num_positions, head_size = math.prod(inner), qkv.shape[6]
    columns = max(16, triton.next_power_of_2(num_positions))
    rows = min(columns, TILE // columns)
    return {
        "N": qkv.shape[5],
        "A": head_size,
        "WIDTH": max(16, triton.next_power_of_2(head_size)),
        "P": num_positions,
        "COLUMNS": columns,
        "ROWS": rows,
        "TILES": triton.cdiv(num_positions, rows),
        "SCALE": head_size**-0.5,
        "VOLUME": math.prod(extent),
        # Of the raster index of a position, what a step along each axis of places and of groups adds.
        **{f"PLACES_{axis}": size for axis, size in zip("HW", inner[1:], strict=True)},
        **{f"GROUPS_{axis}": size for axis, size in zip("THW", outer, strict=True)},
        **{f"PLACE_STEP_{axis}": step for axis, step in zip("THW", _raster_steps(extent, of_places), strict=True)},
        **{f"GROUP_STEP_{axis}": step for axis, step in zip("THW", _raster_steps(extent, of_groups), strict=True)},
        "MASKED": masked,
        "GATE": gate,
        "PRECISION": "ieee",
    }


def _raster_steps(extent: Triple, steps: Triple) -> Triple:
    _, H, W = extent
    return steps[0] * H * W, steps[1] * W, steps[2]


@triton.jit
def _start(
    group,
    VOLUME: tl.constexpr,
    GROUPS_T: tl.constexpr,
    GROUPS_H: tl.constexpr,
    GROUPS_W: tl.constexpr,
    GROUP_STEP_T: tl.constexpr,
    GROUP_STEP_H: tl.constexpr,
    GROUP_STEP_W: tl.constexpr,
):
    """Where a group of the batch begins: the index of its first position among those of all volumes."""
    video = group // (GROUPS_T * GROUPS_H * GROUPS_W)
    t = group // (GROUPS_H * GROUPS_W) % GROUPS_T
    h = group // GROUPS_W % GROUPS_H
    w = group % GROUPS_W
    return video.to(tl.int64) * VOLUME + t * GROUP_STEP_T + h * GROUP_STEP_H + w * GROUP_STEP_W


@triton.jit
def _offsets(
    place,
    PLACES_H: tl.constexpr,
    PLACES_W: tl.constexpr,
    PLACE_STEP_T: tl.constexpr,
    PLACE_STEP_H: tl.constexpr,
    PLACE_STEP_W: tl.constexpr,
):
    """How far places of a group lie behind its first."""
    t = place // (PLACES_H * PLACES_W)
    h = place // PLACES_W % PLACES_H
    w = place % PLACES_W
    return t * PLACE_STEP_T + h * PLACE_STEP_H + w * PLACE_STEP_W


@triton.jit
def _scores(q, k, bias, row, column, SCALE: tl.constexpr, P: tl.constexpr, MASKED: tl.constexpr, PRECISION):
    """q kᵀ / √A + B, minus infinity where a row sees nothing."""
    scores = tl.dot(q, tl.trans(k), input_precision=PRECISION, out_dtype=bias.dtype) * SCALE + bias
    seen = (column < P) & (row >= 0)
    if MASKED:
        seen = seen & (column <= row)
    return tl.where(seen, scores, float("-inf"))


@triton.jit
def _forward_kernel(
    qkv,
    bias,
    out,
    sums,
    N: tl.constexpr,
    A: tl.constexpr,
    WIDTH: tl.constexpr,
    P: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
    TILES: tl.constexpr,
    SCALE: tl.constexpr,
    VOLUME: tl.constexpr,
    PLACES_H: tl.constexpr,
    PLACES_W: tl.constexpr,
    GROUPS_T: tl.constexpr,
    GROUPS_H: tl.constexpr,
    GROUPS_W: tl.constexpr,
    PLACE_STEP_T: tl.constexpr,
    PLACE_STEP_H: tl.constexpr,
    PLACE_STEP_W: tl.constexpr,
    GROUP_STEP_T: tl.constexpr,
    GROUP_STEP_H: tl.constexpr,
    GROUP_STEP_W: tl.constexpr,
    MASKED: tl.constexpr,
    GATE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    program = tl.program_id(0)
    head, tile, group = program % N, program // N % TILES, program // (N * TILES)
    start = _start(group, VOLUME, GROUPS_T, GROUPS_H, GROUPS_W, GROUP_STEP_T, GROUP_STEP_H, GROUP_STEP_W)
    row, column, unit = tile * ROWS + tl.arange(0, ROWS), tl.arange(0, COLUMNS), tl.arange(0, WIDTH)
    at_row = start + _offsets(row, PLACES_H, PLACES_W, PLACE_STEP_T, PLACE_STEP_H, PLACE_STEP_W)
    at_column = start + _offsets(column, PLACES_H, PLACES_W, PLACE_STEP_T, PLACE_STEP_H, PLACE_STEP_W)
    here = (row[:, None] < P) & (unit[None, :] < A)
    there = (column[:, None] < P) & (unit[None, :] < A)
    queries = qkv + at_row[:, None] * (3 * N * A) + head * A + unit[None, :]
    keys = qkv + at_column[:, None] * (3 * N * A) + (N + head) * A + unit[None, :]
    q = tl.load(queries, mask=here, other=0.0)
    k = tl.load(keys, mask=there, other=0.0)
    v = tl.load(keys + N * A, mask=there, other=0.0)
    pairs = (row[:, None] < P) & (column[None, :] < P)
    b = tl.load(bias + (head * P + row[:, None]) * P + column[None, :], mask=pairs, other=0.0)
    scores = _scores(q, k, b, row[:, None], column[None, :], SCALE, P, MASKED, PRECISION)
    largest = tl.max(scores, axis=1)
    weights = tl.exp(scores - largest[:, None])
    total = tl.sum(weights, axis=1)
    weights = weights / total[:, None]
    if GATE:
        weights = tl.where(row[:, None] == column[None, :], 0.0, weights)
    heads = tl.dot(weights.to(v.dtype), v, input_precision=PRECISION, out_dtype=b.dtype)
    tl.store(out + at_row[:, None] * (N * A) + head * A + unit[None, :], heads.to(q.dtype), mask=here)
    tl.store(sums + (group * N + head) * P + row, largest + tl.log(total), mask=row < P)


@triton.jit
def _backward_kernel(
    gradient,
    qkv,
    bias,
    sums,
    of_qkv,
    shares,
    of_bias,
    num_groups,
    num_chains,
    N: tl.constexpr,
    A: tl.constexpr,
    WIDTH: tl.constexpr,
    P: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
    TILES: tl.constexpr,
    SCALE: tl.constexpr,
    VOLUME: tl.constexpr,
    PLACES_H: tl.constexpr,
    PLACES_W: tl.constexpr,
    GROUPS_T: tl.constexpr,
    GROUPS_H: tl.constexpr,
    GROUPS_W: tl.constexpr,
    PLACE_STEP_T: tl.constexpr,
    PLACE_STEP_H: tl.constexpr,
    PLACE_STEP_W: tl.constexpr,
    GROUP_STEP_T: tl.constexpr,
    GROUP_STEP_H: tl.constexpr,
    GROUP_STEP_W: tl.constexpr,
    MASKED: tl.constexpr,
    GATE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """A program goes through every `num_chains`-th group with one head and one tile of rows."""
    program = tl.program_id(0)
    head, tile, chain = program % N, program // N % TILES, program // (N * TILES)
    row, column, unit = tile * ROWS + tl.arange(0, ROWS), tl.arange(0, COLUMNS), tl.arange(0, WIDTH)
    by_row = _offsets(row, PLACES_H, PLACES_W, PLACE_STEP_T, PLACE_STEP_H, PLACE_STEP_W)
    by_column = _offsets(column, PLACES_H, PLACES_W, PLACE_STEP_T, PLACE_STEP_H, PLACE_STEP_W)
    here = (row[:, None] < P) & (unit[None, :] < A)
    there = (column[:, None] < P) & (unit[None, :] < A)
    pairs = (row[:, None] < P) & (column[None, :] < P)
    b = tl.load(bias + (head * P + row[:, None]) * P + column[None, :], mask=pairs, other=0.0)
    summed = tl.zeros((ROWS, COLUMNS), dtype=b.dtype)
    for group in range(chain, num_groups, num_chains):
        start = _start(group, VOLUME, GROUPS_T, GROUPS_H, GROUPS_W, GROUP_STEP_T, GROUP_STEP_H, GROUP_STEP_W)
        at_row, at_column = start + by_row, start + by_column
        of_queries = at_row[:, None] * (3 * N * A) + head * A + unit[None, :]
        of_keys = at_column[:, None] * (3 * N * A) + (N + head) * A + unit[None, :]
        q = tl.load(qkv + of_queries, mask=here, other=0.0)
        k = tl.load(qkv + of_keys, mask=there, other=0.0)
        v = tl.load(qkv + of_keys + N * A, mask=there, other=0.0)
        g = tl.load(gradient + at_row[:, None] * (N * A) + head * A + unit[None, :], mask=here, other=0.0)
        sum_of_row = tl.load(sums + (group * N + head) * P + row, mask=row < P, other=0.0)
        scores = _scores(q, k, b, row[:, None], column[None, :], SCALE, P, MASKED, PRECISION)
        weights = tl.exp(scores - sum_of_row[:, None])
        of_weights = tl.dot(g, tl.trans(v), input_precision=PRECISION, out_dtype=b.dtype)
        gated = weights
        if GATE:
            gated = tl.where(row[:, None] == column[None, :], 0.0, weights)
            of_weights = tl.where(row[:, None] == column[None, :], 0.0, of_weights)
        of_scores = weights * (of_weights - tl.sum(weights * of_weights, axis=1)[:, None])
        of_scores = tl.where(pairs, of_scores, 0.0)
        summed += of_scores
        narrow = (of_scores * SCALE).to(q.dtype)
        of_q = tl.dot(narrow, k, input_precision=PRECISION, out_dtype=b.dtype)
        tl.store(of_qkv + of_queries, of_q.to(q.dtype), mask=here)
        of_v = tl.dot(tl.trans(gated.to(g.dtype)), g, input_precision=PRECISION, out_dtype=b.dtype)
        of_k = tl.dot(tl.trans(narrow), q, input_precision=PRECISION, out_dtype=b.dtype)
        if TILES == 1:
            tl.store(of_qkv + of_keys, of_k.to(q.dtype), mask=there)
            tl.store(of_qkv + of_keys + N * A, of_v.to(q.dtype), mask=there)
        else:
            all_positions = (num_groups // (GROUPS_T * GROUPS_H * GROUPS_W)).to(tl.int64) * VOLUME
            of_share = (tile * all_positions + at_column[:, None]) * (2 * N * A) + head * A + unit[None, :]
            tl.store(shares + of_share, of_k, mask=there)
            tl.store(shares + of_share + N * A, of_v, mask=there)
    tl.store(of_bias + ((chain * N + head) * P + row[:, None]) * P + column[None, :], summed, mask=pairs)
