"""Every campaign has two lengths: short with all the other tests, long with `make torture`, which writes what each
campaign counted to build/reliability.jsonl: the figures of docs/reliability.md."""

from __future__ import annotations

import importlib
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

HERE = Path(__file__).parent
FIGURES = HERE.parents[1] / "build" / "reliability.jsonl"
LONG = bool(os.environ.get("FRAMECAST_TORTURE"))


@pytest.fixture(scope="session")
def length() -> Callable[[Any, Any], Any]:
    """`length(short, long)`: the one that is asked for."""
    return lambda short, long: long if LONG else short


@pytest.fixture
def figures(request: pytest.FixtureRequest) -> Callable[..., None]:
    """`figures(flips=…, found=…)`: what a campaign counted. In the long form it is kept at once, since it took long."""
    start = time.monotonic()

    def keep(**counted: object) -> None:
        if LONG:
            seconds = round(time.monotonic() - start, 1)
            FIGURES.parent.mkdir(exist_ok=True)
            with FIGURES.open("a") as file:
                file.write(json.dumps({"campaign": request.node.name, "seconds": seconds, **counted}) + "\n")

    return keep


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What has no short form is for the long one alone."""
    if not LONG:
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("torture")])
        items[:] = [item for item in items if not item.get_closest_marker("torture")]


@pytest.fixture(scope="session")
def targets() -> Iterator[ModuleType]:
    """What there is to attack, and small files of every kind."""
    sys.path.insert(0, str(HERE))
    yield importlib.import_module("targets")
    sys.path.remove(str(HERE))


@pytest.fixture
def chance(request: pytest.FixtureRequest) -> random.Random:
    """The same for a test each time, so that what it found is found again."""
    return random.Random(request.node.nodeid.rpartition("::")[2])


@pytest.fixture
def framecast() -> Callable[..., subprocess.Popen[str]]:
    """`framecast("train", "tiny", …)`: the command in a process of its own, one thread wide."""

    def start(*words: object, **options: Any) -> subprocess.Popen[str]:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **options.pop("environment", {})}
        command = [*options.pop("under", [sys.executable, "-m", "framecast"]), *map(str, words)]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True, **options)

    return start


@pytest.fixture
def peak() -> Callable[[], int]:
    """`peak()`: by how many MiB this process has grown since the test began, at its largest."""
    Path("/proc/self/clear_refs").write_text("5")  # begins to measure anew
    before = _kib("VmRSS")
    return lambda: max(0, _kib("VmHWM") - before) >> 10


def _kib(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(name)))


@pytest.fixture(scope="session")
def digits(test_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of Moving MNIST: what `tiny` trains on."""
    from framecast.data.prepare import prepare_drawn
    from framecast.data.sources.moving_mnist import MovingMnist

    folder = tmp_path_factory.mktemp("stores") / "digits"
    prepare_drawn("moving-mnist", MovingMnist(), folder, str(test_data / "mnist"))
    return folder


@pytest.fixture(scope="session")
def state() -> Callable[[Path], dict[str, Any]]:
    """`state(run)`: all that a run is in the end: weights and everything of the last checkpoint, and its metrics but
    for the clock's."""

    def read(run: Path) -> dict[str, Any]:
        from safetensors.torch import load_file

        from framecast.training.checkpoint import everything
        from framecast.training.run import read_metrics

        last = everything(run / "checkpoints")[-1]
        tensors = {name: t for file in sorted(last.files) for name, t in load_file(last.folder / file).items()}
        of_the_clock = ("seconds", "data_seconds", "slices_per_second", "fraction_of_peak")
        metrics = [{k: v for k, v in line.items() if k not in of_the_clock} for line in read_metrics(run)]
        model = load_file(run / "model" / "model.safetensors")
        return {"step": last.step, "metrics": metrics, "tensors": _bytes(tensors), "model": _bytes(model)}

    return read


def _bytes(tensors: dict[str, torch.Tensor]) -> dict[str, bytes]:
    return {name: tensor.contiguous().view(torch.uint8).numpy().tobytes() for name, tensor in tensors.items()}
