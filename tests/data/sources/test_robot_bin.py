"""Robot bin: the same bytes everywhere, actions that say where the hand goes, and who is hidden behind whom."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import chain

import numpy as np
import pytest

from framecast.data import assets
from framecast.data.clip import Clip
from framecast.data.prepare import prepare
from framecast.data.sources import robot_bin
from framecast.data.sources.robot_bin import NUM_OBJECTS, Bin, RobotBin, members, split_of
from framecast.data.store import Store
from framecast.errors import Unavailable, UserError

pytest.importorskip("mujoco")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Meta-World's wheel, from the person's cache where it is there; skips where nothing can draw."""
    try:
        robot_bin._gl_context(8, 8).free()
    except UserError as error:
        if os.environ.get("CI"):
            pytest.fail(str(error))
        pytest.skip(str(error))
    cache = assets.cache_folder()
    if not (cache / assets.METAWORLD.name).is_file():
        cache = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FRAMECAST_CACHE", str(cache))
        yield assets.fetch(assets.METAWORLD)


@pytest.fixture(scope="module")
def clips(wheel) -> list[Clip]:
    """Four episodes of the first bin."""
    source = RobotBin(clips=4)
    assert source.items() == ["000000"]
    return list(source.read(source.items()))


@pytest.mark.slow
def test_an_episode_is_thirty_frames_with_actions_and_hand(clips):
    assert [clip.name for clip in clips] == ["000000-0", "000000-1", "000000-2", "000000-3"]
    for clip in clips:
        assert (clip.video.shape, clip.video.dtype) == ((30, 64, 64, 3), np.uint8)
        assert (clip.actions.shape, clip.states.shape) == ((30, 4), (30, 3))
        assert "simulated, not BAIR" in clip.label
        assert set(clip.actions[:, 3].tolist()) <= {-1.0, 1.0}
        assert clip.video.std(axis=(1, 2, 3)).min() > 20  # something is to be seen
    assert len({clip.video.tobytes() for clip in clips}) == 4


@pytest.mark.slow
def test_actions_lead_from_a_frame_to_the_next(clips):
    """The hand is where the actions add up to, but for the lag of an arm that pushes things."""
    for clip in clips:
        way = clip.states[0] + np.cumsum(clip.actions[:-1, :3], axis=0)
        assert np.abs(way - clip.states[1:]).max() < 0.05
        assert np.abs(way - clip.states[1:]).mean() < 0.01
        moved = np.diff(clip.states, axis=0)
        assert np.corrcoef(moved[:, 0], clip.actions[:-1, 0])[0, 1] > 0.9
        assert (np.abs(np.diff(clip.video.astype(int), axis=0)).max((1, 2, 3)) > 30).mean() > 0.8


@pytest.mark.slow
def test_objects_are_pushed_but_stay_things(clips):
    moved = []
    for clip in clips:
        positions = clip.extras["object_positions"]
        assert positions.shape[0] == 30
        assert 5 <= positions.shape[1] <= 8
        assert np.isfinite(positions).all()
        moved.append(np.linalg.norm(positions[-1] - positions[0], axis=1).max())
        assert (np.abs(positions[0, :, :2] - [0, 0.6]) < [0.3, 0.2]).all()
    assert np.mean(np.array(moved) > 0.03) >= 0.5


@pytest.mark.slow
def test_hidden_objects_are_known(wheel):
    """Against pictures: an object's pixels change when it is painted, exactly as many as are said to be visible."""
    with Bin(0, 0, (64, 64), wheel) as scene:
        clip = scene.episode(0, 2, "one")
        visible, pixels = clip.extras["object_visible"][-1], clip.extras["object_pixels"][-1]
        assert ((visible >= 0) & (visible <= 1)).all()
        model, data, camera = scene.model, scene.data, scene.camera
        target = np.array([*data.xpos[scene.first_body][:2], 0.05])  # go and stand in front of the first object
        scene._approach(target)
        seen = camera._covered(data, camera.everything, scene.owner, len(pixels))
        whole, share = camera.visibility(data, scene.owner, len(pixels))
        assert np.array_equal(np.round(share * whole), seen)
        before = camera._render(data, camera.everything, (64, 64), identities=True).copy()
        for number in range(len(pixels)):
            mine = scene.owner == number
            model.geom_group[mine] = robot_bin._HIDDEN
            after = camera._render(data, camera.everything, (64, 64), identities=True)
            model.geom_group[mine] = robot_bin._SHOWN
            assert seen[number] <= whole[number]
            # Taking it away uncovers what is behind it, in just the pixels where it is seen. The numbers of later
            # geoms go down by as many as were taken, which is no change of what is shown.
            gone = mine.sum()
            first, last = 1 + np.flatnonzero(mine).min(), 1 + np.flatnonzero(mine).max()
            codes, left = before[..., 0].astype(int), after[..., 0].astype(int)
            expected = np.where(codes > last, codes - gone, codes)
            assert ((codes >= first) & (codes <= last)).sum() == seen[number]
            assert (left == expected)[(codes < first) | (codes > last)].all()
        assert share[0] < visible[0]


