"""Which positions of a slice a position's prediction rests on (Appendix "Connectivity"): blind spots, and waves.

A prediction reaches an earlier position if some path of masked convolution and attention layers leads there. Positions
are numbered in raster order; `layers` are a decoder's.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import torch

from framecast.config import LayerConfig, ModelConfig, Triple
from framecast.ops.blocks import to_blocks


def reach(config: ModelConfig, layers: Sequence[LayerConfig]) -> list[int]:
    """For each position, the set of positions whose pixels its prediction depends on, as the bits of an integer."""
    reached = [sum(1 << tap for tap in taps) for taps in past_taps(config.slice_shape, config.masked_kernel)]
    for layer in layers:
        for group in groups(config.slice_shape, layer):
            seen = 0
            for position in group:  # what a position attends to: all that its group holds up to itself
                seen |= reached[position]
                reached[position] = seen
    return reached


def blind_spots(config: ModelConfig, layers: Sequence[LayerConfig]) -> float:
    """The fraction of (earlier, later) pairs of a slice's positions that no path connects."""
    reached = reach(config, layers)
    num_pairs = len(reached) * (len(reached) - 1) // 2
    return 1 - sum(positions.bit_count() for positions in reached) / num_pairs if num_pairs else 0.0


def waves(config: ModelConfig, layers: Sequence[LayerConfig], given: tuple[bool, ...] = ()) -> list[int]:
    """For each position, the step at which it is computed and, unless its pixel is given, drawn.

    A position's states read the pixels of its masked convolution's taps, so they come a step after those are drawn; and
    the states of the earlier positions of its groups, which may come in the same step, since a step goes through all
    its positions layer by layer. A position never reads its own pixel: one that waits for no drawn pixel is in step 0.
    """
    return list(_waves(config, tuple(layers), given or (False,) * math.prod(config.slice_shape)))


@functools.lru_cache(maxsize=32)
def _waves(config: ModelConfig, layers: tuple[LayerConfig, ...], given: tuple[bool, ...]) -> tuple[int, ...]:
    group_of = [numbered(config.slice_shape, layer)[0] for layer in layers]
    last = [[0] * len(numbers) for numbers in group_of]  # per layer and group: the latest step so far
    steps: list[int] = []
    for position, taps in enumerate(past_taps(config.slice_shape, config.masked_kernel)):
        own = [(steps_of_groups, numbers[position]) for steps_of_groups, numbers in zip(last, group_of, strict=True)]
        needed = [steps_of_groups[number] for steps_of_groups, number in own]
        steps.append(max([0, *needed, *(steps[tap] + 1 for tap in taps if not given[tap])]))
        for steps_of_groups, number in own:
            steps_of_groups[number] = steps[position]
    return tuple(steps)


def numbered(extent: Triple, layer: LayerConfig) -> tuple[list[int], list[int]]:
    """For each position, the number of its group in a layer, and its place in that group."""
    group_of, place_of = [0] * math.prod(extent), [0] * math.prod(extent)
    for number, group in enumerate(groups(extent, layer)):
        for place, position in enumerate(group):
            group_of[position], place_of[position] = number, place
    return group_of, place_of


def groups(extent: Triple, layer: LayerConfig) -> list[list[int]]:
    """The positions that attend to each other in a layer, each group in raster order."""
    positions = torch.arange(math.prod(extent)).view(*extent, 1)
    grouped: list[list[int]] = to_blocks(positions, layer.block, layer.dilated).squeeze(-1).tolist()
    return grouped


def past_taps(extent: Triple, kernel: Triple) -> list[list[int]]:
    """For each position, the positions that its masked convolution reads."""
    beyond = math.prod(extent)
    return [[tap for tap in taps if tap != beyond] for taps in aligned_taps(extent, kernel)]


def aligned_taps(extent: Triple, kernel: Triple) -> list[list[int]]:
    """For each position, what lies under each past tap of the masked convolution: a position, or beyond the border the
    number of positions."""
    (T, H, W), (i, j, k) = extent, kernel
    numbers = torch.full((T + i // 2, H + 2 * (j // 2), W + 2 * (k // 2)), T * H * W)
    numbers[i // 2 :, j // 2 : j // 2 + H, k // 2 : k // 2 + W] = torch.arange(T * H * W).view(T, H, W)
    corners = [(tap // k // j, tap // k % j, tap % k) for tap in range(i * j * k // 2)]
    shifted = [numbers[t : t + T, h : h + H, w : w + W].flatten() for t, h, w in corners]
    aligned: list[list[int]] = torch.stack(shifted, dim=1).tolist() if shifted else [[] for _ in range(T * H * W)]
    return aligned
