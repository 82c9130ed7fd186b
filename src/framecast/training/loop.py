"""A run from its first step, or from where it was left, to its last: batches, steps, checkpoints, and what is seen."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn

from framecast import device as devices
from framecast import durable
from framecast.config import RunConfig
from framecast.data.batches import Batch, Batches
from framecast.data.store import Store
from framecast.errors import UserError
from framecast.model import checkpoint as model_checkpoint
from framecast.model.cost import flops_per_slice_step
from framecast.model.video_transformer import VideoTransformer
from framecast.training import checkpoint, distributed, progress
from framecast.training import optimizer as optimizers
from framecast.training import run as runs
from framecast.training.distributed import Job
from framecast.training.optimizer import Optimizer
from framecast.training.step import Result, check_finite, mean_nats, score, split, step

CPU_MICRO_BATCH = 4  # slices

Validate = Callable[[nn.Module], float]
"""The score of a model, lower is better. Every process calls it at the same time."""

Illustrate = Callable[[VideoTransformer], tuple[bytes, int, int]]
"""A picture of what a model dreams: an animated GIF, its height and its width."""


@dataclass
class Outcome:
    """How a run ended: after which step, and by which signal if by one."""

    step: int
    stopped_by: int | None = None
    rows: list[tuple[str, str]] = field(default_factory=list)
    """What the table at the end says."""


def train(
    run: RunConfig,
    store: Store,
    folder: Path,
    *,
    job: Job | None = None,
    init: str | Path | None = None,
    minutes: float | None = None,
    validate: Validate | None = None,
    illustrate: Illustrate | None = None,
    illustrate_every: int | None = None,
) -> Outcome:
    """Train until the last step, the last minute or a signal; what `folder` already holds of this run is resumed."""
    start = time.monotonic()
    job = job or Job(devices.choose("cpu"))
    config = run.training
    with ExitStack() as stack:
        stack.enter_context(durable.plain_errors(folder, "once that is put right, the same command goes on"))
        if job.leads:
            stack.enter_context(runs.held(folder))
            saved = prepared(folder, run, store)
        _meet(job)
        if not job.leads:
            saved = checkpoint.everything(folder / runs.CHECKPOINTS)
        model, optimizer = begin(run, job, None if saved else init)
        if saved:
            checkpoint.load(saved[-1], model, optimizer, job)
        first_step = optimizer.num_steps
        validate = validate or validation(run, store, job)
        view = progress.progress(config.steps, first_step) if job.leads else progress.Silent()
        stack.callback(view.close)
        view.say(f"on {devices.described(job.device, job.world_size)}")
        if saved:
            view.say(f"resumed from step {first_step}")
        metrics = runs.Metrics(folder, first_step) if job.leads else None
        board = progress.board(folder / "tensorboard", first_step, view.say) if job.leads else None
        for shown in (metrics, board):
            if shown is not None:
                stack.callback(shown.close)
        writer = checkpoint.Writer(folder / runs.CHECKPOINTS, job, config.keep)
        if saved:
            writer.export(checkpoint.best(saved) or saved[-1], model, optimizer)
        stop = stack.enter_context(caught_signals())
        batches = _batches(run, store, job).stream(config.seed, first_step)
        stack.callback(batches.close)  # type: ignore[attr-defined]
        peak = devices.product_rate(job.device, config.precision) * job.world_size
        stopped_by, line = None, {}
        outcome = Outcome(first_step)
        while optimizer.num_steps < config.steps:
            with distributed.plain_losses(f"step {optimizer.num_steps + 1}"):
                line = timed_step(model, optimizer, batches, run, job, peak)
                out_of_time = minutes is not None and time.monotonic() - start >= 60 * minutes
                terminated, interrupted, late = distributed.any_of(
                    [stop.received == signal.SIGTERM, stop.received == signal.SIGINT, out_of_time], job.device
                )
                stopped_by = signal.SIGTERM if terminated else signal.SIGINT if interrupted else None
                last = bool(stopped_by) or late or optimizer.num_steps == config.steps
                if last or optimizer.num_steps % config.checkpoint_every == 0:
                    check_finite(model, optimizer)
                    # A run that is told to leave does not first look at how good it is.
                    value = None
                    if validate and not stopped_by:
                        with optimizer.averaged():
                            value = validate(model)
                        line |= {f"validation_{name}": v for name, v in score(value, run.model).items()}
                    writer.save(optimizer.num_steps, model, optimizer, value)
            number = optimizer.num_steps
            if metrics is not None:
                metrics.write({"step": number, **line})
            view.show(number, line)
            if board is not None:
                board.show(number, line)
                if illustrate and illustrate_every and number % illustrate_every == 0:
                    writer.wait()
                    board.picture(number, "samples", *illustrate(VideoTransformer.load(folder / runs.MODEL)))
            if last:
                break
        with distributed.plain_losses("the last checkpoint"):
            writer.close()
        if job.leads:
            outcome = _outcome(folder, run, optimizer.num_steps, stopped_by, line)
            view.say(progress.table(outcome.rows))
        return Outcome(optimizer.num_steps, stopped_by, outcome.rows)


def begin(run: RunConfig, job: Job, init: str | Path | None = None) -> tuple[nn.Module, Optimizer]:
    """A fresh model, or one with another's weights, as the processes of the job share it, and its optimizer."""
    torch.manual_seed(run.training.seed)  # every process makes the same weights
    model = VideoTransformer(run.model)
    if init is not None:
        weights = VideoTransformer.load(init).state_dict()
        model_checkpoint.check_fits(weights, model.state_dict(), Path(init))
        model.load_state_dict(weights)
    if run.training.recompute:
        model.checkpoint_activations()
    spread = distributed.spread(model, run.training.parallel, job)
    return spread, optimizers.make(distributed.bare(spread), run.training)


