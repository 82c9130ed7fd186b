"""Causality by gradient over (slice, position, code): what each prediction rests on, against the rules written out as
sets. Nothing later reaches an earlier prediction, and exactly the taps and the blocks reach, no others."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from framecast.config import LayerConfig, ModelConfig
from framecast.model.video_transformer import VideoTransformer
from framecast.ops import channels, subscale

CASES = {
    "spatiotemporal": {},
    "wide kernels": {"context_kernel": (3, 4, 1), "masked_kernel": (1, 3, 5)},
    "spatial": {"subscale_factor": (1, 2, 2), "video_shape": (2, 4, 4)},
    "single frame": {
        "subscale_factor": (4, 1, 1),
        "video_shape": (4, 3, 4),
        "context_kernel": (6, 1, 1),
        "encoder_layers": (LayerConfig((1, 3, 1)), LayerConfig((1, 1, 2))),
        "decoder_layers": (LayerConfig((1, 1, 2)), LayerConfig((1, 3, 1))),
    },
    "dilated": {"decoder_layers": (LayerConfig((1, 2, 1), dilated=True), LayerConfig((2, 1, 1)))},
    "whole": {"subscale_factor": (1, 1, 1), "video_shape": (2, 2, 4)},
    "first slice decoder": {"first_slice_layers": (LayerConfig((2, 2, 1)), LayerConfig((1, 1, 2)))},
}


def model_of(changes) -> VideoTransformer:
    layers = (LayerConfig((1, 1, 2), 2), LayerConfig((1, 2, 1), 1))
    fields = {
        "video_shape": (4, 4, 4),
        "subscale_factor": (2, 2, 2),
        "encoder_layers": layers,
        "decoder_layers": layers,
    }
    sizes = {"num_channels": 1, "code_bits": (1, 2), "embedding_size": 8, "hidden_size": 16, "head_size": 8}
    torch.manual_seed(0)
    model = VideoTransformer(ModelConfig(**{**fields, **sizes, **changes})).double()
    for name, parameter in model.named_parameters():
        if "bias" in name or "output" in name:
            nn.init.normal_(parameter, std=0.5)
    return model


def group_mates(config, layer, place):
    """The positions that attend to each other in a layer, by the definition of a block."""
    places = itertools.product(*map(range, config.slice_shape))
    key = (lambda p, b: p % b) if layer.dilated else (lambda p, b: p // b)
    own = [key(p, b) for p, b in zip(place, layer.block, strict=True)]
    return [other for other in places if [key(p, b) for p, b in zip(other, layer.block, strict=True)] == own]


def through(config, layers, reached, masked):
    for layer in layers:
        reached = {
            place: set().union(
                *(reached[mate] for mate in group_mates(config, layer, place) if not masked or mate <= place)
            )
            for place in reached
        }
    return reached


def expected_pixels(config, index):
    """For each position of a slice: the pixels of the video that its prediction may and does rest on."""
    factor = config.subscale_factor
    order = list(itertools.product(*map(range, factor)))
    offset = order[index]
    places = list(itertools.product(*map(range, config.slice_shape)))

    def pixel(place):
        return tuple(p * s + o for p, s, o in zip(place, factor, offset, strict=True))

    context = {place: set() for place in places}
    own_decoder = bool(config.first_slice_layers) and index == 0
    if not own_decoder:
        for place, tap in itertools.product(places, itertools.product(*map(range, config.kernel))):
            at = tuple(x + t - k // 2 for x, t, k in zip(pixel(place), tap, config.kernel, strict=True))
            inside = all(0 <= x < size for x, size in zip(at, config.video_shape, strict=True))
            if inside and order.index(tuple(x % s for x, s in zip(at, factor, strict=True))) < index:
                context[place].add(at)
        context = through(config, config.encoder_layers, context, masked=False)
    half = tuple(size // 2 for size in config.masked_kernel)
    start = {
        place: context[place]
        | {
            pixel(other)
            for other in places
            if other < place and all(abs(p - o) <= h for p, o, h in zip(place, other, half, strict=True))
        }
        for place in places
    }
    return through(config, config.first_slice_layers if own_decoder else config.decoder_layers, start, masked=True)


@pytest.mark.parametrize("changes", CASES.values(), ids=CASES.keys())
def test_exactly_what_may_reach_a_prediction_reaches_it(changes):
    model = model_of(changes)
    config = model.config
    generator = torch.Generator().manual_seed(3)
    video = torch.randint(0, 8, (1, *config.video_shape, 1), generator=generator, dtype=torch.uint8)
    features = model.features(video).requires_grad_()
    for number in range(config.num_slices):
        index = torch.tensor([number])
        y = model.states(features, index)
        codes = channels.split(subscale.take(video, index, config.subscale_factor), config.code_bits)
        one_hot = model.one_hot(codes).requires_grad_()
        logits = model.head(y, one_hot)
        expected = expected_pixels(config, number)
        for place, code in itertools.product(expected, range(len(config.num_code_values))):
            predicted = logits[(0, *place, code)][: config.num_code_values[code]]
            weights = torch.randn(len(predicted), dtype=torch.float64, generator=generator)
            by_pixel, by_code = torch.autograd.grad(
                predicted @ weights, (features, one_hot), retain_graph=True, allow_unused=True, materialize_grads=True
            )
            reached = {tuple(at) for at in by_pixel[0].abs().sum(-1).nonzero().tolist()}
            assert reached == expected[place]
            earlier = {(*place, value) for value in range(sum(config.num_code_values[:code]))}
            assert {tuple(at) for at in by_code[0].nonzero().tolist()} == earlier
