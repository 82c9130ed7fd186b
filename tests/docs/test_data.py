"""What docs/data.md tells people to type and run is typed and run."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from framecast import cli

DOCUMENT = (Path(__file__).parents[2] / "docs" / "data.md").read_text()


@pytest.mark.slow
def test_every_command_and_every_line_runs(
    tmp_path: Path, test_data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mnist").symlink_to(test_data / "mnist")
    Path("bair").symlink_to(test_data / "bair" / "derived_real_frames")
    Path("push").symlink_to(test_data / "google_push" / "derived_from_robonet_8frames")
    Path("g1_pick").symlink_to(test_data / "lerobot" / "g1_pick")
    Path("videos").mkdir()
    clips = sorted((test_data / "videos").rglob("*.mp4"), key=lambda path: path.stat().st_size)
    for path in [each for each in clips if each.stat().st_size > 50_000][:4]:
        Path("videos", path.name).symlink_to(path)
    kinetics(test_data / "kinetics600" / "kinetics-600_val.csv", Path("kinetics"), next(Path("videos").iterdir()))
    commands = [line for block in blocks("sh") for line in block.splitlines()]
    assert len(commands) == 12
    for command in commands:
        program, *words = shlex.split(command)
        assert program == "framecast"
        if words[1] != "robot-bin":  # its own tests draw it, where there is something to draw with
            assert cli.run(words) == 0, f"{command}\n{capsys.readouterr().err}"
    scope: dict[str, object] = {}
    for block in blocks("python"):
        exec(block, scope)
    assert scope["video"].tobytes() == scope["store"][0].tobytes()
    assert scope["name"] == scope["store"].clip(0).name


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", DOCUMENT, re.DOTALL | re.MULTILINE)


def kinetics(lists: Path, folder: Path, video: Path) -> None:
    """A folder with one clip of cooking and the list that names it."""
    header, *rows = lists.read_text().splitlines()
    row = next(row for row in rows if "making pizza" in row.split(",")[0])
    folder.mkdir()
    (folder / "val.csv").write_text(f"{header}\n{row}\n")
    identity, start, end = row.split(",")[1:4]
    (folder / f"{identity}_{int(start):06}_{int(end):06}.mp4").symlink_to(video.resolve())
