"""What to do with logits: a chooser takes the logits of one code of some pixels, and where they are, and returns codes.

The sampler knows nothing else of a choice, so whatever maps logits to codes fits in: `draw`, `greedy`, `keep`, or, say,
an arithmetic decoder that reads its codes from a file.

B samples · n pixels · V values of a code · K codes of a pixel
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from framecast.errors import UserError

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int, UInt8
    from torch import Tensor

TEMPERATURE = 0.9
"""The paper's."""


@dataclass(frozen=True)
class Where:
    """Which code of which pixels of which samples. A pixel is counted in the video: (frame · H + row) · W + column."""

    samples: Int[Tensor, "B"]
    pixels: Int[Tensor, "n"]
    code: int
    gumbel: Callable[[], Tensor]
    """Gumbel noise for each value, (n, B, V): a function of the sampling's seed and of where this is, of nothing else.
    Only who calls it pays for it."""


Chooser = Callable[[torch.Tensor, Where], torch.Tensor]
"""Logits (n, B, V) and where they are, to codes (n, B)."""


def draw(temperature: int | float = TEMPERATURE, top_k: int | None = None, top_p: float | None = None) -> Chooser:
    """Draw from the softmax of logits ÷ temperature, of the k likeliest values, or of the fewest that make up p.

    Temperature 0 is the limit: the likeliest value.
    """
    if not 0 <= temperature < math.inf:
        raise UserError(f"temperature is {temperature}: it must be 0 (the likeliest value always) or above.")
    if top_k is not None and top_k < 1:
        raise UserError(f"top_k is {top_k}: at least 1 value must remain.")
    if top_p is not None and not 0 < top_p <= 1:
        raise UserError(f"top_p is {top_p}: it must be above 0 and at most 1.")
    if temperature == 0:
        return greedy

    def choose(logits: Float[Tensor, "n B V"], where: Where) -> Int[Tensor, "n B"]:
        if top_k is not None and top_k < logits.shape[-1]:
            logits = _likeliest(logits, top_k)
        if top_p is not None:
            logits = _nucleus(logits, temperature, top_p)
        # The largest of logits ÷ temperature + noise, in one operation.
        return torch.add(logits, where.gumbel(), alpha=temperature).argmax(-1)

    return choose


def greedy(logits: Float[Tensor, "n B V"], where: Where) -> Int[Tensor, "n B"]:
    """The likeliest value."""
    return logits.argmax(-1)


def keep(codes: UInt8[Tensor, "B pixels K"], known: Bool[Tensor, "B pixels"], otherwise: Chooser) -> Chooser:
    """The codes of known pixels, by their number in the video, as they are; the others as another chooser does."""

    def choose(logits: Float[Tensor, "n B V"], where: Where) -> Int[Tensor, "n B"]:
        here = codes[:, where.pixels, where.code].T.long()
        return torch.where(known[:, where.pixels].T, here, otherwise(logits, where))

    return choose


def _likeliest(logits: Float[Tensor, "n B V"], k: int) -> Float[Tensor, "n B V"]:
    """Only the k largest, and what equals the smallest of them."""
    smallest = logits.topk(k, dim=-1).values[..., -1:]
    return logits.masked_fill(logits < smallest, -math.inf)


def _nucleus(logits: Float[Tensor, "n B V"], temperature: int | float, p: float) -> Float[Tensor, "n B V"]:
    """Only the fewest, likeliest first, whose probabilities reach p."""
    ordered, order = logits.sort(dim=-1, descending=True, stable=True)
    probabilities = torch.softmax(ordered / temperature, dim=-1)
    beyond = probabilities.cumsum(-1) - probabilities >= p
    return logits.masked_fill(beyond.scatter(-1, order, beyond), -math.inf)
