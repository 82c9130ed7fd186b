"""Costs from shapes alone, against what PyTorch counts and keeps."""

from __future__ import annotations

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode

from framecast import presets
from framecast.config import LayerConfig, ModelConfig
from framecast.model import cost
from framecast.model.video_transformer import VideoTransformer


def config(**changes) -> ModelConfig:
    layers = (LayerConfig((4, 4, 4), 4), LayerConfig((1, 8, 8), 2))
    fields = {
        "video_shape": (8, 16, 16),
        "subscale_factor": (2, 2, 2),
        "encoder_layers": layers,
        "decoder_layers": layers,
    }
    return ModelConfig(**{**fields, "embedding_size": 24, "hidden_size": 64, "head_size": 16, **changes})


@pytest.mark.parametrize("changes", [{}, {"num_channels": 1, "output": "scalar"}, {"action_size": 3}])
def test_flops_are_those_of_the_products(changes):
    shape = config(**changes)
    model = VideoTransformer(shape)
    video = torch.zeros(1, *shape.video_shape, shape.num_channels, dtype=torch.uint8)
    actions = torch.zeros(1, 8, 3) if shape.action_size else None
    with FlopCounterMode(display=False) as counter:
        model(video, torch.tensor([7]), actions)
    # The future taps of the masked convolution are counted and never computed; the one-hots of later codes meet zeros,
    # which is computed and not counted, as are the products that spread the small tables of relative distances.
    future_taps = 14 * 24 * 64 * 256
    later_codes = (5 + 4 + 3 + 2 + 1) * 16 * 64 * 256 if shape.output == "codes" else 0
    expected = cost.multiply_adds(shape) - future_taps + later_codes
    assert counter.get_total_flops() / 2 == pytest.approx(expected, rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_memory_estimate_is_what_the_backward_pass_keeps(precision):
    shape = presets.preset("bair-spatiotemporal-base").model
    model = VideoTransformer(shape)
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in weights:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    video = torch.zeros(1, 16, 64, 64, 3, dtype=torch.uint8)
    with saved_tensors_hooks(keep, lambda x: x), torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
        loss = model(video, torch.tensor([3])).sum()
    total = sum(tensor.untyped_storage().nbytes() for tensor in kept.values())
    assert cost.activation_bytes(shape, precision) == pytest.approx(total, rel=0.15)
    assert loss.requires_grad
