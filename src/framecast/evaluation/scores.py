"""The scores that the pieces of an evaluation add up to, beside those of the baselines.

N clips · F predicted frames · S trials · W windows of 16 frames
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from framecast.evaluation import counted, fvd, likelihood
from framecast.evaluation.fvd import Moments
from framecast.evaluation.likelihood import Mean
from framecast.evaluation.pieces import Evaluation

if TYPE_CHECKING:
    from jaxtyping import Float

Scores = dict[str, Any]
"""What stands in results.json (docs/metrics.md)."""


def scores_of(evaluation: Evaluation) -> Scores:
    scores: Scores = {}
    if "bits" in evaluation.metrics:
        scores["bits_per_dim"] = _by_frame(_bits(evaluation))
    if "nats" in evaluation.metrics:
        scores["nats_per_frame"] = _by_frame(evaluation.likelihood("intensity"))
    if "fvd" in evaluation.metrics:
        real = evaluation.real_moments(evaluation.clips)
        trials = [evaluation.sample_moments(trial) for trial in range(evaluation.settings.trials)]
        scores |= _of_trials(np.array([_distances(real, of_trial) for of_trial in trials]))
    for metric in ("psnr", "ssim"):
        if metric in evaluation.metrics:
            scores[metric] = _over_samples(evaluation.frame_scores(metric))
    return scores


def baselines_of(evaluation: Evaluation) -> dict[str, Scores]:
    """By the baseline's name, each with the scores that it has."""
    uniform, floor, copies, truth = Scores(), Scores(), Scores(), Scores()
    counts: dict[str, Scores] = {}
    if "bits" in evaluation.metrics:
        uniform["bits_per_dim"] = {"mean": float(evaluation.subject.model.config.bits)}
        counts = _counted(evaluation)
    if "nats" in evaluation.metrics:
        floor["nats_per_frame"] = _by_frame(evaluation.likelihood("floor"))
    if "fvd" in evaluation.metrics:
        real = evaluation.real_moments(evaluation.clips)
        copies |= _of_trials(np.array([_distances(real, evaluation.copy_moments())]))
        truth |= _truth_against_truth(evaluation)
    for metric in ("psnr", "ssim"):
        if metric in evaluation.metrics:
            copies[metric] = _over_samples(evaluation.copy_scores(metric)[None])
    named = {"uniform": uniform, **counts, "floor": floor, "copy_last_frame": copies, "ground_truth": truth}
    return {name: scores for name, scores in named.items() if scores}


def per_video(evaluation: Evaluation) -> Iterator[dict[str, Any]]:
    """What each clip scored."""
    columns: dict[str, np.ndarray] = {}
    if "bits" in evaluation.metrics:
        columns["bits_per_dim"] = _bits(evaluation).mean(axis=1)
    if "nats" in evaluation.metrics:
        columns["nats_per_frame"] = evaluation.likelihood("intensity").mean(axis=1)
        columns["nats_per_frame_floor"] = evaluation.likelihood("floor").mean(axis=1)
    for metric in ("psnr", "ssim"):
        if metric in evaluation.metrics:
            of_samples = _mean_of_finite(evaluation.frame_scores(metric))
            columns[f"{metric}_mean_of_samples"] = _mean_of_finite(of_samples.T)
            columns[f"{metric}_best_of_samples"] = _best(of_samples)
            columns[f"{metric}_copy_last_frame"] = _mean_of_finite(evaluation.copy_scores(metric))
    for i, index in enumerate(evaluation.clips.indices):
        numbers = {name: _number(values[i]) for name, values in columns.items()}
        yield {
            "model": evaluation.subject.name,
            "clip": index,
            "name": evaluation.clips.store.clip(index).name,
            **numbers,
        }


def _bits(evaluation: Evaluation) -> Float[np.ndarray, "N F"]:
    config = evaluation.subject.model.config
    values_per_frame = math.prod(config.video_shape[1:]) * config.num_channels
    return likelihood.per_dim(evaluation.likelihood("codes"), values_per_frame)


