from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from framecast.data import keyed


@given(size=st.integers(1, 3000), seed=st.integers(0, 2**64 - 1))
@settings(deadline=None)
def test_an_order_holds_everything_once(size: int, seed: int) -> None:
    order = keyed.order(np.arange(size), size, keyed.words(seed))
    assert sorted(order.tolist()) == list(range(size))


@given(size=st.integers(1, 10**15), places=st.lists(st.integers(0, 10**15), min_size=1, max_size=8))
@settings(deadline=None)
def test_a_place_is_the_same_whatever_is_asked_with_it(size: int, places: list[int]) -> None:
    place = np.array(places) % size
    together = keyed.order(place, size, keyed.words(5))
    apart = [keyed.order(place[n : n + 1], size, keyed.words(5)).item() for n in range(len(place))]
    assert together.tolist() == apart
    assert ((together >= 0) & (together < size)).all()


@pytest.mark.parametrize("size", [2, 3, 7, 64, 65, 100])
def test_every_place_has_everything_equally_often(size: int) -> None:
    """Chi-square of the first and the last place over many keys, within five standard deviations of its mean."""
    keys = keyed.words(np.arange(20_000))
    for place in (0, size - 1):
        counts = np.bincount(keyed.order(np.full(len(keys), place), size, keys), minlength=size)
        expected = len(keys) / size
        chi_square = ((counts - expected) ** 2 / expected).sum()
        assert abs(chi_square - (size - 1)) < 5 * np.sqrt(2 * (size - 1))


def test_neighbours_in_key_have_nothing_in_common() -> None:
    words = keyed.words(np.arange(4000)[:, None], np.arange(2))
    bits = (words[..., None] >> np.arange(64, dtype=np.uint64)) & np.uint64(1)
    assert (abs(bits.mean(axis=0) - 0.5) < 5 * 0.5 / np.sqrt(4000)).all()
    flips = (bits[1:] != bits[:-1]).mean(axis=0)
    assert (abs(flips - 0.5) < 5 * 0.5 / np.sqrt(4000)).all()
    assert len(np.unique(words)) == words.size


@given(limit=st.integers(1, 1000))
@settings(deadline=None)
def test_numbers_below_a_limit(limit: int) -> None:
    drawn = keyed.below(keyed.words(np.arange(2000)), limit)
    assert ((drawn >= 0) & (drawn < limit)).all()
    assert abs(drawn.mean() - (limit - 1) / 2) < 5 * limit / np.sqrt(12 * 2000)
    assert ((keyed.unit(keyed.words(np.arange(2000))) * limit).astype(int) < limit).all()


def test_keys_of_one_word_and_of_many() -> None:
    assert keyed.words(3, 4).item() == keyed.words(np.array([3]), 4).item() != keyed.words(4, 3).item()
    assert keyed.words(2**64 + 5).item() == keyed.words(5).item()


def test_words_may_not_change() -> None:
    """What is drawn by them is compared between people: test sets, orders of batches."""
    assert keyed.words(1, 2, 3).item() == 16914669369030367833
    assert keyed.order(np.arange(5), 5, keyed.words(0)).tolist() == [0, 4, 2, 3, 1]
    assert keyed.order(np.arange(3), 10**9, keyed.words(0)).tolist() == [61743491, 323696743, 898901412]
