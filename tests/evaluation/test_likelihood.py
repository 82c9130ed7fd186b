"""Likelihood against the model's own, the expected intensity against every value, the floor against its definition."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from torch.nn import functional

import framecast as fc
from framecast.config import LayerConfig, ModelConfig
from framecast.evaluation.likelihood import Mean, expected_intensity, floor, per_dim, score
from framecast.model.head import CodeHead
from framecast.model.video_transformer import VideoTransformer
from framecast.ops import channels

LAYERS = (LayerConfig((2, 2, 2), 2), LayerConfig((1, 2, 4), 2))
SMALL = ModelConfig(
    video_shape=(4, 8, 8),
    subscale_factor=(2, 2, 2),
    encoder_layers=LAYERS,
    decoder_layers=LAYERS,
    num_channels=1,
    embedding_size=4,
    hidden_size=8,
    head_size=4,
)
CONFIGS = {
    "grey": SMALL,
    "colour": dataclasses.replace(SMALL, num_channels=3),
    "scalar": dataclasses.replace(SMALL, output="scalar"),
    "chained": dataclasses.replace(SMALL, video_shape=(2, 8, 8), subscale_factor=(1, 2, 2)),
    "actions": dataclasses.replace(SMALL, action_size=2),
}


def model_of(config: ModelConfig) -> VideoTransformer:
    torch.manual_seed(0)
    return VideoTransformer(config).double()


def video_of(config: ModelConfig, num_frames: int = 5) -> np.ndarray:
    shape = (2, num_frames, *config.video_shape[1:], config.num_channels)
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("prime_frames", [0, 1, 3])
def test_the_numbers_are_the_models_own(name, prime_frames):
    model, video = model_of(CONFIGS[name]), video_of(CONFIGS[name])
    actions = np.random.default_rng(1).normal(size=(2, 5, 2)).astype(np.float32) if name == "actions" else None
    nats = score(model, video, actions, prime_frames)
    found = nats.intensity if name == "scalar" else nats.codes
    expected = model.nats(video, actions)
    expected[:, :prime_frames] = 0
    torch.testing.assert_close(found, expected)
    assert (nats.codes is None) == (name == "scalar")
    assert (nats.intensity is None) == (name == "colour")


def test_slices_of_primed_frames_alone_are_never_computed(monkeypatch):
    shape = {"subscale_factor": (4, 1, 1), "context_kernel": (6, 1, 1)}
    config = dataclasses.replace(SMALL, **shape, encoder_layers=LAYERS[1:], decoder_layers=LAYERS[1:])
    model, asked = model_of(config), []
    states = model.states
    monkeypatch.setattr(
        model, "states", lambda features, here, actions: asked.append(int(here[0])) or states(features, here, actions)
    )
    score(model, video_of(config, 4), prime_frames=3)
    assert asked == [3]


def test_bits_of_a_uniform_model_are_eight():
    for config in (CONFIGS["grey"], CONFIGS["colour"]):
        model = model_of(config)
        torch.nn.init.zeros_(model.head.output.weight)
        video = video_of(config)
        nats = score(model, video, prime_frames=1).codes[:, 1:].sum(dim=(2, 3)).numpy()
        np.testing.assert_allclose(per_dim(nats, 64 * config.num_channels), 8, rtol=1e-6)


def test_bits_are_those_that_people_call():
    model, video = model_of(SMALL), video_of(SMALL)
    nats = score(model, video, prime_frames=2).codes[:, 2:].sum(dim=(2, 3)).numpy()
    np.testing.assert_allclose(per_dim(nats, 64).mean(axis=1), fc.bits_per_dim(model, video, prime_frames=2))


@torch.no_grad()
@pytest.mark.parametrize("code_bits", [(4, 4), (3,), (1, 2, 1)])
def test_expected_intensity_is_the_sum_over_every_value(code_bits):
    torch.manual_seed(0)
    config = dataclasses.replace(SMALL, code_bits=code_bits)
    head = CodeHead(config).double()
    torch.nn.init.normal_(head.output.weight)
    y = torch.randn(3, 8, dtype=torch.float64)
    bits = sum(code_bits)
    pixels = torch.arange(2**bits, dtype=torch.uint8)[:, None]
    codes = channels.split(pixels, code_bits)
    one_hot = channels.one_hot(codes, config.num_code_values, torch.float64)
    for row, (bright, dark) in zip(y, zip(*expected_intensity(head, y, code_bits), strict=True), strict=True):
        p = (-head.nats(row.expand(2**bits, -1), one_hot, codes).sum(-1)).exp()
        z = pixels[:, 0].double() / (2**bits - 1)
        assert float(p.sum()) == pytest.approx(1)
        assert float(bright) == pytest.approx(float(p @ z))
        assert float(dark) == pytest.approx(float(p @ (1 - z)))


def test_intensity_of_codes_is_the_cross_entropy_with_it():
    model, video = model_of(SMALL), video_of(SMALL, 4)
    torch.nn.init.zeros_(model.head.output.weight)
    nats = score(model, video, prime_frames=1).intensity[:, 1:]
    z = torch.from_numpy(video[:, 1:, ..., 0]).double() / 255
    half = torch.full_like(z, 0.5)  # what a uniform distribution expects
    torch.testing.assert_close(nats, functional.binary_cross_entropy(half, z, reduction="none"))


def test_floor_is_what_the_target_itself_would_score():
    video = video_of(SMALL)
    video[0, 0, 0, :2, 0] = 0, 255
    z = torch.from_numpy(video).double() / 255
    own = functional.binary_cross_entropy(z, z, reduction="none").sum(dim=(2, 3, 4))
    np.testing.assert_allclose(floor(video), own, rtol=1e-12)
    assert not floor(np.full((1, 1, 4, 4, 1), 255, np.uint8)).any()


def test_mean_over_videos():
    values = np.array([1.0, 2.0, 3.0, 6.0])
    mean = Mean.of(values)
    assert mean.mean == 3
    assert mean.standard_error == pytest.approx(math.sqrt(np.var(values, ddof=1) / 4))
    assert Mean.of(values[:1]) == Mean(1.0, None)
