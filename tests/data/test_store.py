from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import framecast as fc
from framecast.data.clip import Clip
from framecast.data.manifest import NAME
from framecast.data.prepare import prepare_drawn
from framecast.data.sources.moving_mnist import MovingMnist
from framecast.errors import UserError

MakeStore = Callable[..., Path]


def a_clip(number: int, num_frames: int = 4, split: str = "train", action_size: int = 3) -> Clip:
    noise = np.random.default_rng(number)
    return Clip(
        video=noise.integers(0, 256, (num_frames, 6, 5, 3), np.uint8),
        name=f"clip {number}",
        split=split,
        label=f"label {number % 2}",
        actions=noise.normal(size=(num_frames, action_size)).astype(np.float32) if action_size else None,
        states=noise.normal(size=(num_frames, 2)).astype(np.float32),
        extras={"visible": noise.integers(0, 2, (num_frames, 4)).astype(bool)},
    )


def assert_equal(found: Clip, expected: Clip) -> None:
    assert (found.name, found.split, found.label) == (expected.name, expected.split, expected.label)
    np.testing.assert_array_equal(found.video, expected.video)
    for one, other in ((found.actions, expected.actions), (found.states, expected.states)):
        assert (one is None) == (other is None)
        if other is not None:
            np.testing.assert_array_equal(one, other)
    assert found.extras.keys() == expected.extras.keys()
    for name, array in expected.extras.items():
        assert found.extras[name].dtype == array.dtype
        np.testing.assert_array_equal(found.extras[name], array)


def test_what_went_in_comes_out(tmp_path: Path, make_store: MakeStore) -> None:
    clips = [a_clip(n, num_frames=3 + n % 4, split=("train", "val", "test")[n % 3]) for n in range(10)]
    store = fc.Store(make_store(tmp_path / "store", clips, clips_per_part=3))
    assert len(store) == 10
    assert not list(store.damage())
    for number, clip in enumerate(clips):
        assert_equal(store.clip(number), clip)
        np.testing.assert_array_equal(store[number], clip.video)
        np.testing.assert_array_equal(store.frames(number, 1, 3), clip.video[1:3])
        np.testing.assert_array_equal(store.actions(number, 1, 3), clip.actions[1:3])
        assert store.num_frames(number) == len(clip.video)
    np.testing.assert_array_equal(store[-1], clips[-1].video)
    assert [store.indices(split).tolist() for split in ("train", "val", "test")] == [[0, 3, 6, 9], [1, 4, 7], [2, 5, 8]]
    assert store.frame_shape == (6, 5, 3)
    assert store.action_size == 3
    assert sum(1 for _ in store) == 10


def test_a_store_is_a_list(tmp_path: Path, make_store: MakeStore) -> None:
    store = fc.Store(make_store(tmp_path / "store", [a_clip(n) for n in range(3)]))
    assert [video[0, 0, 0, 0] for video in store] == [store[n][0, 0, 0, 0] for n in range(3)]
    for index in (3, -4):
        with pytest.raises(IndexError, match=f"has 3 clips, not one of number {index}"):
            store[index]
    with pytest.raises(ValueError, match="read-only"):
        store[0][0] = 1


def test_clips_that_differ_have_nothing_in_common(tmp_path: Path, make_store: MakeStore) -> None:
    grey = Clip(np.zeros((2, 6, 5, 1), np.uint8), "grey", "train")
    store = fc.Store(make_store(tmp_path / "store", [a_clip(0), a_clip(1), grey]))
    with pytest.raises(UserError, match=r"different frames: clip 0 has \(6, 5, 3\), clip 2 has \(6, 5, 1\)"):
        store.frame_shape  # noqa: B018
    with pytest.raises(UserError, match=r"different actions: clip 0 has \(3,\), clip 2 has \(0,\)"):
        store.action_size  # noqa: B018


def test_statistics_are_those_of_the_training_split(tmp_path: Path, make_store: MakeStore) -> None:
    clips = [a_clip(n, 3 + n, split=("train", "train", "val", "test")[n % 4]) for n in range(12)]
    for clip in clips:
        clip.actions[:, 1] += 1e4  # far from zero
        clip.actions[:, 2] = 7  # constant
    store = fc.Store(make_store(tmp_path / "store", clips, clips_per_part=5))
    rows = np.concatenate([clip.actions for clip in clips if clip.split == "train"]).astype(np.float64)
    mean, deviation = store.action_statistics()
    np.testing.assert_allclose(mean, rows.mean(axis=0), rtol=1e-9)
    np.testing.assert_allclose(deviation[:2], rows.std(axis=0)[:2], rtol=1e-6)
    assert (mean[2], deviation[2]) == (7, 1)
    without = fc.Store(make_store(tmp_path / "without", [a_clip(0, split="test"), a_clip(1, split="val")]))
    with pytest.raises(UserError, match="has no training clips with actions"):
        without.action_statistics()