def _counted(evaluation: Evaluation) -> dict[str, Scores]:
    """What values cost that are counted in training clips, alone or given the frame before."""
    clips, settings = evaluation.clips, evaluation.subject.settings
    training = clips.store.indices_or_range("train")[: counted.NUM_CLIPS]
    if not len(training):
        return {}
    found = counted.count([clips.store[int(i)] for i in training], 2**evaluation.subject.model.config.bits)
    num_frames, given = settings.num_frames_likelihood, settings.prime_frames_likelihood
    rows = [found.bits(clips.store.frames(index, 0, num_frames), given) for index in clips.indices]
    independent, previous = (np.stack(column) for column in zip(*rows, strict=True))
    named = {"independent_pixels": independent, "previous_frame": previous}
    return {name: {"bits_per_dim": _by_frame(values)} for name, values in named.items()}


def _truth_against_truth(evaluation: Evaluation) -> Scores:
    """As many other clips of the store, or one half of these against the other."""
    clips, others = evaluation.clips, evaluation.others
    if others is not None:
        first, second = evaluation.real_moments(clips), evaluation.real_moments(others)
        said = f"{len(clips)} {clips.split} against {len(others)} {others.split} clips"
    elif len(clips) >= 4:
        first, second = (evaluation.real_moments(clips, slice(half, None, 2)) for half in range(2))
        said = f"{first[0].count} against {second[0].count} {clips.split} clips"
    else:
        return {}
    return {**_of_trials(np.array([_distances(first, second)])), "sets": said}


def _by_frame(values: Float[np.ndarray, "N F"]) -> Scores:
    """Over videos: of their mean over frames, and of each frame."""
    frames = [Mean.of(column) for column in values.T]
    return {
        **asdict(Mean.of(values.mean(axis=1))),
        "per_frame": [frame.mean for frame in frames],
        "per_frame_standard_error": [frame.standard_error for frame in frames],
    }


def _over_samples(values: Float[np.ndarray, "S N F"]) -> Scores:
    """The mean over samples and the best of them are two numbers, and neither is called the other.

    PSNR is infinite where frames are equal; such frames are left out of means, and counted.
    """
    of_videos = _mean_of_finite(values)
    best = np.take_along_axis(values, _ranked(of_videos).argmax(axis=0)[None, :, None], axis=0)[0]
    return {
        "mean_of_samples": asdict(_mean(_mean_of_finite(of_videos.T))),
        "best_of_samples": {**asdict(_mean(_best(of_videos))), "num_samples": len(values)},
        "per_frame": [_number(x) for x in _mean_of_finite(values.reshape(-1, values.shape[-1]).T)],
        "per_frame_best_of_samples": [_number(x) for x in _mean_of_finite(best.T)],
        "exact_frames": int(np.isinf(values).sum()),
    }


def _of_trials(distances: Float[np.ndarray, "S W"]) -> Scores:
    """Of the first 16 frames, and the mean over all windows: mean and deviation over trials."""

    def over_trials(values: np.ndarray) -> Scores:
        deviation = float(values.std(ddof=1)) if len(values) > 1 else None
        return {"mean": float(values.mean()), "deviation": deviation, "trials": values.tolist()}

    deviations = distances.std(axis=0, ddof=1).tolist() if len(distances) > 1 else None
    return {
        "fvd": over_trials(distances[:, 0]),
        "fvd_unrolled": over_trials(distances.mean(axis=1)),
        "fvd_by_window": {"mean": distances.mean(axis=0).tolist(), "deviation": deviations},
    }


def _distances(real: list[Moments], generated: list[Moments]) -> list[float]:
    return [fvd.frechet(first, second) for first, second in zip(real, generated, strict=True)]


def _mean_of_finite(values: Float[np.ndarray, "*n F"]) -> Float[np.ndarray, "*n"]:
    """Over the last axis; NaN where nothing is finite."""
    finite = np.isfinite(values)
    total, count = np.where(finite, values, 0).sum(axis=-1), finite.sum(axis=-1)
    return np.divide(total, count, out=np.full(total.shape, np.nan), where=count > 0)


def _ranked(of_videos: Float[np.ndarray, "S N"]) -> Float[np.ndarray, "S N"]:
    """A sample all of whose frames are exact has no finite score, and none is better."""
    return np.where(np.isnan(of_videos), np.inf, of_videos)


def _best(of_videos: Float[np.ndarray, "S N"]) -> Float[np.ndarray, "N"]:
    best = _ranked(of_videos).max(axis=0)
    return np.where(np.isinf(best), np.nan, best)


def _mean(values: Float[np.ndarray, "N"]) -> Mean:
    known = values[~np.isnan(values)]
    return Mean.of(known) if len(known) else Mean(math.nan, None)


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
