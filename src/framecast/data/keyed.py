"""Randomness as a function: the same key gives the same words, on every machine, in any order, with no state.

The words are those of splitmix64's finaliser, chained over the parts of a key. An order of n places is a Feistel
network over the smallest even power of two that holds them, walked until it lands inside (cycle walking), so that an
order of hundreds of millions of slices takes no memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Float, Int, Shaped

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_ROUND_KEYS = np.arange(6, dtype=np.uint64) * _GOLDEN


def words(*key: int | Shaped[np.ndarray, "..."]) -> Shaped[np.ndarray, "..."]:
    """Uniform uint64 for a key of integers; array parts are broadcast against each other."""
    state = np.zeros(1, np.uint64)
    for part in key:
        value = np.uint64(part & 0xFFFFFFFFFFFFFFFF) if isinstance(part, int) else part.astype(np.uint64)
        state = _mix((state + _GOLDEN) ^ value)
    return state


def unit(word: Shaped[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """Uniform float64 in [0, 1)."""
    return (word >> np.uint64(11)).astype(np.float64) * 2.0**-53


def below(word: Shaped[np.ndarray, "..."], limit: int | Int[np.ndarray, "..."]) -> Int[np.ndarray, "..."]:
    """Uniform integers in [0, limit), for limits up to 2³² (the bias is at most limit / 2³²)."""
    bound = np.asarray(limit).astype(np.uint64)
    return (((word >> np.uint64(32)) * bound) >> np.uint64(32)).astype(np.int64)


def order(place: Int[np.ndarray, "P"], size: int, key: Shaped[np.ndarray, "K"]) -> Int[np.ndarray, "P"]:
    """What stands at each place of the order of 0 … size − 1 that `key` names; keys are one word, or one a place."""
    key = np.broadcast_to(key, place.shape)
    if size <= 64:  # so few places that a Feistel network is visibly uneven, and that sorting them costs nothing
        whole = np.argsort(words(key[:, None], np.arange(size)), axis=1)
        return np.take_along_axis(whole, place[:, None], axis=1)[:, 0]
    half = np.uint64(((size - 1).bit_length() + 1) // 2)
    value = _feistel(place.astype(np.uint64), half, key)
    while (outside := value >= np.uint64(size)).any():
        value[outside] = _feistel(value[outside], half, key[outside])
    return value.astype(np.int64)


def _feistel(value: Shaped[np.ndarray, "P"], half: np.uint64, key: Shaped[np.ndarray, "P"]) -> Shaped[np.ndarray, "P"]:
    """A bijection of 2·half bits, whatever the round function does."""
    mask = (np.uint64(1) << half) - np.uint64(1)
    left, right = value >> half, value & mask
    for round_key in _ROUND_KEYS:
        left, right = right, left ^ (_mix(key + right + round_key) & mask)
    return (left << half) | right


def _mix(word: Shaped[np.ndarray, "..."]) -> Shaped[np.ndarray, "..."]:
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: np.ndarray = word ^ (word >> np.uint64(31))
    return mixed
