"""The run folder: who may go on in it, and a line a step."""

from __future__ import annotations

import dataclasses
import json

import pytest

from framecast.config import EvaluationConfig
from framecast.errors import UserError
from framecast.training import run as runs

from .small import MODEL, small


def test_configuration_round_trip(tmp_path, store):
    runs.write_config(tmp_path, small(), store)
    found, about = runs.read_config(tmp_path)
    assert found == small()
    assert about["fingerprint"] == store.fingerprint
    body = json.loads((tmp_path / runs.CONFIG).read_text())
    assert body["versions"].keys() >= {"python", "framecast", "torch", "numpy"}
    assert "commit" in body


def test_how_long_and_how_laid_out_may_differ(tmp_path, store):
    runs.write_config(tmp_path, small(), store)
    runs.check_same(tmp_path, small(steps=99, micro_batch=2, parallel="shard", keep=9, checkpoint_every=5), store)


def test_how_it_is_scored_may_differ(tmp_path, store):
    runs.write_config(tmp_path, small(), store)
    runs.check_same(tmp_path, dataclasses.replace(small(), evaluation=EvaluationConfig(trials=3), name="new"), store)


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        (small(batch_size=8), r"trained with training\.batch_size 4, now it is 8"),
        (small(recipe="paper"), r"trained with training\.recipe modern, now it is paper"),
        (small(dataclasses.replace(MODEL, hidden_size=32)), r"trained with model\.hidden_size 16, now it is 32"),
    ],
)
def test_another_experiment_is_refused(tmp_path, store, other, sentence):
    runs.write_config(tmp_path, small(), store)
    with pytest.raises(UserError, match=sentence):
        runs.check_same(tmp_path, other, store)


def test_other_clips_are_refused(tmp_path, store, moving_mnist):
    runs.write_config(tmp_path, small(), store)
    with pytest.raises(UserError, match="holds other clips"):
        runs.check_same(tmp_path, small(), moving_mnist)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": "framecast run 9"}'])
def test_what_is_no_configuration(tmp_path, text):
    (tmp_path / runs.CONFIG).write_text(text)
    with pytest.raises(UserError, match=r"cannot be read|is no configuration of a run"):
        runs.read_config(tmp_path)


def test_no_run(tmp_path):
    with pytest.raises(UserError, match="there is no run at"):
        runs.read_config(tmp_path)


def test_metrics_have_each_step_once(tmp_path):
    """Lines of steps that will be made again go, and so does what a crash cut short."""
    metrics = runs.Metrics(tmp_path, 0)
    for number in range(1, 6):
        metrics.write({"step": number, "bits_per_dim": 8 / number})
    metrics.close()
    with (tmp_path / runs.METRICS).open("a") as file:
        file.write('{"step": 6, "bits_p')
    metrics = runs.Metrics(tmp_path, 3)
    metrics.write({"step": 4, "bits_per_dim": 0.5})
    metrics.close()
    assert [line["step"] for line in runs.read_metrics(tmp_path)] == [1, 2, 3, 4]
    assert runs.read_metrics(tmp_path)[-1]["bits_per_dim"] == 0.5


def test_one_process_at_a_time(tmp_path):
    refused = pytest.raises(UserError, match="is being trained by another process")
    with runs.held(tmp_path), refused, runs.held(tmp_path, patience=0.1):
        pass
    with runs.held(tmp_path, patience=0.1):
        pass