def prepared(folder: Path, run: RunConfig, store: Store) -> list[checkpoint.Saved]:
    """The folder with this run's configuration, and the checkpoints that are there of it."""
    checkpoints = folder / runs.CHECKPOINTS
    saved = checkpoint.everything(checkpoints)
    if saved:
        runs.check_same(folder, run, store)
    elif any(path.name not in _OWN for path in folder.iterdir()):
        raise UserError(f"{folder} holds other files and no checkpoint: choose another --out.")
    checkpoint.remove_unfinished(folder)
    runs.write_config(folder, run, store)
    return saved


_OWN = {runs.CONFIG, runs.METRICS, runs.CHECKPOINTS, "tensorboard", ".lock", f".{runs.CONFIG}", f".{runs.METRICS}"}


def timed_step(
    model: nn.Module, optimizer: Optimizer, batches: Iterator[Batch], run: RunConfig, job: Job, peak: float
) -> dict[str, Any]:
    """One step, and what is written about it."""
    start = time.perf_counter()
    batch = on_device(next(batches), job.device)
    waited = time.perf_counter() - start
    precision = run.training.precision
    result: Result = step(model, optimizer, batch, micro_batch=micro_batch(run, job.device), precision=precision)
    seconds = time.perf_counter() - start
    flops = flops_per_slice_step(run.model) * run.training.batch_size
    return {
        **result.score(run.model),
        "gradient_norm": result.gradient_norm,
        "learning_rate": run.training.learning_rate * result.rate,
        "seconds": seconds,
        "data_seconds": waited,
        "slices_per_second": run.training.batch_size / seconds,
        "fraction_of_peak": flops / seconds / peak,
    }


def micro_batch(run: RunConfig, device: torch.device) -> int | None:
    """How many slices are worked on at a time; None for all."""
    if run.training.micro_batch is None and device.type == "cpu":  # more are no faster there, and may not fit
        return CPU_MICRO_BATCH
    return run.training.micro_batch


def on_device(batch: Batch, device: torch.device) -> Batch:
    if device.type == "cpu":
        return batch
    video, index, actions = (
        None if part is None else part.pin_memory().to(device, non_blocking=True)
        for part in (batch.video, batch.slice_index, batch.actions)
    )
    assert video is not None
    assert index is not None
    return Batch(video, index, actions)


def validation(run: RunConfig, store: Store, job: Job) -> Validate | None:
    """The loss on the first batches of the validation split, always the same; None where there is no such split."""
    num_batches = run.training.validation_batches
    if not num_batches or not len(store.indices_or_range("val")):
        return None
    batches = _batches(run, store, job, split="val")
    whole = [on_device(batches.batch_at(0, number), job.device) for number in range(num_batches)]
    size = micro_batch(run, job.device) or run.training.batch_size
    chosen = [part for batch in whole for part in split(batch, size)]
    return lambda model: mean_nats(model, chosen, run.training.precision)


class Stop:
    """The signal that asked the run to end, once there was one."""

    received: int | None = None


@contextmanager
def caught_signals() -> Iterator[Stop]:
    """The first SIGTERM or Ctrl-C lets the step in hand end and the run save; a second one ends it at once."""
    stop = Stop()
    before: dict[signal.Signals, Any] = {}

    def receive(number: int, frame: FrameType | None) -> None:
        stop.received = number
        for each, handler in before.items():
            signal.signal(each, handler)

    with suppress(ValueError):  # not the main thread: signals are somebody else's
        before.update({each: signal.signal(each, receive) for each in (signal.SIGTERM, signal.SIGINT)})
    try:
        yield stop
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _batches(run: RunConfig, store: Store, job: Job, split: str = "train") -> Batches:
    return Batches(
        store,
        run.model,
        split=split,
        batch_size=run.training.batch_size,
        clip_frames=run.data.clip_frames,
        rank=job.rank,
        world_size=job.world_size,
        num_workers=1,
    )


def _outcome(folder: Path, run: RunConfig, number: int, stopped_by: int | None, line: dict[str, Any]) -> Outcome:
    """The table at the end."""
    steps = runs.read_metrics(folder)
    saved = checkpoint.everything(folder / runs.CHECKPOINTS)
    rows = [("run", str(folder)), ("steps", f"{number} of {run.training.steps}")]
    recent = steps[-100:]
    for name in ("nats_per_frame", "bits_per_dim"):
        if recent and name in recent[-1]:
            mean = math.fsum(each[name] for each in recent) / len(recent)
            rows.append((name.replace("_per_", "/"), f"{mean:.4g} (mean of the last {len(recent)} steps)"))
    if best := checkpoint.best(saved):
        assert best.score is not None
        ((name, value),) = score(best.score, run.model).items()
        rows.append((f"best validation {name.replace('_per_', '/')}", f"{value:.4g} at step {best.step}"))
    if recent:
        speed = len(recent) * run.training.batch_size / math.fsum(each["seconds"] for each in recent)
        waiting = math.fsum(e["data_seconds"] for e in recent) / math.fsum(e["seconds"] for e in recent)
        rows.append(("speed", f"{speed:.3g} slices/s, {waiting:.1%} of the time waiting for data"))
    rows.append(("model", str(folder / runs.MODEL)))
    return Outcome(number, stopped_by, rows)


def _meet(job: Job) -> None:
    if job.files is not None:
        torch.distributed.barrier(job.files)
