"""Blocks and their dilated dual: every position once, in raster order, and back again."""

from __future__ import annotations

import itertools

import pytest
import torch

from framecast.ops.blocks import axis_distances, from_blocks, group_shape, raster_mask, to_blocks

CASES = [((4, 8, 6), (2, 4, 3)), ((4, 8, 6), (1, 8, 2)), ((4, 8, 6), (4, 8, 6)), ((3, 2, 2), (1, 1, 1))]


@pytest.mark.parametrize(("extent", "block"), CASES)
@pytest.mark.parametrize("dilated", [False, True])
def test_groups_are_those_of_the_definition(extent, block, dilated):
    T, H, W = extent
    places = list(itertools.product(range(T), range(H), range(W)))
    key = (lambda p, b: p % b) if dilated else (lambda p, b: p // b)
    groups = {}
    for number, place in enumerate(places):
        groups.setdefault(tuple(key(p, b) for p, b in zip(place, block, strict=True)), []).append(number)
    found = to_blocks(torch.arange(T * H * W).view(T, H, W, 1), block, dilated).squeeze(-1)
    assert found.tolist() == [groups[name] for name in sorted(groups)]
    assert found.shape[1] == torch.Size(group_shape(extent, block, dilated)).numel()


@pytest.mark.parametrize(("extent", "block"), CASES)
@pytest.mark.parametrize("dilated", [False, True])
def test_there_and_back(extent, block, dilated):
    volume = torch.randn(2, 3, *extent, 5)
    assert torch.equal(from_blocks(to_blocks(volume, block, dilated), extent, block, dilated), volume)


def test_distances_count_from_the_most_negative():
    assert axis_distances(3).tolist() == [[2, 1, 0], [3, 2, 1], [4, 3, 2]]


def test_the_mask_lets_a_position_see_itself_and_its_past():
    assert raster_mask(3).tolist() == [[True, False, False], [True, True, False], [True, True, True]]
