"""Subscaling against the paper's definition, written out as loops."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from framecast.ops import subscale

FACTORS = [(1, 1, 1), (4, 2, 2), (1, 2, 2), (8, 1, 1), (2, 1, 4)]


def offsets(factor):
    return list(itertools.product(*map(range, factor)))


def volume(extent, batch=1):
    T, H, W = extent
    return torch.arange(batch * T * H * W).view(batch, T, H, W)


@pytest.mark.parametrize("factor", FACTORS)
def test_slices_are_every_s_th_pixel_in_the_order_of_their_offsets(factor):
    video = volume((8, 4, 8))
    for index, (a, b, c) in enumerate(offsets(factor)):
        here = subscale.take(video, torch.tensor([index]), factor)
        assert torch.equal(here, video[:, a :: factor[0], b :: factor[1], c :: factor[2]])


@pytest.mark.parametrize("factor", FACTORS)
def test_put_is_the_inverse_of_take(factor):
    video = volume((8, 4, 8), batch=len(offsets(factor)))
    copy = torch.zeros_like(video)
    rotated = torch.arange(len(video))
    for shift in range(len(video)):  # every slice of every video once, each batch at mixed slices
        index = (rotated + shift) % len(video)
        subscale.put(copy, subscale.take(video, index, factor), index, factor)
    assert torch.equal(copy, video)


def expected_taps(extent, factor, kernel, index):
    """For each output: the (tap, pixel) pairs that the paper's padded, strided convolution reads and may see."""
    offset = offsets(factor)[index]
    reads = {}
    for place in itertools.product(*(range(0, size, step) for size, step in zip(extent, factor, strict=True))):
        output = tuple(p // step for p, step in zip(place, factor, strict=True))
        reads[output] = set()
        for tap in itertools.product(*map(range, kernel)):
            # padding by ⌊k/2⌋ − offset puts tap 0 of the output at `place` that far before it
            pixel = tuple(p + t - (k // 2 - o) for p, t, k, o in zip(place, tap, kernel, offset, strict=True))
            inside = all(0 <= x < size for x, size in zip(pixel, extent, strict=True))
            if inside and offsets(factor).index(tuple(x % s for x, s in zip(pixel, factor, strict=True))) < index:
                reads[output].add((tap, pixel))
    return reads


@pytest.mark.parametrize(
    ("extent", "factor", "kernel"),
    [
        ((4, 4, 4), (2, 2, 2), (2, 2, 2)),
        ((8, 4, 4), (4, 2, 2), (4, 2, 2)),
        ((4, 4, 4), (2, 2, 1), (3, 5, 1)),
        ((6, 2, 2), (6, 1, 1), (6, 1, 1)),
        ((4, 4, 2), (4, 1, 2), (1, 1, 4)),
        ((2, 6, 4), (1, 3, 2), (3, 2, 3)),
    ],
)
def test_context_reads_exactly_the_taps_of_the_padding_rule(extent, factor, kernel):
    num_slices = len(offsets(factor))
    video = volume(extent).expand(num_slices, *extent)
    taps, visible = subscale.context(video, torch.arange(num_slices), factor, kernel)
    for index in range(num_slices):
        for output, expected in expected_taps(extent, factor, kernel, index).items():
            where = visible[(index, *output)].nonzero().tolist()
            read = {(tuple(tap), taps[(index, *output, *tap)].item()) for tap in where}
            numbers = {(tap, (pixel[0] * extent[1] + pixel[1]) * extent[2] + pixel[2]) for tap, pixel in expected}
            assert read == numbers


def test_the_padding_may_crop():
    """With k = s = (4, 2, 2), slices of the last time offset never read frame 0, those of b = 0 not the last row."""
    drops = subscale.dropped((16, 64, 64), (4, 2, 2), (4, 2, 2))
    assert drops == ({3: [0]}, {0: [63]}, {0: [63]})


@settings(deadline=None, max_examples=30)
@given(data=st.data())
def test_dropped_is_what_no_tap_reads(data):
    factor = data.draw(st.tuples(*[st.integers(1, 3)] * 3))
    extent = tuple(step * data.draw(st.integers(1, 2)) for step in factor)
    kernel = data.draw(st.tuples(*[st.integers(1, 4)] * 3))
    drops = subscale.dropped(extent, factor, kernel)
    for axis in range(3):
        for offset in range(factor[axis]):
            half = kernel[axis] // 2
            starts, taps = range(0, extent[axis], factor[axis]), range(kernel[axis])
            read = {start + tap - (half - offset) for start in starts for tap in taps}
            shown = {
                pixel[axis]
                for index, slice_offset in enumerate(offsets(factor))
                if slice_offset[axis] == offset
                for pixel in itertools.product(*map(range, extent))
                if offsets(factor).index(tuple(x % s for x, s in zip(pixel, factor, strict=True))) < index
            }
            assert set(drops[axis].get(offset, [])) == shown - read
