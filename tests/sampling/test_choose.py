"""Choosers draw what they promise."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch

from framecast.errors import UserError
from framecast.sampling import noise
from framecast.sampling.choose import Where, draw, greedy, keep


def where(num_pixels: int, num_values: int, code: int = 0, seed: int = 0) -> Where:
    samples, pixels = torch.arange(2), torch.arange(num_pixels)
    return Where(samples, pixels, code, partial(noise.gumbel, seed, samples, pixels, code, num_values))


LOGITS = torch.tensor([1.0, 0.5, -0.5, 0.0, -2.0], dtype=torch.float64)


def frequencies(chooser, num_pixels: int = 20_000) -> torch.Tensor:
    logits = LOGITS.expand(num_pixels, 2, 5)
    return torch.bincount(chooser(logits, where(num_pixels, 5)).flatten(), minlength=5) / (2 * num_pixels)


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.5])
def test_draws_have_the_softmax_s_frequencies(temperature):
    drawn = frequencies(draw(temperature))
    torch.testing.assert_close(drawn.double(), torch.softmax(LOGITS / temperature, 0), atol=0.008, rtol=0)


def test_top_k_leaves_the_k_likeliest():
    drawn = frequencies(draw(1.0, top_k=2))
    expected = torch.tensor([math.exp(1), math.exp(0.5), 0, 0, 0])
    torch.testing.assert_close(drawn, expected / expected.sum(), atol=0.008, rtol=0)


def test_top_p_leaves_the_fewest_that_make_it_up():
    probabilities = torch.softmax(LOGITS, 0)
    p = float(probabilities[0] + probabilities[1])
    assert (frequencies(draw(1.0, top_p=p - 1e-9)) > 0).tolist() == [True, True, False, False, False]
    assert (frequencies(draw(1.0, top_p=p + 1e-9)) > 0).tolist() == [True, True, False, True, False]
    assert (frequencies(draw(1.0, top_p=1e-9)) > 0).tolist() == [True, False, False, False, False]


def test_top_p_counts_probabilities_at_the_temperature():
    sharp = torch.softmax(LOGITS / 0.2, 0)
    assert (frequencies(draw(0.2, top_p=float(sharp[0]) - 1e-9)) > 0).sum() == 1


def test_no_restriction_changes_nothing():
    logits = torch.randn(50, 2, 5, generator=torch.Generator().manual_seed(0))
    plain = draw(0.9)(logits, where(50, 5))
    assert torch.equal(draw(0.9, top_k=5)(logits, where(50, 5)), plain)
    assert torch.equal(draw(0.9, top_k=99, top_p=1.0)(logits, where(50, 5)), plain)


def test_temperature_zero_is_greedy_and_greedy_takes_the_likeliest():
    logits = torch.randn(50, 2, 5, generator=torch.Generator().manual_seed(0))
    assert draw(0) is greedy
    assert torch.equal(greedy(logits, where(50, 5)), logits.argmax(-1))


def test_known_codes_are_kept_and_the_others_left_to_the_other():
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(0, 5, (2, 30, 3), generator=generator).to(torch.uint8)
    known = torch.rand(2, 30, generator=generator) < 0.5
    logits = torch.randn(4, 2, 5, generator=generator)
    there = where(4, 5, code=2)
    there = Where(there.samples, torch.tensor([3, 29, 0, 7]), 2, there.gumbel)
    chosen = keep(codes, known, draw(0.9))(logits, there)
    expected = torch.where(known[:, there.pixels].T, codes[:, there.pixels, 2].T.long(), draw(0.9)(logits, there))
    assert torch.equal(chosen, expected)
    assert not torch.equal(chosen, draw(0.9)(logits, there))


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"temperature": -1.0}, r"temperature is -1\.0: it must be 0"),
        ({"temperature": math.nan}, "temperature is nan: it must be 0"),
        ({"temperature": math.inf}, "temperature is inf: it must be 0"),
        ({"top_k": 0}, "top_k is 0: at least 1 value must remain"),
        ({"top_p": 0.0}, r"top_p is 0\.0: it must be above 0 and at most 1"),
        ({"top_p": 1.5}, r"top_p is 1\.5: it must be above 0 and at most 1"),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings, sentence):
    with pytest.raises(UserError, match=sentence):
        draw(**settings)
