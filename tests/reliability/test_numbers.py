"""A NaN or an infinity is caught at the step where it appears, by name, and never saved; processes agree to the bit.

Weights on disk: tests/model/test_checkpoint.py. The loss and a gradient: tests/training/test_step.py.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from framecast.config import TrainingConfig
from framecast.data.batches import Batch
from framecast.data.clip import Clip, Skipped
from framecast.data.part import read_item
from framecast.errors import UserError
from framecast.training import step as steps
from framecast.training.optimizer import make

RECIPES = ("paper", "adam", "modern")
NOT_NUMBERS = (math.nan, math.inf, -math.inf)


@pytest.fixture(params=RECIPES)
def training(request, targets):
    """A model, its optimizer and a batch, one step under way."""
    model = targets.small_model()
    optimizer = make(model, TrainingConfig(recipe=request.param))
    noise = np.random.default_rng(0).integers(0, 8, (2, 2, 4, 4, 1), np.uint8)
    batch = Batch(torch.from_numpy(noise), torch.tensor([3, 7]), None)
    steps.step(model, optimizer, batch)
    return model, optimizer, batch


def bits(tensors: dict[str, torch.Tensor]) -> dict[str, bytes]:
    return {name: tensor.detach().numpy().tobytes() for name, tensor in tensors.items()}


def test_whatever_a_run_consists_of(training, figures):
    """Each tensor of the weights and the optimizer in turn, each way of being no number: named at the next step, and
    nothing is changed by it."""
    model, optimizer, batch = training
    weights = {f"the weight {name}": weight.data for name, weight in model.named_parameters()}
    kept = {f"the optimizer's {name}": tensor for name, tensor in optimizer.tensors().items()}
    count = 0
    for name, tensor in (weights | kept).items():
        for value in NOT_NUMBERS:
            place = tensor.reshape(-1)[-1:]
            before = place.clone()
            place.fill_(value)
            spoiled = bits(weights | kept)
            with pytest.raises(UserError, match=rf"^step 2: {name} is not finite; .* No weight was changed"):
                steps.step(model, optimizer, batch)
            with pytest.raises(UserError, match=rf"^step 1: {name} is not finite after the update. Nothing was saved"):
                steps.check_finite(model, optimizer)
            assert bits(weights | kept) == spoiled
            place.copy_(before)
            count += 1
    steps.step(model, optimizer, batch)
    steps.check_finite(model, optimizer)
    figures(caught=count)


def test_gradients(training, figures):
    model, optimizer, batch = training
    kept = dict(model.named_parameters()) | optimizer.tensors()
    for name, weight in model.named_parameters():
        hook = weight.register_hook(lambda gradient: gradient * math.nan)
        before = bits(kept)
        with pytest.raises(UserError, match=rf"^step 2: the gradient of {name} is not finite"):
            steps.step(model, optimizer, batch)
        assert bits(kept) == before
        hook.remove()
    figures(caught=len(list(model.parameters())))


@pytest.mark.parametrize("value", NOT_NUMBERS)
def test_actions_in_a_batch(targets, value):
    import dataclasses

    from framecast.model.video_transformer import VideoTransformer

    model = VideoTransformer(dataclasses.replace(targets.small_config(), action_size=2))
    optimizer = make(model, TrainingConfig())
    actions = torch.zeros(1, 2, 2)
    actions[0, 1, 1] = value
    batch = Batch(torch.zeros(1, 2, 4, 4, 1, dtype=torch.uint8), torch.tensor([7]), actions)
    with pytest.raises(UserError, match="what is given as actions is not finite"):
        steps.step(model, optimizer, batch)
    with pytest.raises(UserError, match="finite"):
        model.log_prob(batch.video, actions)


@pytest.mark.parametrize("name", ["actions", "states"])
def test_numbers_of_a_clip(targets, name):
    """They never get into a store: the clip is left out, and the account says why."""

    class Source:
        items_per_part = 1

        def items(self):
            return ["a"]

        def read(self, items):
            rows = np.zeros((2, 2), np.float32)
            rows[1, 1] = math.nan
            yield Clip(np.zeros((2, 4, 4, 1), np.uint8), "a", "train", **{name: rows})

    (left_out,) = read_item(Source(), "a")
    assert isinstance(left_out, Skipped)
    assert left_out.reason == f"{name} of clip 'a' hold a number that is not finite"


def test_two_processes_agree_to_the_bit(framecast, digits, tmp_path, state, length, figures):
    """The same command twice: weights, optimizer, metrics and the model's own words about a video."""
    num_steps = length(4, 40)
    runs = [tmp_path / name for name in ("one", "two")]
    for run in runs:
        process = framecast("train", "tiny", "--data", digits, "--out", run, "--steps", num_steps)
        assert process.communicate()[1] is not None
        assert process.returncode == 0
    assert state(runs[0]) == state(runs[1])
    assert (runs[0] / "model" / "model.safetensors").read_bytes() == Path(
        runs[1], "model", "model.safetensors"
    ).read_bytes()
    figures(steps=num_steps, tensors=len(state(runs[0])["tensors"]))
