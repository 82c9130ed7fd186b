"""LeRobot: real episodes (v2.1), and the same converted to the layout of v3: frames and actions match their tables."""

from __future__ import annotations

import json
import shutil
import sys

import av
import numpy as np
import pyarrow
import pyarrow.parquet as parquet
import pytest

from framecast.data.clip import Clip, Skipped
from framecast.data.decoder import decode
from framecast.data.frames import Frame, Selection
from framecast.data.sources.lerobot import Lerobot, aligned
from framecast.errors import UserError

CAMERA = "observation.images.cam_high"
SIZE = (24, 32)


def table_of(root, episode):
    return parquet.read_table(root / f"data/chunk-000/episode_{episode:06}.parquet")


def video_of(root, episode):
    return root / f"videos/chunk-000/{CAMERA}/episode_{episode:06}.mp4"


@pytest.fixture(scope="module")
def version_2(test_data):
    return test_data / "lerobot" / "g1_pick"


@pytest.fixture(scope="module")
def clips(version_2):
    source = Lerobot(str(version_2), size=SIZE)
    return list(source.read(source.items()))


@pytest.fixture(scope="module")
def version_3(version_2, tmp_path_factory):
    """The same episodes as v3 keeps them: one table, one video, and where in them each episode is."""
    root = tmp_path_factory.mktemp("v3")
    info = json.loads((version_2 / "meta/info.json").read_text())
    info |= {
        "codebase_version": "v3.0",
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
    }
    write(root / "meta/info.json", json.dumps(info))
    video = root / f"videos/{CAMERA}/chunk-000/file-000.mp4"
    video.parent.mkdir(parents=True)
    durations = concatenate([video_of(version_2, episode) for episode in range(3)], video)

    tables = [table_of(version_2, episode) for episode in range(3)]
    (root / "data/chunk-000").mkdir(parents=True)
    parquet.write_table(pyarrow.concat_tables(tables), root / "data/chunk-000/file-000.parquet", row_group_size=300)
    ends, times = np.cumsum([table.num_rows for table in tables]), np.cumsum(durations)
    rows = [
        {
            "episode_index": episode,
            "tasks": ["Pick up the yellow bottle on the table."],
            "length": tables[episode].num_rows,
            "data/chunk_index": 0,
            "data/file_index": 0,
            "dataset_from_index": int(ends[episode] - tables[episode].num_rows),
            "dataset_to_index": int(ends[episode]),
            f"videos/{CAMERA}/chunk_index": 0,
            f"videos/{CAMERA}/file_index": 0,
            f"videos/{CAMERA}/from_timestamp": float(times[episode] - durations[episode]),
            f"videos/{CAMERA}/to_timestamp": float(times[episode]),
            "stats/action/mean": [0.0] * 26,
            "meta/episodes/chunk_index": 0,
            "meta/episodes/file_index": 0,
        }
        for episode in range(3)
    ]
    (root / "meta/episodes/chunk-000").mkdir(parents=True)
    parquet.write_table(pyarrow.Table.from_pylist(rows), root / "meta/episodes/chunk-000/file-000.parquet")
    return root


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def concatenate(paths, out):
    """One video after the other, their packets as they were."""
    durations = []
    with av.open(str(out), "w") as container:
        stream = None
        for path in paths:
            with av.open(str(path)) as episode:
                template = episode.streams.video[0]
                stream = stream or container.add_stream_from_template(template, opaque=True)
                shift = round(sum(durations) / template.time_base)
                for packet in episode.demux(template):
                    if packet.dts is not None:
                        packet.pts, packet.dts, packet.stream = packet.pts + shift, packet.dts + shift, stream
                        container.mux(packet)
                durations.append(float(template.duration * template.time_base))
    return durations


def test_frames_and_actions_match_their_tables(version_2, clips):
    assert [clip.name for clip in clips] == ["episode_000000", "episode_000001", "episode_000002"]
    for episode, clip in enumerate(clips):
        table = table_of(version_2, episode)
        assert np.array_equal(clip.actions, np.array(table["action"].to_pylist(), np.float32))
        assert np.array_equal(clip.states, np.array(table["observation.state"].to_pylist(), np.float32))
        assert clip.label == "Pick up the yellow bottle on the table."
        frames = list(decode(video_of(version_2, episode)))
        times = table["timestamp"].to_numpy()
        assert np.abs(times - [frame.time for frame in frames]).max() < 1e-4
        assert np.array_equal(clip.video, Selection(SIZE).clip(frames))


def test_version_3_gives_the_same_clips(version_3, clips):
    source = Lerobot(str(version_3), "cam_high", SIZE)
    assert source.items() == [clip.name for clip in clips]
    for item, clip in reversed(list(zip(source.items(), clips, strict=True))):  # whichever is wanted first
        (again,) = source.read([item])
        assert np.array_equal(again.video, clip.video)
        assert np.array_equal(again.actions, clip.actions)
        assert np.array_equal(again.states, clip.states)
        assert (again.name, again.label, again.split) == (clip.name, clip.label, clip.split)


def test_every_nth_frame_with_the_actions_between(version_2, clips):
    (clip,) = Lerobot(str(version_2), size=SIZE, every=10).read(["episode_000001"])
    assert np.array_equal(clip.video, clips[1].video[::10])
    assert np.array_equal(clip.states, clips[1].states[::10])
    assert np.array_equal(clip.actions[:-1].reshape(-1, 26), clips[1].actions[:270])
    assert clip.actions.shape == (28, 260)


