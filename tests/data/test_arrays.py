"""Clips in .npy and .npz files: every value as it was, or why not; no memory for what a header only claims."""

from __future__ import annotations

import io
import random
import struct
import zipfile

import numpy as np
import pytest

from framecast.data import arrays
from framecast.data.arrays import read
from framecast.errors import UserError


def noise(*shape):
    return np.random.default_rng(0).integers(0, 256, shape, np.uint8)


@pytest.mark.parametrize("shape", [(5, 4, 6, 3), (5, 4, 6, 1), (5, 4, 6)])
@pytest.mark.parametrize("kind", ["npy", "npz", "named npz", "packed npz"])
def test_one_clip(tmp_path, shape, kind):
    video, path = noise(*shape), tmp_path / f"a.{kind[-3:]}"
    {
        "npy": lambda: np.save(path, video),
        "npz": lambda: np.savez(path, video),
        "named npz": lambda: np.savez(path, video=video),
        "packed npz": lambda: np.savez_compressed(path, video=video, other=np.zeros(3)),
    }[kind]()
    (clip,) = read(path)
    assert np.array_equal(clip.video, video.reshape(*video.shape[:3], -1))
    assert (clip.actions, clip.states) == (None, None)
    assert np.array_equal([frame.pixels() for frame in clip.frames()], clip.video)
    assert {frame.time for frame in clip.frames()} == {None}


@pytest.mark.parametrize("plural", ["", "s"])
def test_several_clips_with_actions_and_states(tmp_path, plural):
    video, action, state = noise(3, 5, 4, 4, 3), np.arange(30.0).reshape(3, 5, 2), np.arange(15).reshape(3, 5, 1)
    np.savez(tmp_path / "a.npz", **{f"video{plural}": video, f"action{plural}": action, f"state{plural}": state})
    clips = read(tmp_path / "a.npz")
    assert len(clips) == 3
    for i, clip in enumerate(clips):
        assert np.array_equal(clip.video, video[i])
        assert clip.actions.dtype == clip.states.dtype == np.float32
        assert np.array_equal(clip.actions, action[i])
        assert np.array_equal(clip.states, state[i])


def test_one_clip_may_have_actions_of_one(tmp_path):
    np.savez(tmp_path / "a.npz", video=noise(5, 4, 4, 3), action=np.ones((5, 2)))
    assert read(tmp_path / "a.npz")[0].actions.shape == (5, 2)


def test_real_files(test_data):
    clips = read(test_data / "robot_bin/sample.npz")
    with np.load(test_data / "robot_bin/sample.npz") as file:
        assert np.array_equal([clip.video for clip in clips], file["video"])
        assert np.array_equal([clip.actions for clip in clips], file["action"])
        assert np.array_equal([clip.states for clip in clips], file["state"])
    assert len(read(test_data / "fvd_sets/A.npz")) == 32
    with pytest.raises(UserError, match="it holds image, action, aux1_image, and no array named video"):
        read(test_data / "bair/bair_sample.npz")


@pytest.mark.parametrize(
    ("held", "complaint"),
    [
        ({"video": np.zeros((2, 4, 4, 3))}, "its video is float64, not uint8"),
        ({"video": noise(2, 4, 4, 4)}, r"its video has shape \(2, 4, 4, 4\), not \(frames, rows, columns, 1 or 3\)"),
        ({"video": noise(4, 4)}, r"its video has shape \(4, 4\)"),
        ({"video": noise(0, 4, 4, 3)}, "its video is empty"),
        ({"video": noise(3, 4, 4, 3), "action": np.zeros((2, 5))}, r"its action has shape \(2, 5\) and type float64"),
        ({"video": noise(3, 4, 4, 3), "action": np.zeros((3, 5), "U1")}, r"type <U1, not numbers for \(1, 3\) frames"),
        ({"video": noise(3, 4, 4, 3), "state": np.full((3, 1), np.nan)}, "its state holds a number that is not finite"),
        ({"a": noise(3, 4, 4, 3), "b": noise(3, 4, 4, 3)}, "it holds a, b, and no array named video"),
        ({"video": np.array([{}])}, "it cannot be read: Object arrays cannot be loaded"),
        ({}, "it holds nothing, and no array named video"),
    ],
)
def test_arrays_that_are_no_video(tmp_path, held, complaint):
    np.savez(tmp_path / "a.npz", **held)
    with pytest.raises(UserError, match=complaint):
        read(tmp_path / "a.npz")


def header(shape):
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
    return file.getvalue()


def test_headers_that_claim_more_than_there_is(tmp_path, monkeypatch):
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as file:
        file.writestr("video.npy", header((10**6, 1000, 1000, 3)) + bytes(100))
    with pytest.raises(UserError, match=r"its array video.npy is said to have 3000000000000 bytes and has \d+"):
        read(tmp_path / "a.npz")
    (tmp_path / "a.npy").write_bytes(header((10**6, 1000, 1000, 3)) + bytes(100))
    with pytest.raises(UserError, match="it cannot be read"):
        read(tmp_path / "a.npy")
    monkeypatch.setattr(arrays, "MAX_BYTES", 1000)
    np.savez_compressed(tmp_path / "b.npz", video=np.zeros((2, 20, 20, 3), np.uint8))
    with pytest.raises(UserError, match=r"has 2400 bytes, more than 1000: give it as an \.npy file"):
        read(tmp_path / "b.npz")


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_damage_is_noticed(tmp_path, save):
    path, video = tmp_path / "a.npz", noise(5, 16, 16, 3)
    save(path, video=video)
    whole, draw = path.read_bytes(), random.Random(0)
    for length in draw.sample(range(len(whole)), 20):
        path.write_bytes(whole[:length])
        with pytest.raises(UserError):
            read(path)
    for _ in range(60):
        damaged = bytearray(whole)
        damaged[draw.randrange(len(whole))] ^= 1 << draw.randrange(8)
        path.write_bytes(damaged)
        try:
            (clip,) = read(path)
        except UserError:
            continue
        assert np.array_equal(clip.video, video)  # it was a date or the like


def test_what_is_no_array(tmp_path):
    (tmp_path / "a.npz").write_text("words")
    with pytest.raises(UserError, match=r"it is no \.npz file"):
        read(tmp_path / "a.npz")
    with pytest.raises(UserError, match="it does not exist"):
        read(tmp_path / "b.npz")
    np.save(tmp_path / "c.npy", noise(2, 4, 4, 3))
    (tmp_path / "c.npy").rename(tmp_path / "c.npz")
    with pytest.raises(UserError, match=r"it is no \.npz file"):
        read(tmp_path / "c.npz")


def test_an_archive_under_the_name_of_an_array(tmp_path):
    np.savez(tmp_path / "a.npz", video=noise(2, 4, 4, 3))
    (tmp_path / "a.npz").rename(tmp_path / "a.npy")
    with pytest.raises(UserError, match=r"it cannot be read: the magic string is not correct"):
        read(tmp_path / "a.npy")


@pytest.mark.parametrize("length", [2**40, 2**62, 10**30])
def test_an_array_that_claims_more_than_there_can_be(tmp_path, length):
    header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({length}, 4, 4, 3), }}".ljust(117) + "\n"
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode())
    with pytest.raises(UserError, match="it cannot be read"):
        read(tmp_path / "a.npy")
