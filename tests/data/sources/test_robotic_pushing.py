"""Robotic pushing: frames against an independent decoding and resizing, poses bit for bit, short and broken records."""

from __future__ import annotations

import io
import struct

import numpy as np
import pytest
import torch
from PIL import Image

from framecast.data.clip import Skipped
from framecast.data.sources.robotic_pushing import RoboticPushing
from framecast.errors import UserError

REAL = ("google_push", "derived_from_robonet_8frames")


def jpeg(seed: int = 0, size: tuple[int, int] = (640, 512), mode: str = "RGB") -> bytes:
    noise = np.random.default_rng(seed).integers(0, 256, (8, 10, 3), np.uint8)
    out = io.BytesIO()
    Image.fromarray(noise).resize(size, Image.Resampling.BICUBIC).convert(mode).save(out, "JPEG")
    return out.getvalue()


PICTURE = jpeg()


def trajectory(num_steps: int, images: int | None = None) -> dict[str, list]:
    features: dict[str, list] = {}
    for t in range(num_steps):
        if images is None or t < images:
            features[f"move/{t}/image/encoded"] = [PICTURE]
        features[f"move/{t}/commanded_pose/vec_pitch_yaw"] = [t + 0.5] * 5
        features[f"move/{t}/endeffector/vec_pitch_yaw"] = [t + 0.25] * 5
    return features


@pytest.fixture
def pushing(tmp_path, write_records, serialise):
    """`pushing(trajectories, subset)`: what comes of one file that holds these."""

    def read(trajectories, subset="push_train", size=(64, 64)):
        path = tmp_path / "push" / subset / f"{subset}.tfrecord-00000-of-00001"
        write_records(path, [serialise(trajectory) for trajectory in trajectories])
        source = RoboticPushing(str(tmp_path), size)
        return list(source.read(source.items()))

    return read


def test_the_real_record_gives_what_it_was_made_from(test_data):
    source = RoboticPushing(str(test_data.joinpath(*REAL)))
    (item,) = source.items()
    (clip,) = source.read([item])
    assert (clip.split, clip.label, clip.name) == ("train", "train", f"{item}#0")
    assert clip.video.shape == (8, 64, 64, 3)

    raw = source.folder.joinpath(item).read_bytes()  # found without a parser: each value follows its name
    for t in range(8):
        for what, values in (("commanded_pose", clip.actions), ("endeffector", clip.states)):
            name = f"move/{t}/{what}/vec_pitch_yaw".encode()
            start = raw.index(name) + len(name) + 6  # the tags and lengths of value, list and packed numbers
            assert struct.unpack_from("<5f", raw, start) == tuple(values[t].tolist())
        start = raw.index(b"\xff\xd8\xff", raw.index(f"move/{t}/image/encoded".encode()))
        frame = np.array(Image.open(io.BytesIO(raw[start:])))
        assert frame.shape == (512, 640, 3)
        whole = torch.from_numpy(frame).permute(2, 0, 1)[None].float()
        small = torch.nn.functional.interpolate(whole, (64, 64), mode="lanczos", antialias=True)
        expected = small.round().clamp(0, 255).byte()[0].permute(1, 2, 0).numpy()
        difference = np.abs(expected.astype(int) - clip.video[t])
        assert difference.max() <= 1
        assert (difference > 0).mean() <= 1e-3


@pytest.mark.parametrize(
    ("subset", "split", "label"),
    [("push_train", "train", "train"), ("push_testseen", "test", "testseen"), ("push_testnovel", "test", "testnovel")],
)
def test_the_first_twenty_frames_of_each_subset(pushing, subset, split, label):
    (clip,) = pushing([trajectory(23)], subset)
    assert (clip.split, clip.label) == (split, label)
    assert clip.video.shape == (20, 64, 64, 3)
    assert clip.actions[:, 0].tolist() == [t + 0.5 for t in range(20)]
    assert clip.states[:, 4].tolist() == [t + 0.25 for t in range(20)]


def test_a_clip_ends_before_the_first_step_without_an_image(pushing):
    gap = trajectory(20) | {"move/9/image/encoded": [b""]}
    absent, empty, still = pushing([trajectory(20, images=7), gap, trajectory(20, images=1)], size=(16, 24))
    assert absent.video.shape == (7, 16, 24, 3)
    assert absent.actions.shape == (7, 5)
    assert empty.video.shape == (9, 16, 24, 3)
    assert still.reason == "its first two steps do not both have an image"


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"move/1/image/encoded": [jpeg(size=(320, 256))]}, "step 1 is 256×320 RGB where 512×640 RGB is expected"),
        ({"move/1/image/encoded": [jpeg(mode="L")]}, "step 1 is 512×640 L where"),
        ({"move/1/image/encoded": [PICTURE[: len(PICTURE) // 2]]}, "step 1 cannot be decoded"),
        ({"move/1/image/encoded": [b"GIF89a, not a JPEG"]}, "step 1 cannot be decoded"),
        ({"move/1/commanded_pose/vec_pitch_yaw": [0.0] * 4}, "holds fewer than 5 floats"),
        ({"move/1/endeffector/vec_pitch_yaw": [float("inf")] * 5}, "not a finite number"),
    ],
)
def test_a_broken_trajectory_is_skipped_with_its_reason(pushing, change, complaint):
    skipped, clip = pushing([trajectory(3) | change, trajectory(3)])
    assert isinstance(skipped, Skipped)
    assert complaint in skipped.reason
    assert len(clip.video) == 3


def test_a_picture_that_claims_to_be_huge_is_refused_unread(pushing):
    huge = bytearray(PICTURE)
    at = huge.index(b"\xff\xc0") + 5  # height and width in the frame header
    huge[at : at + 4] = b"\xff\xff\xff\xff"
    (skipped,) = pushing([trajectory(3) | {"move/0/image/encoded": [bytes(huge)]}])
    assert "step 0 cannot be decoded" in skipped.reason


def test_one_training_trajectory_of_so_many_validates(pushing, monkeypatch):
    monkeypatch.setattr("framecast.data.sources.robotic_pushing.VALIDATION_EVERY", 2)
    assert [clip.split for clip in pushing([trajectory(2)] * 4, size=(8, 8))] == ["train", "val", "train", "val"]


def test_no_test_trajectory_validates(pushing, monkeypatch):
    monkeypatch.setattr("framecast.data.sources.robotic_pushing.VALIDATION_EVERY", 2)
    assert [clip.split for clip in pushing([trajectory(2)] * 2, "push_testseen", size=(8, 8))] == ["test", "test"]


def test_nothing_to_read(tmp_path):
    with pytest.raises(UserError, match="has no files"):
        RoboticPushing(str(tmp_path)).items()
