"""Whole training steps of the base model, from the store to the changed weights, with the paper's recipe: share of GEMM
peak, share of the time spent on the update and on waiting for data; resuming a run; and memory over 500 steps.

`python benchmarks/training.py` prints one JSON object. Each case runs in a process of its own, which `--case` starts.
The store is made for it: noise of BAIR's shape, since pixels do not change how long a step takes.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from common import DEVICE, gemm_peak, peak_gib, report

import framecast as fc
from framecast import device as devices
from framecast.config import RunConfig
from framecast.data.batches import Batches
from framecast.data.clip import Clip
from framecast.data.prepare import prepare
from framecast.data.store import Store
from framecast.training import checkpoint, loop
from framecast.training import step as steps
from framecast.training.distributed import Job
from framecast.training.optimizer import Optimizer

STEPS = 2  # that are timed, after one that is not
PATIENCE = 290.0  # seconds that a case may take


@dataclass(frozen=True)
class Noise:
    """Clips of 30 frames of 64×64×3, or of 20 grey ones."""

    channels: int
    frames: int
    items_per_part: ClassVar[int] = 64

    def items(self) -> list[str]:
        return [f"{number:04}" for number in range(64)]

    def read(self, items: list[str]) -> Iterator[Clip]:
        for item in items:
            video = np.random.default_rng(int(item)).integers(0, 256, (self.frames, 64, 64, self.channels), np.uint8)
            yield Clip(video, item, "train")


def made_store(folder: Path, channels: int, frames: int) -> Store:
    prepare("noise", Noise(channels, frames), folder / "store", num_workers=1)
    return Store(folder / "store")


def experiment(name: str, **training: Any) -> RunConfig:
    run = fc.preset(name)
    return dataclasses.replace(run, training=dataclasses.replace(run.training, **training))


def whole_steps(precision: str, batch: int, job: Job) -> dict[str, Any]:
    peak = gemm_peak(precision)
    run = experiment("bair-spatiotemporal-base", batch_size=batch, precision=precision)
    with tempfile.TemporaryDirectory() as folder:
        store = made_store(Path(folder), channels=3, frames=30)
        model, optimizer = loop.begin(run, job)
        batches = Batches(store, run.model, batch_size=batch, num_workers=1).stream(0, 0)
        update = timed_update(model, optimizer)
        lines = [loop.timed_step(model, optimizer, batches, run, job, peak) for _ in range(STEPS + 1)][1:]
        update_seconds = statistics.median(update[1:])
    seconds = min(line["seconds"] for line in lines)
    return {
        "name": "step",
        "precision": precision,
        "batch": batch,
        "seconds": seconds,
        "slowest_seconds": max(line["seconds"] for line in lines),
        "gemm_peak_gflops": peak / 1e9,
        "fraction_of_gemm_peak": max(line["fraction_of_peak"] for line in lines),
        "data_waiting": max(line["data_seconds"] / line["seconds"] for line in lines),
        "update_and_zeroing": update_seconds / seconds,
        "peak_gib": peak_gib(),
    }


def timed_update(model: torch.nn.Module, optimizer: Optimizer) -> list[float]:
    """From now on, how long each update and the zeroing before it take."""
    taken: list[float] = []
    update, zero = optimizer.update, model.zero_grad

    def timed(work: Any, **options: Any) -> None:
        start = time.perf_counter()
        work(**options)
        devices.synchronize(next(model.parameters()).device)
        taken.append(time.perf_counter() - start)

    def both() -> None:
        timed(update)
        taken[-1] += taken.pop(-2)

    optimizer.update = both  # type: ignore[method-assign]
    model.zero_grad = lambda **options: timed(zero, **options)  # type: ignore[method-assign,assignment]
    return taken


def resuming(job: Job) -> dict[str, Any]:
    """From a checkpoint of the base model to the next step's readiness, checksums and all."""
    run = experiment("bair-spatiotemporal-base")
    with tempfile.TemporaryDirectory() as folder:
        model, optimizer = loop.begin(run, job)
        writer = checkpoint.Writer(Path(folder) / "checkpoints", job, keep=1)
        start = time.perf_counter()
        writer.save(1, model, optimizer)
        blocked = time.perf_counter() - start
        writer.wait()
        written = time.perf_counter() - start
        del model, optimizer
        start = time.perf_counter()
        model, optimizer = loop.begin(run, job)
        (saved,) = checkpoint.everything(Path(folder) / "checkpoints")
        checkpoint.load(saved, model, optimizer, job)
        seconds = time.perf_counter() - start
        writer.close()
    size = sum(tensor.nbytes for tensor in checkpoint.tensors(model, optimizer).values())
    saving = {"saving_blocks_seconds": blocked, "saving_seconds": written}
    return {"name": "resume", "precision": "fp32", "seconds": seconds, "checkpoint_gib": size / 2**30, **saving}


def memory(job: Job) -> dict[str, Any]:
    """Resident memory of 500 steps of `tiny`, by least squares after the first hundred; checkpoints included."""
    run = experiment("tiny", steps=500, batch_size=2)
    page, resident = resource.getpagesize(), []
    with tempfile.TemporaryDirectory() as folder:
        store = made_store(Path(folder), channels=1, frames=20)
        model, optimizer = loop.begin(run, job)
        writer = checkpoint.Writer(Path(folder) / "checkpoints", job, keep=2)
        batches = Batches(store, run.model, batch_size=2, num_workers=1).stream(0, 0)
        start = time.perf_counter()
        for number in range(1, run.training.steps + 1):
            steps.step(model, optimizer, next(batches))
            if number % run.training.checkpoint_every == 0:
                writer.save(number, model, optimizer)
            resident.append(int(Path("/proc/self/statm").read_text().split()[1]) * page / 2**20)
        writer.close()
        seconds = time.perf_counter() - start
    late = np.array(resident[100:])
    slope = float(np.polyfit(np.arange(len(late)), late, 1)[0])
    return {
        "name": "memory over 500 steps",
        "precision": "fp32",
        "batch": 2,
        "seconds": seconds,
        "steps_per_second": run.training.steps / seconds,
        "mib_at_step_100": resident[100],
        "mib_at_step_500": resident[-1],
        "mib_a_step": slope,
    }


CASES = ["bf16-4", "fp32-4", "resume", "memory"]


def measure(case: str) -> dict[str, Any]:
    devices.keep_freed_memory()
    job = Job(devices.choose(DEVICE))
    if case == "resume":
        return resuming(job)
    if case == "memory":
        return memory(job)
    precision, batch = case.split("-")
    return whole_steps(precision, int(batch), job)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", help="measure this one here, and print it alone")
    parser.add_argument("--only", nargs="+", default=CASES, help=f"of {', '.join(CASES)}, or PRECISION-BATCH")
    given = parser.parse_args()
    if given.case:
        print(json.dumps(measure(given.case)))
        return
    results = []
    for case in given.only:
        child = [sys.executable, __file__, "--case", case]
        done = subprocess.run(child, check=True, stdout=subprocess.PIPE, text=True, timeout=math.ceil(PATIENCE))
        results.append(json.loads(done.stdout))
    report("training", results)


if __name__ == "__main__":
    main()
