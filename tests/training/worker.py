"""What two processes do together, started by torchrun from test_distributed.py: `worker.py STORE FOLDER TASK`."""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
import time
from pathlib import Path

import torch
from torch.distributed.tensor import DTensor

sys.path.insert(0, str(Path(__file__).parents[1]))

from framecast.data.store import Store
from framecast.training import checkpoint, distributed, loop
from framecast.training import step as steps
from framecast.training.distributed import Job
from training.small import LAYERS, MODEL, noise, small

FIRST_SLICE = dataclasses.replace(MODEL, first_slice_layers=LAYERS * 2, prime_frames=0)
PARALLEL = ("replicate", "shard")


def gradients(job: Job, folder: Path) -> None:
    """Of one global batch, in which the first process has the first slice alone and the second none of it."""
    slices = [0, 0, 3, 7]
    mine = [slices[:2], slices[2:]][job.rank] if job.world_size == 2 else slices
    whole = noise(FIRST_SLICE, slices)
    rows = slice(2 * job.rank, 2 * job.rank + 2) if job.world_size == 2 else slice(None)
    batch = dataclasses.replace(whole, video=whole.video[rows], slice_index=torch.tensor(mine))
    for parallel in PARALLEL if job.world_size == 2 else PARALLEL[:1]:
        for micro_batch in (None, 1):
            model, optimizer = loop.begin(small(FIRST_SLICE, recipe="paper", parallel=parallel), job)
            result = steps.step(model, optimizer, batch, micro_batch=micro_batch)
            found = {name: full(weight.grad) for name, weight in distributed.bare(model).named_parameters()}
            found |= {"loss": torch.tensor(result.loss), "norm": torch.tensor(result.gradient_norm)}
            if job.leads:
                torch.save(found, folder / f"gradients-{job.world_size}-{parallel}-{micro_batch}.pt")


def runs(job: Job, folder: Path, store: Store) -> None:
    """Fresh runs of both kinds, and the continuation of one that a single process began."""
    for parallel in PARALLEL:
        for recipe in ("paper", "modern"):
            loop.train(small(parallel=parallel, recipe=recipe), store, folder / f"{parallel}-{recipe}", job=job)
            begun = folder / f"begun-{parallel}-{recipe}"
            run = small(parallel=parallel, recipe=recipe, steps=6)
            model, optimizer = loop.begin(run, job)
            checkpoint.load(checkpoint.everything(begun / "checkpoints")[-1], model, optimizer, job)
            loaded = {name: full(tensor) for name, tensor in checkpoint.tensors(model, optimizer).items()}
            if job.leads:
                torch.save(loaded, folder / f"loaded-{parallel}-{recipe}.pt")
            loop.train(run, store, begun, job=job)


def scalar(job: Job, folder: Path, store: Store) -> None:
    """An output of one number, of which a sharding process holds nothing at all."""
    model = dataclasses.replace(MODEL, output="scalar", video_shape=(4, 32, 32))
    loop.train(small(model, parallel="shard"), store, folder / "scalar", job=job)


def killed(job: Job, folder: Path, store: Store) -> None:
    """One process is killed after step 4, the first time, when the checkpoint of step 2 is whole and no other is."""
    marker, calls = folder / "was-killed", 0

    def die(model: torch.nn.Module) -> float:
        nonlocal calls
        calls += 1
        if job.rank == 1 and calls == 2 and not marker.exists():
            while not (folder / "run" / "checkpoints" / "00000002").exists():
                time.sleep(0.01)
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return 1.0

    loop.train(small(steps=10, checkpoint_every=2), store, folder / "run", job=job, validate=die)


def full(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def main() -> None:
    from framecast.errors import UserError

    store, folder = Store(sys.argv[1]), Path(sys.argv[2])
    torch.set_num_threads(1)
    try:
        with distributed.job("cpu") as job:
            for task in sys.argv[3:]:
                if task == "gradients":
                    gradients(job, folder)
                else:
                    {"runs": runs, "scalar": scalar, "killed": killed}[task](job, folder, store)
    except UserError as error:
        print(f"framecast train: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
