"""Tiny models of every variant, with weights far from uniform, in float64."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from framecast.config import LayerConfig, ModelConfig
from framecast.model.video_transformer import VideoTransformer


def layers(*blocks: tuple[int, int, int], dilated: bool = False) -> tuple[LayerConfig, ...]:
    return tuple(LayerConfig(block, num_heads=2, dilated=dilated) for block in blocks)


TINY = {
    "video_shape": (4, 4, 4),
    "subscale_factor": (2, 2, 2),
    "encoder_layers": layers((2, 2, 2)),
    "decoder_layers": layers((1, 2, 1), (2, 1, 2), (1, 1, 2)),
    "num_channels": 1,
    "code_bits": (2, 1),
    "embedding_size": 6,
    "hidden_size": 8,
    "head_size": 4,
}
SINGLE_FRAME = {
    "video_shape": (4, 4, 4),
    "subscale_factor": (4, 1, 1),
    "context_kernel": (6, 1, 1),
    "decoder_layers": layers((1, 4, 2), (1, 2, 4)),
    "encoder_layers": layers((1, 4, 4)),
}

VARIANTS = {
    "spatiotemporal": {},
    "colour": {"num_channels": 3, "code_bits": (1, 1)},
    "one_code": {"code_bits": (3,)},
    "wide_context": {"context_kernel": (3, 5, 3)},
    "wide_mask": {"masked_kernel": (3, 3, 5)},
    "no_mask": {"masked_kernel": (1, 1, 1)},
    "flat_mask": {"masked_kernel": (1, 3, 1)},
    "single_frame": SINGLE_FRAME,
    "spatial": {"video_shape": (2, 4, 4), "subscale_factor": (1, 2, 2), "prime_frames": 1},
    "first_slice": {"first_slice_layers": layers((2, 2, 2), (1, 1, 2), (2, 2, 1))},
    "scalar": {"output": "scalar", "code_bits": (4, 4)},
    "continuous": {"inputs": "continuous"},
    "continuous_colour": {"inputs": "continuous", "num_channels": 3, "code_bits": (1, 1)},
    "scalar_continuous": {"output": "scalar", "inputs": "continuous", "code_bits": (8,)},
    "gate": {"gate": True},
    "dilated": {"decoder_layers": layers((1, 2, 1), (2, 1, 2)) + layers((2, 1, 2), dilated=True)},
    "no_slices": {"video_shape": (2, 3, 3), "subscale_factor": (1, 1, 1), "decoder_layers": layers((2, 3, 3)),
                  "encoder_layers": layers((1, 3, 3))},
    "actions": {"action_size": 2, "action_mean": (0.5, -1.0), "action_deviation": (2.0, 0.5)},
    "action_window": {"action_size": 2, "actions": "window"},
    "single_frame_actions": {**SINGLE_FRAME, "action_size": 2},
    "single_frame_action_window": {**SINGLE_FRAME, "action_size": 2, "actions": "window"},
}  # fmt: skip


def model(seed: int = 0, **changes) -> VideoTransformer:
    torch.manual_seed(seed)
    made = VideoTransformer(ModelConfig(**{**TINY, **changes})).double()
    with torch.no_grad():
        for name, weight in made.named_parameters():
            if "bias" in name:
                weight.normal_(std=0.5)
        made.head.output.weight.normal_()
    return made


def video(made: VideoTransformer, batch: int = 2, num_frames: int | None = None, seed: int = 0) -> torch.Tensor:
    length, *size = made.config.video_shape
    shape = (batch, num_frames or length, *size, made.config.num_channels)
    return torch.randint(0, 2**made.config.bits, shape, generator=torch.Generator().manual_seed(seed)).to(torch.uint8)


def actions(made: VideoTransformer, batch: int = 2, num_frames: int | None = None) -> torch.Tensor | None:
    if not made.config.action_size:
        return None
    shape = (batch, num_frames or made.config.video_shape[0], made.config.action_size)
    return torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.fixture(scope="session")
def tiny() -> SimpleNamespace:
    """`tiny.model(seed, **changes)`, and what it takes: `tiny.video(model, …)` and `tiny.actions(model, …)`."""
    return SimpleNamespace(model=model, video=video, actions=actions)


@pytest.fixture(params=VARIANTS.values(), ids=VARIANTS.keys())
def any_model(request) -> VideoTransformer:
    return model(**request.param)
