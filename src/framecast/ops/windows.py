"""Chained windows: a video longer than the model is read as overlapping stretches of the model's length."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Window:
    start: int  # its first frame in the video
    known: int  # how many of its frames earlier windows have dealt with


def windows(num_frames: int, length: int, overlap: int) -> list[Window]:
    """Windows start at multiples of (length − overlap); the last is moved back so that it ends with the video.

    Every frame of the video is new in exactly one window.
    """
    assert 0 <= overlap < length <= num_frames
    chain, done = [], 0
    while done < num_frames:
        start = min(max(done - overlap, 0), num_frames - length)
        chain.append(Window(start, done - start))
        done = start + length
    return chain
