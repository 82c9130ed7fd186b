"""Moving MNIST: the standard generator, splits that share no digit, and clips that are a function of their number."""

from __future__ import annotations

import dataclasses
import hashlib
import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from framecast.data.manifest import Manifest
from framecast.data.sources import moving_mnist
from framecast.data.sources.moving_mnist import (
    DIGITS_OF,
    MovingMnist,
    MovingMnistClips,
    PublishedMovingMnist,
    compose,
    compose_many,
    corners_of,
    source_of,
)
from framecast.errors import UserError

TEST_SET = "25b0e53fbc91c0524acc2acaf6ec854104da4bcd7229993523762ca4c40b2640"
"""SHA-256 of the pixels of all 10,000 test clips. Another one means that no figure compares with earlier ones."""


@pytest.fixture(scope="module")
def folder(test_data, tmp_path_factory):
    """A store's folder with the digits in it."""
    folder = tmp_path_factory.mktemp("moving-mnist")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FRAMECAST_CACHE", str(folder / "cache"))
        MovingMnist().write_digits(folder, test_data / "mnist")
    return folder


def clips_of(folder, **options) -> MovingMnistClips:
    source = json.loads(json.dumps(dataclasses.asdict(MovingMnist(**options))))
    return MovingMnistClips(folder, Manifest("moving-mnist", "drawn", source, 0, "", 1, {}))


@pytest.fixture(scope="module")
def clips(folder) -> MovingMnistClips:
    return clips_of(folder)


def test_everybody_tests_on_the_same_ten_thousand_clips(clips):
    """Their floor, the entropy of the targets, is what published work reports: 85.1 (the paper), 86.3 (VPN)."""
    sha256, floor = hashlib.sha256(), 0.0
    z = np.clip(np.arange(256) / 255, 1e-12, 1 - 1e-12)
    entropy = -(z * np.log(z) + (1 - z) * np.log(1 - z))
    for index in clips.indices("test"):
        video = clips.frames(index)
        sha256.update(video)
        floor += (np.bincount(video[10:].ravel(), minlength=256) * entropy).sum() / 10
    assert sha256.hexdigest() == TEST_SET
    assert floor / 10_000 == pytest.approx(86.376, abs=1e-3)


def test_the_standard_path():
    """To the border and no further, then back; corners are truncated, not rounded."""
    ((path,),) = (corners_of(np.array([[0.5, 0.85, 0.0]]), 12, (64, 64)).tolist(),)  # a turn of 0: to the right
    assert [top for top, _ in path] == [18] * 12
    places = [0.95, 1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.0]
    assert [left for _, left in path] == [int(36 * place + 1e-9) for place in places]
    ((path,),) = (corners_of(np.array([[0.05, 0.505, 0.75]]), 3, (38, 128)).tolist(),)  # upwards
    assert path == [[0, 50], [1, 50], [2, 50]]


def slow_corners(chances: np.ndarray, num_frames: int, size: tuple[int, int]) -> np.ndarray:
    """All digits and both coordinates at once, as arrays."""
    place, angle = chances[:, :2].copy(), 2 * np.pi * chances[:, 2]
    velocity = 0.1 * np.stack([np.sin(angle), np.cos(angle)], axis=1)
    corners = []
    for _ in range(num_frames):
        place = place + velocity
        turned = (place <= 0) | (place >= 1)
        place, velocity = np.clip(place, 0, 1), np.where(turned, -velocity, velocity)
        corners.append((place * (np.array(size) - 28)).astype(int))
    return np.stack(corners, axis=1)


@given(seed=st.integers(0, 2**32), side=st.tuples(st.integers(28, 90), st.integers(28, 90)))
@settings(max_examples=50, deadline=None)
def test_paths_are_those_of_the_array_form(seed, side):
    chances = np.random.default_rng(seed).random((3, 3))
    assert np.array_equal(corners_of(chances, 40, side), slow_corners(chances, 40, side))


