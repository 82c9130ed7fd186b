"""One step of training: the loss of a batch of slices, its gradient, and the update (§4).

B batch · T H W C a video · t h w extents of a slice · K codes of a pixel
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from framecast.config import ModelConfig
from framecast.data.batches import Batch
from framecast.errors import UserError
from framecast.ops import subscale
from framecast.training import distributed
from framecast.training.optimizer import Optimizer, gradient_norms, not_finite, scale_gradients

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int


@dataclass(frozen=True)
class Result:
    """What a step did: nats a value (a channel of a pixel), the gradient's norm before any bound, the rate's share."""

    loss: float
    gradient_norm: float
    rate: float

    def score(self, config: ModelConfig) -> dict[str, float]:
        return score(self.loss, config)


def score(loss: float, config: ModelConfig) -> dict[str, float]:
    """The loss as it is reported: bits/dim, or nats/frame where the output is a scalar."""
    if config.output == "scalar":
        return {"nats_per_frame": loss * math.prod(config.video_shape[1:])}
    return {"bits_per_dim": loss / math.log(2)}


def step(
    model: nn.Module, optimizer: Optimizer, batch: Batch, *, micro_batch: int | None = None, precision: str = "fp32"
) -> Result:
    """Change the weights by the gradient of a batch's loss; nothing is changed when the loss, the gradient, a weight or
    what the optimizer keeps is not finite.

    The loss is the summed nats of the unmasked values of all processes' batches over their number, however the batch is
    cut: into micro-batches, or over processes. Gradients are averaged over processes, hence the factor.
    """
    config = distributed.bare(model).config
    num_values = distributed.total(count(batch.slice_index, config))
    nats = torch.zeros_like(num_values)
    model.zero_grad(set_to_none=True)
    parts = split(batch, micro_batch or len(batch.slice_index))
    for index, part in enumerate(parts):
        with distributed.exchange(model, now=index == len(parts) - 1):
            of_part = summed_nats(model, part, precision)
            (of_part * (distributed.num_processes() / num_values)).backward()
        nats += of_part.detach()
    names, norms = gradient_norms(model)
    # A weight that no pixel of this slice reads, or a square that became infinite, would not show in the loss.
    spoiled = not_finite(_weights(model) | _kept(optimizer)).sum().double()
    nats, spoiled = distributed.total(torch.stack([nats, spoiled]))
    loss, norm = nats / num_values, norms.double().square().sum().sqrt()
    in_nats, gradient_norm, num_spoiled = torch.stack([loss, norm, spoiled]).tolist()
    result = Result(in_nats, gradient_norm, optimizer.rate)
    if num_spoiled or not math.isfinite(result.loss) or not math.isfinite(result.gradient_norm):
        _refuse(result, model, optimizer, batch, dict(zip(names, norms, strict=True)))
    if result.gradient_norm > optimizer.max_norm:
        scale_gradients(model, optimizer.max_norm / result.gradient_norm)
    optimizer.update()
    return result


@torch.no_grad()
def mean_nats(model: nn.Module, batches: list[Batch], precision: str = "fp32") -> float:
    """The loss over several batches, nothing changed: what validation compares."""
    config = distributed.bare(model).config
    sums = [torch.stack([summed_nats(model, b, precision).double(), count(b.slice_index, config)]) for b in batches]
    nats, num_values = distributed.total(torch.stack(sums).sum(0)).tolist()
    return nats / num_values


def summed_nats(model: nn.Module, batch: Batch, precision: str) -> Float[Tensor, ""]:
    """The nats of all unmasked values of a batch of slices."""
    config = distributed.bare(model).config
    with torch.autocast(batch.video.device.type, dtype=torch.bfloat16, enabled=precision == "bf16"):
        nats = model(batch.video, batch.slice_index, batch.actions)
    scored = unmasked(batch.slice_index, config)
    # Selected, not multiplied: a primed frame's loss is not looked at, whatever it is.
    return torch.where(scored, nats.sum(dim=(2, 3, 4)), 0).sum()


def unmasked(slice_index: Int[Tensor, "B"], config: ModelConfig) -> Bool[Tensor, "B t"]:
    """The frames of each slice that are not primed."""
    s_t, num_frames = config.subscale_factor[0], config.slice_shape[0]
    offset, _, _ = subscale.offset_of(slice_index, config.subscale_factor)
    frames = offset[:, None] + s_t * torch.arange(num_frames, device=slice_index.device)
    return frames >= config.prime_frames


def count(slice_index: Int[Tensor, "B"], config: ModelConfig) -> Float[Tensor, ""]:
    """How many values of a batch of slices are scored."""
    values_a_frame = math.prod(config.slice_shape[1:]) * config.num_channels
    return unmasked(slice_index, config).sum().double() * values_a_frame


def split(batch: Batch, size: int) -> list[Batch]:
    """A batch in parts of at most so many slices."""
    videos, slices = batch.video.split(size), batch.slice_index.split(size)
    actions = [None] * len(videos) if batch.actions is None else batch.actions.split(size)
    return [Batch(*parts) for parts in zip(videos, slices, actions, strict=True)]


def check_finite(model: nn.Module, optimizer: Optimizer) -> None:
    """Refuse to keep what a run could not go on from."""
    if name := _first_not_finite(_weights(model) | _kept(optimizer)):
        raise UserError(
            f"step {optimizer.num_steps}: {name} is not finite after the update. Nothing was saved of it. "
            f"Resume from the last checkpoint with a lower learning rate or in fp32."
        )


def _refuse(
    result: Result, model: nn.Module, optimizer: Optimizer, batch: Batch, gradient_norms: dict[str, Tensor]
) -> None:
    """Stop the run rather than change a weight by what is no number, and name where it comes from."""
    actions = {} if batch.actions is None else {"what is given as actions": batch.actions}
    gradients = {f"the gradient of {name}": norm for name, norm in gradient_norms.items()}
    name = _first_not_finite(actions | _weights(model) | _kept(optimizer) | gradients)
    raise UserError(
        f"step {optimizer.num_steps + 1}: {name or 'a tensor that this process does not have'} is not finite; "
        f"the loss is {result.loss}. No weight was changed. "
        f"Resume from the last checkpoint with a lower learning rate or in fp32."
    )


def _weights(model: nn.Module) -> dict[str, Tensor]:
    return {f"the weight {name}": weight.detach() for name, weight in distributed.bare(model).named_parameters()}


def _kept(optimizer: Optimizer) -> dict[str, Tensor]:
    return {f"the optimizer's {name}": tensor for name, tensor in optimizer.tensors().items()}


def _first_not_finite(tensors: dict[str, Tensor]) -> str | None:
    broken = not_finite(tensors).tolist()
    return next((name for name, is_broken in zip(tensors, broken, strict=True) if is_broken), None)
