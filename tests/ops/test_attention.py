"""Block attention against the definition, position by position."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from framecast.ops.attention import block_attention
from framecast.ops.blocks import group_shape

EXTENT, BLOCK, HEADS, SIZE = (2, 4, 4), (1, 2, 4), 2, 3


def by_definition(qkv, bias, dilated, masked, gate):
    places = list(itertools.product(*map(range, EXTENT)))
    key = (lambda p, b: p % b) if dilated else (lambda p, b: p // b)
    group_of = {place: tuple(key(p, b) for p, b in zip(place, BLOCK, strict=True)) for place in places}
    out = torch.zeros(*qkv.shape[:4], HEADS, SIZE, dtype=qkv.dtype)
    for batch, head, place in itertools.product(range(len(qkv)), range(HEADS), places):
        group = [other for other in places if group_of[other] == group_of[place]]
        i = group.index(place)
        seen = range(i + 1) if masked else range(len(group))
        query = qkv[(batch, *place, 0, head)]
        scores = [query @ qkv[(batch, *group[j], 1, head)] / math.sqrt(SIZE) + bias[head, i, j] for j in seen]
        weights = torch.stack(scores).softmax(0)
        for j, weight in zip(seen, weights, strict=True):
            if not (gate and j == i):
                out[(batch, *place, head)] += weight * qkv[(batch, *group[j], 2, head)]
    return out.flatten(4)


@pytest.mark.parametrize("dilated", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("gate", [False, True])
def test_equals_the_definition(dilated, masked, gate):
    torch.manual_seed(0)
    num_positions = math.prod(group_shape(EXTENT, BLOCK, dilated))
    qkv = torch.randn(2, *EXTENT, 3, HEADS, SIZE, dtype=torch.float64)
    bias = torch.randn(HEADS, num_positions, num_positions, dtype=torch.float64)
    found = block_attention(qkv, bias, BLOCK, dilated=dilated, masked=masked, gate=gate)
    torch.testing.assert_close(found, by_definition(qkv, bias, dilated, masked, gate))


def test_the_gate_lets_the_first_position_attend_to_nothing():
    qkv = torch.randn(1, 1, 1, 4, 3, 1, SIZE, dtype=torch.float64)
    bias = torch.zeros(1, 4, 4, dtype=torch.float64)
    found = block_attention(qkv, bias, (1, 1, 4), masked=True, gate=True)
    assert torch.equal(found[0, 0, 0, 0], torch.zeros(SIZE, dtype=torch.float64))


def test_the_softmax_is_never_in_half_precision():
    torch.manual_seed(0)
    qkv = torch.randn(1, 1, 8, 8, 3, 2, 16)
    bias = torch.randn(2, 64, 64)
    exact = block_attention(qkv.double(), bias.double(), (1, 8, 8))
    found = block_attention(qkv.bfloat16(), bias, (1, 8, 8))
    assert found.dtype == torch.bfloat16
    assert (found.double() - exact).abs().max() < 0.03
