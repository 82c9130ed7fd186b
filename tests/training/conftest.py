"""A store and an experiment so small that a step takes milliseconds."""

from __future__ import annotations

from pathlib import Path

import pytest

from framecast.data.prepare import prepare_drawn
from framecast.data.sources.moving_mnist import MovingMnist
from framecast.data.store import Store


@pytest.fixture(scope="session")
def store(tmp_path_factory, test_data) -> Store:
    """Clips of eight frames of 32×32, drawn."""
    folder: Path = tmp_path_factory.mktemp("small") / "store"
    prepare_drawn("moving-mnist", MovingMnist(size=(32, 32), num_frames=8), folder, str(test_data / "mnist"))
    return Store(folder)


@pytest.fixture(scope="session")
def moving_mnist(tmp_path_factory, test_data) -> Store:
    """What `tiny` is made for."""
    folder: Path = tmp_path_factory.mktemp("usual") / "store"
    prepare_drawn("moving-mnist", MovingMnist(), folder, str(test_data / "mnist"))
    return Store(folder)
