"""One step of a slice decoder with kept keys and values: the states of a wave of positions, from those before them.

A position's keys and values depend on earlier positions of its groups alone, which do not change; so each layer keeps
them, group by group in raster order, and a position reads the filled beginning of its group where it lies. Nothing is
gathered: a row of the wave is a position, its group a range of the kept ones.

n positions of a wave · B samples · P positions of a slice · D hidden · N heads · A head size · F features of a pixel
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from framecast.config import LayerConfig, ModelConfig
from framecast.model.decoder import SliceDecoder
from framecast.model.head import CodeHead, ScalarHead
from framecast.model.layer import Layer
from framecast.sampling import dependencies

if TYPE_CHECKING:
    from jaxtyping import Float, Int, UInt8

MAX_WIDTH = 64
"""Positions of a step: wider waves, which only given pixels make, are cut in raster order to keep memory small."""


@dataclass(frozen=True)
class Wave:
    positions: Int[Tensor, "n"]  # of the slice, in raster order
    taps: Int[Tensor, "n_taps"]  # positions that the masked convolution reads, P beyond the border
    drawn: Int[Tensor, "m"] | None  # which of them are not given; None for all
    num_drawn: int
    num_before: int  # how many are drawn in earlier waves
    slots: tuple[Int[Tensor, "n"], ...]  # per layer: where keys and values are kept
    filled: tuple[tuple[tuple[int, int], ...], ...]  # per layer and position: the slot of its group's start, its place


@dataclass(frozen=True)
class Schedule:
    waves: tuple[Wave, ...]
    drawn: Int[Tensor, "drawn"]  # all positions that are not given, in the order of the waves


@lru_cache(maxsize=8)
def schedule(
    config: ModelConfig,
    layers: tuple[LayerConfig, ...],
    given: tuple[bool, ...],
    raster: bool,
    device: torch.device,
) -> Schedule:
    """In what order a slice is computed when some pixels are given: in waves, or one position after the other."""
    num_positions = len(given)
    steps = list(range(num_positions)) if raster else dependencies.waves(config, layers, given)
    members: list[list[int]] = [[] for _ in range(max(steps) + 1)]
    for position, step in enumerate(steps):
        members[step].append(position)
    pieces = [wave[i : i + MAX_WIDTH] for wave in members for i in range(0, len(wave), MAX_WIDTH)]
    taps = dependencies.aligned_taps(config.slice_shape, config.masked_kernel)
    places = [_slots(config, layer) for layer in layers]
    waves, done = [], 0
    for piece in pieces:
        drawn = [i for i, position in enumerate(piece) if not given[position]]
        waves.append(
            Wave(
                positions=torch.tensor(piece, device=device),
                taps=torch.tensor([tap for position in piece for tap in taps[position]], device=device).long(),
                drawn=torch.tensor(drawn, device=device).long() if len(drawn) < len(piece) else None,
                num_drawn=len(drawn),
                num_before=done,
                slots=tuple(torch.tensor([sum(of_layer[i]) for i in piece], device=device) for of_layer in places),
                filled=tuple(tuple(of_layer[i] for i in piece) for of_layer in places),
            )
        )
        done += len(drawn)
    order = [position for piece in pieces for position in piece if not given[position]]
    return Schedule(tuple(waves), torch.tensor(order, device=device).long())


def _slots(config: ModelConfig, layer: LayerConfig) -> list[tuple[int, int]]:
    """For each position, the slot where its group begins, and its place in the group."""
    group_of, place_of = dependencies.numbered(config.slice_shape, layer)
    size = max(place_of) + 1
    return [(group * size, place) for group, place in zip(group_of, place_of, strict=True)]


class CachedDecoder:
    """A decoder for `batch` samples; `begin` a slice, then `step` through its schedule."""

    def __init__(self, decoder: SliceDecoder, batch: int, narrow: torch.dtype) -> None:
        weight = decoder.embedding.weight
        self.decoder, self.batch = decoder, batch
        self.wide = torch.promote_types(weight.dtype, torch.float32)
        self.num_positions = math.prod(decoder.positions().shape[:3])
        # The embedding and the masked convolution as one product with the taps' features.
        convolution = decoder.convolution.weight[: decoder.convolution.num_past_taps]
        taps = torch.einsum("ef,ked->dkf", weight.to(self.wide), convolution.to(self.wide)).flatten(1)
        self.taps = Product(taps, narrow) if decoder.convolution.num_past_taps else None
        self.features = weight.new_zeros(self.num_positions + 1, batch, weight.shape[1], dtype=narrow)
        self.layers = [CachedLayer(layer, batch, narrow) for layer in decoder.layers]

    def begin(self, base: Float[Tensor, "P B D"], features: Float[Tensor, "P B F"]) -> None:
        """A new slice: what the encoder says of each position, and the features of its given pixels, zero elsewhere."""
        self.base = base
        self.features[:-1] = features
        for layer in self.layers:
            layer.begin(self.num_positions)

    def end(self) -> None:
        """Give the memory of the slice back, which the encoder of the next one needs."""
        del self.base
        for layer in self.layers:
            layer.end()

    def know(self, positions: Int[Tensor, "n"], features: Float[Tensor, "n B F"]) -> None:
        """Pixels that have been drawn."""
        self.features.index_copy_(0, positions, features)

    def step(self, wave: Wave) -> Float[Tensor, "rows D"]:
        """y^L of a wave's positions; the rows are positions, then samples."""
        num_rows = len(wave.positions) * self.batch
        x = self.base.index_select(0, wave.positions).view(num_rows, -1)
        if self.taps is not None:
            seen = self.features.index_select(0, wave.taps)
            if self.batch > 1:  # each row's taps side by side
                seen = seen.unflatten(0, (len(wave.positions), -1)).transpose(1, 2)
            x = self.taps.added(seen.reshape(num_rows, -1), x)
        for layer, slots, filled in zip(self.layers, wave.slots, wave.filled, strict=True):
            x = layer.step(x, slots, filled)
        return x


