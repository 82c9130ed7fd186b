"""`framecast evaluate`: models' scores on a store, beside baselines and the paper's; several models, one comparison."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

if TYPE_CHECKING:
    import torch

    from framecast.evaluation.pieces import Evaluation
    from framecast.evaluation.subject import Clips, Subject

SECONDS_BETWEEN_LINES = 10.0


def evaluate(
    runs: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN|MODEL ...")],
    /,
    *,
    data: Path,
    out: Path,
    split: Literal["train", "val", "test"] = "test",
    metrics: tuple[Literal["bits", "nats", "fvd", "psnr", "ssim"], ...] = (),
    num_videos: int | None = None,
    prime_frames: int | None = None,
    frames: int | None = None,
    trials: int | None = None,
    temperature: float | None = None,
    seed: int = 0,
    i3d: Path | None = None,
    resize: Literal["tf1", "half-pixel"] = "tf1",
    device: str | None = None,
    json: bool = False,
) -> None:
    """Score models: bits/dim, nats/frame, FVD, PSNR and SSIM, into results.json, per_video.csv and report.html.

    What is finished is kept in the folder, so that the same command goes on where it was stopped; under torchrun, and
    when it is started several times at once, the processes share the work.

    Args:
        runs: runs, models' folders or names of models that ship; several are compared.
        data: the store, as `framecast prepare` made it.
        out: the folder for results, report and samples.
        split: which clips of the store.
        metrics: which scores; by default all that mean something for the model and the clips.
        num_videos: only the first so many clips of the split.
        prime_frames: frames given, for all metrics; by default what the preset says of each.
        frames: frames of a sampled clip, those given among them.
        trials: samples of each clip: FVD is their mean and deviation, PSNR and SSIM have their mean and their best.
        temperature: of sampling.
        seed: of sampling; each trial and clip has noise of its own.
        i3d: the published weights of FVD's network, i3d-kinetics-400.ckpt, where they cannot be fetched.
        resize: of frames for FVD: as the published numbers had it, or between pixel centres, as PyTorch's ports do.
        device: cpu, cuda or cuda:N; by default a GPU where there is one.
        json: print one JSON object, that of results.json.
    """
    from framecast import device as devices
    from framecast.data.store import Store
    from framecast.errors import UserError
    from framecast.evaluation import i3d as networks
    from framecast.evaluation import pieces, report, results, subject

    if not runs:
        raise UserError("there is nothing to evaluate: name a run, a model's folder or a model that ships.")
    here = devices.choose(device)
    devices.keep_freed_memory()
    store = Store(data)
    clips = subject.choose_clips(store, split, num_videos)
    changes = {"temperature": temperature, "trials": trials, "num_frames_samples": frames}
    changes |= {"prime_frames_likelihood": prime_frames, "prime_frames_samples": prime_frames}
    changes = {name: value for name, value in changes.items() if value is not None}
    subjects = [_subject(run, name, clips, changes, here) for run, name in _named(runs).items()]
    _check_drawing(subjects, changes)
    wanted: list[Sequence[str]] = [metrics or subject.applicable(each, clips) for each in subjects]
    for each, of_it in zip(subjects, wanted, strict=True):
        subject.check_match(each, clips, of_it)
    network = networks.load(i3d, here) if any("fvd" in of_it for of_it in wanted) else None
    evaluations = [
        pieces.Evaluation(each, clips, tuple(of_it), out / "work", seed, network, resize)
        for each, of_it in zip(subjects, wanted, strict=True)
    ]
    leads = os.environ.get("RANK", "0") == "0"
    say = (lambda sentence: print(sentence, file=sys.stderr, flush=True)) if leads else (lambda sentence: None)
    say(f"on {devices.described(here)}")
    _do(evaluations, say)
    if not leads:
        return
    found = results.results_of(evaluations, _provenance())
    for warning in found["warnings"]:
        say(f"warning: {warning}")
    results.write(out, found, evaluations)
    report.write(out, found, evaluations)
    if json:
        print(results.as_json(found))
        return
    print(results.as_text(found))
    print(f"\nreport: {out / report.REPORT}")


def _named(runs: Sequence[str]) -> dict[str, str]:
    """Each once, by the last part of its path where no other has the same."""
    ends = [Path(run).resolve().name for run in dict.fromkeys(runs)]
    return {run: end if ends.count(end) == 1 else run for run, end in zip(dict.fromkeys(runs), ends, strict=True)}


def _subject(run: str, name: str, clips: Clips, changes: dict[str, Any], device: torch.device) -> Subject:
    """The model that is meant, scored as its run says, else as is usual for such data."""
    import hashlib

    from framecast.config import PaperFigures
    from framecast.evaluation import subject
    from framecast.model import checkpoint
    from framecast.model.video_transformer import VideoTransformer
    from framecast.training.run import read_config

    folder = checkpoint.find(run)
    model = VideoTransformer.load(folder, device).eval()
    settings, preset, paper = subject.typical_settings(clips.store), "", PaperFigures()
    if folder == Path(run) / "model":
        began, _ = read_config(Path(run))
        settings, preset, paper = began.evaluation, began.name, began.paper
    # A scalar output draws nothing: what is said of drawing is for the other models of a comparison.
    drawing = ("temperature", "trials") if model.config.output == "scalar" else ()
    of_it = {name: value for name, value in changes.items() if name not in drawing}
    settings = subject.fitted(settings, model.config, clips.shortest, of_it)
    sha256 = hashlib.sha256((folder / checkpoint.CONFIG).read_bytes()).hexdigest()
    return subject.Subject(name, str(folder), sha256, model, settings, preset, paper)


def _check_drawing(subjects: Sequence[Subject], changes: dict[str, Any]) -> None:
    from framecast.errors import UserError

    for name in ("temperature", "trials"):
        if name in changes and not any(each.draws for each in subjects):
            raise UserError(
                f"--{name} is {changes[name]}: a model with a scalar output draws nothing, and has one sample of each "
                f"clip. Leave it out."
            )


def _provenance() -> dict[str, Any]:
    """What else the numbers depend on."""
    from framecast.training.run import commit, versions

    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return {"made": now, "commit": commit(), "versions": versions()}


def _do(evaluations: Sequence[Evaluation], say: Callable[[str], None]) -> None:
    """All the work that is left, having said how long it will take."""
    from framecast.evaluation import work

    left: dict[str, float] = {}
    if os.environ.get("RANK", "0") == "0":
        for evaluation in evaluations:
            for kind, seconds in evaluation.seconds_left().items():
                left[kind] = left.get(kind, 0) + seconds
        if left:
            say(_forecast(left, int(os.environ.get("WORLD_SIZE", "1"))))
    for evaluation in evaluations:
        for kind, (folder, makers) in evaluation.work().items():
            if names := work.missing(folder, makers):
                with _progress(f"{evaluation.subject.name}: {kind}", len(names), say) as made:
                    work.make_all(folder, makers, made)


def _forecast(seconds: dict[str, float], num_processes: int) -> str:
    parts = ", ".join(f"{kind} {_clock(value / num_processes)}" for kind, value in seconds.items())
    shared = f", shared by {num_processes} processes" if num_processes > 1 else ""
    return f"about {_clock(sum(seconds.values()) / num_processes)} at the rate just measured ({parts}){shared}"


@contextlib.contextmanager
def _progress(what: str, total: int, say: Callable[[str], None]) -> Iterator[Callable[[str], None]]:
    """Plain lines, one every few seconds; a bar where a person looks on."""
    start = last = time.monotonic()
    done = 0
    bar = _bar(what, total) if sys.stderr.isatty() else None

    def made(name: str) -> None:
        nonlocal done, last
        done += 1
        now = time.monotonic()
        if bar is not None:
            bar.advance(bar.task_ids[0])
        elif done == total or now - last >= SECONDS_BETWEEN_LINES:
            last = now
            rest = (now - start) / done * (total - done)
            say(f"{what}: {done}/{total} pieces" + (f", {_clock(rest)} left" if done < total else ""))

    with bar or contextlib.nullcontext():
        yield made


def _bar(what: str, total: int) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=Console(stderr=True))
    bar.add_task(what, total=total)
    return bar


def _clock(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, hours = seconds / 60, seconds / 3600
    return f"{minutes:.0f} min" if minutes < 60 else f"{hours:.1f} h" if hours < 48 else f"{hours / 24:.1f} days"