@given(seed=st.integers(0, 2**32), extents=st.tuples(*[st.integers(1, 3)] * 3), side=st.sampled_from([28, 31, 64]))
@settings(max_examples=30, deadline=None)
def test_overlaps_take_the_maximum_on_any_device(seed, extents, side):
    num_clips, num_digits, num_frames = extents
    chance = np.random.default_rng(seed)
    digits = chance.integers(0, 256, (num_clips, num_digits, 28, 28), np.uint8)
    corners = np.stack([corners_of(chance.random((num_digits, 3)), num_frames, (side, 40)) for _ in range(num_clips)])
    expected = np.zeros((num_clips, num_frames, side, 40, 1), np.uint8)
    for n, d, t in np.ndindex(corners.shape[:3]):
        layer = np.zeros((side, 40), np.uint8)
        top, left = corners[n, d, t]
        layer[top : top + 28, left : left + 28] = digits[n, d]
        expected[n, t, :, :, 0] = np.maximum(expected[n, t, :, :, 0], layer)
    together = compose_many(torch.from_numpy(digits), torch.from_numpy(corners), (side, 40))
    assert np.array_equal(together.numpy(), expected)
    for n in range(num_clips):
        assert np.array_equal(compose(digits[n], corners[n], (side, 40)), expected[n])


def test_starts_and_directions_are_uniform(folder):
    """On a canvas so large that the first two corners tell both."""
    clips = clips_of(folder, size=(1024, 1024), num_frames=2, num_digits=50)
    corners = np.concatenate([clips.draw(index)[1] for index in range(20_000, 20_080)])
    inside = ((corners > 0) & (corners < 995)).all((1, 2))  # those that did not turn
    step = corners[inside, 1] - corners[inside, 0]
    angle = np.arctan2(step[:, 0], step[:, 1]) + 1e-3
    counts = np.histogram(angle, 8, (-np.pi, np.pi))[0]
    assert counts.sum() > 3000
    assert np.abs(counts / counts.sum() - 1 / 8).max() < 4 * np.sqrt(7 / 64 / counts.sum())
    start = (corners[inside, 0] - step) / 996
    middle = start[((start > 0.2) & (start < 0.8)).all(1)]
    counts = np.histogramdd(middle, 3, [(0.2, 0.8)] * 2)[0].ravel()
    assert np.abs(counts / counts.sum() - 1 / 9).max() < 4 * np.sqrt(8 / 81 / counts.sum())


def test_splits_share_no_digit_and_no_clip(clips):
    seen = {}
    for split, images in DIGITS_OF.items():
        some = clips.indices(split)[:3000]
        assert {clips.split(index) for index in some} == {split}
        numbers = np.concatenate([clips.draw(index)[0] for index in some])
        assert images.start <= numbers.min()
        assert numbers.max() < images.stop
        assert len(np.unique(numbers)) > 0.9 * len(images) * (1 - np.exp(-len(numbers) / len(images)))
        seen[split] = {clips.frames(index, 0, 1).tobytes() for index in some[:200]}
        assert len(seen[split]) == 200
    assert not seen["train"] & seen["val"] | seen["train"] & seen["test"] | seen["val"] & seen["test"]
    assert [len(clips.indices(split)) for split in ("test", "val", "train")] == [10_000, 10_000, 10_000_000]
    assert len(clips) == 10_020_000


def test_a_clip_is_a_function_of_its_number(folder, clips):
    again = clips_of(folder)
    for index in (0, 10_000, 20_000, len(clips) - 1):
        whole = clips.frames(index)
        assert whole.shape == tuple(clips.shapes[index]) == (20, 64, 64, 1)
        assert np.array_equal(again.frames(index, 7, 11), whole[7:11])
        assert np.array_equal(again.clip(index).video, whole)
    fewer = clips_of(folder, clips=100_000)
    assert len(fewer) == 120_000
    assert np.array_equal(fewer.frames(119_999), clips.frames(119_999))
    longer = clips_of(folder, num_frames=30)
    assert np.array_equal(longer.frames(20_000)[:20], clips.frames(20_000))


def test_the_seed_is_of_training_alone(folder, clips):
    other = clips_of(folder, seed=1)
    assert not np.array_equal(other.frames(20_000), clips.frames(20_000))
    assert np.array_equal(other.frames(0), clips.frames(0))
    assert np.array_equal(other.frames(10_000), clips.frames(10_000))
    assert other.fingerprint != clips.fingerprint == clips_of(folder).fingerprint