class CachedLayer:
    def __init__(self, layer: nn.Module, batch: int, narrow: torch.dtype) -> None:
        assert isinstance(layer, Layer)
        attention = layer.attention
        self.weight = weight = attention.qkv.weight
        wide = torch.promote_types(weight.dtype, torch.float32)
        num_heads, head_size = attention.layer.num_heads, attention.head_size
        self.batch, self.num_rows, self.head_size = batch, batch * num_heads, head_size
        self.width, self.wide, self.gate = num_heads * head_size, wide, attention.gate
        self.attention_norm = Norm(layer.attention_norm, wide)
        self.feed_forward_norm = Norm(layer.feed_forward_norm, wide)
        q, k, v = weight.detach().chunk(3)
        self.qkv = Product(torch.cat([q / math.sqrt(head_size), k, v]), narrow)
        self.project = Product(attention.project.weight, narrow)
        up, down = (module.weight for module in layer.feed_forward if isinstance(module, nn.Linear))
        self.up, self.down = Product(up, narrow), Product(down, narrow)
        bias = attention.bias().detach().to(wide)
        self.bias = [bias[:, i : i + 1, : i + 1].repeat(batch, 1, 1) for i in range(bias.shape[-1])]

    def begin(self, num_positions: int) -> None:
        """Room for the keys and values of a slice, slot by slot: a wave's are written in one go, and the filled part of
        a group is a plain range."""
        room = torch.empty(2, num_positions, self.batch, self.width, dtype=self.wide, device=self.weight.device)
        self.keys, self.values = room
        by_head = room.view(2, num_positions, self.num_rows, self.head_size)
        self.keys_by_head, self.values_by_head = by_head[0].permute(1, 2, 0), by_head[1].transpose(0, 1)

    def end(self) -> None:
        del self.keys, self.values, self.keys_by_head, self.values_by_head

    def step(
        self, x: Float[Tensor, "rows D"], slots: Int[Tensor, "n"], filled: tuple[tuple[int, int], ...]
    ) -> Float[Tensor, "rows D"]:
        qkv = self.qkv(self.attention_norm(x)).to(self.wide)
        q, k, v = qkv.view(len(filled), self.batch, 3, self.width).unbind(2)
        self.keys.index_copy_(0, slots, k)
        self.values.index_copy_(0, slots, v)
        queries = q.reshape(len(filled), self.num_rows, 1, self.head_size).unbind(0)
        heads = [self._attend(q, start, place) for q, (start, place) in zip(queries, filled, strict=True)]
        attended = heads[0] if len(heads) == 1 else torch.cat(heads)
        x = self.project.added(attended.view(len(x), -1), x)
        return self.down.added(self.up.relu(self.feed_forward_norm(x)), x)

    def _attend(self, q: Float[Tensor, "BN 1 A"], start: int, place: int) -> Float[Tensor, "BN 1 A"]:
        """A position of the group that begins at `start` attends to those that lie up to its own place."""
        keys = self.keys_by_head.narrow(2, start, place + 1)
        weights = torch.softmax(torch.baddbmm(self.bias[place], q, keys), dim=-1)
        if self.gate:
            weights[..., place] = 0  # its own
        return torch.bmm(weights, self.values_by_head.narrow(1, start, place + 1))


