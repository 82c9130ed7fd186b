"""What the paper says of its models' sizes."""

from __future__ import annotations

import math

import pytest
import torch

from framecast import presets
from framecast.model import cost
from framecast.model.video_transformer import VideoTransformer

TABLES = [name for name in presets.names() if name.startswith(("bair", "kinetics", "robotic", "moving"))]


def parameters(name: str) -> int:
    with torch.device("meta"):
        model = VideoTransformer(presets.preset(name).model)
    return cost.num_parameters(model) - cost.num_parameters(model.first_slice_decoder)


@pytest.mark.parametrize(
    "name",
    ["bair-spatiotemporal-base", "bair-spatial-base", "bair-single-frame-base", "kinetics-spatiotemporal-base"],
)
def test_base_models_have_46_million(name):
    assert 45.5e6 <= parameters(name) <= 46.5e6


@pytest.mark.parametrize("name", [name for name in presets.names() if name.endswith("-large")])
def test_large_models_have_373_million(name):
    assert 371e6 <= parameters(name) <= 375e6


@pytest.mark.parametrize("name", [name for name in TABLES if "line-blocks" not in name and "mini" not in name])
def test_every_block_of_the_standard_layouts_has_128_positions(name):
    config = presets.preset(name).model
    for layer in (*config.encoder_layers, *config.decoder_layers, *config.first_slice_layers):
        if not layer.dilated:
            assert math.prod(layer.block) == 128


def test_the_first_slice_decoder_of_kinetics_is_twice_as_deep():
    config = presets.preset("kinetics-spatiotemporal-large").model
    assert len(config.first_slice_layers) == 16
    assert [layer.num_heads for layer in config.first_slice_layers] == [8] * 8 + [16] * 8
    assert presets.preset("kinetics-single-frame-large").model.first_slice_layers == ()


def test_a_training_step_of_the_base_model_takes_1_23_tflop_a_slice():
    config = presets.preset("bair-spatiotemporal-base").model
    assert cost.flops_per_slice_step(config) == pytest.approx(1.23e12, rel=5e-3)
