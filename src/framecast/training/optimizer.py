"""What a gradient does to the weights: the paper's RMSProp, the Adam it compares, and a modern recipe (§4).

g gradient · w weight · s average of g² · m momentum. Every rule works on whole lists of tensors at once, and on each
rank's own part of a sharded tensor; what it keeps is named after its weight, so that a checkpoint is one flat table.

Where the paper's RMSProp differs from `torch.optim.RMSprop`: the average of squares begins at one rather than zero, so
that the first few hundred steps are short; ε stands inside the root; and the rate stands inside the momentum, so that a
change of the rate does not reach back into steps already taken.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate

from framecast.config import TrainingConfig

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

LEARNING_RATES = {"paper": 2e-5, "adam": 2e-4, "modern": 1e-3}
"""Adam's is the paper's rate divided by 1 − momentum: steps of the same length where gradients keep their sign."""

Weights = dict[str, nn.Parameter]


class RMSProp:
    """s ← 0.95 s + 0.05 g², m ← 0.9 m + lr · g/√(s + 1e-10), w ← w − m, with s₀ = 1 and m₀ = 0."""

    def __init__(self, weights: Weights) -> None:
        self.weights = weights
        self.squares = {name: torch.ones_like(weight) for name, weight in weights.items()}
        self.momenta = {name: torch.zeros_like(weight) for name, weight in weights.items()}

    def tensors(self) -> dict[str, Tensor]:
        return _named("squares", self.squares) | _named("momenta", self.momenta)

    def update(self, rate: float, num_steps: int) -> None:
        w, g = _local(self.weights), _gradients(self.weights)
        s, m = _local(self.squares), _local(self.momenta)
        torch._foreach_mul_(s, 0.95)
        torch._foreach_addcmul_(s, g, g, 0.05)
        roots = torch._foreach_add(s, 1e-10)
        torch._foreach_sqrt_(roots)
        torch._foreach_mul_(m, 0.9)
        torch._foreach_addcdiv_(m, g, roots, rate)
        torch._foreach_sub_(w, m)


class Adam:
    """m ← β₁ m + (1 − β₁) g, s ← β₂ s + (1 − β₂) g², w ← w − lr · m̂/(√ŝ + ε), both corrected for starting at zero."""

    def __init__(self, weights: Weights, betas: tuple[float, float], epsilon: float) -> None:
        self.weights, self.betas, self.epsilon = weights, betas, epsilon
        self.momenta = {name: torch.zeros_like(weight) for name, weight in weights.items()}
        self.squares = {name: torch.zeros_like(weight) for name, weight in weights.items()}

    def tensors(self) -> dict[str, Tensor]:
        return _named("squares", self.squares) | _named("momenta", self.momenta)

    def update(self, rate: float, num_steps: int) -> None:
        w, g = _local(self.weights), _gradients(self.weights)
        m, s = _local(self.momenta), _local(self.squares)
        beta_1, beta_2 = self.betas
        torch._foreach_lerp_(m, g, 1 - beta_1)
        torch._foreach_mul_(s, beta_2)
        torch._foreach_addcmul_(s, g, g, 1 - beta_2)
        roots = torch._foreach_sqrt(s)
        torch._foreach_div_(roots, math.sqrt(1 - beta_2 ** (num_steps + 1)))
        torch._foreach_add_(roots, self.epsilon)
        torch._foreach_addcdiv_(w, m, roots, -rate / (1 - beta_1 ** (num_steps + 1)))


class Muon:
    """Momentum whose matrices are made orthogonal: m ← 0.95 m + g, w ← w − lr · √max(1, rows/columns) · UVᵀ, where
    UΣVᵀ = g + 0.95 m. Sharded matrices are put together for it, on every rank alike."""

    MOMENTUM = 0.95

    def __init__(self, weights: Weights, dtype: torch.dtype) -> None:
        self.weights, self.dtype = weights, dtype
        self.momenta = {name: torch.zeros_like(weight) for name, weight in weights.items()}

    def tensors(self) -> dict[str, Tensor]:
        return _named("momenta", self.momenta)

    def update(self, rate: float, num_steps: int) -> None:
        m, g = _local(self.momenta), _gradients(self.weights)
        torch._foreach_mul_(m, self.MOMENTUM)
        torch._foreach_add_(m, g)
        ahead = torch._foreach_add(g, m, alpha=self.MOMENTUM)
        by_shape: dict[torch.Size, list[tuple[nn.Parameter, Tensor]]] = {}
        for weight, direction in zip(self.weights.values(), ahead, strict=True):
            by_shape.setdefault(weight.shape, []).append((weight, _whole(direction, weight)))
        for (rows, columns), pairs in by_shape.items():
            length = rate * math.sqrt(max(1, rows / columns))
            for (weight, _), direction in zip(
                pairs, orthogonal(torch.stack([d for _, d in pairs]), self.dtype), strict=True
            ):
                _local_tensor(weight).sub_(_part(direction, weight), alpha=length)


def orthogonal(
    matrices: Float[Tensor, "n rows columns"], dtype: torch.dtype, iterations: int = 5
) -> Float[Tensor, "n rows columns"]:
    """Nearly UVᵀ of each UΣVᵀ, by a Newton–Schulz iteration of degree five whose coefficients take singular values
    quickly to the neighbourhood of one (0.7 to 1.2) rather than slowly to one."""
    x = matrices.to(dtype)
    if tall := x.shape[1] > x.shape[2]:
        x = x.mT
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-20)
    for _ in range(iterations):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return (x.mT if tall else x).to(matrices.dtype)


Rule = RMSProp | Adam | Muon


class Average:
    """A moving average of the weights, over about the last tenth of the steps and never more than the last thousand."""

    def __init__(self, weights: Weights) -> None:
        self.weights = weights
        self.average = {name: weight.detach().clone() for name, weight in weights.items()}

    def update(self, num_steps: int) -> None:
        decay = min(0.999, (1 + num_steps) / (10 + num_steps))
        torch._foreach_lerp_(_local(self.average), _local(self.weights), 1 - decay)


class Optimizer:
    """Rules for the parts of a model, the rate of each at each step, a bound on the gradient, and an average if any."""

    def __init__(
        self,
        rules: list[tuple[Rule, float]],
        schedule: Callable[[int], float],
        max_norm: float = math.inf,
        average: Average | None = None,
    ) -> None:
        self.rules, self.schedule, self.max_norm, self.average = rules, schedule, max_norm, average
        self.num_steps = 0  # taken so far

    @property
    def rate(self) -> float:
        """The share of its own rate that each rule takes in the step to come."""
        return self.schedule(self.num_steps)

    def tensors(self) -> dict[str, Tensor]:
        """Everything that is kept between steps but their number, by name."""
        tensors = {name: tensor for rule, _ in self.rules for name, tensor in rule.tensors().items()}
        return tensors | _named("average", self.average.average) if self.average else tensors

    @torch.no_grad()
    def update(self) -> None:
        """One step, by the gradients that the weights have now."""
        for rule, rate in self.rules:
            rule.update(rate * self.rate, self.num_steps)
        if self.average:
            self.average.update(self.num_steps)
        self.num_steps += 1

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Meanwhile the weights are their average, if there is one; afterwards what they were, to the last bit."""
        if not self.average:
            yield
            return
        weights, averages = _local(self.average.weights), _local(self.average.average)
        kept = [weight.detach().clone() for weight in weights]
        with torch.no_grad():
            torch._foreach_copy_(weights, averages)
        try:
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_(weights, kept)


