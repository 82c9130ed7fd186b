"""What a run is said to need, against what it is seen to need."""

from __future__ import annotations

import dataclasses
import runpy
from pathlib import Path

import pytest
import torch

from framecast.model import cost
from framecast.model.video_transformer import VideoTransformer
from framecast.presets import preset
from framecast.training import loop, plan
from framecast.training import step as steps
from framecast.training.distributed import Job

from .small import MODEL, noise, small

ALONE = Job(torch.device("cpu"))


@pytest.mark.parametrize(("recipe", "numbers"), [("paper", 2), ("adam", 2), ("modern", 3)])
def test_moments_are_counted(recipe, numbers):
    model, optimizer = loop.begin(small(recipe=recipe), ALONE)
    kept = sum(tensor.nbytes for tensor in optimizer.tensors().values())
    said = plan.plan(small(recipe=recipe))
    assert said.num_parameters == cost.num_parameters(model)
    assert said.moments == 4 * numbers * said.num_parameters
    assert 0.75 * said.moments <= kept <= said.moments


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_activations_are_what_autograd_keeps(precision):
    """Counted where autograd saves them, each storage once; weights are not activations."""
    torch.manual_seed(0)
    config = dataclasses.replace(MODEL, hidden_size=64, head_size=32, embedding_size=32)
    model, batch, storages = VideoTransformer(config), noise(MODEL, [4, 5]), {}
    weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}

    def keep(tensor):
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = steps.summed_nats(model, batch, precision)
    kept = sum(size for place, size in storages.items() if place not in weights)
    said = 2 * cost.activation_bytes(config, precision)
    assert 0.6 * kept < said < 1.7 * kept
    del loss


def test_sharding_divides_and_recomputing_forgets():
    run = preset("kinetics-spatiotemporal-large")
    alone, many = plan.plan(run, 1), plan.plan(run, 128)
    assert many.slices == 2
    assert many.weights == pytest.approx(alone.weights / 128, rel=1e-6)
    assert many.moments == pytest.approx(alone.moments / 128, rel=1e-6)
    assert alone.network == 0
    assert many.network == pytest.approx(3 * 4 * alone.num_parameters * 127 / 128)
    forgetful = dataclasses.replace(run, training=dataclasses.replace(run.training, recompute=True))
    assert plan.plan(forgetful, 8).activations < plan.plan(run, 8).activations / 4
    assert plan.plan(forgetful, 8).flops == pytest.approx(4 / 3 * plan.plan(run, 8).flops)


def test_micro_batches_bound_activations():
    run = small(batch_size=8)
    cut = plan.plan(small(batch_size=8, micro_batch=2))
    assert 4 * cut.activations == plan.plan(run).activations
    assert cut.flops == plan.plan(run).flops


def test_a_step_is_measured():
    seconds = plan.step_seconds(small(batch_size=4, micro_batch=2), ALONE, patience=0.1)
    assert 0 < seconds < 10


def test_the_plan_in_words():
    rows = dict(plan.described(small(), torch.device("cpu"), 1, 0.5))
    assert rows["time to finish"] == "0.000833 hours for 6 steps"
    assert "TOO MUCH" not in rows["memory"]
    large = dict(plan.described(preset("kinetics-spatiotemporal-large"), torch.device("cpu"), 1, None))
    assert "TOO MUCH" in large["memory"]
    assert "measured" not in large


def test_the_page_on_scaling_has_the_computed_table():
    root = Path(__file__).parents[2]
    scaling = runpy.run_path(str(root / "benchmarks" / "scaling.py"))
    assert scaling["table"]() in (root / "docs" / "scaling.md").read_text()


def test_micro_batches_of_sharded_weights_cost_memory_and_network():
    """Each gathers the weights twice; gradients are whole meanwhile, and scattered once."""
    run = small(batch_size=8, parallel="shard")
    cut = plan.plan(small(batch_size=8, parallel="shard", micro_batch=2), 2)
    whole = plan.plan(run, 2)
    assert cut.network == pytest.approx(whole.network * 5 / 3, abs=2)
    assert cut.gradients == pytest.approx(2 * whole.gradients, abs=8)
