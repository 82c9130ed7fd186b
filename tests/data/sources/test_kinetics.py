"""Kinetics-600: the real lists, folders of every class, the cooking subset; what is missing or broken is listed."""

from __future__ import annotations

import csv
import shutil

import numpy as np
import pytest

from framecast.data.clip import Clip, Skipped
from framecast.data.resize import resize
from framecast.data.sources.kinetics import COOKING, Kinetics
from framecast.data.video_file import read_clip
from framecast.errors import UserError

CLIP = "videos/Zulko+moviepy/bitmap.mp4"


@pytest.fixture(scope="module")
def classes(test_data):
    return (test_data / "kinetics600/label_map_k600.txt").read_text().splitlines()


def place(test_data, path, clip=CLIP):
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(test_data / clip, path)


def write_list(path, rows, columns=("label", "youtube_id", "time_start", "time_end", "split")):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([columns, *rows])


def read(source):
    return {each.name: each for each in source.read(source.items())}


@pytest.mark.parametrize("spaces", [" ", "_"])
def test_six_hundred_class_folders_have_29_of_cooking(test_data, tmp_path, classes, spaces):
    assert len(classes) == 600
    for i, label in enumerate(classes):
        (tmp_path / label.replace(" ", spaces)).mkdir()
        (tmp_path / label.replace(" ", spaces) / f"{i:011}_000001_000011.mp4").symlink_to(test_data / CLIP)
    assert len(Kinetics(str(tmp_path)).items()) == 600
    source = Kinetics(str(tmp_path), (4, 4), subset="cooking")
    clips = list(source.read(source.items()))
    assert {clip.label for clip in clips} == {label for label in classes if COOKING.fullmatch(label)}
    assert len(clips) == 29
    assert {"making tea", "peeling potatoes", "cooking egg", "cutting pineapple"} <= {clip.label for clip in clips}


def test_the_real_lists(test_data, tmp_path):
    for name in ("val", "test"):
        (tmp_path / f"{name}.csv").symlink_to(test_data / f"kinetics600/kinetics-600_{name}.csv")
    place(test_data, tmp_path / "yq_M1PMw2hY_000038_000048.mp4")  # of the validation list, flat
    place(test_data, tmp_path / "making tea" / "LAcSOxdNrmI.mp4")  # of the test list, which names no classes
    source = Kinetics(str(tmp_path), (4, 4))
    items = source.items()
    assert len(items) == len(set(items)) > 100_000
    there = [item for item in items if "yq_M1PMw2hY" in item or "LAcSOxdNrmI" in item]
    test, val = source.read(there)
    assert (test.name, test.split, test.label) == ("test//LAcSOxdNrmI_000061_000071", "test", "making tea")
    assert (val.name, val.split, val.label) == ("val/abseiling/yq_M1PMw2hY_000038_000048", "val", "abseiling")
    (missing,) = source.read(items[:1])
    assert missing == Skipped(items[0], "its file is missing")

    cooking = Kinetics(str(tmp_path), subset="cooking").items()
    labels = {item.split("/")[1] for item in cooking if item.startswith("val")}
    assert len(labels) == 29
    assert [item for item in cooking if item.startswith("test")] == ["test//LAcSOxdNrmI_000061_000071"]


def test_missing_broken_and_unlisted_clips_are_listed(test_data, tmp_path):
    rows = [("surfing water", f"{name:_<11}", 3, 13, "validate") for name in ("whole", "missing", "broken", "cut")]
    write_list(tmp_path / "validate.csv", rows)
    for name in ("whole", "broken", "cut", "unlisted"):
        place(test_data, tmp_path / "validate" / "surfing water" / f"{name:_<11}_000003_000013.mp4")
    folder = tmp_path / "validate" / "surfing water"
    (folder / "broken______000003_000013.mp4").write_text("an error page")
    (folder / "cut_________000003_000013.mp4").write_bytes((test_data / CLIP).read_bytes()[:-5])
    made = {name.partition("_")[0]: each for name, each in read(Kinetics(str(tmp_path), (4, 4))).items()}
    assert made.pop("val/surfing water/whole").video.shape == (5, 4, 4, 3)
    assert {name.rpartition("/")[2]: each.reason[:22] for name, each in made.items()} == {
        "broken": "it is damaged, or no v",
        "cut": "it is cut short: it ha",
        "missing": "its file is missing",
        "unlisted": "no list names it",
    }


def test_frames_are_cropped_to_the_centre_at_their_own_rate(test_data, tmp_path):
    path = "videos/pytorch+vision/R6llTwEh07w.mp4"
    place(test_data, tmp_path / "train" / "dying hair" / "R6llTwEh07w_000010_000020.mp4", path)
    ((name, clip),) = read(Kinetics(str(tmp_path))).items()
    assert (name, clip.split, clip.label) == ("train/dying hair/R6llTwEh07w_000010_000020", "train", "dying hair")
    assert clip.video.shape == (303, 64, 64, 3)
    assert np.array_equal(clip.video, read_clip(test_data / path, (64, 64)))
    frames = np.load(test_data / "reference_values/lanczos3_antialias_tf.npz")
    assert np.array_equal(clip.video[0], resize(frames["in_k600_R6llTwEh07w_f0"][None], (64, 64))[0])


def test_without_lists_folders_say_the_split_or_the_name_does(test_data, tmp_path):
    for split in ("train", "val", "validate", "test"):
        place(test_data, tmp_path / split / "yoga" / f"{split:_<11}.mp4")
    place(test_data, tmp_path / "elsewhere__.mp4")
    made = read(Kinetics(str(tmp_path), (4, 4)))
    assert sorted((clip.split, clip.label) for clip in made.values() if isinstance(clip, Clip) and clip.label) == [
        ("test", "yoga"),
        ("train", "yoga"),
        ("val", "yoga"),
        ("val", "yoga"),
    ]
    assert len(made) == 5


@pytest.mark.parametrize(
    ("rows", "columns", "complaint"),
    [
        ([], ("label", "id"), "it has no column youtube_id"),
        ([("yoga", "a", "x", 13, "val")], None, "line 2 is"),
        ([("yoga", "a", 3, 13, "holdout")], None, "line 2 is"),
        ([("yoga", "../../a", 3, 13, "val")], None, "line 2 names a path"),
    ],
)
def test_lists_that_are_none(tmp_path, rows, columns, complaint):
    write_list(tmp_path / "a.csv", rows, *([columns] if columns else []))
    with pytest.raises(UserError, match=rf"a\.csv is no Kinetics list: {complaint}"):
        Kinetics(str(tmp_path)).items()


def test_what_is_no_kinetics(tmp_path):
    with pytest.raises(UserError, match="no subset 'dancing'; there is cooking"):
        Kinetics(str(tmp_path), subset="dancing")
    with pytest.raises(UserError, match="holds no clips and no lists of any"):
        Kinetics(str(tmp_path)).items()
    with pytest.raises(UserError, match="holds no clips of cooking and no lists"):
        Kinetics(str(tmp_path), subset="cooking").items()
    with pytest.raises(UserError, match="nowhere is no folder"):
        Kinetics(str(tmp_path / "nowhere")).items()
