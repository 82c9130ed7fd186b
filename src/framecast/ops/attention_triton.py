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
from framecast.ops.blocks import group_shape, raster_mask

if TYPE_CHECKING:
    from jaxtyping import Float

LAUNCH = {"num_warps": 8, "num_stages": 1}
"""Stages of a loop that are under way at once would each take a tile's memory on the chip: there is room for one."""
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
    if masked:  # once for all groups
        bias = bias.masked_fill(~raster_mask(bias.shape[-1], bias.device), -math.inf)
    return torch.ops.framecast.block_attention(qkv.contiguous(), bias.contiguous(), block, dilated, gate)[0]


@torch.library.custom_op(
    "framecast::block_attention",
    mutates_args=(),
    schema="(Tensor qkv, Tensor bias, int[] block, bool dilated, bool gate) -> (Tensor, Tensor)",
)
def _attend(qkv, bias, block, dilated, gate):
    """The heads' outputs, and the logarithm of each row's sum, from which the backward pass finds its weights."""
    out, sums = _attend_shapes(qkv, bias, block, dilated, gate)
    geometry = _geometry(qkv, tuple(block), dilated, gate)
    grid = (qkv.shape[5] * geometry["TILES"] * sums.shape[0],)
    _forward_kernel[grid](qkv, bias, out, sums, **geometry, **LAUNCH)
    return out, sums


@_attend.register_fake
def _attend_shapes(qkv, bias, block, dilated, gate):
    num_positions, num_heads = bias.shape[-1], qkv.shape[5]
    out = qkv.new_empty(*qkv.shape[:4], num_heads * qkv.shape[6])
    num_groups = math.prod(qkv.shape[:4]) // num_positions  # of the whole batch
    return out, bias.new_empty(num_groups, num_heads, num_positions)


