"""Many processes, one run (torchrun): who takes part, how the model is spread over them, what they agree on.

Replicated, every process holds all weights and gradients are averaged (DistributedDataParallel); sharded, each holds a
part of every weight, gradient and moment, and layers are put together while they work (FSDP2, `fully_shard`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

import torch
from torch import Tensor, distributed, nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel

from framecast import device as devices
from framecast.errors import UserError
from framecast.model.layer import LayerStack
from framecast.model.video_transformer import VideoTransformer

PATIENCE = timedelta(minutes=10)  # for another process before it counts as lost


@dataclass(frozen=True)
class Job:
    """This process among those of a run."""

    device: torch.device
    rank: int = 0
    world_size: int = 1
    files: ProcessGroup | None = None
    """A group of its own for checkpoints, which are written while steps exchange gradients."""

    @property
    def leads(self) -> bool:
        """Whether this process writes what the run writes once."""
        return self.rank == 0


@contextmanager
def job(device_name: str | None = None) -> Iterator[Job]:
    """Join the other processes that torchrun started, if it did."""
    device = devices.choose(device_name)
    if "RANK" not in os.environ:
        yield Job(device)
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    distributed.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo", timeout=PATIENCE)
    try:
        files = distributed.new_group(backend="gloo", timeout=PATIENCE)
        yield Job(device, distributed.get_rank(), distributed.get_world_size(), files)
    finally:
        distributed.destroy_process_group()


def spread(model: VideoTransformer, parallel: Literal["replicate", "shard"], job: Job) -> nn.Module:
    """The model as the processes of a job train it together; alone, the model itself."""
    model = model.to(job.device)
    if job.world_size == 1:
        return model
    if parallel == "replicate":
        return DistributedDataParallel(
            model,
            device_ids=[job.device] if job.device.type == "cuda" else None,
            broadcast_buffers=False,
            gradient_as_bucket_view=True,
        )
    mesh = init_device_mesh(job.device.type, (job.world_size,))
    for stack in [module for module in model.modules() if isinstance(module, LayerStack)]:
        for layer in stack:
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def bare(model: nn.Module) -> VideoTransformer:
    """The model itself, out of whatever spreads it."""
    inner = model.module if isinstance(model, DistributedDataParallel) else model
    assert isinstance(inner, VideoTransformer)
    return inner


@contextmanager
def exchange(model: nn.Module, now: bool) -> Iterator[None]:
    """Whether the backward pass inside averages gradients over the processes, or only adds to what there is."""
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(now)
        yield
    elif isinstance(model, DistributedDataParallel) and not now:
        with model.no_sync():
            yield
    else:
        yield


def num_processes() -> int:
    return distributed.get_world_size() if distributed.is_initialized() else 1


def total(values: Tensor) -> Tensor:
    """The sum over all processes, in place."""
    if num_processes() > 1:
        distributed.all_reduce(values)
    return values


def any_of(flags: list[bool], device: torch.device) -> list[bool]:
    """Each flag, as soon as one process raises it: so that all leave after the same step."""
    if num_processes() == 1:
        return flags
    return [count > 0 for count in total(torch.tensor(flags, dtype=torch.float32, device=device)).tolist()]


@contextmanager
def plain_losses(step: str) -> Iterator[None]:
    """When another process of the job is gone, say so in a sentence; torchrun ends or restarts the whole job."""
    try:
        yield
    except RuntimeError as error:  # gloo's errors are RuntimeErrors, NCCL's a subclass of them
        words = ("Connection closed", "Connection reset", "Broken pipe", "Timed out", "NCCL", "recvBytes", "sendBytes")
        if num_processes() == 1 or not any(word in str(error) for word in words):
            raise
        reason = str(error).splitlines()[0]
        raise UserError(
            f"{step}: another process of this job is gone ({reason}). The same command resumes from the last "
            f"checkpoint; `torchrun --max-restarts N` repeats it by itself."
        ) from error
