from __future__ import annotations

from pathlib import Path

import pytest

from framecast.evaluation import i3d


@pytest.fixture(scope="session")
def i3d_file(test_data: Path) -> Path:
    return test_data / "i3d" / "i3d-kinetics-400.ckpt"


@pytest.fixture(scope="session")
def network(i3d_file: Path) -> i3d.I3D:
    return i3d.load(i3d_file)
