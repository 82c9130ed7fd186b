"""One clip of any file, as it is primed with: the same as prepare makes of it."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from framecast import media
from framecast.data.resize import resize
from framecast.data.sources.folder import Folder
from framecast.data.video_file import read_clip
from framecast.errors import UserError


def noise(*shape):
    return np.random.default_rng(0).integers(0, 256, shape, np.uint8)


def test_a_video_is_cropped_and_resized_as_prepare_does(test_data, tmp_path):
    path = test_data / "videos/open-mmlab+mmaction2/part_0.mp4"
    (tmp_path / "a.mp4").symlink_to(path)
    for options in ({}, {"fit": "stretch"}, {"fps": 10.0}, {"every": 5}):
        (prepared,) = Folder(str(tmp_path), (32, 48), **options).read(["a.mp4"])
        assert np.array_equal(read_clip(path, (32, 48), **options), prepared.video)


@pytest.mark.parametrize("name", ["a.webp", "a.gif", "a.npz"])
@pytest.mark.parametrize("channels", [1, 3])
def test_what_media_writes_is_read_again(tmp_path, name, channels):
    clip = noise(4, 16, 16, 1).repeat(channels, axis=-1)
    media.write(tmp_path / name, clip)
    assert np.array_equal(read_clip(tmp_path / name, None, grey=channels == 1), clip)


def test_a_folder_of_pictures_and_a_single_one(tmp_path):
    video = noise(3, 20, 30, 3)
    for i, picture in enumerate(video):
        Image.fromarray(picture).save(tmp_path / f"{i}.png")
    assert np.array_equal(read_clip(tmp_path, (8, 8)), resize(video, (8, 8)))
    assert np.array_equal(read_clip(tmp_path / "1.png", (8, 8)), resize(video[1:2], (8, 8)))


def test_grey_and_colour_on_request(tmp_path):
    colour = noise(2, 4, 4, 3)
    np.save(tmp_path / "colour.npy", colour)
    np.save(tmp_path / "grey.npy", colour[..., 0])
    by_pillow = [np.asarray(Image.fromarray(picture).convert("L")) for picture in colour]
    assert np.abs(read_clip(tmp_path / "colour.npy", None, grey=True)[..., 0].astype(int) - by_pillow).max() <= 1
    assert np.array_equal(read_clip(tmp_path / "grey.npy", None, grey=True), colour[..., :1])
    assert np.array_equal(read_clip(tmp_path / "grey.npy", None), colour[..., :1].repeat(3, axis=-1))


def test_of_several_clips_the_first(test_data):
    with np.load(test_data / "robot_bin/sample.npz") as file:
        assert np.array_equal(read_clip(test_data / "robot_bin/sample.npz", None), file["video"][0])


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("nothing.mp4", r"nothing\.mp4 cannot be used: it does not exist"),
        ("words.txt", r"words\.txt cannot be used: its name ends with none of \.3gp \.avi"),
        ("empty.mkv", r"empty\.mkv cannot be used: it is empty"),
        (".", "cannot be used: it has no frames"),
    ],
)
def test_what_cannot_be_used(tmp_path, name, complaint):
    (tmp_path / "words.txt").write_text("words")
    (tmp_path / "empty.mkv").touch()
    with pytest.raises(UserError, match=complaint):
        read_clip(tmp_path / name, (8, 8))