@pytest.fixture
def copy(version_2, tmp_path):
    """A copy to change, of the first episode's table and video only."""
    shutil.copytree(version_2 / "meta", tmp_path / "meta")
    for path in ("data/chunk-000/episode_000000.parquet", f"videos/chunk-000/{CAMERA}/episode_000000.mp4"):
        (tmp_path / path).parent.mkdir(parents=True)
        shutil.copyfile(version_2 / path, tmp_path / path)
    return tmp_path


def change_info(root, **changes):
    info = json.loads((root / "meta/info.json").read_text())
    write(root / "meta/info.json", json.dumps(info | changes))


def first(root, **options):
    source = Lerobot(str(root), size=(4, 4), **options)
    return next(source.read(source.items()[:1]))


def test_several_cameras_are_refused_with_their_names(copy):
    info = json.loads((copy / "meta/info.json").read_text())
    features = info["features"] | {"observation.images.wrist": info["features"][CAMERA]}
    change_info(copy, features=features)
    with pytest.raises(UserError, match="has several cameras: choose one by --camera, of cam_high, wrist"):
        Lerobot(str(copy)).items()
    with pytest.raises(UserError, match="has no camera 'left'; it has cam_high, wrist"):
        Lerobot(str(copy), "left").items()
    assert len(Lerobot(str(copy), CAMERA).items()) == len(Lerobot(str(copy), "cam_high").items()) == 3
    change_info(copy, features={"action": info["features"]["action"]})
    with pytest.raises(UserError, match="has no camera that is stored as video"):
        Lerobot(str(copy)).items()


def rewrite(root, change):
    path = root / "data/chunk-000/episode_000000.parquet"
    parquet.write_table(change(parquet.read_table(path)), path)


def with_column(table, name, values):
    return table.set_column(table.column_names.index(name), name, pyarrow.array(values, table[name].type))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda table: table.slice(0, 200), "its table has 200 rows where meta says 221"),
        (lambda table: with_column(table, "timestamp", table["timestamp"].to_numpy() + 1), "no frame for row 191 of"),
        (lambda table: with_column(table, "timestamp", table["timestamp"].to_numpy()[::-1]), "do not grow"),
        (lambda table: table.drop_columns("action"), "cannot be read"),
        (
            lambda table: with_column(table, "action", [[np.nan] * 26] * 221),
            "its action holds a number that is not fin",
        ),
        (lambda table: with_column(table, "action", [None, *table["action"].to_pylist()[1:]]), "no action in some row"),
    ],
)
def test_tables_that_do_not_fit_their_videos(copy, change, reason):
    rewrite(copy, change)
    made = first(copy)
    assert isinstance(made, Skipped)
    assert reason in made.reason


def test_damaged_and_missing_files_cost_an_episode(copy):
    source = Lerobot(str(copy), size=(4, 4))
    whole, no_table, _ = source.read(source.items())
    assert isinstance(whole, Clip)
    assert "there is no " in no_table.reason
    video = video_of(copy, 0)
    video.write_bytes(video.read_bytes()[:-1000])
    assert first(copy).reason.startswith("it is cut short")
    video.unlink()
    assert first(copy).reason == "it cannot be read: No such file or directory"
    table = copy / "data/chunk-000/episode_000000.parquet"
    table.write_bytes(table.read_bytes()[:-100])
    assert "cannot be read" in first(copy).reason


def test_datasets_that_name_their_splits_are_followed(copy):
    change_info(copy, splits={"train": "1:3", "test": "0:1"})
    assert first(copy).split == "test"
    change_info(copy, splits={"train": "1:3", "holdout": "0:1"})
    assert first(copy).reason.startswith("it is in none of the splits that are known")


def test_paths_stay_inside(copy):
    change_info(copy, video_path="../{video_key}.mp4")
    assert first(copy).reason == f"meta says that it is outside the dataset, at ../{CAMERA}.mp4"
    change_info(copy, video_path="{nothing}.mp4")
    assert first(copy).reason == "meta does not say where it is: video_path is '{nothing}.mp4'"


def test_what_is_no_dataset(copy, monkeypatch):
    change_info(copy, codebase_version="v1.6")
    with pytest.raises(UserError, match=r"is of LeRobot version v1\.6; versions 2 and 3 can be read"):
        Lerobot(str(copy)).items()
    write(copy / "meta/info.json", "{}")
    with pytest.raises(UserError, match=r"info\.json is not that of a LeRobot dataset: KeyError"):
        Lerobot(str(copy)).items()
    (copy / "meta/info.json").unlink()
    with pytest.raises(UserError, match=r"is no LeRobot dataset: it has no meta/info\.json"):
        Lerobot(str(copy)).items()


def test_without_the_extra(copy, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(UserError, match=r"LeRobot tables need pyarrow: pip install 'framecast\[lerobot\]'"):
        first(copy)


def test_a_row_gets_the_frame_nearest_to_it():
    frames = [Frame(time, lambda: np.zeros((1, 1, 3), np.uint8)) for time in (0.0, 0.1, 0.21, 0.3, 0.4)]
    assert [frame.time for frame in aligned(iter(frames), np.array([0.04, 0.19, 0.31]), 10.0)] == [0.0, 0.21, 0.3]
    with pytest.raises(UserError, match=r"its video has no frame for row 1 of its table, at 0\.460 s"):
        list(aligned(iter(frames), np.array([0.4, 0.46]), 10.0))
