"""results.json and per_video.csv: every score, with all that it depends on."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from framecast import durable
from framecast.config import to_json
from framecast.evaluation import fvd, i3d
from framecast.evaluation.pieces import Evaluation
from framecast.evaluation.scores import baselines_of, per_video, scores_of

FORMAT = "framecast evaluation 1"
RESULTS, PER_VIDEO = "results.json", "per_video.csv"

Results = dict[str, Any]

# How scores are named and written: (in results.json, for people, digits, whether more is better).
COLUMNS = (
    ("bits_per_dim", "bits/dim", 3, False),
    ("nats_per_frame", "nats/frame", 1, False),
    ("fvd", "FVD", 1, False),
    ("fvd_unrolled", "FVD (avg)", 1, False),
    ("psnr", "PSNR", 2, True),
    ("ssim", "SSIM", 3, True),
)


def results_of(evaluations: Sequence[Evaluation], provenance: dict[str, Any]) -> Results:
    clips = evaluations[0].clips
    return {
        "format": FORMAT,
        **provenance,
        "data": {
            "path": str(clips.store.path),
            "dataset": clips.store.dataset,
            "fingerprint": clips.store.fingerprint,
            "split": clips.split,
            "num_videos": len(clips),
            "num_videos_of_split": len(clips.store.indices_or_range(clips.split)),
        },
        "models": [_of_model(evaluation) for evaluation in evaluations],
        "warnings": list(dict.fromkeys(warning for evaluation in evaluations for warning in _warnings(evaluation))),
    }


def _of_model(evaluation: Evaluation) -> Results:
    subject = evaluation.subject
    settings = {**to_json(subject.settings), "seed": evaluation.seed}
    if not subject.draws:
        settings["temperature"] = None
    if "fvd" in evaluation.metrics:
        settings |= {"resize": evaluation.resize, "i3d_arrays_sha256": i3d.ARRAYS_SHA256}
    return {
        "name": subject.name,
        "path": subject.path,
        "sha256": subject.sha256,
        "preset": subject.preset,
        "metrics": list(evaluation.metrics),
        "settings": settings,
        "num_samples": len(evaluation.clips) * subject.settings.trials if evaluation.wants_samples else 0,
        "scores": scores_of(evaluation),
        "baselines": baselines_of(evaluation),
        "paper": {name: value for name, value in to_json(subject.paper).items() if value is not None},
    }


def _warnings(evaluation: Evaluation) -> list[str]:
    subject, clips = evaluation.subject, evaluation.clips
    found = []
    if "fvd" in evaluation.metrics:
        found += fvd.complaints(len(clips), len(clips), fvd.NUM_FRAMES)
    given = subject.settings.prime_frames_likelihood
    if evaluation.wants_likelihood and given < (masked := subject.model.config.prime_frames):
        found.append(
            f"{subject.name} was never trained on frames before {masked}, and is scored from frame {given} on: "
            f"the numbers of the frames between mean little."
        )
    return found


def write(folder: Path, results: Results, evaluations: Sequence[Evaluation]) -> None:
    rows = [row for evaluation in evaluations for row in per_video(evaluation)]
    table = io.StringIO(newline="")
    writer = csv.DictWriter(table, list(dict.fromkeys(name for row in rows for name in row)))
    writer.writeheader()
    writer.writerows(rows)
    publish(folder / PER_VIDEO, table.getvalue())
    publish(folder / RESULTS, as_json(results) + "\n")


def publish(path: Path, text: str) -> None:
    """Whole or not at all; another process that writes the same now leaves the same behind."""
    with (
        durable.plain_errors(path.parent, "choose another folder with --out"),
        durable.temporary(path.with_name(f".{path.name}.unfinished")) as file,
    ):
        if file is not None:
            durable.write(file, text.encode())
            durable.publish(file, path)


def as_json(results: Results) -> str:
    return json.dumps(_without_nan(results), indent=2, allow_nan=False)


def _without_nan(value: Any) -> Any:
    """JSON has no infinities: what is no number is null."""
    if isinstance(value, dict):
        return {name: _without_nan(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def as_text(results: Results) -> str:
    """For a terminal."""
    data = results["data"]
    lines = [f"{data['num_videos']} clips of {data['dataset']}, split {data['split']}"]
    for model in results["models"]:
        lines += ["", model["name"]]
        for column, name, digits, _ in COLUMNS:
            if column in model["scores"]:
                beside = [
                    f"{label.replace('_', ' ')} {written(scores[column], digits)}"
                    for label, scores in model["baselines"].items()
                    if column in scores
                ]
                if figure := model["paper"].get(column):
                    beside.append(f"paper {written(figure, digits)}")
                lines.append(
                    f"  {name:<11} {written(model['scores'][column], digits):<16} {', '.join(beside)}".rstrip()
                )
    return "\n".join(lines)


def written(score: Any, digits: int) -> str:
    """A score of results.json, or of the paper, with what it may be off by; of several samples the best beside it."""
    best = best_written(score, digits)
    return mean_written(score, digits) + (f" ({best})" if best else "")


def mean_written(score: Any, digits: int) -> str:
    if isinstance(score, (int, float)):
        return f"{score:.{digits}f}"
    if isinstance(score, (list, tuple)):
        return _plus_minus(score[0], score[1], digits)
    score = score.get("mean_of_samples", score)
    return _plus_minus(score["mean"], score.get("deviation", score.get("standard_error")), digits)


def best_written(score: Any, digits: int) -> str:
    """Empty where there is one sample of each clip, or none."""
    if not isinstance(score, dict) or score.get("best_of_samples", {}).get("num_samples", 1) == 1:
        return ""
    best = score["best_of_samples"]
    return f"best of {best['num_samples']}: {_plus_minus(best['mean'], None, digits)}"


def _plus_minus(mean: float | int | None, spread: float | int | None, digits: int) -> str:
    if mean is None or not math.isfinite(mean):
        return "–"
    return f"{mean:.{digits}f}" + (f" ± {spread:.{digits}f}" if spread is not None else "")
