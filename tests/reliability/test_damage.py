"""Every flipped bit and every cut of what framecast writes is found when it is read or verified.

TFRecords, every bit and every cut: tests/data/test_tfrecord.py; one shard alone: tests/data/test_shard.py; videos cut
short: tests/data/test_containers.py.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from framecast.data.manifest import NAME, Manifest
from framecast.data.store import Store
from framecast.errors import UserError
from framecast.model import checkpoint as models
from framecast.training import checkpoint as checkpoints


def flips(path: Path, every: int = 1) -> Iterator[int]:
    """Damage a file by one bit at a time, and mend it again; yields which bit."""
    whole = path.read_bytes()
    with path.open("r+b", buffering=0) as file:
        for bit in range(0, 8 * len(whole), every):
            file.seek(bit // 8)
            file.write(bytes([whole[bit // 8] ^ 1 << bit % 8]))
            yield bit
            file.seek(bit // 8)
            file.write(whole[bit // 8 : bit // 8 + 1])
    assert path.read_bytes() == whole


def cuts(path: Path, every: int = 1) -> Iterator[int]:
    """Cut a file short at one length after the other, and mend it again; yields the length."""
    whole = path.read_bytes()
    for size in range(0, len(whole), every):
        path.write_bytes(whole[:size])
        yield size
    path.write_bytes(whole)


def refused(read: Callable[[], object], path: Path, where: int) -> None:
    """That a damaged file is refused by name, wherever the damage is."""
    with pytest.raises(UserError, match=f"{re.escape(path.name)}|{re.escape(path.parent.name)}"):
        assert read() is NotImplemented, f"read, though damaged at {where}"


@pytest.fixture
def store(targets, make_store, tmp_path) -> Path:
    return make_store(tmp_path / "store", [targets.small_clip(number) for number in range(2)])


def verify(store: Path) -> None:
    """As `framecast verify` does it."""
    for sentence in Store(store).damage():
        raise UserError(sentence)


def test_a_shard(store, figures):
    (shard,) = store.glob("*.shard")
    verify(store)
    num_flips = sum(1 for bit in flips(shard) if not refused(lambda: verify(store), shard, bit))
    num_cuts = sum(1 for size in cuts(shard) if not refused(lambda: verify(store), shard, size))
    assert (num_flips, num_cuts) == (8 * shard.stat().st_size, shard.stat().st_size)
    figures(flips=num_flips, cuts=num_cuts, bytes=shard.stat().st_size)


def test_a_manifest(store, figures):
    manifest = store / NAME
    num_flips = sum(1 for bit in flips(manifest) if not refused(lambda: Store(store), manifest, bit))
    num_cuts = sum(1 for size in cuts(manifest) if not refused(lambda: Store(store), manifest, size))
    figures(flips=num_flips, cuts=num_cuts, bytes=manifest.stat().st_size)


def test_a_store_of_digits(targets, tmp_path, figures, length):
    """Drawn stores keep their digits in one file, of which the whole SHA-256 is known."""
    from framecast.data.sources.moving_mnist import MovingMnist

    settings = json.loads(json.dumps(vars(MovingMnist())))
    manifest = Manifest("moving-mnist", "drawn", settings, 0, "0" * 64, 1, {})
    (tmp_path / NAME).write_bytes(manifest.text())
    (tmp_path / "mnist.bin").write_bytes(bytes(1000))
    with pytest.raises(UserError, match=r"mnist\.bin"):
        deque(Store(tmp_path).damage(), maxlen=0)


@pytest.mark.parametrize("name", [models.CONFIG, models.WEIGHTS])
def test_a_model(targets, tmp_path, name, figures, length):
    targets.small_model().save(tmp_path / "model")
    file = tmp_path / "model" / name
    models.read(file.parent)
    every = 1 if name == models.CONFIG else length(23, 1)  # odd, so that all eight bits have their turn
    num_flips = sum(1 for bit in flips(file, every) if not refused(lambda: models.read(file.parent), file, bit))
    num_cuts = sum(1 for size in cuts(file, every) if not refused(lambda: models.read(file.parent), file, size))
    figures(flips=num_flips, cuts=num_cuts, bytes=file.stat().st_size)


def test_a_checkpoint(a_checkpoint, figures, length):
    """Every file of a checkpoint of one rank: what `train` looks at before it resumes, and `verify`."""

    def check() -> None:
        (saved,) = checkpoints.everything(a_checkpoint.parent)
        checkpoints.check(saved)

    check()
    counted = {}
    for file in sorted(a_checkpoint.iterdir()):
        every = 1 if file.name == checkpoints.SEAL else length(29, 1)
        num_flips = sum(1 for bit in flips(file, every) if not refused(check, file, bit))
        num_cuts = sum(1 for size in cuts(file, every) if not refused(check, file, size))
        counted[file.name] = [num_flips, num_cuts, file.stat().st_size]
    assert len(counted) == 2
    figures(flips_cuts_bytes=counted)


@pytest.fixture
def a_checkpoint(targets, tmp_path) -> Path:
    """Of the smallest model, after no step."""
    from framecast.config import TrainingConfig
    from framecast.training.distributed import Job
    from framecast.training.optimizer import make

    model = targets.small_model()
    writer = checkpoints.Writer(tmp_path / "run" / "checkpoints", Job(torch.device("cpu")), keep=1)
    writer.save(7, model, make(model, TrainingConfig()), 1.5)
    writer.close()
    return tmp_path / "run" / "checkpoints" / "00000007"
