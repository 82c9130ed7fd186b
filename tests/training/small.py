"""The experiment of these tests; also read by the processes that they start."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from framecast.config import DataConfig, LayerConfig, ModelConfig, RunConfig, TrainingConfig
from framecast.data.batches import Batch

LAYERS = (LayerConfig((2, 4, 8), 2), LayerConfig((1, 16, 4), 2))

MODEL = ModelConfig(
    video_shape=(4, 32, 32),
    subscale_factor=(2, 2, 2),
    encoder_layers=LAYERS,
    decoder_layers=LAYERS,
    num_channels=1,
    embedding_size=8,
    hidden_size=16,
    head_size=8,
)

TRAINING = TrainingConfig(
    steps=6, batch_size=4, recipe="modern", learning_rate=1e-3, checkpoint_every=3, validation_batches=1
)


def small(model: ModelConfig = MODEL, **training: Any) -> RunConfig:
    return RunConfig(model, DataConfig("moving-mnist"), dataclasses.replace(TRAINING, **training))


def noise(model: ModelConfig, slices: list[int], seed: int = 0) -> Batch:
    """A batch of random pixels, one slice of each clip."""
    generator = torch.Generator().manual_seed(seed)
    shape = (len(slices), *model.video_shape, model.num_channels)
    video = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
    actions = torch.randn(*shape[:2], model.action_size, generator=generator) if model.action_size else None
    return Batch(video, torch.tensor(slices), actions)
