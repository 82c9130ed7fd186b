"""What a model, its data, its training and its evaluation are: frozen dataclasses that refuse nonsense at birth.

They go to JSON and come back strictly: a missing, unknown or mistyped field is refused with its name.
"""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from framecast.errors import UserError

Triple = tuple[int, int, int]  # along time, height, width
AXES = ("time", "height", "width")
MAX_SIZE = 1 << 20
"""Of anything that is counted in a configuration, which may come from anywhere: checking it must not take for ever."""
MAX_LAYERS = 1024
MAX_POSITIONS = 1 << 20
"""Of a slice, and under a kernel."""


@dataclass(frozen=True)
class LayerConfig:
    """One block-local self-attention layer: its block (t, h, w), its heads, and whether it is the dilated dual."""

    block: Triple
    num_heads: int = 8
    dilated: bool = False

    def __post_init__(self) -> None:
        _check_types(self)
        _sizes("block", self.block)
        _sizes("num_heads", self.num_heads)


@dataclass(frozen=True)
class ModelConfig:
    """The Video Transformer. Letters as in the paper: s subscale factor, k context kernel, d hidden, d_e embedding."""

    video_shape: Triple
    subscale_factor: Triple
    encoder_layers: tuple[LayerConfig, ...]
    decoder_layers: tuple[LayerConfig, ...]
    first_slice_layers: tuple[LayerConfig, ...] = ()  # of a decoder for slice (0,0,0) alone (Kinetics)
    context_kernel: Triple | None = None  # k; defaults to s
    masked_kernel: Triple = (3, 3, 3)
    num_channels: int = 3
    code_bits: tuple[int, ...] = (4, 4)  # of one channel, coarse to fine
    embedding_size: int = 128
    hidden_size: int = 512
    head_size: int = 128
    output: Literal["codes", "scalar"] = "codes"
    inputs: Literal["onehot", "continuous"] = "onehot"
    gate: bool = False  # the attention matrix times 1 − I
    prime_frames: int = 1  # frames at the start that training never scores
    action_size: int = 0
    actions: Literal["frame", "window"] = "frame"
    action_mean: tuple[float, ...] = ()  # of the training split; people pass raw actions
    action_deviation: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        _check_types(self)
        if self.context_kernel is None:
            object.__setattr__(self, "context_kernel", self.subscale_factor)
        for name in ("video_shape", "subscale_factor", "context_kernel", "masked_kernel"):
            _sizes(name, getattr(self, name))
        for name in ("embedding_size", "hidden_size", "head_size"):
            _sizes(name, getattr(self, name))
        for name in ("context_kernel", "masked_kernel", "slice_shape"):
            if (num_positions := math.prod(getattr(self, name))) > MAX_POSITIONS:
                raise UserError(
                    f"{name} {getattr(self, name)} has {num_positions} positions, more than {MAX_POSITIONS}."
                )
        self._check_pixels()
        self._check_subscaling()
        self._check_layers()
        self._check_actions()

    @property
    def kernel(self) -> Triple:
        """The context kernel k, resolved."""
        assert self.context_kernel is not None, "resolved at birth"
        return self.context_kernel

    @property
    def slice_shape(self) -> Triple:
        """(T/s_t, H/s_h, W/s_w)"""
        return _map(lambda extent, factor: extent // factor, self.video_shape, self.subscale_factor)

    @property
    def num_slices(self) -> int:
        return math.prod(self.subscale_factor)

    @property
    def bits(self) -> int:
        """Bits of one channel of a pixel."""
        return sum(self.code_bits)

    @property
    def num_code_values(self) -> tuple[int, ...]:
        """How many values each code of a pixel can take, in the order in which codes are predicted."""
        return tuple(2**bits for bits in self.code_bits for _ in range(self.num_channels))

    @property
    def overlap(self) -> int:
        """Frames that chained windows share when a video is longer than the model (docs/paper.md)."""
        num_frames = self.video_shape[0]
        if self.slice_shape[0] == 1:
            return num_frames - 1
        if self.subscale_factor[0] == 1:
            return 1
        return max(self.prime_frames, 1)

    @property
    def action_window(self) -> int:
        """How many action vectors a frame is given: its own, or those that lead up to it."""
        if self.actions == "frame":
            return 1
        return max(self.kernel[0] // 2, 1) if self.slice_shape[0] == 1 else self.subscale_factor[0]

    def _check_pixels(self) -> None:
        if self.num_channels not in (1, 3):
            raise UserError(f"num_channels is {self.num_channels}: videos are grey (1) or colour (3).")
        _positive("code_bits", self.code_bits)
        if not 1 <= self.bits <= 8:
            raise UserError(f"code_bits {self.code_bits} make {self.bits} bits a channel: 1 to 8 are possible.")
        if self.output == "scalar" and self.num_channels != 1:
            raise UserError(f"the scalar output predicts a grey intensity: num_channels is {self.num_channels}, not 1.")
        if not 0 <= self.prime_frames < self.video_shape[0]:
            raise UserError(
                f"prime_frames is {self.prime_frames}: of {self.video_shape[0]} frames, one must be predicted."
            )

    def _check_subscaling(self) -> None:
        for axis, extent, factor in zip(AXES, self.video_shape, self.subscale_factor, strict=True):
            if extent % factor:
                fits = [n for n in range(1, extent + 1) if extent % n == 0]
                raise UserError(
                    f"subscale factor {self.subscale_factor} does not divide a {self.video_shape} video: "
                    f"{axis} {extent} is no multiple of {factor}. Factors that fit: {_listed(fits)}."
                )
        for axis, size in zip(AXES, self.masked_kernel, strict=True):
            if size % 2 == 0:
                raise UserError(f"masked kernel {self.masked_kernel} has no centre: its {axis} {size} must be odd.")
        if self.num_slices > 1 and not self._reaches_an_earlier_slice():
            raise UserError(
                f"context kernel {self.kernel} never reaches a pixel of an earlier slice when the subscale factor is "
                f"{self.subscale_factor}: along an axis that is subscaled it must be at least 2 long."
            )

    def _reaches_an_earlier_slice(self) -> bool:
        """Each tap lies ⌊k/2⌋ before to k − 1 − ⌊k/2⌋ after the slice's own pixel; one step back along a subscaled axis
        is an earlier slice for every offset but 0, and one step forward wraps to offset 0 of the next cell."""
        return any(factor > 1 and size > 1 for factor, size in zip(self.subscale_factor, self.kernel, strict=True))

    def _check_layers(self) -> None:
        if not self.encoder_layers or not self.decoder_layers:
            raise UserError("encoder_layers and decoder_layers must each hold at least one layer.")
        for name in ("encoder_layers", "decoder_layers", "first_slice_layers"):
            if (num_layers := len(getattr(self, name))) > MAX_LAYERS:
                raise UserError(f"{name} holds {num_layers} layers: at most {MAX_LAYERS} are possible.")
        for layer in (*self.encoder_layers, *self.decoder_layers, *self.first_slice_layers):
            check_tiles(layer.block, self.slice_shape)
            if (width := layer.num_heads * self.head_size) > MAX_SIZE:
                raise UserError(
                    f"{layer.num_heads} heads of {self.head_size} are {width} wide: at most {MAX_SIZE} is possible."
                )

    def _check_actions(self) -> None:
        if not 0 <= self.action_size <= MAX_SIZE:
            raise UserError(
                f"action_size is {self.action_size}: it counts the numbers of one action, from 0 (none) to {MAX_SIZE}."
            )
        for name in ("action_mean", "action_deviation"):
            values = getattr(self, name)
            if values and len(values) != self.action_size:
                raise UserError(f"{name} has {len(values)} numbers, action_size is {self.action_size}.")
            if not all(map(math.isfinite, values)):
                raise UserError(f"{name} {values} must be finite.")
        if any(deviation <= 0 for deviation in self.action_deviation):
            raise UserError(f"action_deviation {self.action_deviation} must be above 0.")


def check_tiles(block: Triple, extent: Triple) -> None:
    """Refuse a block that does not tile a volume, naming the sizes that would."""
    for axis, whole, part in zip(AXES, extent, block, strict=True):
        if whole % part:
            fits = [n for n in range(1, whole + 1) if whole % n == 0]
            raise UserError(
                f"block {block} does not tile a {extent} slice: {axis} {whole} is no multiple of {part}. "
                f"Sizes that fit: {_listed(fits)}."
            )


@dataclass(frozen=True)
class DataConfig:
    """What a model is trained on: `dataset` as `framecast prepare` names it, and the frames of each clip that count."""

    dataset: str
    clip_frames: int | None = None  # only the first so many; None for all

    def __post_init__(self) -> None:
        _check_types(self)
        if self.clip_frames is not None:
            _positive("clip_frames", self.clip_frames)


@dataclass(frozen=True)
class TrainingConfig:
    """How a model is trained. The defaults are the paper's."""

    steps: int = 300_000
    batch_size: int = 64  # slices
    recipe: Literal["paper", "adam", "modern"] = "paper"
    learning_rate: float = 2e-5
    precision: Literal["fp32", "bf16"] = "fp32"
    checkpoint_every: int = 1_000
    keep: int = 3  # checkpoints, besides the best
    validation_batches: int = 8  # that score each checkpoint, where the data has a validation split
    seed: int = 0
    micro_batch: int | None = None  # slices that a device works on at a time; None for all of its share
    parallel: Literal["replicate", "shard"] = "replicate"  # the weights, over the processes of a job
    recompute: bool = False  # activations in the backward pass, instead of keeping them

    def __post_init__(self) -> None:
        _check_types(self)
        for name in ("steps", "batch_size", "learning_rate", "checkpoint_every", "keep"):
            _positive(name, getattr(self, name))
        if self.micro_batch is not None:
            _positive("micro_batch", self.micro_batch)
        if self.validation_batches < 0:
            raise UserError(f"validation_batches is {self.validation_batches}: it must be 0 (none) or more.")


@dataclass(frozen=True)
class EvaluationConfig:
    """What each metric primes with and covers."""

    prime_frames_likelihood: int = 1
    prime_frames_samples: int = 1  # FVD, PSNR and SSIM
    num_frames_likelihood: int = 16
    num_frames_samples: int = 30
    temperature: float = 0.9
    trials: int = 20

    def __post_init__(self) -> None:
        _check_types(self)
        for kind in ("likelihood", "samples"):
            prime, total = getattr(self, f"prime_frames_{kind}"), getattr(self, f"num_frames_{kind}")
            if not 0 <= prime < total:
                raise UserError(f"prime_frames_{kind} is {prime}: of {total} frames, one must be predicted.")
        _positive("temperature", self.temperature)
        _positive("trials", self.trials)


@dataclass(frozen=True)
class PaperFigures:
    """What the paper reports of a row; pairs are (mean, standard deviation)."""

    bits_per_dim: float | None = None
    bits_per_dim_novel_objects: float | None = None
    fvd: tuple[float, float] | None = None
    fvd_unrolled: tuple[float, float] | None = None
    fvd_unrolled_at_temperature_1: tuple[float, float] | None = None
    nats_per_frame: float | None = None


@dataclass(frozen=True)
class RunConfig:
    """An experiment: the model, its data, how it is trained and scored, and what the paper says came out."""

    model: ModelConfig
    data: DataConfig
    training: TrainingConfig = field(default_factory=TrainingConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    paper: PaperFigures = field(default_factory=PaperFigures)
    name: str = ""  # of the preset that it began as


# Strict JSON. Every configuration is dataclasses, tuples, literals, numbers, strings and None; nothing else is read.

Config = TypeVar("Config")


def to_json(config: Any) -> Any:
    """A configuration as what `json.dumps` takes."""
    if dataclasses.is_dataclass(config):
        return {item.name: to_json(getattr(config, item.name)) for item in dataclasses.fields(config)}
    if isinstance(config, (tuple, list)):
        return [to_json(value) for value in config]
    return config


def from_json(kind: type[Config], data: Any, where: str = "config") -> Config:
    """The configuration that `to_json` wrote: every field there, none besides, each of its type."""
    if not isinstance(data, dict):
        raise UserError(f"{where} must be an object, not {_shown(data)}.")
    hints = typing.get_type_hints(kind)
    names = [item.name for item in dataclasses.fields(kind)]  # type: ignore[arg-type]
    if unknown := sorted(set(data) - set(names)):
        known = ", ".join(names)
        raise UserError(f"{where} has a field {unknown[0]!r} that {kind.__name__} does not know. It has: {known}.")
    if missing := [name for name in names if name not in data]:
        raise UserError(f"{where} lacks the field {missing[0]!r} of {kind.__name__}.")
    return kind(**{name: _value(hints[name], data[name], f"{where}.{name}") for name in names})


def _value(hint: Any, data: Any, where: str) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint):
        return from_json(typing.cast(type, hint), data, where)
    if origin is Literal:
        if data in arguments and isinstance(data, str):
            return data
        raise UserError(f"{where} is {_shown(data)}: it must be one of {', '.join(map(repr, arguments))}.")
    if type(None) in arguments:  # X | None
        return None if data is None else _value(arguments[0], data, where)
    if origin is tuple:
        if not isinstance(data, list):
            raise UserError(f"{where} must be a list, not {_shown(data)}.")
        kinds = arguments[:1] * len(data) if arguments[-1] is Ellipsis else arguments
        if len(kinds) != len(data):
            raise UserError(f"{where} must hold {len(kinds)} values, not {len(data)}.")
        pairs = zip(kinds, data, strict=True)
        return tuple(_value(kind, value, f"{where}[{i}]") for i, (kind, value) in enumerate(pairs))
    if hint is float and type(data) is int:
        return float(data)
    if type(data) is not hint:  # exact: True is no number here
        raise UserError(f"{where} must be of type {hint.__name__}, not {_shown(data)}.")
    return data


def _check_types(config: Any) -> None:
    """Lists become tuples and whole numbers floats where the field says so; every other type is refused."""
    hints = typing.get_type_hints(type(config))
    for item in dataclasses.fields(config):
        value = _value(hints[item.name], to_json(getattr(config, item.name)), item.name)
        object.__setattr__(config, item.name, value)


def _positive(name: str, value: int | float | tuple[int, ...]) -> None:
    values = value if isinstance(value, tuple) else (value,)
    if not values or not all(number > 0 and math.isfinite(number) for number in values):
        raise UserError(f"{name} is {value}: it must be above 0.")


def _sizes(name: str, value: int | tuple[int, ...]) -> None:
    _positive(name, value)
    if max(value if isinstance(value, tuple) else (value,)) > MAX_SIZE:
        raise UserError(f"{name} is {value}: at most {MAX_SIZE} is possible.")


def _map(function: Callable[[int, int], int], first: Triple, second: Triple) -> Triple:
    return function(first[0], second[0]), function(first[1], second[1]), function(first[2], second[2])


def _listed(values: list[int]) -> str:
    return ", ".join(map(str, values))


def _shown(data: Any) -> str:
    text = repr(data)
    return text if len(text) <= 40 else f"{text[:37]}..."
