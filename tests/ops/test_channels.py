"""Codes: every value comes back, coarse codes of all channels stand first, one-hots are where the tables' rows are."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from framecast.ops import channels

SPLITS = [(8,), (4, 4), (1,), (1, 1), (2, 3, 3), (5, 2), (1, 1, 1, 1, 1, 1, 1, 1)]


@pytest.mark.parametrize("code_bits", SPLITS)
@pytest.mark.parametrize("num_channels", [1, 3])
def test_every_value_comes_back(code_bits, num_channels):
    values = torch.arange(2 ** sum(code_bits), dtype=torch.uint8)
    pixels = torch.stack([values.roll(channel) for channel in range(num_channels)], dim=-1)
    codes = channels.split(pixels, code_bits)
    assert codes.shape[-1] == num_channels * len(code_bits)
    assert torch.equal(channels.join(codes, code_bits), pixels)


def test_coarse_codes_of_all_channels_come_first():
    red, green, blue = 0x12, 0xAB, 0xF0
    codes = channels.split(torch.tensor([red, green, blue], dtype=torch.uint8), (4, 4))
    assert codes.tolist() == [0x1, 0xA, 0xF, 0x2, 0xB, 0x0]


@given(st.lists(st.integers(0, 255), min_size=3, max_size=3))
def test_codes_are_digits(pixel):
    codes = channels.split(torch.tensor(pixel, dtype=torch.uint8), (3, 3, 2)).tolist()
    assert codes == [v >> 5 for v in pixel] + [v >> 2 & 7 for v in pixel] + [v & 3 for v in pixel]


def test_one_hot_marks_each_code_s_own_row():
    num_code_values = (2, 4, 8)
    codes = torch.tensor([[1, 2, 5], [0, 0, 0]], dtype=torch.uint8)
    vectors = channels.one_hot(codes, num_code_values, torch.float64)
    assert vectors.shape == (2, 14)
    assert vectors.nonzero().tolist() == [[0, 1], [0, 4], [0, 11], [1, 0], [1, 2], [1, 6]]
    assert torch.equal(channels.rows(codes, num_code_values), torch.tensor([[1, 4, 11], [0, 2, 6]]))
