"""Chained windows: every frame is new exactly once, and the chains of docs/paper.md come out."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from framecast.ops.windows import Window, windows


@given(st.integers(1, 20), st.integers(0, 60), st.data())
def test_every_frame_is_new_once(length, more, data):
    overlap = data.draw(st.integers(0, length - 1))
    chain = windows(length + more, length, overlap)
    new = [frame for window in chain for frame in range(window.start + window.known, window.start + length)]
    assert new == list(range(length + more))
    assert all(window.known >= overlap for window in chain[1:])


def test_the_spatial_model_covers_16_frames_in_five_steps_of_three():
    chain = windows(16, 4, 1)
    assert [window.start for window in chain] == [0, 3, 6, 9, 12]


def test_the_last_window_moves_back_to_end_with_the_video():
    assert windows(20, 4, 1)[-1] == Window(start=16, known=3)
    assert windows(30, 16, 1)[1:] == [Window(start=14, known=2)]
