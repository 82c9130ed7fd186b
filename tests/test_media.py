"""Clips come back from the formats that promise it, and nearly so from the one that does not."""

from __future__ import annotations

import io

import av
import numpy as np
import pytest
from PIL import Image, ImageSequence

from framecast import media
from framecast.errors import UserError


@pytest.fixture(params=[1, 3], ids=["grey", "colour"])
def clip(request) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (4, 6, 10, request.param), dtype=np.uint8)


def smooth(channels: int) -> np.ndarray:
    """A coloured gradient that moves, which halving the colour's resolution hardly changes."""
    t, y, x = np.mgrid[:5, :33, :47]
    planes = [4 * x + 3 * t, 5 * y + 20, 255 - 3 * x - 2 * y]
    return np.stack(planes[:channels], -1).astype(np.uint8)


def frames(data: bytes) -> np.ndarray:
    mode = "RGB"
    with Image.open(io.BytesIO(data)) as image:
        return np.stack([np.asarray(frame.convert(mode)) for frame in ImageSequence.Iterator(image)])


def colour(clip: np.ndarray) -> np.ndarray:
    return clip.repeat(3, -1) if clip.shape[-1] == 1 else clip


def test_npz_keeps_every_value_of_one_clip_and_of_several(tmp_path, clip):
    for clips in (clip, np.stack([clip, 255 - clip])):
        media.write(tmp_path / "a.npz", clips)
        np.testing.assert_array_equal(np.load(tmp_path / "a.npz")["video"], clips)


@pytest.mark.parametrize("kind", ["webp", "gif"])
def test_animations_keep_every_value(kind, clip):
    np.testing.assert_array_equal(frames(media.encode(clip, kind)), colour(clip))


def test_mp4_keeps_size_number_and_nearly_the_colours():
    for channels in (1, 3):
        clip = smooth(channels)
        with av.open(io.BytesIO(media.encode(clip, "mp4", fps=7.5))) as container:
            assert float(container.streams.video[0].average_rate) == 7.5
            read = np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])
        assert read.shape == (5, 34, 48, 3)  # made even at the far sides
        error = np.abs(read[:, :33, :47].astype(int) - colour(clip))
        assert error.mean() < 2.5
        assert np.percentile(error, 99) < 12


def test_strip_has_a_row_a_clip_and_a_column_a_frame(clip):
    clips = np.stack([clip, 255 - clip])
    picture = np.asarray(Image.open(io.BytesIO(media.encode(clips, "png"))))
    picture = picture.reshape(*picture.shape[:2], -1)
    assert picture.shape[:2] == (2 * 6 + media.GAP, 4 * 10 + 3 * media.GAP)
    for n in range(2):
        for t in range(4):
            top, left = n * (6 + media.GAP), t * (10 + media.GAP)
            np.testing.assert_array_equal(picture[top : top + 6, left : left + 10], clips[n, t])


def test_grid_reads_from_left_to_right_and_is_white_where_nothing_is(clip):
    clips = np.stack([clip, clip // 2, clip // 4])
    whole = media.grid(clips, columns=2)
    assert whole.shape == (4, 12 + media.GAP, 20 + media.GAP, clip.shape[-1])
    np.testing.assert_array_equal(whole[:, :6, :10], clips[0])
    np.testing.assert_array_equal(whole[:, :6, 10 + media.GAP :], clips[1])
    np.testing.assert_array_equal(whole[:, 6 + media.GAP :, :10], clips[2])
    assert (whole[:, 6:, 10:] == 255).all()


def test_beside_holds_the_last_frame_of_shorter_clips(clip):
    both = media.beside(clip[None, :2], clip[None])
    np.testing.assert_array_equal(both[1], clip)
    np.testing.assert_array_equal(both[0], clip[[0, 1, 1, 1]])


def test_a_name_without_a_format_is_refused(tmp_path, clip):
    with pytest.raises(UserError, match=r"clip\.avi names no format that can be written: it must end in \.mp4, \.webp"):
        media.write(tmp_path / "clip.avi", clip)
    assert not list(tmp_path.iterdir())
