"""BAIR: the real frames come out exactly, damaged or foreign files are reported, the splits hold what they should."""

from __future__ import annotations

import numpy as np
import pytest

from framecast.data.clip import Clip, Skipped
from framecast.data.sources.bair import FRAMES, Bair, split_of
from framecast.errors import UserError


def trajectory(seed: int = 0) -> dict[str, list]:
    random = np.random.default_rng(seed)
    features: dict[str, list] = {}
    for t in range(FRAMES):
        features[f"{t}/image_aux1/encoded"] = [random.bytes(64 * 64 * 3)]
        features[f"{t}/image_main/encoded"] = [random.bytes(64 * 64 * 3)]
        features[f"{t}/action"] = random.normal(size=4).astype("f4").tolist()
        features[f"{t}/endeffector_pos"] = random.normal(size=3).astype("f4").tolist()
    return features


def read(source: Bair) -> list[Clip | Skipped]:
    return list(source.read(source.items()))


@pytest.mark.parametrize(("camera", "key"), [("aux1", "aux1_image"), ("main", "image")])
def test_real_frames_come_out_as_they_went_in(test_data, camera, key):
    (clip,) = read(Bair(str(test_data / "bair" / "derived_real_frames"), camera))
    expected = np.load(test_data / "bair" / "bair_sample.npz")
    assert clip.video.dtype == np.uint8
    assert np.array_equal(clip.video, expected[key])
    assert np.array_equal(clip.actions, expected["action"].astype(np.float32))
    assert np.array_equal(clip.states, np.zeros((FRAMES, 3), np.float32))
    assert (clip.name, clip.split) == ("test/traj_0_to_0.tfrecords#0", "test")


def test_a_file_with_fewer_trajectories_than_its_name_promises(test_data):
    source = Bair(str(test_data / "bair" / "tfds_dummy" / "softmotion30_44k"))  # the inner folder does as well
    test, short_test, train, short_train = read(source)
    assert (test.split, train.split) == ("test", "train")
    assert test.video.shape == train.video.shape == (FRAMES, 64, 64, 3)
    for short in (short_test, short_train):
        assert short.reason == "it ends with trajectory 1 where its name promises 256"


def test_256_of_all_43264_training_trajectories_validate(tmp_path, write_records, serialise):
    assert sum(split_of("train", number) == "val" for number in range(43_264)) == 256
    assert {split_of("test", number) for number in range(256)} == {"test"}

    write_records(tmp_path / "train" / "traj_167_to_169.tfrecords", [serialise(trajectory(n)) for n in range(3)])
    assert [clip.split for clip in read(Bair(str(tmp_path)))] == ["train", "val", "train"]


def test_a_damaged_trajectory_costs_only_itself(tmp_path, write_records, serialise):
    path = write_records(tmp_path / "test" / "traj_0_to_2.tfrecords", [serialise(trajectory(n)) for n in range(3)])
    whole = bytearray(path.read_bytes())
    whole[len(whole) // 2] ^= 0x10
    path.write_bytes(whole)
    first, damaged, last = read(Bair(str(tmp_path)))
    assert (first.name, last.name) == ("test/traj_0_to_2.tfrecords#0", "test/traj_0_to_2.tfrecords#2")
    assert "the data of the record at byte" in damaged.reason

    path.write_bytes(whole[:-1])
    *_, cut = read(Bair(str(tmp_path)))
    assert f"cut short at byte {len(whole) - 1}" in cut.reason


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"7/image_aux1/encoded": [b"\xff\xd8\xff"]}, "'7/image_aux1/encoded' has 3 bytes, not the 12288 of a frame"),
        ({"29/action": [0.0] * 3}, "'29/action' holds fewer than 4 floats"),
        ({"29/action": [0]}, "'29/action' is no list of floats"),
        ({"0/endeffector_pos": [0.0, float("nan"), 0.0]}, "not a finite number"),
    ],
)
def test_what_is_no_bair_trajectory_is_skipped_with_its_reason(tmp_path, write_records, serialise, change, complaint):
    path = tmp_path / "softmotion30_44k" / "test" / "traj_0_to_1.tfrecords"
    write_records(path, [serialise(trajectory() | change), serialise(trajectory())])
    skipped, clip = read(Bair(str(tmp_path)))
    assert isinstance(skipped, Skipped)
    assert complaint in skipped.reason
    assert isinstance(clip, Clip)


def test_what_cannot_be_read_at_all(tmp_path, write_records):
    with pytest.raises(UserError, match=r"holds no train/traj_\*.tfrecords"):
        Bair(str(tmp_path)).items()
    with pytest.raises(UserError, match="no camera 'aux2'; it has aux1 and main"):
        Bair(str(tmp_path), "aux2")
    write_records(tmp_path / "train" / "traj_first.tfrecords", [b""])
    (skipped,) = read(Bair(str(tmp_path)))
    assert skipped.reason == "its name does not say which trajectories it holds"
