"""What a model costs: multiply-adds of a slice's forward pass, and memory of a training step, from its shapes alone."""

from __future__ import annotations

import math
from itertools import accumulate

from torch import nn

from framecast.config import LayerConfig, ModelConfig
from framecast.ops.blocks import group_shape


def num_parameters(module: nn.Module | None) -> int:
    return sum(parameter.numel() for parameter in module.parameters()) if module is not None else 0


def multiply_adds(config: ModelConfig) -> int:
    """Of every matrix product and convolution of one slice's forward pass: attention groups whole, the masked
    convolution with all its taps, nothing computed twice. Of slices that the usual encoder and decoder predict."""
    features, hidden, embedding = _num_features(config), config.hidden_size, config.embedding_size
    encoder = (
        math.prod(config.kernel) * features * embedding
        + (embedding + config.action_window * config.action_size) * hidden
        + sum(_layer_multiply_adds(config, layer) for layer in config.encoder_layers)
    )
    decoder = (
        features * embedding
        + math.prod(config.masked_kernel) * embedding * hidden
        + hidden * hidden
        + sum(_layer_multiply_adds(config, layer) for layer in config.decoder_layers)
    )
    return math.prod(config.slice_shape) * (encoder + decoder + _head_multiply_adds(config))


def flops_per_slice_step(config: ModelConfig) -> int:
    """Forward and backward: a multiply-add is two operations, and the backward pass costs two forward passes."""
    return 6 * multiply_adds(config)


def activation_bytes(config: ModelConfig, precision: str) -> int:
    """What the forward pass of one slice keeps for the backward pass, by what each operation saves.

    In bf16, the residual stream and what normalises it stay in float32, as does the softmax.
    """
    narrow = 2 if precision == "bf16" else 4
    hidden = config.hidden_size
    total = math.prod(config.kernel) * _num_features(config) * narrow  # taps of the context convolution
    total += math.prod(config.masked_kernel) // 2 * config.embedding_size * narrow
    for layer in (*config.encoder_layers, *config.decoder_layers):
        group = math.prod(group_shape(config.slice_shape, layer.block, layer.dilated))
        width = layer.num_heads * config.head_size
        total += 2 * hidden * 4 + 3 * hidden * narrow  # two residual states; two normalised ones and the ReLU's output
        total += 4 * width * narrow  # queries, keys, values, and the heads' output
        total += (
            layer.num_heads * group * (4 + (narrow if narrow < 4 else 0))
        )  # the attention matrix, and its narrow copy
    num_codes = len(config.num_code_values)
    total += hidden * (4 + num_codes * narrow) + num_codes * max(config.num_code_values) * 8
    return math.prod(config.slice_shape) * total


def training_bytes(config: ModelConfig, num_parameters: int, batch_size: int, precision: str) -> int:
    """On one device: weights, gradients and two moments in float32, and the activations of a batch of slices."""
    return 16 * num_parameters + batch_size * activation_bytes(config, precision)


def _num_features(config: ModelConfig) -> int:
    return config.num_channels + 1 if config.inputs == "continuous" else sum(config.num_code_values)


def _layer_multiply_adds(config: ModelConfig, layer: LayerConfig) -> int:
    hidden, width = config.hidden_size, layer.num_heads * config.head_size
    group = math.prod(group_shape(config.slice_shape, layer.block, layer.dilated))
    return hidden * 3 * width + 2 * group * width + width * hidden + 2 * hidden * hidden


def _head_multiply_adds(config: ModelConfig) -> int:
    hidden = config.hidden_size
    if config.output == "scalar":
        return hidden * hidden + hidden
    sizes = config.num_code_values
    return len(sizes) * hidden * (hidden + max(sizes)) + sum(accumulate(sizes[:-1])) * hidden
