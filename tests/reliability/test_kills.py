"""Killed at moments that nobody chose, and repeated to the end: what comes out is what an undisturbed run makes, and
nothing temporary stays. Short forms of the same: tests/training/test_loop.py and tests/data/test_prepare.py.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ..processes import command_of

STEPS = 40
KILLS = 10  # in each of ROUNDS
ROUNDS = range(3)
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port"]


@pytest.fixture
def train(framecast, digits) -> Callable[..., subprocess.Popen[str]]:
    """`train(run, ranks)`: a run of `tiny` with a checkpoint every four steps, in a process group of its own."""

    def start(run: Path, ranks: int = 1, steps: int = STEPS) -> subprocess.Popen[str]:
        words = ["train", "tiny", "--data", digits, "--out", run, "--steps", steps, "--checkpoint-every", 4]
        if ranks == 1:
            return framecast(*words, start_new_session=True)
        under = [*TORCHRUN, str(random.randrange(20_000, 30_000)), "-m", "framecast"]
        return framecast(*words, "--batch-size", 4, start_new_session=True, under=under)

    return start


def undisturbed(process: subprocess.Popen[str]) -> float:
    """How long it takes when it is left alone."""
    start = time.monotonic()
    output = process.communicate()
    assert process.returncode == 0, output
    return time.monotonic() - start


def kill(process: subprocess.Popen[str], chance: random.Random) -> bool:
    """SIGKILL to everything at once, or to one process of a job, which ends the others; whether it came in time."""
    everybody = [process.pid, *descendants(process.pid)]
    ranks = [
        pid
        for pid in everybody
        if b"checkpoint-every" in command_of(pid) and b"torch.distributed.run" not in command_of(pid)
    ]
    in_time = process.poll() is None
    if len(ranks) > 1 and chance.random() < 0.5:
        os.kill(chance.choice(ranks), signal.SIGKILL)
    elif in_time:
        for pid in everybody:  # torchrun gives each rank a session of its own
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    process.communicate()
    return in_time


def descendants(pid: int) -> list[int]:
    try:
        found = [int(w) for t in Path(f"/proc/{pid}/task").iterdir() for w in (t / "children").read_text().split()]
    except OSError:
        return []
    return found + [each for child in found for each in descendants(child)]


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if "tensorboard" not in path.parts}


@pytest.mark.torture
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("number", ROUNDS)
def test_train(train, tmp_path, state, chance, figures, ranks, number):
    seconds = undisturbed(train(tmp_path / "undisturbed", ranks))
    run, kills, survived = tmp_path / "run", 0, []
    while kills < KILLS:
        process = train(run, ranks)
        time.sleep(chance.uniform(0, seconds))
        before = last_step(run)
        if kill(process, chance):
            kills += 1
            survived.append(last_step(run))
            assert survived[-1] >= before, "what was saved stays saved"
        else:  # done: begin another
            assert state(run) == state(tmp_path / "undisturbed")
            run = tmp_path / f"run-{kills}"
    undisturbed(train(run, ranks))
    assert state(run) == state(tmp_path / "undisturbed")
    assert names(run) == names(tmp_path / "undisturbed"), "nothing temporary stays"
    figures(kills=kills, steps_saved_at_each=survived, seconds_undisturbed=round(seconds, 1))


def last_step(run: Path) -> int:
    folder = run / "checkpoints"
    return max((int(path.name) for path in folder.glob("[0-9]*")), default=0) if folder.is_dir() else 0


@pytest.mark.torture
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_train_asked_to_leave(train, tmp_path, state, number):
    """It saves the step in hand, exits with 143 or 130, and goes on to the same weights; only a validation is missing,
    where the step in hand would have been validated."""
    undisturbed(train(tmp_path / "undisturbed"))
    process = train(tmp_path / "run")
    lines = tmp_path / "run" / "metrics.jsonl"
    wait_for(lambda: lines.exists() and lines.read_text().count("\n") >= 3)
    process.send_signal(number)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + number, errors
    assert f"stopped by {number.name}, saved at step" in output
    assert 0 < last_step(tmp_path / "run") < STEPS
    undisturbed(train(tmp_path / "run"))
    assert state(tmp_path / "run")["tensors"] == state(tmp_path / "undisturbed")["tensors"]


def wait_for(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def pictures(tmp_path) -> Path:
    """A folder of clips to prepare."""
    import numpy as np

    noise, folder = np.random.default_rng(0), tmp_path / "clips with spaces é"
    folder.mkdir()
    for number in range(160):
        np.save(folder / f"{number:03}.npy", noise.integers(0, 256, (20, 48, 48, 3), np.uint8))
    return folder


@pytest.fixture
def prepare(framecast, pictures) -> Callable[[Path], subprocess.Popen[str]]:
    words = ["prepare", "folder", "--source", pictures, "--size", "32", "--workers", "2", "--out"]
    return lambda store: framecast(*words, store, start_new_session=True)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.torture
@pytest.mark.parametrize("number", ROUNDS)
def test_prepare(prepare, tmp_path, chance, figures, number):
    """The command as people give it, on a path with a space and other letters than English ones."""
    seconds = undisturbed(prepare(tmp_path / "undisturbed"))
    store, kills, stores = tmp_path / "a störe", 0, 1
    while kills < KILLS:
        process = prepare(store)
        time.sleep(chance.uniform(0.2 * seconds, seconds))
        if kill(process, chance):
            kills += 1
        else:
            assert contents(store) == contents(tmp_path / "undisturbed")
            store, stores = tmp_path / f"a störe {kills}", stores + 1
    undisturbed(prepare(store))
    assert contents(store) == contents(tmp_path / "undisturbed"), "byte for byte, and nothing temporary"
    figures(kills=kills, stores=stores)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_prepare_asked_to_leave(prepare, tmp_path, number):
    undisturbed(prepare(tmp_path / "undisturbed"))
    process, store = prepare(tmp_path / "store"), tmp_path / "store"
    wait_for(lambda: any(store.glob("*.shard")))
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + number, errors
    assert "Traceback" not in errors
    undisturbed(prepare(store))
    assert contents(store) == contents(tmp_path / "undisturbed")


@pytest.fixture
def evaluate(framecast, test_data, targets, tmp_path) -> Callable[[Path], subprocess.Popen[str]]:
    """Scores of a small random model on clips of twenty frames: likelihood, samples and what is measured on them."""
    from framecast.config import LayerConfig, ModelConfig
    from framecast.data.prepare import prepare_drawn
    from framecast.data.sources.moving_mnist import MovingMnist
    from framecast.model.video_transformer import VideoTransformer

    layers, small = (LayerConfig((1, 8, 8), 1),), {"embedding_size": 4, "hidden_size": 8, "head_size": 8}
    config = ModelConfig((4, 32, 32), (4, 4, 4), layers, layers, num_channels=1, **small)
    VideoTransformer(config).save(tmp_path / "model")
    prepare_drawn(
        "moving-mnist", MovingMnist(size=(32, 32), num_frames=20), tmp_path / "clips", str(test_data / "mnist")
    )
    words = [
        "evaluate",
        tmp_path / "model",
        "--data",
        tmp_path / "clips",
        "--num-videos",
        40,
        "--frames",
        12,
    ]
    words += ["--trials", 2, "--metrics", "bits", "psnr", "ssim", "--out"]
    return lambda out: framecast(*words, out, start_new_session=True)


def scores(out: Path) -> tuple[dict[str, object], bytes]:
    """Of results.json what does not tell the time, and all of per_video.csv."""
    import json

    found = json.loads((out / "results.json").read_text())
    return {name: found[name] for name in ("data", "models")}, (out / "per_video.csv").read_bytes()


@pytest.mark.torture
@pytest.mark.parametrize("number", ROUNDS)
def test_evaluate(evaluate, tmp_path, chance, figures, number):
    seconds = undisturbed(evaluate(tmp_path / "undisturbed"))
    out, kills, folders = tmp_path / "scores", 0, 1
    while kills < KILLS:
        process = evaluate(out)
        time.sleep(chance.uniform(0.2 * seconds, seconds))
        if kill(process, chance):
            kills += 1
        else:
            assert scores(out) == scores(tmp_path / "undisturbed")
            out, folders = tmp_path / f"scores-{kills}", folders + 1
    undisturbed(evaluate(out))
    assert scores(out) == scores(tmp_path / "undisturbed")
    assert names(out) == names(tmp_path / "undisturbed"), "nothing temporary stays"
    figures(kills=kills, folders=folders, seconds_undisturbed=round(seconds, 1))
