"""What the pieces add up to: means over samples and the best of them, trials, halves of the truth."""

from __future__ import annotations

import math

import numpy as np
import pytest

from framecast.evaluation.results import as_json, written
from framecast.evaluation.scores import _by_frame, _of_trials, _over_samples


def test_mean_of_samples_and_best_of_samples_are_two_numbers():
    values = np.array([[[10.0, 20.0], [30.0, 30.0]], [[40.0, 20.0], [20.0, 20.0]]])  # 2 samples of 2 clips, 2 frames
    score = _over_samples(values)
    assert score["mean_of_samples"]["mean"] == np.mean([22.5, 25])
    assert score["best_of_samples"]["mean"] == np.mean([30, 30])
    assert score["best_of_samples"]["num_samples"] == 2
    assert score["per_frame"] == [25, 22.5]
    assert score["per_frame_best_of_samples"] == [35, 25]
    assert score["mean_of_samples"]["standard_error"] == pytest.approx(np.std([22.5, 25], ddof=1) / math.sqrt(2))


def test_the_best_never_falls_behind_the_mean():
    values = np.random.default_rng(0).normal(size=(5, 7, 3))
    score = _over_samples(values)
    assert score["best_of_samples"]["mean"] > score["mean_of_samples"]["mean"]
    one = _over_samples(values[:1])
    assert one["best_of_samples"]["mean"] == one["mean_of_samples"]["mean"]


def test_exact_frames_are_left_out_of_means_and_counted():
    values = np.array([[[math.inf, 20.0], [30.0, 30.0]], [[10.0, 20.0], [math.inf, math.inf]]])
    score = _over_samples(values)
    assert score["exact_frames"] == 3
    assert score["mean_of_samples"]["mean"] == np.mean([(20 + 15) / 2, 30])
    assert score["best_of_samples"]["mean"] == 20  # of the first clip; nothing is better than an exact sample
    assert score["per_frame"] == [20, pytest.approx(70 / 3)]


def test_deviation_is_over_trials_and_unrolled_is_the_mean_of_windows():
    distances = np.array([[100.0, 200.0], [110.0, 190.0], [120.0, 240.0]])
    score = _of_trials(distances)
    assert score["fvd"] == {"mean": 110, "deviation": 10, "trials": [100, 110, 120]}
    assert score["fvd_unrolled"]["mean"] == 160
    assert score["fvd_unrolled"]["deviation"] == pytest.approx(np.std([150, 150, 180], ddof=1))
    assert score["fvd_by_window"]["mean"] == [110, 210]
    assert _of_trials(distances[:1])["fvd"]["deviation"] is None


def test_standard_error_is_over_videos_not_frames():
    values = np.array([[1.0, 3.0], [2.0, 6.0]])
    score = _by_frame(values)
    assert score["mean"] == 3
    assert score["standard_error"] == pytest.approx(1)
    assert score["per_frame"] == [1.5, 4.5]


def test_what_is_no_number_is_null_in_json_and_a_dash_for_people():
    assert as_json({"a": [math.inf, 1.0], "b": math.nan}) == '{\n  "a": [\n    null,\n    1.0\n  ],\n  "b": null\n}'
    assert written({"mean": math.nan, "standard_error": None}, 2) == "–"
    assert written((104, 4), 1) == "104.0 ± 4.0"
    samples = {"mean": 20.0, "standard_error": 0.5}, {"mean": 25.0, "standard_error": 0.1, "num_samples": 20}
    score = dict(zip(("mean_of_samples", "best_of_samples"), samples, strict=True))
    assert written(score, 1) == "20.0 ± 0.5 (best of 20: 25.0)"
