"""What a run will need, before it starts: parameters, FLOPs, memory of each device, what crosses the network, time.

Everything here is computed from shapes; only the rate of a step is measured, where there is a machine to measure it on.
`--dry-run` prints it, and `docs/scaling.md` is made of it.
"""

from __future__ import annotations

import dataclasses
import math
import time
from dataclasses import dataclass

import torch
from torch import nn

from framecast import device as devices
from framecast.config import LayerConfig, ModelConfig, RunConfig
from framecast.data.batches import Batch, drawn_slices
from framecast.model import cost
from framecast.model.layer import Layer
from framecast.model.video_transformer import VideoTransformer
from framecast.training import loop, step
from framecast.training.distributed import Job

MOMENTS = {"paper": 2, "adam": 2, "modern": 3}
"""Numbers that a recipe keeps for each weight at most: two moments, and the average of the modern one."""


@dataclass(frozen=True)
class Plan:
    """What one process of `world_size` needs; bytes, slices and FLOPs of one step."""

    num_parameters: int
    slices: int
    """That this process works on in a step, `micro_batch` of them at a time."""
    micro_batch: int
    flops: float
    weights: int
    gradients: int
    moments: int
    copies: int
    """Weights put together or narrowed for the products of the moment."""
    activations: int
    network: int
    """Sent by this process in a step, as rings send it."""
    storage: int
    """Read by this process in a step: the frames of its slices' videos."""

    @property
    def memory(self) -> int:
        return self.weights + self.gradients + self.moments + self.copies + self.activations


def plan(run: RunConfig, world_size: int = 1) -> Plan:
    model, training = run.model, run.training
    with torch.device("meta"):  # shapes without memory
        network = VideoTransformer(model)
    num_parameters = cost.num_parameters(network)
    slices = training.batch_size // world_size
    micro_batch = min(training.micro_batch or slices, slices)
    num_parts = math.ceil(slices / micro_batch)
    sharded = world_size > 1 and training.parallel == "shard"
    part = math.ceil(num_parameters / world_size) if sharded else num_parameters
    narrow = 2 if training.precision == "bf16" else 0
    # Sharded: the two largest layers, and what lies in no layer, are whole at a time, with a gradient.
    gathered = sum(_gathered(network)) if sharded else 0
    once_round = 4 * num_parameters * (world_size - 1) / world_size  # of the ring, in float32
    return Plan(
        num_parameters=num_parameters,
        slices=slices,
        micro_batch=micro_batch,
        flops=slices * cost.flops_per_slice_step(model) * (4 / 3 if training.recompute else 1.0),
        weights=4 * part,
        # Micro-batches add up whole gradients, and exchange them once.
        gradients=4 * (num_parameters if num_parts > 1 else part),
        moments=4 * MOMENTS[training.recipe] * part,
        copies=8 * gathered + narrow * (gathered or num_parameters),
        activations=micro_batch * _activation_bytes(model, training.precision, training.recompute),
        # Sharded weights are gathered for each micro-batch forward and backward.
        network=round(once_round * (2 * num_parts + 1 if sharded else 2)),
        storage=slices * math.prod(model.video_shape) * model.num_channels,
    )


def step_seconds(run: RunConfig, job: Job, patience: float = 30.0) -> float:
    """What a step takes here, by the quickest of a few micro-batches of noise: pixels do not change how long it takes.

    At least two are made, the first of which does not count; then as many as fit into `patience`.
    """
    model, training = run.model, run.training
    network, optimizer = loop.begin(run, dataclasses.replace(job, world_size=1))
    parts = math.ceil(plan(run, job.world_size).slices / (size := plan(run, job.world_size).micro_batch))
    batch = loop.on_device(_noise(model, size), job.device)
    seconds, start = math.inf, time.perf_counter()
    for number in range(8):
        begun = time.perf_counter()
        step.step(network, optimizer, batch, precision=training.precision)
        devices.synchronize(job.device)
        if number > 0:
            seconds = min(seconds, time.perf_counter() - begun)
        if number > 0 and time.perf_counter() - start > patience:
            break
    return seconds * parts


def described(run: RunConfig, device: torch.device, world_size: int, seconds: float | None) -> list[tuple[str, str]]:
    """The plan in words."""
    needs = plan(run, world_size)
    available = devices.memory(device)
    rows = [
        ("parameters", f"{needs.num_parameters:,}"),
        ("batch", f"{run.training.batch_size} slices: {needs.slices} a process, {needs.micro_batch} at a time"),
        ("FLOPs a step", f"{needs.flops:.3g} on each of {world_size} process(es)"),
        ("memory", f"{gib(needs.memory)} of {gib(available)}" + "  TOO MUCH" * (needs.memory > available)),
        ("  weights", gib(needs.weights)),
        ("  gradients", gib(needs.gradients)),
        ("  moments", gib(needs.moments)),
        ("  copies", gib(needs.copies)),
        ("  activations", gib(needs.activations)),
        ("network", f"{gib(needs.network)} sent by each process a step"),
        ("storage", f"{needs.storage / 2**20:.3g} MiB read by each process a step"),
    ]
    if seconds is not None:
        whole = seconds * run.training.steps
        rows.append(("measured", f"{seconds:.3g} s a step, without the network"))
        rows.append(("time to finish", f"{whole / 3600:.3g} hours for {run.training.steps:,} steps"))
    return rows


def gib(num_bytes: int | float) -> str:
    return f"{num_bytes / 2**30:.3g} GiB"


def _activation_bytes(model: ModelConfig, precision: str, recompute: bool) -> int:
    """Of one slice. Recomputed, every layer keeps the state that enters it, and one at a time has its activations; the
    first-slice decoder's are less than the usual model's, and a slice goes through one of the two."""
    if not recompute:
        return cost.activation_bytes(model, precision)
    layers = (*model.encoder_layers, *model.decoder_layers)

    def with_layers(encoder: LayerConfig, *decoder: LayerConfig) -> int:
        config = dataclasses.replace(model, encoder_layers=(encoder,), decoder_layers=decoder, first_slice_layers=())
        return cost.activation_bytes(config, precision)

    # A configuration has two layers at least, so the second is taken off again.
    largest = max(2 * with_layers(layer, layer) - with_layers(layer, layer, layer) for layer in layers)
    return largest + len(layers) * math.prod(model.slice_shape) * model.hidden_size * 4


def _gathered(network: nn.Module) -> list[int]:
    """Parameters of the two largest layers, and of all that is in no layer."""
    layers = sorted(cost.num_parameters(module) for module in network.modules() if isinstance(module, Layer))
    return [*layers[-2:], cost.num_parameters(network) - sum(layers)]


def _noise(model: ModelConfig, size: int) -> Batch:
    generator = torch.Generator().manual_seed(0)
    shape = (size, *model.video_shape, model.num_channels)
    video = torch.randint(0, 2**model.bits, shape, generator=generator, dtype=torch.uint8)
    slices = torch.from_numpy(drawn_slices(model))[torch.arange(size) % len(drawn_slices(model))]
    actions = torch.zeros(size, model.video_shape[0], model.action_size) if model.action_size else None
    return Batch(video, slices, actions)
