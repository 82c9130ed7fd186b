"""A likelihood is exact if the probabilities of all videos sum to one: here every video there is, one by one."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from framecast.config import LayerConfig, ModelConfig
from framecast.model.video_transformer import VideoTransformer

FACTORS = [(1, 1, 1), (2, 1, 1), (1, 2, 2), (2, 2, 2), (1, 1, 2)]


def model_of(factor, code_bits) -> VideoTransformer:
    """Two layers whose blocks cut the slice along different axes wherever it has room."""
    slice_shape = tuple(2 // step for step in factor)
    halves = [tuple(1 if axis == cut else size for axis, size in enumerate(slice_shape)) for cut in range(3)]
    layers = tuple(LayerConfig(block, 2) for block in (halves[0], halves[2], halves[1]))
    config = ModelConfig(
        video_shape=(2, 2, 2),
        subscale_factor=factor,
        encoder_layers=layers,
        decoder_layers=layers,
        num_channels=1,
        code_bits=code_bits,
        embedding_size=4,
        hidden_size=8,
        head_size=4,
        prime_frames=0,
    )
    torch.manual_seed(0)
    model = VideoTransformer(config).double()
    for name, parameter in model.named_parameters():
        if "bias" in name or "output" in name:
            nn.init.normal_(parameter, std=1.0)
    return model


def every_video(num_bits: int) -> torch.Tensor:
    """All videos of 2×2×2 pixels of so many bits."""
    numbers = torch.arange(2 ** (8 * num_bits))
    digits = [(numbers >> (num_bits * pixel)) & (2**num_bits - 1) for pixel in range(8)]
    return torch.stack(digits, dim=1).to(torch.uint8).view(-1, 2, 2, 2, 1)


@pytest.mark.parametrize("factor", FACTORS)
def test_256_black_and_white_videos(factor):
    videos = every_video(1)
    log_prob = model_of(factor, (1,)).log_prob(videos).flatten(1).sum(1)
    assert len(videos) == 256
    assert abs(log_prob.exp().sum().item() - 1) < 1e-9
    assert log_prob.std() > 0.1, "a uniform model would prove nothing"


@pytest.mark.slow
@pytest.mark.parametrize("factor", [(1, 1, 1), (2, 1, 1)])
def test_65536_videos_of_two_bits_split_in_two_codes(factor):
    model = model_of(factor, (1, 1))
    log_prob = torch.cat([model.log_prob(part).flatten(1).sum(1) for part in every_video(2).split(8192)])
    assert len(log_prob) == 65_536
    assert abs(log_prob.exp().sum().item() - 1) < 1e-9
    assert log_prob.std() > 0.1
