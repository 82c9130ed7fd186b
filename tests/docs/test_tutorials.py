"""The tutorials' own commands, run one after the other as a person would, on sizes that take seconds."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from framecast import media

DOCS = Path(__file__).parents[2] / "docs"

# What makes a command small, and nothing else about it.
SMALLER = [
    ("--size 64", "--size 16"),
    ("--minutes 60", "--steps 2 --batch-size 2"),
    ("--every 3", "--every 12"),
    ("--samples 4", "--samples 2"),
    ("framecast evaluate", "framecast evaluate --num-videos 2 --trials 1"),
    # The dataset has three episodes, and which are for testing is a matter of their names.
    ("run --data store --out report", "run --data store --out report --split train"),
    ("moving-mnist --out", "moving-mnist --source mnist --out"),
]


@pytest.fixture
def folder(tmp_path: Path, test_data: Path) -> Path:
    """Where a person would stand: their videos, a dataset, the digits."""
    rng = np.random.default_rng(0)
    for number in range(30):  # so many that each split has some
        start = rng.integers(0, 255, (1, 24, 32, 3), dtype=np.uint8)
        media.write(tmp_path / "videos" / f"clip{number}.mp4", np.repeat(start, 18, axis=0), fps=10)
    (tmp_path / "dataset").symlink_to(test_data / "lerobot" / "g1_pick")
    (tmp_path / "mnist").symlink_to(test_data / "mnist")
    return tmp_path


def blocks(document: str, kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", (DOCS / document).read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize("document", sorted(path.name for path in DOCS.glob("tutorial-*.md")))
def test_the_commands_of_a_tutorial_work(document, folder):
    tools = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    commands = [line for block in blocks(document, "sh") for line in block.splitlines()]
    assert len(commands) >= 3
    for command in commands:
        for large, small in SMALLER:
            command = command.replace(large, small)
        done = subprocess.run(command.split(), cwd=folder, env=environment, capture_output=True, text=True, timeout=280)
        assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    for code in blocks(document, "python"):
        done = subprocess.run([sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, f"{code}\n{done.stderr[-2000:]}"
