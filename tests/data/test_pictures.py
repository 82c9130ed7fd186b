"""Animated pictures and folders of pictures: every frame as it was, upright, or the reason why not."""

from __future__ import annotations

import random
import struct
from collections import deque

import numpy as np
import pytest
from PIL import Image

from framecast.data.pictures import read_animated, read_sequence, read_still
from framecast.errors import UserError


def noise(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def save(path, video, **options):
    first, *others = map(Image.fromarray, video)
    first.save(path, save_all=True, append_images=others, **options)
    return path


def pixels(frames):
    return [frame.pixels() for frame in frames]


def test_webp_without_loss(tmp_path):
    video = noise(5, 12, 16, 3)
    frames = list(read_animated(save(tmp_path / "a.webp", video, lossless=True, duration=[40, 40, 100, 40, 40])))
    assert np.array_equal(pixels(frames), video)
    assert [frame.time for frame in frames] == pytest.approx([0, 0.04, 0.08, 0.18, 0.22])


def test_frames_keep_their_pixels_when_others_were_read(tmp_path):
    video = noise(3, 4, 4, 3)
    frames = list(read_animated(save(tmp_path / "a.webp", video, lossless=True)))
    assert np.array_equal(pixels(frames[::-1]), video[::-1])


def test_a_real_gif_is_as_the_other_library_decodes_it(test_data):
    import av

    path = test_data / "videos/imageio+imageio-binaries/newtonscradle.gif"
    with av.open(str(path)) as container:
        decoded = [(frame.time, frame.to_ndarray(format="rgb24")) for frame in container.decode(video=0)]
    frames = list(read_animated(path))
    assert len(frames) == 36
    assert np.array_equal(pixels(frames), [picture for _, picture in decoded])
    assert [frame.time for frame in frames] == pytest.approx([time for time, _ in decoded])


def test_another_real_gif(test_data):
    frames = list(read_animated(test_data / "i3d/v_CricketShot_g04_c01_rgb.gif"))
    assert np.shape(pixels(frames)) == (79, 224, 224, 3)


def test_frames_that_ask_for_no_time_are_shown_as_viewers_show_them(tmp_path):
    frames = read_animated(save(tmp_path / "a.gif", noise(3, 8, 8), duration=0))
    assert [frame.time for frame in frames] == [0, 0.1, 0.2]


def test_what_is_transparent_is_black(tmp_path):
    picture = noise(6, 6, 4)
    Image.fromarray(picture).save(tmp_path / "1.png")
    (frame,) = read_still(tmp_path / "1.png")
    expected = picture[..., :3] * (picture[..., 3:] / 255)
    assert np.abs(frame.pixels() - expected).max() <= 1


@pytest.mark.parametrize("kind", ["webp", "gif"])
def test_damage_is_a_reason_and_nothing_else(tmp_path, kind):
    path = save(tmp_path / f"a.{kind}", noise(4, 24, 24))
    whole, draw, noticed = path.read_bytes(), random.Random(0), 0
    for length in draw.sample(range(1, len(whole)), 20):
        path.write_bytes(whole[:length])
        with pytest.raises(UserError):
            deque(read_animated(path), maxlen=0)
    for _ in range(60):
        damaged = bytearray(whole)
        damaged[draw.randrange(len(whole))] ^= 1 << draw.randrange(8)
        path.write_bytes(damaged)
        try:
            deque(read_animated(path), maxlen=0)
        except UserError:
            noticed += 1
    assert noticed >= 1


def test_pictures_are_in_the_order_of_their_numbers(tmp_path):
    for number in (10, 9, 1, 100):
        Image.fromarray(np.full((4, 4, 3), number, np.uint8)).save(tmp_path / f"frame{number}.png")
    (tmp_path / "notes.txt").write_text("no picture")
    (tmp_path / "._frame2.png").write_text("what some systems leave behind")
    assert [picture[0, 0, 0] for picture in pixels(read_sequence(tmp_path))] == [1, 9, 10, 100]


def test_photographs_are_turned_upright(tmp_path):
    image = Image.fromarray(np.repeat(np.repeat(noise(2, 3, 3), 16, axis=0), 16, axis=1))
    exif = Image.Exif()
    exif[274] = 6  # turned by a quarter
    image.save(tmp_path / "a.jpg", exif=exif, quality=95)
    (frame,) = read_still(tmp_path / "a.jpg")
    assert np.abs(frame.pixels().astype(int) - np.rot90(np.asarray(image), -1)).mean() < 8


def test_a_flipped_bit_in_a_png(tmp_path):
    path = tmp_path / "7.png"
    Image.fromarray(noise(16, 16, 3)).save(path)
    whole, draw = path.read_bytes(), random.Random(0)
    for _ in range(40):
        damaged = bytearray(whole)
        damaged[draw.randrange(50, len(whole) - 16)] ^= 1 << draw.randrange(8)  # all of it has checksums
        path.write_bytes(damaged)
        with pytest.raises(UserError, match=r"7\.png: it cannot be decoded"):
            pixels(read_still(path))


def test_pictures_of_more_than_eight_bits(tmp_path):
    Image.fromarray(noise(4, 4).astype(np.uint16)).save(tmp_path / "a.png")
    with pytest.raises(UserError, match=r"a\.png: its pixels are of kind 'I;16', not of 8 bits a channel"):
        pixels(read_still(tmp_path / "a.png"))


def test_headers_that_claim_enormous_frames(tmp_path):
    path = save(tmp_path / "a.gif", noise(2, 8, 8))
    whole = bytearray(path.read_bytes())
    whole[6:10] = struct.pack("<HH", 9000, 8000)
    path.write_bytes(whole)
    with pytest.raises(UserError, match="its frames are said to be 8000×9000, more than 67108864 pixels"):
        deque(read_animated(path), maxlen=0)
    whole[6:10] = struct.pack("<HH", 65535, 65535)
    path.write_bytes(whole)
    with pytest.raises(UserError, match="its frames are too large"):
        deque(read_animated(path), maxlen=0)


def test_what_is_no_picture(tmp_path):
    (tmp_path / "a.webp").write_bytes(b"RIFF\x04\0\0\0WEBP")
    with pytest.raises(UserError, match=r"it is no picture that can be decoded|it cannot be decoded"):
        deque(read_animated(tmp_path / "a.webp"), maxlen=0)
    with pytest.raises(UserError, match="it does not exist"):
        deque(read_animated(tmp_path / "b.webp"), maxlen=0)