def test_a_fingerprint_is_of_the_clips(tmp_path: Path, make_store: MakeStore) -> None:
    clips = [a_clip(n) for n in range(4)]
    prints = {fc.Store(make_store(tmp_path / name, clips)).fingerprint for name in ("one", "same")}
    assert len(prints) == 1
    for number, other in enumerate([clips[:3], clips[::-1], [*clips[:3], a_clip(3, split="val")]]):
        prints.add(fc.Store(make_store(tmp_path / str(number), other)).fingerprint)
    assert len(prints) == 4


def test_a_store_that_is_not_finished_can_be_read(tmp_path: Path, make_store: MakeStore) -> None:
    folder = make_store(tmp_path / "store", [a_clip(n) for n in range(6)], clips_per_part=2)
    (folder / "000001-0-of-1.shard").unlink()
    store = fc.Store(folder)
    assert store.missing_parts == [1]
    assert [store.clip(n).name for n in range(len(store))] == ["clip 0", "clip 1", "clip 4", "clip 5"]
    for name in ("000001-0-of-2.shard", "000001-2-of-2.shard", "000001-0.tmp", "notes.txt", "0-0-of-1.shard"):
        (folder / name).write_bytes(b"nothing to look at")
    assert fc.Store(folder).missing_parts == [1]


def test_shards_of_other_stores_are_refused(tmp_path: Path, make_store: MakeStore) -> None:
    one = make_store(tmp_path / "one", [a_clip(0), a_clip(1)], clips_per_part=1)
    two = make_store(tmp_path / "two", [a_clip(0), a_clip(1)], dataset="other", clips_per_part=1)
    shutil.copy(two / "000001-0-of-1.shard", one)
    with pytest.raises(UserError, match=r"000001-0-of-1.shard belongs to another store"):
        fc.Store(one)
    shutil.copy(two / "000001-0-of-1.shard", two / "000002-0-of-1.shard")
    with pytest.raises(UserError, match="has shards of part 2, but its manifest has 2 parts"):
        fc.Store(two)
    (two / "000002-0-of-1.shard").rename(two / "000001-0-of-2.shard")
    shutil.copy(two / "000001-0-of-1.shard", two / "000001-1-of-2.shard")
    with pytest.raises(UserError, match="has part 1 twice"):
        fc.Store(two)


def test_every_change_of_a_manifest_is_found(tmp_path: Path, make_store: MakeStore) -> None:
    folder = make_store(tmp_path / "store", [a_clip(0)])
    path = folder / NAME
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(UserError, match=r"is damaged|was altered|is of format"):
            fc.Store(folder)
        path.write_bytes(whole[:place])
        with pytest.raises(UserError, match=r"is damaged|was altered"):
            fc.Store(folder)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"num_items": -1}, "it speaks of -1 items"),
        ({"items_per_part": 0}, "it speaks of 1 items by 0"),
        ({"num_items": 2**60}, "it speaks of"),
        ({"num_items": True}, "it must hold"),
        ({"num_items": 1.0}, "it must hold"),
        ({"extra": 1}, "it must hold"),
        ({"format": "framecast store 2"}, "is of format 'framecast store 2', this framecast reads 'framecast store 1'"),
    ],
)
def test_manifests_that_mean_harm(tmp_path: Path, make_store: MakeStore, change: dict, sentence: str) -> None:
    """Right checksums, other claims."""
    folder = make_store(tmp_path / "store", [a_clip(0)])
    body = json.loads((folder / NAME).read_text())
    del body["checksum"]
    body |= change
    checksum = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    (folder / NAME).write_text(json.dumps({**body, "checksum": checksum}, indent=2) + "\n")
    with pytest.raises(UserError, match=sentence):
        fc.Store(folder)


def test_what_is_no_store(tmp_path: Path, make_store: MakeStore) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(UserError, match="there is no store at"):
            fc.Store(folder)
    folder = make_store(tmp_path / "store", [a_clip(0)])
    (folder / NAME).rename(tmp_path / "elsewhere")
    (folder / NAME).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="is a symbolic link: a store does not point outside its folder"):
        fc.Store(folder)


def test_moving_mnist_is_a_store_too(tmp_path: Path, test_data: Path) -> None:
    prepare_drawn("moving-mnist", MovingMnist(num_frames=5), tmp_path, str(test_data / "mnist"))
    store = fc.Store(tmp_path)
    assert (store.dataset, store.frame_shape, store.action_size) == ("moving-mnist", (64, 64, 1), 0)
    assert len(store.indices("test")) == 10_000
    assert store[0].shape == (5, 64, 64, 1)
    np.testing.assert_array_equal(store.frames(3, 1, 4), store[3][1:4])
    np.testing.assert_array_equal(store.clip(len(store) - 1).video, store[-1])
    assert store.num_frames(0) == 5
    assert not list(store.damage())
    assert not store.missing_parts
