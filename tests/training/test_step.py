"""A step: what is scored, how a batch may be cut, and what stops a run."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from framecast.config import TrainingConfig
from framecast.errors import UserError
from framecast.model.video_transformer import VideoTransformer
from framecast.training import optimizer as optimizers
from framecast.training import step as steps

from .small import MODEL, noise, small


def fresh(model_config=MODEL, **training):
    torch.manual_seed(0)
    model = VideoTransformer(model_config).double()
    return model, optimizers.make(model, small(**training).training)


def state(model, optimizer):
    return {**model.state_dict(), **optimizer.tensors()}


def test_uniform_prediction_is_eight_bits():
    """bits/dim counts values of a channel, not codes: an output of zeros scores exactly 8, not 4."""
    model, optimizer = fresh()
    torch.nn.init.zeros_(model.head.output.weight)
    result = steps.step(model, optimizer, noise(MODEL, [4, 5, 6, 7]))
    assert result.score(MODEL)["bits_per_dim"] == pytest.approx(8, abs=1e-12)


def test_scalar_output_counts_nats_of_a_frame():
    """Of a white noise of zeros and maxima, a prediction of 1/2 costs ln 2 nats a pixel."""
    config = dataclasses.replace(MODEL, output="scalar")
    model, optimizer = fresh(config)
    torch.nn.init.zeros_(model.head.output.weight)
    result = steps.step(model, optimizer, noise(config, [4, 5]))
    assert result.score(config)["nats_per_frame"] == pytest.approx(math.log(2) * 32 * 32)


def test_primed_frames_are_masked():
    """Slice 0 holds frames 0 and 2: with one primed frame, half of it is scored, by the model's own loss."""
    model, _ = fresh()
    batch = noise(MODEL, [0, 5])
    nats = model(batch.video, batch.slice_index, batch.actions)
    expected = nats[0, 1:].sum() + nats[1].sum()
    torch.testing.assert_close(steps.summed_nats(model, batch, "fp32"), expected)
    assert steps.count(batch.slice_index, MODEL) == 3 * 16 * 16
    kept = [[False, True], [True, True]]
    assert steps.unmasked(batch.slice_index, MODEL).tolist() == kept


@pytest.mark.parametrize("recipe", ["paper", "adam", "modern"])
def test_micro_batches_change_nothing(recipe):
    """Also where they hold unequal numbers of scored values, and the last is smaller."""
    batch = noise(MODEL, [0, 1, 4, 6, 7])
    whole, cut = fresh(recipe=recipe), fresh(recipe=recipe)
    for _ in range(2):
        result = steps.step(*whole, batch)
        other = steps.step(*cut, batch, micro_batch=2)
        assert other.loss == pytest.approx(result.loss, rel=1e-12)
        assert other.gradient_norm == pytest.approx(result.gradient_norm, rel=1e-10)
    for name, tensor in state(*whole).items():
        torch.testing.assert_close(tensor, state(*cut)[name], rtol=1e-6, atol=1e-12)


def test_gradient_norm_is_bounded():
    model, optimizer = fresh()
    optimizer.max_norm = 1e-3
    result = steps.step(model, optimizer, noise(MODEL, [5]))
    assert result.gradient_norm > 1e-3
    left = torch.stack([weight.grad.norm() for weight in model.parameters()]).norm()
    assert left.item() == pytest.approx(1e-3)


@pytest.mark.parametrize("recipe", ["paper", "modern"])
def test_a_loss_that_is_no_number_stops_before_the_update(recipe):
    model, optimizer = fresh(recipe=recipe)
    steps.step(model, optimizer, noise(MODEL, [5]))
    model.head.output.weight.data[0, 0] = math.nan
    before = {name: tensor.clone() for name, tensor in state(model, optimizer).items()}
    with pytest.raises(
        UserError, match=r"step 2: the weight head\.output\.weight is not .* loss is nan\. No weight was"
    ):
        steps.step(model, optimizer, noise(MODEL, [5]))
    for name, tensor in state(model, optimizer).items():
        torch.testing.assert_close(tensor, before[name], rtol=0, atol=0, equal_nan=True)
    assert optimizer.num_steps == 1


def test_a_gradient_that_is_no_number_is_named():
    model, optimizer = fresh()
    model.encoder.layers[1].attention.qkv.weight.register_hook(lambda gradient: gradient * math.inf)
    before = {name: tensor.clone() for name, tensor in state(model, optimizer).items()}
    sentence = r"step 1: the gradient of encoder\.layers\.1\.attention\.qkv\.weight is not finite"
    with pytest.raises(UserError, match=sentence):
        steps.step(model, optimizer, noise(MODEL, [5]))
    assert all(torch.equal(tensor, before[name]) for name, tensor in state(model, optimizer).items())


def test_bf16_is_near_fp32_and_leaves_the_weights_in_fp32():
    torch.manual_seed(0)
    model = VideoTransformer(MODEL)
    batch = noise(MODEL, [4, 5])
    exact, near = (steps.mean_nats(model, [batch], precision) for precision in ("fp32", "bf16"))
    assert near == pytest.approx(exact, rel=1e-2)
    assert near != exact
    steps.step(model, optimizers.make(model, TrainingConfig(precision="bf16")), batch, precision="bf16")
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}


def test_validation_is_the_mean_over_scored_values():
    model, _ = fresh()
    batches = [noise(MODEL, [0, 4], seed=1), noise(MODEL, [7], seed=2)]
    total = sum(steps.summed_nats(model, batch, "fp32").item() for batch in batches)
    assert steps.mean_nats(model, batches) == pytest.approx(total / (16 * 16 * (1 + 2 + 2)))


@pytest.mark.slow
def test_overfits_one_batch():
    """Noise that is seen again and again is learned by heart, to near 0 bits."""
    config = dataclasses.replace(MODEL, hidden_size=64, head_size=32, embedding_size=32)
    torch.manual_seed(0)
    model = VideoTransformer(config)
    optimizer = optimizers.make(model, small(steps=250, learning_rate=3e-3).training)
    batch = noise(config, [7])
    results = [steps.step(model, optimizer, batch).score(config)["bits_per_dim"] for _ in range(250)]
    assert results[0] > 7.9
    assert results[-1] < 0.05