def test_any_canvas_number_of_digits_and_length(folder):
    clips = clips_of(folder, size=(48, 100), num_digits=5, num_frames=7)
    clip = clips.clip(20_003)
    assert clip.video.shape == (7, 48, 100, 1)
    assert (clip.name, clip.split) == ("train-00000003", "train")
    assert clip.extras["corners"].shape == (7, 5, 2)
    numbers, _ = clips.draw(20_003)
    assert clip.label == " ".join(str(clips.labels[number]) for number in numbers)
    full = clips_of(folder, size=(28, 28), num_digits=1)  # no room to move
    assert np.array_equal(full.frames(0)[19, :, :, 0], full.digits[full.draw(0)[0][0]])


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"size": (27, 64)}, r"frames of \(27, 64\) are not possible: each side is from 28 to 1024 pixels"),
        ({"num_digits": 0}, "num_digits is 0: from 1 to 100 are possible"),
        ({"num_frames": -1}, "num_frames is -1: from 1 to 10000"),
        ({"clips": 10**9}, "clips is 1000000000: from 1 to 10000000"),
    ],
)
def test_what_cannot_be_drawn(options, complaint):
    with pytest.raises(UserError, match=complaint):
        MovingMnist(**options)


def test_damaged_digits_are_found_and_put_right(folder, tmp_path, test_data, monkeypatch):
    monkeypatch.setenv("FRAMECAST_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "mnist.bin"
    with pytest.raises(UserError, match=r"mnist\.bin is missing or damaged: repeat the command"):
        clips_of(tmp_path)
    content = bytearray((folder / "mnist.bin").read_bytes())
    content[1_000_000] ^= 1
    path.write_bytes(content)
    assert list(clips_of(folder).damage()) == []
    (complaint,) = clips_of(tmp_path).damage()
    assert "mnist.bin is damaged: its SHA-256 is" in complaint
    MovingMnist().write_digits(tmp_path, test_data / "mnist")
    assert list(clips_of(tmp_path).damage()) == []
    monkeypatch.setattr(moving_mnist, "fetch", lambda *_: pytest.fail("the digits are there"))
    MovingMnist().write_digits(tmp_path)


def test_a_manifest_of_something_else(folder):
    with pytest.raises(UserError, match="has a field 'camera' that MovingMnist does not know"):
        MovingMnistClips(folder, Manifest("bair", "drawn", {"camera": "aux1"}, 0, "", 1, {}))


def test_the_published_test_set(tmp_path):
    array = np.random.default_rng(0).integers(0, 256, (20, 3, 64, 64), np.uint8)
    path = tmp_path / "mnist_test_seq.npy"
    np.save(path, array)
    source = source_of(path, MovingMnist())
    assert isinstance(source, PublishedMovingMnist)
    assert source.items() == ["00000", "00001", "00002"]
    for number, clip in enumerate(source.read(source.items())):
        assert clip.video.shape == (20, 64, 64, 1)
        assert np.array_equal(clip.video[..., 0], array[:, number])
        assert (clip.split, clip.name) == ("test", f"{number:05}")
    assert source_of(None, MovingMnist()) == source_of(tmp_path, MovingMnist()) == MovingMnist()


def test_what_is_not_the_published_test_set(tmp_path):
    path = tmp_path / "mnist_test_seq.npy"
    np.save(path, np.zeros((3, 20, 64, 64), np.uint8))
    with pytest.raises(UserError, match="is 3 × 20 × 64 × 64, not 20 × N × 64 × 64 as published: frames come first"):
        PublishedMovingMnist(str(path)).items()
    np.save(path, np.zeros((20, 3, 64, 64)))
    with pytest.raises(UserError, match="is no array of uint8 clips"):
        PublishedMovingMnist(str(path)).items()
    np.save(path, np.zeros((20, 3, 64, 64), np.uint8))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(UserError, match="cannot be read: mmap length is greater than file size"):
        PublishedMovingMnist(str(path)).items()
    np.save(path, np.array([{}], object), allow_pickle=True)
    with pytest.raises(UserError, match="cannot be read"):
        PublishedMovingMnist(str(path)).items()
