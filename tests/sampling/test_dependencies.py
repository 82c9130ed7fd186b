"""The schedule of waves: as short as what pixels influence allows, and never ahead of what it needs."""

from __future__ import annotations

import time
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from framecast.config import LayerConfig, ModelConfig
from framecast.presets import preset
from framecast.sampling import dependencies

PUBLISHED = [
    # preset, positions, steps when a group is finished position by position, the least, widest wave, blind spots
    ("bair-spatiotemporal-base", 4096, 1428, 1373, 8, 0.2752),
    ("bair-single-frame-base", 4096, 2534, 2474, 2, 0.0066),
]


def steps_group_by_group(config: ModelConfig) -> list[int]:
    """The plain schedule: a position waits for all earlier positions of its groups to be drawn."""
    groups_of = [dependencies.numbered(config.slice_shape, layer)[0] for layer in config.decoder_layers]
    last, steps = [{} for _ in groups_of], []
    for position, taps in enumerate(dependencies.past_taps(config.slice_shape, config.masked_kernel)):
        needed = [of_layer.get(groups[position], -1) for of_layer, groups in zip(last, groups_of, strict=True)]
        steps.append(1 + max([-1, *needed, *(steps[tap] for tap in taps)]))
        for of_layer, groups in zip(last, groups_of, strict=True):
            of_layer[groups[position]] = steps[-1]
    return steps


def least_steps(config: ModelConfig) -> list[int]:
    """What no schedule can beat: a pixel is drawn a step after the last of those that its prediction depends on."""
    steps: list[int] = []
    for reached in dependencies.reach(config, config.decoder_layers):
        steps.append(1 + max([-1, *(steps[i] for i in range(len(steps)) if reached >> i & 1)]))
    return steps


@pytest.mark.parametrize(("name", "positions", "plain", "least", "widest", "blind"), PUBLISHED)
def test_figures_of_the_paper_s_layouts(name, positions, plain, least, widest, blind):
    config = preset(name).model
    dependencies._waves.cache_clear()
    start = time.perf_counter()
    waves = dependencies.waves(config, config.decoder_layers)
    assert time.perf_counter() - start < 2
    assert len(waves) == positions
    assert max(steps_group_by_group(config)) + 1 == plain
    assert max(waves) + 1 == least == max(least_steps(config)) + 1
    assert max(Counter(waves).values()) == widest
    assert dependencies.blind_spots(config, config.decoder_layers) == pytest.approx(blind, abs=5e-5)


@st.composite
def layouts(draw) -> ModelConfig:
    extent = tuple(draw(st.integers(1, 4)) for _ in range(3))
    layers = tuple(
        LayerConfig(
            tuple(draw(st.sampled_from([n for n in range(1, size + 1) if size % n == 0])) for size in extent),
            num_heads=1,
            dilated=draw(st.booleans()),
        )
        for _ in range(draw(st.integers(1, 3)))
    )
    kernel = tuple(draw(st.sampled_from([1, 3, 5])) for _ in range(3))
    shape = (extent[0] * 2, *extent[1:])
    return ModelConfig(shape, (2, 1, 1), layers, layers, masked_kernel=kernel, num_channels=1, code_bits=(1,))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(layouts(), st.randoms(use_true_random=False))
def test_nothing_comes_before_what_it_needs(config, random):
    num_positions = len(dependencies.waves(config, config.decoder_layers))
    given_pixels = tuple(random.random() < 0.4 for _ in range(num_positions))
    steps = dependencies.waves(config, config.decoder_layers, given_pixels)
    for position, taps in enumerate(dependencies.past_taps(config.slice_shape, config.masked_kernel)):
        assert all(steps[tap] < steps[position] for tap in taps if not given_pixels[tap])
    for layer in config.decoder_layers:
        for group in dependencies.groups(config.slice_shape, layer):
            assert [steps[i] for i in group] == sorted(steps[i] for i in group)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(layouts())
def test_as_long_as_the_plain_schedule_at_most_and_never_shorter_than_possible(config):
    waves = max(dependencies.waves(config, config.decoder_layers))
    assert max(least_steps(config)) <= waves <= max(steps_group_by_group(config))


def test_what_is_all_given_is_one_wave():
    config = preset("bair-spatiotemporal-base").model
    assert set(dependencies.waves(config, config.decoder_layers, (True,) * 4096)) == {0}


def test_taps_lie_where_the_convolution_reads():
    taps = dependencies.aligned_taps((1, 2, 3), (1, 3, 3))
    assert taps == [[6, 6, 6, 6], [6, 6, 6, 0], [6, 6, 6, 1], [6, 0, 1, 6], [0, 1, 2, 3], [1, 2, 6, 4]]
    assert dependencies.aligned_taps((1, 1, 2), (1, 1, 1)) == [[], []]
    assert torch.tensor(dependencies.aligned_taps((2, 2, 2), (3, 3, 3))).shape == (8, 13)
