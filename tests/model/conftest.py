"""Small models: every kind of one, in float64, with weights far from the uniform start."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from framecast.config import LayerConfig, ModelConfig
from framecast.model.video_transformer import VideoTransformer


def small_config(**changes) -> ModelConfig:
    layers = (LayerConfig((1, 2, 2), 2), LayerConfig((2, 1, 2), 1))
    fields = {
        "video_shape": (4, 4, 4),
        "subscale_factor": (2, 2, 2),
        "encoder_layers": layers,
        "decoder_layers": layers,
        "code_bits": (2, 1),
        "embedding_size": 6,
        "hidden_size": 8,
        "head_size": 4,
    }
    return ModelConfig(**{**fields, **changes})


def small_model(seed: int = 0, **changes) -> VideoTransformer:
    torch.manual_seed(seed)
    model = VideoTransformer(small_config(**changes)).double()
    for name, parameter in model.named_parameters():
        if "bias" in name or "output" in name:  # what begins at nothing or next to it
            nn.init.normal_(parameter, std=0.5)
    return model


@pytest.fixture(scope="session")
def make_config() -> Callable[..., ModelConfig]:
    return small_config


@pytest.fixture(scope="session")
def make_model() -> Callable[..., VideoTransformer]:
    return small_model


@pytest.fixture(scope="session")
def make_video() -> Callable[..., torch.Tensor]:
    """`make_video(config, batch, frames)`: noise within the bits of a pixel."""

    def make(config: ModelConfig, batch: int = 1, frames: int | None = None) -> torch.Tensor:
        T, H, W = config.video_shape
        shape = (batch, frames or T, H, W, config.num_channels)
        generator = torch.Generator().manual_seed(1)
        return torch.randint(0, 2**config.bits, shape, generator=generator, dtype=torch.uint8)

    return make


# Every kind of model that differs in what its parts do.
KINDS = {
    "plain": {},
    "grey": {"num_channels": 1},
    "first slice decoder": {"first_slice_layers": (LayerConfig((2, 2, 2), 2),)},
    "single frame": {
        "subscale_factor": (4, 1, 1),
        "context_kernel": (6, 1, 1),
        "encoder_layers": (LayerConfig((1, 2, 4), 1),),
        "decoder_layers": (LayerConfig((1, 4, 2), 1),),
    },
    "spatial": {"subscale_factor": (1, 2, 2)},
    "whole": {"subscale_factor": (1, 1, 1)},
    "dilated": {"decoder_layers": (LayerConfig((1, 2, 1), 2, dilated=True), LayerConfig((2, 2, 2), 1))},
    "gate": {"gate": True},
    "continuous": {"inputs": "continuous"},
    "wide kernels": {"context_kernel": (3, 5, 3), "masked_kernel": (1, 5, 3)},
    "three codes": {"code_bits": (1, 1, 2)},
    "frame actions": {"action_size": 2, "action_mean": (0.5, -1.0), "action_deviation": (2.0, 0.5)},
    "window actions": {"action_size": 2, "actions": "window"},
}


@pytest.fixture(params=KINDS.values(), ids=KINDS.keys())
def any_model(request) -> VideoTransformer:
    return small_model(**request.param)


@pytest.fixture
def any_actions(any_model) -> torch.Tensor | None:
    size = any_model.config.action_size
    frames = any_model.config.video_shape[0]
    generator = torch.Generator().manual_seed(2)
    return torch.randn(3, frames, size, generator=generator, dtype=torch.float64) if size else None
