"""What the worker does with an order, in this process."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from framecast.config import LayerConfig, ModelConfig
from framecast.model.video_transformer import VideoTransformer
from framecast.server import worker
from framecast.server.surprise import palette, quantised
from framecast.server.worker import Done, Failed, Sampling, Stage, Stopped, Surprise, carry_out

LAYERS = (LayerConfig((1, 4, 4), 2),)
SIZES = {"embedding_size": 4, "hidden_size": 8, "head_size": 4, "num_channels": 1}
SUBSCALED = ModelConfig((4, 8, 8), (2, 2, 2), LAYERS, LAYERS, prime_frames=1, **SIZES)
BY_FRAME = ModelConfig((4, 4, 4), (4, 1, 1), LAYERS, LAYERS, context_kernel=(4, 1, 1), prime_frames=2, **SIZES)
SCALAR = dataclasses.replace(BY_FRAME, output="scalar")
ACTED = dataclasses.replace(BY_FRAME, action_size=2)
GO = SimpleNamespace(value=0)


def saved(config: ModelConfig, folder: Path) -> Path:
    torch.manual_seed(0)
    VideoTransformer(config).save(folder / "model")
    return folder / "model"


def clip(config: ModelConfig, num_frames: int) -> np.ndarray:
    shape = (num_frames, *config.video_shape[1:], 1)
    return np.random.default_rng(0).integers(0, 256, shape, np.uint8)


@pytest.mark.parametrize("config", [SUBSCALED, BY_FRAME], ids=["subscaled", "by-frame"])
@pytest.mark.parametrize("num_frames", [4, 5, 9])
def test_measuring_tells_of_every_slice(tmp_path, config, num_frames):
    told: list[Stage] = []
    done = carry_out(Surprise(saved(config, tmp_path), clip(config, num_frames), None), told.append, GO)
    assert isinstance(done, Done)
    assert done.result.shape == (num_frames, *config.video_shape[1:])
    slices = [stage.facts for stage in told if stage.facts["doing"] == "measuring"]
    assert [facts["slice"] for facts in slices] == list(range(slices[0]["num_slices"]))


@pytest.mark.parametrize("config", [SUBSCALED, BY_FRAME, SCALAR], ids=["subscaled", "by-frame", "scalar"])
def test_what_is_drawn_grows_from_the_prime_to_all(tmp_path, monkeypatch, config):
    monkeypatch.setattr(worker, "PICTURE_SECONDS", -1)
    pictures: list[int] = []
    monkeypatch.setattr(
        worker, "_picture", lambda video, drawn: pictures.append(int(drawn.sum())) or {"shape": list(video.shape)}
    )
    temperature = None if config.output == "scalar" else 1.0
    order = Sampling(saved(config, tmp_path), clip(config, 2), 5, 1, temperature, 0, None)
    assert isinstance(carry_out(order, lambda stage: None, GO), Done)
    pixels_of_frame = config.video_shape[1] * config.video_shape[2]
    assert pictures == sorted(pictures)
    assert 2 * pixels_of_frame <= pictures[0] < pictures[-1] == 5 * pixels_of_frame


@pytest.mark.parametrize("kind", ["sample", "surprise"])
def test_it_stops_within_a_wave(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(worker, "PICTURE_SECONDS", -1)
    folder, video, stop = saved(SUBSCALED, tmp_path), clip(SUBSCALED, 4), SimpleNamespace(value=0)
    order = Sampling(folder, video[:1], 4, 2, 1.0, 0, None) if kind == "sample" else Surprise(folder, video, None)
    told: list[Stage] = []

    def tell(stage: Stage) -> None:
        told.append(stage)
        stop.value = int(len(told) == 4)

    assert isinstance(carry_out(order, tell, stop), Stopped)
    assert len(told) == 4, "nothing more was computed and told"


def test_what_cannot_be_done_is_told_in_a_sentence(tmp_path):
    scalar, acted = saved(SCALAR, tmp_path / "scalar"), saved(ACTED, tmp_path / "acted")
    video = clip(BY_FRAME, 4)
    for order, words in [
        (Surprise(scalar, video, None), "scalar output has no log_prob"),
        (Surprise(acted, video, None), "needs actions"),
        (Surprise(tmp_path / "none", video, None), "there is no model at"),
        (Surprise(acted, video[:3], np.zeros((3, 2), np.float32)), "at least 4 frames"),
    ]:
        report = carry_out(order, lambda stage: None, GO)
        assert isinstance(report, Failed)
        assert words in report.sentence
    order = Sampling(acted, video[:2], 4, 2, 0.9, 0, np.zeros((4, 2), np.float32))
    assert isinstance(carry_out(order, lambda stage: None, GO), Done)


def test_a_byte_of_the_map_stands_for_its_bits():
    bits = np.linspace(0, 12, 3 * 4 * 4).reshape(3, 4, 4).astype(np.float32)
    picture, scale = quantised(bits, prime_frames=1)
    assert picture.max() == 255
    within = bits <= scale
    np.testing.assert_allclose(picture[within] * scale / 255, bits[within], atol=scale / 510 + 1e-6)
    colours = palette()
    assert colours.shape == (256, 3)
    brightness = colours @ [0.2126, 0.7152, 0.0722]
    assert (np.diff(brightness) > 0).all(), "more bits are lighter, also for who sees no colours"
