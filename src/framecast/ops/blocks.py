"""3-D blocks (§3.1): a volume cut into non-overlapping (t, h, w) blocks, and the dilated dual of that cut.

A block's positions stand in raster order, which is also the order in which the volume's raster scan meets them: a
position's past is always what lies before it in its block. In the dilated form (Appendix "Connectivity") the positions
that have the same place in their blocks attend to each other, so the groups are what is left when a block's extents and
the number of blocks change roles.

T H W extents of the volume · D features · G groups · P positions of a group
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from framecast.config import Triple

if TYPE_CHECKING:
    from jaxtyping import Bool, Int, Shaped
    from torch import Tensor


def group_shape(extent: Triple, block: Triple, dilated: bool) -> Triple:
    """The extents of one group of positions that attend to each other."""
    (T, H, W), (t, h, w) = extent, block
    return (T // t, H // h, W // w) if dilated else block


def to_blocks(
    volume: Shaped[Tensor, "*batch T H W D"], block: Triple, dilated: bool = False
) -> Shaped[Tensor, "*batch G P D"]:
    """Group the positions that attend to each other; one copy, whatever the batch axes."""
    t, h, w = block
    cells = volume.unflatten(-2, (-1, w)).unflatten(-4, (-1, h)).unflatten(-6, (-1, t))
    blocks, places = (-7, -5, -3), (-6, -4, -2)
    groups = cells.permute(*_trailing(cells, *(places + blocks if dilated else blocks + places), -1))
    T, H, W = volume.shape[-4:-1]
    counts = [math.prod(group_shape((T, H, W), block, kind)) for kind in (not dilated, dilated)]
    return groups.reshape(*volume.shape[:-4], *counts, volume.shape[-1])  # G P, spelled out: a batch may be empty


def from_blocks(
    groups: Shaped[Tensor, "*batch G P D"], extent: Triple, block: Triple, dilated: bool = False
) -> Shaped[Tensor, "*batch T H W D"]:
    """Put the positions back into their volume: the inverse of `to_blocks`."""
    inner = group_shape(extent, block, dilated)
    outer = group_shape(extent, block, not dilated)
    cells = groups.unflatten(-2, inner).unflatten(-5, outer)
    outside, inside = (-7, -6, -5), (-4, -3, -2)
    first, second = (inside, outside) if dilated else (outside, inside)
    order = [axis for pair in zip(first, second, strict=True) for axis in pair]
    return cells.permute(*_trailing(cells, *order, -1)).reshape(*groups.shape[:-3], *extent, groups.shape[-1])


def axis_distances(size: int, device: torch.device | None = None) -> Int[Tensor, "size size"]:
    """How far place i lies after place j along one axis, counted from the most negative distance: a table's row."""
    places = torch.arange(size, device=device)
    return places[:, None] - places + size - 1


def raster_mask(num_positions: int, device: torch.device | None = None) -> Bool[Tensor, "P P"]:
    """Which position j position i may see: itself and what comes before it."""
    return torch.ones(num_positions, num_positions, dtype=torch.bool, device=device).tril()


def _trailing(cells: Tensor, *order: int) -> list[int]:
    """A permutation of the last axes that leaves the batch axes where they are."""
    return [*range(cells.ndim - len(order)), *(cells.ndim + axis for axis in order)]