@pytest.mark.slow
def test_the_same_seed_gives_the_same_bytes_in_another_process(clips, wheel, tmp_path):
    program = f"""
import numpy as np
from pathlib import Path
from framecast.data.sources.robot_bin import Bin
with Bin(0, 0, (64, 64), Path({str(wheel)!r})) as scene:
    clip = scene.episode(3, 30, "x")
np.savez("out.npz", video=clip.video, actions=clip.actions, states=clip.states, **clip.extras)
"""
    subprocess.run([sys.executable, "-c", program], check=True, cwd=tmp_path)
    with np.load(tmp_path / "out.npz") as there:
        for name in ("video", "actions", "states"):
            assert np.array_equal(there[name], getattr(clips[3], name)), name
        for name, values in clips[3].extras.items():
            assert np.array_equal(there[name], values), name
    assert os.listdir(tmp_path) == ["out.npz"]  # no MUJOCO_LOG.TXT


@pytest.mark.slow
def test_a_store_that_processes_made_holds_what_is_read_here(wheel, tmp_path):
    source = RobotBin(clips=9, size=(8, 8), num_frames=2)
    account = prepare("robot-bin", source, tmp_path / "store", num_workers=2)
    assert account.num_clips == {"train": 8, "val": 0, "test": 1}
    store = Store(tmp_path / "store")
    assert "SIMULATED" in store.manifest.source["what"]
    for index, clip in enumerate(source.read(source.items())):
        stored = store.clip(index)
        assert (stored.name, stored.split, stored.label) == (clip.name, clip.split, clip.label)
        assert np.array_equal(stored.video, clip.video)
        assert np.array_equal(stored.actions, clip.actions)
        assert np.array_equal(stored.states, clip.states)
        assert stored.extras.keys() == clip.extras.keys()
        assert all(np.array_equal(stored.extras[name], values) for name, values in clip.extras.items())


@pytest.mark.slow
def test_seeds_are_of_training_alone_and_any_size_is_drawn(wheel):
    def first(number, seed, size=(64, 64), frames=2):
        with Bin(number, seed, size, wheel) as scene:
            return scene.episode(0, frames, "one").video

    assert not np.array_equal(first(0, 0), first(0, 1))
    assert np.array_equal(first(1, 0), first(1, 1))
    large = first(0, 0, (96, 160))
    assert large.shape == (2, 96, 160, 3)
    middle = large[:, :, 32:128].reshape(2, 32, 3, 32, 3, 3).mean((2, 4))
    small = first(0, 0).reshape(2, 32, 2, 32, 2, 3).mean((2, 4))
    assert np.abs(middle - small).mean() < 5  # the same scene, seen more closely


def test_splits_share_no_object_and_no_bin():
    assert [split_of(number) for number in range(12)] == ["train", "test", "val", *["train"] * 8, "test"]
    splits = [split_of(number) for number in range(1000)]
    assert (splits.count("test"), splits.count("val")) == (32, 32)  # 256 clips each
    for count in (20, NUM_OBJECTS):
        shares = [members(split, count).tolist() for split in ("train", "val", "test")]
        assert all(shares)
        assert sorted(chain(*shares)) == list(range(count))


@pytest.mark.slow
def test_bins_draw_from_the_share_of_their_split(wheel):
    for number in (0, 1, 2, 11):
        with Bin(number, 0, (8, 8), wheel) as scene:
            assert set(scene.objects.tolist()) <= set(members(scene.split, NUM_OBJECTS).tolist())
            assert scene.floor != scene.walls


def test_an_individual_is_always_the_same():
    assert robot_bin._object(17) == robot_bin._object(17) != robot_bin._object(18)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"clips": 0}, "0 clips are not possible: from 1 to 8000000 are"),
        ({"num_frames": 1}, "clips of 1 frames are not possible: from 2 are"),
        ({"size": (64, 4)}, r"frames of \(64, 4\) are not possible: each side is from 8 to 1024 pixels"),
    ],
)
def test_what_cannot_be_drawn(options, complaint):
    with pytest.raises(UserError, match=complaint):
        RobotBin(**options)


def test_where_nothing_draws_one_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setenv("MUJOCO_GL", "egl")
    monkeypatch.setitem(sys.modules, "mujoco.egl", None)
    with pytest.raises(UserError, match=r"OSMesa or EGL, and neither works .* sudo apt-get install libosmesa6"):
        robot_bin._gl_context(64, 64)
    monkeypatch.setitem(sys.modules, "mujoco", None)
    with pytest.raises(UserError, match=r"robot-bin needs MuJoCo: pip install 'framecast\[sim\]'"):
        robot_bin._mujoco()


def test_without_the_arm_no_bin_is_left_out_as_if_it_were_broken(monkeypatch):
    def fail(asset):
        raise UserError("there is no network")

    monkeypatch.setattr(robot_bin, "fetch", fail)
    with pytest.raises(Unavailable, match="there is no network"):
        list(RobotBin(clips=8).read(["000000"]))


def test_osmesa_comes_before_egl(monkeypatch):
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    monkeypatch.setattr(robot_bin.ctypes, "CDLL", lambda name: None)
    assert robot_bin._gl_platform() == "osmesa"

    def absent(name):
        raise OSError(name)

    monkeypatch.setattr(robot_bin.ctypes, "CDLL", absent)
    assert robot_bin._gl_platform() == "egl"
    monkeypatch.setenv("MUJOCO_GL", "OSMesa")
    assert robot_bin._gl_platform() == "osmesa"
