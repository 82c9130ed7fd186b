"""`framecast train` as a person types it; what it does is tested in tests/training."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from framecast import cli
from framecast.commands import train as command
from framecast.config import DataConfig, LayerConfig, ModelConfig, RunConfig
from framecast.data.clip import Clip
from framecast.data.part import Part
from framecast.data.prepare import describe, prepare_drawn, settle
from framecast.data.shard import MAX_SHARD_BYTES
from framecast.data.sources.moving_mnist import MovingMnist
from framecast.data.store import Store
from framecast.model.video_transformer import VideoTransformer
from framecast.training import run as runs


@dataclass(frozen=True)
class Robots:
    """Small clips with actions: the first number of an action is around 5, the second never changes."""

    items_per_part: ClassVar[int] = 8

    def items(self) -> list[str]:
        return ["a", "b", "c", "d"]

    def read(self, items: list[str]) -> Iterator[Clip]:
        for item in items:
            generator = np.random.default_rng(ord(item))
            video = generator.integers(0, 256, (9, 16, 24, 3), np.uint8)
            actions = np.stack([generator.normal(5, 2, 9), np.ones(9)], axis=1).astype(np.float32)
            yield Clip(video, item, "train", actions=actions)


@pytest.fixture(scope="module")
def robots(tmp_path_factory) -> Path:
    folder, source = tmp_path_factory.mktemp("robots"), Robots()
    manifest = settle(folder, describe("robots", source, source.items()))
    Part(folder, 0, source, source.items(), manifest.sha256(), MAX_SHARD_BYTES).make({}, lambda place: None)
    return folder


@pytest.fixture(scope="module")
def digits(tmp_path_factory, test_data) -> Path:
    folder = tmp_path_factory.mktemp("digits")
    prepare_drawn("moving-mnist", MovingMnist(), folder, str(test_data / "mnist"))
    return folder


def train(*words: object) -> int:
    return cli.run(["train", *map(str, words)])


def test_train_and_train_again(digits, tmp_path, capsys):
    words = ("tiny", "--data", digits, "--out", tmp_path, "--checkpoint-every", 1)
    assert train(*words, "--steps", 1) == 0
    assert train(*words, "--steps", 2) == 0
    assert "resumed from step 1" in capsys.readouterr().out
    assert [line["step"] for line in runs.read_metrics(tmp_path)] == [1, 2]


def test_minutes_end_with_0(digits, tmp_path):
    assert train("tiny", "--data", digits, "--out", tmp_path, "--minutes", 0.0001) == 0
    assert len(runs.read_metrics(tmp_path)) == 1


def test_options_change_the_preset_and_a_recipe_brings_its_rate(digits, tmp_path):
    words = ["tiny", "--data", digits, "--out", tmp_path, "--steps", 1, "--batch-size", 2, "--micro-batch", 1]
    assert train(*words, "--recipe", "paper", "--precision", "bf16", "--seed", 3) == 0
    training = runs.read_config(tmp_path)[0].training
    assert (training.batch_size, training.micro_batch, training.recipe) == (2, 1, "paper")
    assert (training.learning_rate, training.precision, training.seed) == (2e-5, "bf16", 3)


def test_a_preset_of_ones_own_takes_the_stores_sizes(robots, tmp_path, capsys):
    words = ["own-spatiotemporal-small", "--data", robots, "--batch-size", 1]
    assert train(*words, "--out", tmp_path, "--steps", 1, "--precision", "fp32") == 0
    model = runs.read_config(tmp_path)[0].model
    assert (model.video_shape, model.num_channels, model.slice_shape) == ((8, 16, 24), 3, (4, 8, 12))
    assert (model.action_size, model.actions) == (2, "window")
    assert model.action_mean[0] == pytest.approx(5, abs=1.5)
    assert model.action_mean[1] == pytest.approx(1)
    assert model.action_deviation[1] == 1  # of a constant: nothing is divided by zero


def test_a_dry_run_says_what_is_needed_and_writes_nothing(digits, tmp_path, capsys):
    assert train("tiny", "--data", digits, "--out", tmp_path / "run", "--batch-size", 16, "--dry-run") == 0
    printed = capsys.readouterr().out
    configuration, _, table = printed.partition("\n}\n")
    assert json.loads(configuration + "}")["name"] == "tiny"
    words = ("parameters", "FLOPs a step", "memory", "activations", "measured", "time to finish")
    for word in ("16 slices: 16 a process, 4 at a time", *words):
        assert word in table
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["tinny", "--out", "RUN"], "there is no preset 'tinny'. Did you mean tiny"),
        (["tiny"], "Name its folder with --out"),
        (["tiny", "--out", "RUN", "--steps", "0"], "steps is 0: it must be above 0"),
        (["bair-spatiotemporal-base", "--out", "RUN"], "has frames of 64×64×1, the model takes 64×64×3"),
        (["tiny", "--out", "RUN", "--device", "toaster"], "there is no device 'toaster'"),
        (["tiny", "--out", "RUN", "--init", "nowhere"], "nowhere"),
        (["robotic-pushing-spatiotemporal-large", "--out", "RUN"], "has no training clips with actions"),
    ],
)
def test_what_cannot_be_is_said_in_a_sentence(digits, tmp_path, capsys, words, sentence):
    words = [str(tmp_path / "run") if word == "RUN" else word for word in words]
    assert train(*words, "--data", digits) == 2
    assert sentence in capsys.readouterr().err


def test_samples_for_tensorboard_are_animated_pictures(robots):
    """Of a model that takes actions: those of the clip that it continues."""
    layers = (LayerConfig((1, 8, 4), 1),)
    config = ModelConfig((2, 16, 24), (2, 2, 2), layers, layers, embedding_size=4, hidden_size=4, head_size=4)
    config = dataclasses.replace(config, action_size=2)
    picture = command._illustrate(RunConfig(config, DataConfig("own")), Store(robots))
    gif, height, width = picture(VideoTransformer(config))
    assert (height, width) == (16, 24)
    assert gif.startswith(b"GIF89a")
