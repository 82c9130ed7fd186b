"""Baselines of the likelihood that are counted: they are distributions, and worth what they say."""

from __future__ import annotations

import numpy as np
import pytest

from framecast.evaluation import counted


def test_both_are_distributions():
    rng = np.random.default_rng(0)
    found = counted.count(([rng.integers(0, 4, (5, 3, 2, 3), dtype=np.uint8) for _ in range(3)]), 4)
    np.testing.assert_allclose((2.0**-found.independent).sum(-1), 1.0)
    np.testing.assert_allclose((2.0**-found.previous_frame).sum(-1), 1.0)


def test_noise_costs_its_bits_and_a_still_video_hardly_any_given_the_frame_before():
    rng = np.random.default_rng(0)
    noise = [rng.integers(0, 4, (9, 16, 16, 1), dtype=np.uint8) for _ in range(60)]
    found = counted.count((noise), 4)
    for bits in found.bits(noise[0], prime_frames=3):
        assert bits.shape == (6,)
        assert bits.mean() == pytest.approx(2.0, abs=0.02)
    still = [np.repeat(video[:1], 9, axis=0) for video in noise]
    independent, previous_frame = counted.count((still), 4).bits(still[0], prime_frames=3)
    assert independent.mean() == pytest.approx(2.0, abs=0.02)
    assert previous_frame.max() < 0.01


def test_channels_are_counted_apart():
    video = np.zeros((4, 8, 8, 3), np.uint8)
    video[..., 1] = 1
    found = counted.count(([video] * 60), 2)
    assert found.bits(video, prime_frames=0)[0].shape == (3,), "the first frame is given"
    assert found.bits(video, prime_frames=1)[0].max() < 0.01