@torch.library.custom_op(
    "framecast::block_attention_backward",
    mutates_args=(),
    schema="(Tensor gradient, Tensor qkv, Tensor bias, Tensor sums, int[] block, bool dilated, bool gate)"
    " -> (Tensor, Tensor)",
)
def _attend_back(gradient, qkv, bias, sums, block, dilated, gate):
    """The gradients of queries, keys and values, and of the bias."""
    geometry = _geometry(qkv, tuple(block), dilated, gate)
    num_groups, num_heads, num_positions = sums.shape
    tiles, num_chains = geometry["TILES"], max(1, min(num_groups, CHAINS // num_heads))
    of_qkv = torch.empty_like(qkv)
    # Keys and values are met by every tile of rows: where there are several, each writes its share.
    shares = qkv.new_empty(tiles, *qkv.shape[:4], 2, *qkv.shape[5:], dtype=bias.dtype) if tiles > 1 else of_qkv
    of_bias = bias.new_empty(num_chains, num_heads, num_positions, num_positions)
    _backward_kernel[(num_heads * tiles * num_chains,)](
        gradient, qkv, bias, sums, of_qkv, shares, of_bias, num_groups, num_chains, **geometry, **LAUNCH
    )
    if tiles > 1:
        of_qkv[..., 1:, :, :] = shares.sum(0)
    return of_qkv, of_bias.sum(0)


@_attend_back.register_fake
def _attend_back_shapes(gradient, qkv, bias, sums, block, dilated, gate):
    return torch.empty_like(qkv), torch.empty_like(bias)


def _keep_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    qkv, bias, *ctx.settings = inputs
    ctx.save_for_backward(qkv, bias, output[1])


def _backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    of_qkv, of_bias = torch.ops.framecast.block_attention_backward(
        gradient.contiguous(), *ctx.saved_tensors, *ctx.settings
    )
    return of_qkv, of_bias, None, None, None


_attend.register_autograd(_backward, setup_context=_keep_for_backward)


def _geometry(qkv: Tensor, block: Triple, dilated: bool, gate: bool) -> dict[str, Any]:
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
def _load(pointers, inside, WHOLE: tl.constexpr):
    """Vectors of places of a group; zero beyond its last place and beyond the head's size, if the tile goes there."""
    if WHOLE:
        return tl.load(pointers)
    return tl.load(pointers, mask=inside, other=0.0)


@triton.jit
def _store(pointers, values, inside, WHOLE: tl.constexpr):
    if WHOLE:
        tl.store(pointers, values.to(pointers.dtype.element_ty))
    else:
        tl.store(pointers, values.to(pointers.dtype.element_ty), mask=inside)


@triton.jit
def _scores(q, k, biases, inside, SCALE: tl.constexpr, WHOLE: tl.constexpr, PRECISION: tl.constexpr):
    """q kᵀ / √A + B; minus infinity beyond the last place. Rows beyond it are as the last one is, and not kept."""
    bias = tl.load(biases) if WHOLE else tl.load(biases, mask=inside, other=float("-inf"))
    return tl.dot(q, tl.trans(k), input_precision=PRECISION, out_dtype=bias.dtype) * SCALE + bias


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
    GATE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """A program has one group, one head and one tile of rows."""
    WHOLE: tl.constexpr = (P == COLUMNS) & (A == WIDTH)
    program = tl.program_id(0)
    head, tile, group = program % N, program // N % TILES, program // (N * TILES)
    start = _start(group, VOLUME, GROUPS_T, GROUPS_H, GROUPS_W, GROUP_STEP_T, GROUP_STEP_H, GROUP_STEP_W)
    row, column, unit = tile * ROWS + tl.arange(0, ROWS), tl.arange(0, COLUMNS), tl.arange(0, WIDTH)[None, :]
    at_row = _offsets(row, PLACES_H, PLACES_W, PLACE_STEP_T, PLACE_STEP_H, PLACE_STEP_W)[:, None]
    at_column = _offsets(column, PLACES_H, PLACES_W, PLACE_STEP_T, PLACE_STEP_H, PLACE_STEP_W)[:, None]
    here, there = (row[:, None] < P) & (unit < A), (column[:, None] < P) & (unit < A)
    queries = qkv + start * (3 * N * A) + head * A
    q = _load(queries + at_row * (3 * N * A) + unit, here, WHOLE)
    k = _load(queries + N * A + at_column * (3 * N * A) + unit, there, WHOLE)
    biases = bias + (head * P + tl.minimum(row, P - 1)[:, None]) * P + column[None, :]
    scores = _scores(q, k, biases, column[None, :] < P, SCALE, WHOLE, PRECISION)
    largest = tl.max(scores, axis=1)
    weights = tl.exp(scores - largest[:, None])
    total = tl.sum(weights, axis=1)
    weights = weights / total[:, None]
    if GATE:
        weights = tl.where(row[:, None] == column[None, :], 0.0, weights)
    v = _load(queries + 2 * N * A + at_column * (3 * N * A) + unit, there, WHOLE)
    heads = tl.dot(weights.to(v.dtype), v, input_precision=PRECISION, out_dtype=scores.dtype)
    _store(out + start * (N * A) + head * A + at_row * (N * A) + unit, heads, here, WHOLE)
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
    GATE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """A program goes through every `num_chains`-th group with one head and one tile of rows."""
    WHOLE: tl.constexpr = (P == COLUMNS) & (A == WIDTH)
    program = tl.program_id(0)
    head, tile, chain = program % N, program // N % TILES, program // (N * TILES)
    row, column, unit = tile * ROWS + tl.arange(0, ROWS), tl.arange(0, COLUMNS), tl.arange(0, WIDTH)[None, :]
    at_row = _offsets(row, PLACES_H, PLACES_W, PLACE_STEP_T, PLACE_STEP_H, PLACE_STEP_W)[:, None]
    at_column = _offsets(column, PLACES_H, PLACES_W, PLACE_STEP_T, PLACE_STEP_H, PLACE_STEP_W)[:, None]
    here, there = (row[:, None] < P) & (unit < A), (column[:, None] < P) & (unit < A)
    biases = bias + (head * P + tl.minimum(row, P - 1)[:, None]) * P + column[None, :]
    summed = tl.zeros((ROWS, COLUMNS), dtype=bias.dtype.element_ty)
    all_positions = (num_groups // (GROUPS_T * GROUPS_H * GROUPS_W)).to(tl.int64) * VOLUME
    # Without moving what all groups share out of the loop, it keeps more registers than there are.
    for group in tl.range(chain, num_groups, num_chains, disable_licm=True):
        start = _start(group, VOLUME, GROUPS_T, GROUPS_H, GROUPS_W, GROUP_STEP_T, GROUP_STEP_H, GROUP_STEP_W)
        of_group = start * (3 * N * A) + head * A
        if TILES == 1:
            keys, values, step = of_qkv + of_group + N * A, of_qkv + of_group + 2 * N * A, 3 * N * A
        else:
            keys = shares + (tile * all_positions + start) * (2 * N * A) + head * A
            values, step = keys + N * A, 2 * N * A
        q = _load(qkv + of_group + at_row * (3 * N * A) + unit, here, WHOLE)
        k = _load(qkv + of_group + N * A + at_column * (3 * N * A) + unit, there, WHOLE)
        # The bias is read again each time: registers are dearer than the cache.
        scores = _scores(q, k, biases, column[None, :] < P, SCALE, WHOLE, PRECISION)
        sum_of_row = tl.load(sums + (group * N + head) * P + row, mask=row < P, other=float("inf"))
        weights = tl.exp(scores - sum_of_row[:, None])
        g = _load(gradient + start * (N * A) + head * A + at_row * (N * A) + unit, here, WHOLE)
        gated = weights
        if GATE:
            gated = tl.where(row[:, None] == column[None, :], 0.0, weights)
        of_v = tl.dot(tl.trans(gated.to(g.dtype)), g, input_precision=PRECISION, out_dtype=scores.dtype)
        _store(values + at_column * step + unit, of_v, there, WHOLE)
        v = _load(qkv + of_group + 2 * N * A + at_column * (3 * N * A) + unit, there, WHOLE)
        of_weights = tl.dot(g, tl.trans(v), input_precision=PRECISION, out_dtype=scores.dtype)
        if GATE:
            of_weights = tl.where(row[:, None] == column[None, :], 0.0, of_weights)
        of_scores = weights * (of_weights - tl.sum(weights * of_weights, axis=1)[:, None])
        summed += of_scores
        narrow = (of_scores * SCALE).to(q.dtype)
        of_q = tl.dot(narrow, k, input_precision=PRECISION, out_dtype=scores.dtype)
        _store(of_qkv + of_group + at_row * (3 * N * A) + unit, of_q, here, WHOLE)
        of_k = tl.dot(tl.trans(narrow), q, input_precision=PRECISION, out_dtype=scores.dtype)
        _store(keys + at_column * step + unit, of_k, there, WHOLE)
    pairs = (row[:, None] < P) & (column[None, :] < P)
    tl.store(of_bias + ((chain * N + head) * P + row[:, None]) * P + column[None, :], summed, mask=pairs)
