from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from framecast import cli
from framecast.commands.prepare import share_of, size_of, table
from framecast.data.clip import Skipped
from framecast.data.prepare import Account
from framecast.data.store import Store
from framecast.errors import UserError


@pytest.fixture
def videos(tmp_path: Path) -> Path:
    """A folder of two arrays that are clips and a file that is none."""
    folder = tmp_path / "videos"
    folder.mkdir()
    for number in range(2):
        np.save(folder / f"{number}.npy", np.full((4, 12, 10, 3), number, np.uint8))
    (folder / "broken.mp4").write_bytes(b"no video")
    return folder


def test_a_folder_becomes_a_store(
    tmp_path: Path, videos: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["prepare", "folder", "--out", "store", "--source", "videos", "--size", "6x5", "--workers", "1"]
    assert cli.run(words) == 0
    out = capsys.readouterr().out.splitlines()
    assert sum(int(line.split()[1]) for line in out[2:5]) == 2
    assert sum(int(line.split()[2]) for line in out[2:5]) == 8
    assert out[5] == "left out: 1"
    assert out[6].startswith("  broken.mp4: ")
    store = Store("store")
    assert (store.dataset, store.frame_shape) == ("folder", (6, 5, 3))
    assert store.manifest.source["source"] == str(videos)
    monkeypatch.chdir(videos)  # the same folder, called otherwise
    assert cli.run([*words[:3], "../store", "--source", ".", *words[6:]]) == 0
    assert cli.run([*words[:3], "../store", "--source", ".", *words[6:], "--every", "2"]) == 2
    assert "is made with every 1, this command has every 2" in capsys.readouterr().err


def test_nothing_went_in(tmp_path: Path, videos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in videos.glob("*.npy"):
        path.write_bytes(b"")
    assert cli.run(["prepare", "folder", "--out", str(tmp_path / "store"), "--source", str(videos)]) == 2
    captured = capsys.readouterr()
    assert "left out: 3" in captured.out
    assert "nothing went into" in captured.err


def test_moving_mnist_and_verify(tmp_path: Path, test_data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = str(tmp_path / "store")
    words = ["prepare", "moving-mnist", "--out", store, "--source", str(test_data / "mnist"), "--size", "64"]
    assert cli.run(words) == 0
    assert cli.run(["verify", store]) == 0
    assert "is whole: 10,020,000 clips" in capsys.readouterr().out
    assert cli.run([*words[:-1], "32"]) == 2
    assert "is made with size [64, 64], this command has size [32, 32]" in capsys.readouterr().err


@pytest.mark.parametrize("source", ["bair/derived_real_frames", "bair/tfds_dummy"])
def test_bair_and_shares_of_it(tmp_path: Path, test_data: Path, source: str) -> None:
    words = [
        "prepare",
        "bair",
        "--source",
        str(test_data / source),
        "--camera",
        "main",
        "--out",
        str(tmp_path / "store"),
    ]
    for part in ("2/2", "1/2"):
        assert cli.run([*words, "--part", part]) == 0
    store = Store(tmp_path / "store")
    assert not store.missing_parts
    assert (store.frame_shape, store.action_size) == ((64, 64, 3), 4)


def test_sizes() -> None:
    assert [size_of(word) for word in ("64", "64x80", "48X32")] == [(64, 64), (64, 80), (48, 32)]
    for word in ("", "x", "64x", "64x64x3", "0", "-1", "big"):
        with pytest.raises(ValueError, match="is no size: write N for a square or HxW"):
            size_of(word)


def test_shares() -> None:
    assert share_of("3/8") == (3, 8)
    for word in ("3", "3/", "a/b", "1/2/3", "-1/2"):
        with pytest.raises(UserError, match="write I/N, as in 3/8"):
            share_of(word)
    for word in ("0/2", "3/2", "0/0"):
        with pytest.raises(UserError, match="the first is 1 and the last is"):
            share_of(word)


def test_names_cannot_speak_to_the_terminal() -> None:
    account = Account(skipped=[Skipped("\x1b[31mred\n\udce9.mp4", "because")], missing_parts=2)
    lines = table(Path("store"), account).splitlines()
    assert lines[-2:] == ["  �[31mred��.mp4: because", "2 parts of the whole store are for other commands to make"]


def test_help_names_every_kind(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.run(["prepare", "--help"])
    help_text = capsys.readouterr().out
    for kind in ("moving-mnist", "robot-bin", "bair", "robotic-pushing", "kinetics600", "lerobot", "folder"):
        assert kind in help_text
