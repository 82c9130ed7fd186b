"""Which frames are kept: by rate, by count, with their actions; and that they make one array of bounded size."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framecast.data import frames as module
from framecast.data.frames import Frame, Selection, at_rate
from framecast.data.resize import resize
from framecast.errors import UserError


def frames(times, shape=(2, 2, 3)):
    return [Frame(time, partial(np.full, shape, i, np.uint8)) for i, time in enumerate(times)]


def numbers(kept):
    return [int(frame.pixels().flat[0]) for frame in kept]


jittered = st.tuples(
    st.sampled_from([10.0, 24.0, 29.97, 60.0]), st.lists(st.floats(-0.05, 0.05), min_size=2, max_size=40)
)


@given(jittered, st.floats(0, 1000))
def test_their_own_rate_keeps_all_frames_even_where_times_are_not_exact(rate_and_errors, start):
    rate, errors = rate_and_errors
    times = [start + (i + error) / rate for i, error in enumerate(errors)]
    assert numbers(at_rate(frames(times), rate)) == list(range(len(times)))


@given(jittered, st.integers(2, 7))
def test_a_fraction_of_their_rate_keeps_every_nth(rate_and_errors, n):
    rate, errors = rate_and_errors
    times = [(i + error) / rate for i, error in enumerate(errors)]
    kept = numbers(at_rate(frames(times), rate / n))
    wanted = list(range(0, len(times), n))
    assert kept == wanted or kept == [*wanted, len(times) - 1]  # what the last frame's time lasts is a guess


def test_twice_their_rate_shows_each_twice():
    assert numbers(at_rate(frames([0, 0.1, 0.2]), 20)) == [0, 0, 1, 1, 2, 2]


def test_a_frame_stays_until_the_next():
    assert numbers(at_rate(frames([0, 0.1, 0.2, 0.7, 0.8]), 10)) == [0, 1, 2, 2, 2, 2, 2, 3, 4]
    assert numbers(at_rate(frames([0, 0.1, 0.2, 0.7, 0.8]), 5)) == [0, 2, 2, 2, 4]


def test_rates_between():
    assert numbers(at_rate(frames(i / 30 for i in range(30)), 20)) == [i * 3 // 2 for i in range(20)]
    nearly_due = [(i * 5 + 1) // 4 for i in range(24)]  # a quarter of a frame early is on time
    assert numbers(at_rate(frames(i / 30 for i in range(30)), 24)) == nearly_due


def test_one_frame_at_any_rate_is_one_frame():
    assert numbers(at_rate(frames([5.0]), 25)) == [0]
    assert numbers(at_rate([], 25)) == []


def test_a_rate_needs_times():
    with pytest.raises(UserError, match="it holds no times, so --fps cannot be told; --every can"):
        Selection((2, 2), fps=5).clip(frames([None, None]))


@given(st.integers(1, 30), st.integers(1, 8))
def test_every_nth_frame_with_the_actions_between(length, every):
    selection = Selection(None, every=every)
    actions = np.arange(2.0 * length).reshape(length, 2)
    kept = selection.clip(frames([None] * length))[:, 0, 0, 0]
    assert kept.tolist() == list(range(0, length, every))
    together = selection.actions(actions)
    assert together.shape == (len(kept), 2 * every)
    for frame, joined in zip(kept, together, strict=True):
        between = [actions[min(frame + i, length - 1)] for i in range(every)]
        assert joined.tolist() == np.concatenate(between).tolist()
    assert selection.along(actions).tolist() == actions[kept].tolist()


def test_rate_first_then_every_nth():
    assert Selection(None, fps=10, every=3).clip(frames(i / 20 for i in range(20)))[:, 0, 0, 0].tolist() == [
        0,
        6,
        12,
        18,
    ]


def test_frames_are_resized_and_those_left_out_are_not_even_made():
    random = np.random.default_rng(0).integers(0, 256, (4, 20, 30, 3), np.uint8)
    made = []

    def picture(i):
        made.append(i)
        return random[i]

    recorded = [Frame(None, partial(picture, i)) for i in range(4)]
    assert (Selection((8, 8), "stretch", every=2).clip(recorded) == resize(random[::2], (8, 8), "stretch")).all()
    assert made == [0, 2]


def test_a_frame_that_is_shown_for_long_is_made_once():
    made = []
    Selection((1, 1), fps=100).clip([Frame(t, lambda: made.append(0) or np.zeros((1, 1, 3), np.uint8)) for t in (0, 1)])
    assert len(made) == 2


def test_frames_of_several_sizes():
    mixed = [*frames([None], (4, 4, 3)), *frames([None], (6, 8, 3))]
    assert Selection((2, 2)).clip(mixed).shape == (2, 2, 2, 3)
    with pytest.raises(UserError, match="its frames change from 4×4×3 to 6×8×3; --size makes them alike"):
        Selection(None).clip(mixed)


def test_no_frames_and_too_many(monkeypatch):
    with pytest.raises(UserError, match="it has no frames"):
        Selection((2, 2)).clip([])
    monkeypatch.setattr(module, "MAX_CLIP_BYTES", 1 << 20)
    endless = (frame for _ in range(10**9) for frame in frames([None], (64, 64, 3)))
    with pytest.raises(UserError, match="its frames take more than 1 MiB; a smaller --size takes less"):
        Selection((64, 64)).clip(endless)


def test_a_leap_in_time_ends(monkeypatch):
    monkeypatch.setattr(module, "MAX_CLIP_BYTES", 1 << 20)
    with pytest.raises(UserError, match="more than 1 MiB"):
        Selection((64, 64), fps=30).clip(frames([0, 1e12], (64, 64, 3)))


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"fps": 0}, "--fps 0 is no number of frames a second"),
        ({"fps": float("nan")}, "--fps nan"),
        ({"every": 0}, "--every 0 keeps no frame"),
        ({"size": (0, 4)}, "frames of 0×4 cannot be made"),
        ({"size": (1 << 20, 1 << 20)}, "cannot be made: --size has 1 to 67108864 pixels"),
        ({"fit": "fill"}, "--fit fill is neither crop nor stretch"),
    ],
)
def test_settings_that_make_no_sense(as_people_call_it, options, complaint):
    with pytest.raises(UserError, match=complaint):
        Selection(**{"size": (4, 4), **options})