class CachedCodeHead:
    """The code head, code by code: what layernorm(y) adds to all U_k is one product, what a code adds a look-up."""

    def __init__(self, head: CodeHead, batch: int, narrow: torch.dtype) -> None:
        wide = torch.promote_types(head.upper.dtype, torch.float32)
        self.wide, self.batch, self.num_codes = wide, batch, len(head.num_code_values)
        self.num_code_values = head.num_code_values
        self.norm = Norm(head.norm, wide)
        self.upper = Product(head.upper.detach().T, narrow)
        self.output = [head.output.weight.detach()[:count].to(wide) for count in head.num_code_values]
        # For each code but the last, a row for each of its values: what it adds to the U of every later code.
        starts = [sum(head.num_code_values[:code]) for code in range(self.num_codes)]
        self.given = [
            torch.cat([lower.detach()[start : start + count] for lower in head.lower[code:]], dim=1).to(wide)
            for code, (start, count) in enumerate(zip(starts[:-1], head.num_code_values[:-1], strict=True))
        ]

    def begin(self, y: Float[Tensor, "rows D"]) -> Float[Tensor, "rows KD"]:
        """What the codes of these pixels are predicted from, before any is known."""
        return self.upper(self.norm(y)).to(self.wide)

    def logits(self, u: Float[Tensor, "rows rest"], code: int) -> Float[Tensor, "n B V"]:
        """Of the first code in `u`."""
        size = u.shape[1] // (self.num_codes - code)
        logits = functional.linear(torch.relu(u[:, :size]), self.output[code])
        return logits.view(-1, self.batch, self.num_code_values[code])

    def know(self, u: Float[Tensor, "rows rest"], code: int, values: Int[Tensor, "rows"]) -> Float[Tensor, "rows less"]:
        """`u` of the codes after this one, of which the values are known now."""
        if code == self.num_codes - 1:
            return u
        size = u.shape[1] // (self.num_codes - code)
        return u[:, size:].add_(self.given[code].index_select(0, values))


class CachedScalarHead:
    def __init__(self, head: ScalarHead, narrow: torch.dtype) -> None:
        wide = torch.promote_types(head.output.weight.dtype, torch.float32)
        self.wide, self.maximum, self.norm = wide, head.maximum, Norm(head.norm, wide)
        self.hidden = Product(head.hidden.weight, narrow)
        self.output, self.bias = head.output.weight.detach().to(wide), head.output.bias.detach().to(wide)

    def pixels(self, y: Float[Tensor, "rows D"]) -> UInt8[Tensor, "rows 1"]:
        """The predicted intensities, as 8-bit values."""
        logit = functional.linear(self.hidden.relu(self.norm(y)).to(self.wide), self.output, self.bias)
        return torch.round(torch.sigmoid(logit) * self.maximum).to(torch.uint8)


class Norm:
    def __init__(self, norm: nn.LayerNorm, wide: torch.dtype) -> None:
        self.shape, self.eps = norm.normalized_shape, norm.eps
        self.weight, self.bias = norm.weight.detach().to(wide), norm.bias.detach().to(wide)

    def __call__(self, x: Float[Tensor, "rows D"]) -> Float[Tensor, "rows D"]:
        return torch.layer_norm(x, self.shape, self.weight, self.bias, self.eps)


class Product:
    """x Wᵀ for few rows. On a CPU oneDNN keeps W packed the way its kernels read it, which is two to five times as fast
    as a plain product here: there the weights' way from memory is all that counts."""

    def __init__(self, weight: Float[Tensor, "out D"], dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.weight = weight.detach().to(dtype)
        self.packed = _can_pack(self.weight)
        if self.packed:
            self.weight = torch.ops.mkldnn._reorder_linear_weight(self.weight.contiguous())

    def __call__(self, x: Float[Tensor, "rows D"]) -> Float[Tensor, "rows out"]:
        """In the products' precision."""
        x = x.to(self.dtype)
        if self.packed:
            return torch.ops.mkldnn._linear_pointwise(x, self.weight, None, "none", [], "")
        return functional.linear(x, self.weight)

    def relu(self, x: Float[Tensor, "rows D"]) -> Float[Tensor, "rows out"]:
        x = x.to(self.dtype)
        if self.packed:
            return torch.ops.mkldnn._linear_pointwise(x, self.weight, None, "relu", [], "")
        return torch.relu_(functional.linear(x, self.weight))

    def added(self, x: Float[Tensor, "rows D"], to: Float[Tensor, "rows out"]) -> Float[Tensor, "rows out"]:
        """Plus `to`, in its precision."""
        if self.packed and self.dtype == to.dtype:
            return torch.ops.mkldnn._linear_pointwise.binary(x, to, self.weight, None, "add")
        return to + self(x)


def _can_pack(weight: Tensor) -> bool:
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    if weight.dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return weight.dtype == torch.float32