def make(model: nn.Module, config: TrainingConfig) -> Optimizer:
    """The optimizer of a recipe."""
    weights = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    if config.recipe == "paper":
        return Optimizer([(RMSProp(weights), config.learning_rate)], lambda step: 1.0)
    if config.recipe == "adam":
        return Optimizer([(Adam(weights, (0.9, 0.999), 1e-8), config.learning_rate)], lambda step: 1.0)
    matrices = {name: weight for name, weight in weights.items() if _is_layer_matrix(name, weight)}
    others = {name: weight for name, weight in weights.items() if name not in matrices}
    dtype = torch.bfloat16 if config.precision == "bf16" else torch.float32
    return Optimizer(
        [(Muon(matrices, dtype), 20 * config.learning_rate), (Adam(others, (0.9, 0.95), 1e-10), config.learning_rate)],
        lambda step: modern_schedule(step, config.steps),
        max_norm=1.0,
        average=Average(weights),
    )


def modern_schedule(step: int, num_steps: int) -> float:
    """A hundred steps of warm-up (a tenth of a short run), flat until 40 % of the run, then a line down to 2 %."""
    warm_up = min(100, num_steps // 10)
    if step < warm_up:
        return (step + 1) / warm_up
    decayed = (step / num_steps - 0.4) / 0.6
    return max(0.02, 1 - 0.98 * max(0.0, decayed))


def gradient_norms(model: nn.Module) -> tuple[list[str], Float[Tensor, "n"]]:
    """The norm of each weight's whole gradient, also where a rank holds a part of it."""
    weights = {name: weight for name, weight in model.named_parameters() if weight.grad is not None}
    squares = torch.stack(torch._foreach_norm(_gradients(weights))).square()
    if any(isinstance(weight, DTensor) for weight in weights.values()):
        torch.distributed.all_reduce(squares)
    return list(weights), squares.sqrt()


def not_finite(tensors: dict[str, Tensor]) -> Bool[Tensor, "n"]:
    """Which of the tensors hold a NaN or an infinity, in the parts of them that this rank has."""
    return ~torch.stack(torch._foreach_norm(_local(tensors))).isfinite()


def scale_gradients(model: nn.Module, factor: float) -> None:
    gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
    torch._foreach_mul_([_local_tensor(gradient) for gradient in gradients], factor)


def _is_layer_matrix(name: str, weight: Tensor) -> bool:
    """The products inside attention and feed-forward layers: what is neither embedding, table, head nor norm."""
    return ".layers." in name and name.endswith(".weight") and weight.ndim == 2


def _named(kind: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"{kind}/{name}": tensor for name, tensor in tensors.items()}


def _local(tensors: dict[str, Tensor] | Weights) -> list[Tensor]:
    return [_local_tensor(tensor) for tensor in tensors.values()]


def _local_tensor(tensor: Tensor) -> Tensor:
    """The part of a sharded tensor that this rank holds."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _gradients(weights: Weights) -> list[Tensor]:
    gradients = []
    for name, weight in weights.items():
        assert weight.grad is not None, f"{name} took no part in the step"
        gradients.append(_local_tensor(weight.grad))
    return gradients


def _whole(part: Tensor, like: Tensor) -> Tensor:
    """The tensor of which each rank holds a part, laid out as `like` is."""
    if not isinstance(like, DTensor):
        return part
    sharded = DTensor.from_local(
        part, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )
    return sharded.full_tensor()


def _part(whole: Tensor, like: Tensor) -> Tensor:
    """This rank's part of a tensor that every rank has whole."""
    if not isinstance(like, DTensor):
        return whole
    replicated = DTensor.from_local(whole, like.device_mesh, [Replicate()] * like.device_mesh.ndim, run_check=False)
    return replicated.redistribute(placements=like.placements).to_local()
