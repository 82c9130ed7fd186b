"""Configurations refuse nonsense with both values and a way out, and survive JSON."""

from __future__ import annotations

import dataclasses
import json

import pytest

from framecast import presets
from framecast.config import LayerConfig, ModelConfig, RunConfig, from_json, to_json
from framecast.errors import UserError


def config(**changes) -> ModelConfig:
    layers = (LayerConfig((1, 2, 2), 2),)
    fields = {
        "video_shape": (4, 4, 4),
        "subscale_factor": (2, 2, 2),
        "encoder_layers": layers,
        "decoder_layers": layers,
    }
    return ModelConfig(**{**fields, **changes})


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"subscale_factor": (3, 2, 2)}, r"\(3, 2, 2\) does not divide a \(4, 4, 4\) video: time 4 .* fit: 1, 2, 4"),
        (
            {"decoder_layers": (LayerConfig((1, 2, 3), 2),)},
            r"block \(1, 2, 3\) does not tile a \(2, 2, 2\) slice: width",
        ),
        ({"encoder_layers": ()}, "must each hold at least one layer"),
        ({"masked_kernel": (3, 2, 3)}, "no centre: its height 2 must be odd"),
        ({"context_kernel": (1, 1, 1)}, "never reaches a pixel of an earlier slice"),
        ({"code_bits": (5, 4)}, r"\(5, 4\) make 9 bits a channel: 1 to 8"),
        ({"code_bits": (8, 0)}, "above 0"),
        ({"code_bits": ()}, "above 0"),
        ({"num_channels": 2}, "num_channels is 2"),
        ({"output": "scalar"}, "grey intensity: num_channels is 3"),
        ({"prime_frames": 4}, "prime_frames is 4: of 4 frames"),
        ({"action_size": -1}, "action_size is -1"),
        ({"action_size": 2, "action_mean": (0.0,)}, "action_mean has 1 numbers, action_size is 2"),
        ({"action_size": 1, "action_deviation": (0.0,)}, "must be above 0"),
        ({"action_size": 1, "action_mean": (float("nan"),)}, "must be finite"),
        ({"hidden_size": 0}, "hidden_size is 0"),
        ({"hidden_size": 10**9}, "hidden_size is 1000000000: at most 1048576"),
        ({"video_shape": (10**10, 4, 4)}, "at most 1048576 is possible"),
        ({"encoder_layers": (LayerConfig((1, 1, 1), 2048),), "head_size": 1024}, "2048 heads of 1024 are 2097152 wide"),
        ({"video_shape": (4, 2**16, 2**16)}, r"slice_shape \(2, 32768, 32768\) has 2147483648 positions"),
        ({"context_kernel": (999, 999, 999)}, r"context_kernel \(999, 999, 999\) has 997002999 positions"),
        ({"encoder_layers": (LayerConfig((1, 1, 1)),) * 1025}, "encoder_layers holds 1025 layers: at most 1024"),
        ({"hidden_size": 1.5}, "hidden_size must be of type int"),
        ({"gate": 1}, "gate must be of type bool"),
        ({"inputs": "floats"}, "'onehot', 'continuous'"),
        ({"video_shape": (4, 4)}, "must hold 3 values, not 2"),
    ],
)
def test_nonsense_is_refused_at_birth(changes, sentence):
    with pytest.raises(UserError, match=sentence):
        config(**changes)


def test_the_context_kernel_defaults_to_the_subscale_factor():
    assert config().kernel == (2, 2, 2)
    assert config(context_kernel=(3, 3, 3)).kernel == (3, 3, 3)


def test_how_windows_overlap():
    assert presets.preset("bair-spatiotemporal-base").model.overlap == 1
    assert presets.preset("robotic-pushing-spatiotemporal-large").model.overlap == 2
    assert presets.preset("moving-mnist-spatiotemporal-base").model.overlap == 10
    assert presets.preset("bair-spatial-base").model.overlap == 1
    assert presets.preset("bair-single-frame-base").model.overlap == 15


@pytest.mark.parametrize("name", presets.names())
def test_every_preset_survives_json(name):
    run = presets.preset(name)
    assert from_json(RunConfig, json.loads(json.dumps(to_json(run)))) == run


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda d: d["model"].pop("gate"), "config.model lacks the field 'gate'"),
        (lambda d: d["model"].update(gates=True), "config.model has a field 'gates'"),
        (lambda d: d["model"].update(hidden_size="512"), "config.model.hidden_size must be of type int, not '512'"),
        (lambda d: d["model"].update(hidden_size=True), "must be of type int, not True"),
        (
            lambda d: d["model"]["decoder_layers"][1].update(block=[1, 2]),
            r"decoder_layers\[1\].block must hold 3 values",
        ),
        (lambda d: d.update(model=[]), r"config.model must be an object, not \[\]"),
    ],
)
def test_json_is_read_strictly(change, sentence):
    data = to_json(presets.preset("tiny"))
    change(data)
    with pytest.raises(UserError, match=sentence):
        from_json(RunConfig, data)


def test_a_configuration_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        config().hidden_size = 3  # type: ignore[misc]
