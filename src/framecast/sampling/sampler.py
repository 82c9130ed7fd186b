"""Drawing videos: slice by slice, each encoded once, its pixels in waves from kept keys and values; the same videos as
`reference.sample` draws, thousands of times faster.

A pixel is conditioned on what comes before it in the order of slices, and within its slice in raster order, as far as
the model connects them. So is a known pixel seen: by the pixels of its own slice behind it and by later slices, never
by earlier ones.

B samples · F frames of the video · P given frames · H W C a frame · A numbers of an action · K codes of a pixel
p positions of a slice · D hidden size
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from framecast.errors import UserError
from framecast.model.head import ScalarHead
from framecast.ops import channels, subscale
from framecast.ops.precision import product_dtype
from framecast.ops.windows import Window, windows
from framecast.sampling import noise
from framecast.sampling.choose import TEMPERATURE, Chooser, Where, draw, keep
from framecast.sampling.decoder_step import CachedCodeHead, CachedDecoder, CachedScalarHead, Schedule, Wave, schedule

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int, Shaped, UInt8

    from framecast.model.decoder import SliceDecoder
    from framecast.model.video_transformer import VideoTransformer

ENCODED_AT_ONCE = 4
"""Videos that the encoder reads together: more take memory and are no faster on a CPU."""


@dataclass(frozen=True)
class Progress:
    """Where a sampling stands after a wave."""

    slice: int  # the one under way, of those that hold anything to draw
    num_slices: int
    wave: int  # how many waves of this slice are done
    num_waves: int
    seconds: float  # of computing so far
    seconds_left: float  # if slices and waves to come take what those behind us took
    new_frames: tuple[int, ...]  # those that this wave completed
    video: Callable[[], Tensor] = field(repr=False)
    """The videos so far, (B, F, H, W, C); what is not drawn yet is zero."""


def sample(
    model: VideoTransformer,
    prime: UInt8[Tensor, "_ P H W C"] | np.ndarray,
    num_frames: int | None = None,
    *,
    temperature: int | float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    actions: Float[Tensor, "_ F A"] | np.ndarray | None = None,
    samples: Int[Tensor, "_"] | np.ndarray | None = None,
    known: Bool[Tensor, "_ P H W"] | np.ndarray | None = None,
    choose: Chooser | None = None,
    progress: Callable[[Progress], object] | None = None,
) -> UInt8[Tensor, "B F H W C"]:
    """Continue videos: `prime` and what the model draws after it, `num_frames` in all (by default the model's length).

    A video is a function of the model, its prime, its actions, `seed` and its number in `samples` (by default its place
    in the batch), never of the batch around it. Of `prime`, `actions` and `samples`, one entry stands for as many as
    the others have: many actions with one prime are a planner's question.

    Args:
        prime: the frames at the start, uint8; there may be none.
        temperature: 0.9 by default; 0 takes the likeliest value always.
        top_k: draw among the k likeliest values of a code.
        top_p: draw among the fewest values of a code that make up this probability.
        known: which pixels of `prime` are given (default: all); the others are drawn, whatever stands there. A given
            pixel is kept, and seen by the pixels behind it in its slice and by later slices, not by earlier ones.
        choose: what maps logits to codes, instead of drawing with a temperature (`framecast.sampling.choose`).
        progress: called after every wave; when it returns true, sampling stops and what is done comes back, zero
            elsewhere.
    """
    chooser = _chooser(model, temperature, top_k, top_p, choose)
    drawing = Drawing(model, prime, num_frames, chooser, seed, actions, samples, known)
    for state in drawing:
        if progress is not None and progress(state):
            return state.video()
    return drawing.video


def frames(
    model: VideoTransformer,
    prime: UInt8[Tensor, "_ P H W C"] | np.ndarray,
    num_frames: int | None = None,
    *,
    temperature: int | float | None = None,
    seed: int = 0,
    actions: Float[Tensor, "_ F A"] | np.ndarray | Iterable[Tensor] | None = None,
    samples: Int[Tensor, "_"] | np.ndarray | None = None,
    choose: Chooser | None = None,
) -> Iterator[tuple[int, UInt8[Tensor, "B H W C"]]]:
    """Each frame's number and the frame, as soon as it is complete, those of the prime first.

    A single-frame model hands them out one after the other, and may take its actions as they come: an iterator of
    (B, A) tensors, of which only those are taken that the next frame needs; where it ends, so does the video. A model
    that subscales time draws frames together, and hands them out out of order.
    """
    chooser = _chooser(model, temperature, None, None, choose)
    drawing = Drawing(model, prime, num_frames, chooser, seed, actions, samples, None)
    return _handed_out(drawing)


def _handed_out(drawing: Drawing) -> Iterator[tuple[int, Tensor]]:
    for number in drawing.given.flatten(1).all(1).nonzero().flatten().tolist():
        yield number, drawing.video[:, number].clone()
    for state in drawing:
        for number in state.new_frames:
            yield number, drawing.video[:, number].clone()


def _chooser(
    model: VideoTransformer,
    temperature: int | float | None,
    top_k: int | None,
    top_p: float | None,
    choose: Chooser | None,
) -> Chooser:
    settings = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    given = [name for name, value in settings.items() if value is not None]
    if isinstance(model.head, ScalarHead):
        if given or choose is not None:
            raise UserError(
                f"a model with a scalar output predicts one intensity a pixel and draws nothing: {given or ['choose']} "
                "has no meaning there. Leave it out."
            )
        return draw()
    if choose is not None:
        if given:
            raise UserError(f"{given[0]} belongs to drawing, and choose= takes its place: give one of them.")
        return choose
    return draw(TEMPERATURE if temperature is None else temperature, top_k, top_p)


class Drawing:
    """A sampling: iterate over it to let it go on, stop to stop it. `video` holds the slices that are finished."""

    def __init__(
        self,
        model: VideoTransformer,
        prime: Tensor | np.ndarray,
        num_frames: int | None,
        choose: Chooser,
        seed: int = 0,
        actions: Tensor | np.ndarray | Iterable[Tensor] | None = None,
        samples: Tensor | np.ndarray | None = None,
        known: Tensor | np.ndarray | None = None,
        *,
        raster: bool = False,
    ) -> None:
        """With `raster`, a wave is one position, in raster order."""
        config, weight = model.config, model.decoder.embedding.weight
        self.model, self.seed, self.device = model, seed, weight.device
        # The precision of the products where the sampling is begun, wherever it is continued.
        self.narrow, self.autocast = product_dtype(weight), torch.is_autocast_enabled(weight.device.type)
        prime = _tensor(prime)
        if prime.ndim != 5:
            raise UserError(f"prime must have the shape (batch, frames, H, W, C), this one has {tuple(prime.shape)}.")
        num_frames = max(config.video_shape[0], prime.shape[1]) if num_frames is None else num_frames
        if prime.shape[1] > num_frames:
            raise UserError(f"prime has {prime.shape[1]} frames, the whole video only {num_frames}: prime with fewer.")
        self.action_stream = None if actions is None or isinstance(actions, (Tensor, np.ndarray)) else iter(actions)
        given_actions = _tensor(actions) if isinstance(actions, (Tensor, np.ndarray)) else None
        self.samples = _samples(samples, prime, given_actions).to(self.device)
        video = prime.new_zeros(len(self.samples), num_frames, *prime.shape[2:])
        video[:, : prime.shape[1]] = prime
        self.actions = self._checked_actions(video, given_actions)
        known = _known(known, prime, video).to(self.device)
        # What is not known is zero until it is drawn: nothing that a caller left there can be seen.
        self.video = torch.where(known[..., None], video.to(self.device), 0)
        self.known, self.given = known, known.all(0)
        self.choose = choose
        if not torch.equal(self.given, known.any(0)):  # some keep a pixel that others draw
            codes = channels.split(self.video, config.code_bits)
            self.choose = keep(codes.flatten(1, 3), known.flatten(1), choose)
        self.plans = list(_plan(model, self.given, raster))
        self.num_actions = 0  # that have come
        self.head = _cached_head(model, len(self.samples), self.narrow)
        self.decoder: CachedDecoder | None = None

    def __iter__(self) -> Iterator[Progress]:
        complete = self.given.flatten(1).all(1)
        waves_left = sum(len(plan.schedule.waves) for plan in self.plans)
        preparing = drawing = 0.0  # seconds
        waves_done = 0
        for number, plan in enumerate(self.plans):
            if not self._actions_have_come(plan):
                return
            start = time.perf_counter()
            under_way = SliceDrawing(self, plan)
            preparing += time.perf_counter() - start
            a_slice, slices_left = preparing / (number + 1), len(self.plans) - number - 1
            num_waves = len(plan.schedule.waves)
            for i, wave in enumerate(plan.schedule.waves, 1):
                start = time.perf_counter()
                under_way.draw(wave)
                drawing += time.perf_counter() - start
                waves_done, waves_left = waves_done + 1, waves_left - 1
                new: list[int] = []
                if i == num_waves:
                    under_way.finish()
                    before, complete = complete, self.given.flatten(1).all(1)
                    new = (complete & ~before).nonzero().flatten().tolist()
                left = drawing / waves_done * waves_left + a_slice * slices_left
                yield Progress(
                    number, len(self.plans), i, num_waves, preparing + drawing, left, tuple(new), under_way.video
                )

    def decoder_for(self, plan: SlicePlan) -> CachedDecoder:
        """The kept decoder of a slice's kind; of two, only the one in use has its memory."""
        decoder = plan.decoder
        if self.decoder is None or self.decoder.decoder is not decoder:
            self.decoder = None
            self.decoder = CachedDecoder(decoder, len(self.samples), self.narrow)
        return self.decoder

    def _checked_actions(self, video: Tensor, actions: Tensor | None) -> Tensor | None:
        """The actions of every sample and frame; those that come later stand as zeros."""
        config = self.model.config
        if self.action_stream is not None:
            expected = (*video.shape[:2], config.action_size)
            if config.action_size and config.slice_shape[0] > 1:
                raise UserError(
                    f"this model draws {config.slice_shape[0]} frames together, so it needs all actions at the start, "
                    f"of shape {expected}: only single-frame models take them as they come."
                )
            actions = torch.zeros(expected)
        elif actions is not None and actions.ndim == 3 and len(actions) == 1:
            actions = actions.expand(len(video), -1, -1)
        return self.model.checked(video, actions)[1]

    def _actions_have_come(self, plan: SlicePlan) -> bool:
        """Take the actions that a slice's frame rests on; false when there are no more."""
        if self.action_stream is None:
            return True
        assert self.actions is not None
        config = self.model.config
        frame = plan.window.start + plan.index // (config.num_slices // config.subscale_factor[0])
        while self.num_actions < (frame + 1 if config.actions == "frame" else frame):
            action = next(self.action_stream, None)
            if action is None:
                return False
            action, expected = _tensor(action).to(self.actions), tuple(self.actions[:, 0].shape)
            if tuple(action.shape) != expected or not torch.isfinite(action).all():
                raise UserError(
                    f"action {self.num_actions} must be finite numbers of shape {expected}, this one has shape "
                    f"{tuple(action.shape)}."
                )
            self.actions[:, self.num_actions] = action
            self.num_actions += 1
        return True


@dataclass(frozen=True)
class SlicePlan:
    """A slice that holds something to draw."""

    window: Window
    index: int
    decoder: SliceDecoder
    schedule: Schedule


class SliceDrawing:
    """One slice under way."""

    @torch.inference_mode()
    def __init__(self, drawing: Drawing, plan: SlicePlan) -> None:
        self.drawing, self.plan, self.model = drawing, plan, drawing.model
        config = drawing.model.config
        self.frames = slice(plan.window.start, plan.window.start + config.video_shape[0])
        self.index = torch.tensor([plan.index], device=drawing.device)
        self.decoder = drawing.decoder_for(plan)
        self.codes = self._positions(channels.split(drawing.video[:, self.frames], config.code_bits))
        known = self._positions((drawing.known | drawing.given)[:, self.frames, ..., None])
        features = torch.where(known, self._features(self.codes), 0)
        with torch.autocast(drawing.device.type, dtype=drawing.narrow, enabled=drawing.autocast):
            self.decoder.begin(self._base(), features)
        numbers = torch.arange(drawing.given.numel(), device=drawing.device).view(1, *drawing.given.shape, 1)
        self.pixels = self._positions(numbers[:, self.frames])[plan.schedule.drawn, 0, 0]

    @torch.inference_mode()
    def draw(self, wave: Wave) -> None:
        """Compute a wave's states, and draw those of its pixels that are not given."""
        with torch.autocast(self.drawing.device.type, enabled=False):
            y = self.decoder.step(wave)
            if not wave.num_drawn:
                return
            positions = self._drawn_positions(wave)
            if wave.drawn is not None:
                y = y.unflatten(0, (len(wave.positions), -1))[wave.drawn].flatten(0, 1)
            codes = self._drawn_codes(y, wave).unflatten(0, (len(positions), -1))
            self.codes.index_copy_(0, positions, codes)
            self.decoder.know(positions, self._features(codes))

    def finish(self) -> None:
        """Put the slice into the video: what comes after it may see it."""
        self._put(self.drawing.video)
        self.decoder.end()
        config, given = self.model.config, self.drawing.given[None, self.frames]
        subscale.put(given, given.new_ones(1, *config.slice_shape), self.index, config.subscale_factor)

    def video(self) -> UInt8[Tensor, "B F H W C"]:
        """A copy of all that is drawn."""
        video = self.drawing.video.clone()
        self._put(video)
        return video

    def _drawn_positions(self, wave: Wave) -> Int[Tensor, "m"]:
        return wave.positions if wave.drawn is None else wave.positions[wave.drawn]

    def _drawn_codes(self, y: Float[Tensor, "rows D"], wave: Wave) -> UInt8[Tensor, "rows K"]:
        head, samples = self.drawing.head, self.drawing.samples
        here = slice(wave.num_before, wave.num_before + wave.num_drawn)
        pixels = self.pixels[here]
        if isinstance(head, CachedScalarHead):
            codes = channels.split(head.pixels(y), self.model.config.code_bits)
            known = self.drawing.known.flatten(1)[:, pixels].T.reshape(-1, 1)
            return torch.where(known, self.codes[self._drawn_positions(wave)].flatten(0, 1), codes)
        u, drawn = head.begin(y), []
        for code in range(head.num_codes):
            where = Where(samples, pixels, code, partial(self._gumbel, code, here))
            values = self.drawing.choose(head.logits(u, code), where).flatten()
            drawn.append(values)
            u = head.know(u, code, values)
        return torch.stack(drawn, dim=1).to(torch.uint8)

    def _gumbel(self, code: int, here: slice) -> Float[Tensor, "n B V"]:
        return self._noise[code][here]

    @cached_property
    def _noise(self) -> list[Float[Tensor, "drawn B _"]]:
        """The whole slice's, of each code: wave by wave, the generator's many small operations would cost too much."""
        drawing, num_code_values = self.drawing, self.model.config.num_code_values
        return [
            noise.gumbel(drawing.seed, drawing.samples, self.pixels, code, num_values).to(self.decoder.wide)
            for code, num_values in enumerate(num_code_values)
        ]

    def _base(self) -> Float[Tensor, "p B D"]:
        """What each position starts from: its place, and what the encoder says. Samples that look alike so far, as
        those of one prime do at first, are encoded once."""
        decoder, video = self.plan.decoder, self.drawing.video[:, self.frames]
        places = decoder.positions().to(self.decoder.wide)
        if decoder.condition is None:
            return places.flatten(0, 2)[:, None].repeat(1, len(video), 1)
        actions = None if self.drawing.actions is None else self.drawing.actions[:, self.frames]
        rows, which = _distinct(video, self._actions_seen(actions))
        bases = []
        for some in rows.split(ENCODED_AT_ONCE):
            some_actions = None if actions is None else actions[some]
            z = self.model.encoder(self.model.features(video[some]), self.index.expand(len(some)), some_actions)
            bases.append((decoder.condition(z).to(places) + places).flatten(1, 3))
        return torch.cat(bases).transpose(0, 1)[:, which].contiguous()

    def _actions_seen(self, actions: Tensor | None) -> Tensor | None:
        """What the encoder of this slice reads of the actions."""
        if actions is None:
            return None
        assert self.model.encoder.actions is not None
        return self.model.encoder.actions(actions, self.index.expand(len(actions)))

    def _features(self, codes: UInt8[Tensor, "n B K"]) -> Float[Tensor, "n B F"]:
        config = self.model.config
        if config.inputs == "onehot":
            return channels.one_hot(codes, config.num_code_values, self.drawing.narrow)
        pixels = channels.join(codes, config.code_bits)
        return self.model.features(pixels[:, :, None, None])[:, :, 0, 0].to(self.drawing.narrow)

    def _positions(self, volume: Shaped[Tensor, "b T H W f"]) -> Shaped[Tensor, "p b f"]:
        """This slice's part of a volume, position by position."""
        index, factor = self.index.expand(len(volume)), self.model.config.subscale_factor
        return subscale.take(volume, index, factor).flatten(1, 3).transpose(0, 1).contiguous()

    def _put(self, video: Tensor) -> None:
        config = self.model.config
        pixels = channels.join(self.codes.transpose(0, 1), config.code_bits).unflatten(1, config.slice_shape)
        subscale.put(video[:, self.frames], pixels, self.index.expand(len(video)), config.subscale_factor)


def _plan(model: VideoTransformer, given: Bool[Tensor, "F H W"], raster: bool) -> Iterator[SlicePlan]:
    """The slices of every window that hold anything to draw, in order."""
    config, given = model.config, given.clone()
    for window in windows(len(given), config.video_shape[0], config.overlap):
        given[: window.start + window.known] = True  # drawn in earlier windows
        of_window = given[None, window.start : window.start + config.video_shape[0]]
        for index in range(config.num_slices):
            decoder, layers = model.decoder, config.decoder_layers
            if index == 0 and model.first_slice_decoder is not None:
                decoder, layers = model.first_slice_decoder, config.first_slice_layers
            slice_index = torch.tensor([index], device=given.device)
            of_slice = subscale.take(of_window, slice_index, config.subscale_factor).flatten().tolist()
            if not all(of_slice):
                yield SlicePlan(window, index, decoder, schedule(config, layers, tuple(of_slice), raster, given.device))


def _cached_head(model: VideoTransformer, batch: int, narrow: torch.dtype) -> CachedCodeHead | CachedScalarHead:
    if isinstance(model.head, ScalarHead):
        return CachedScalarHead(model.head, narrow)
    return CachedCodeHead(model.head, batch, narrow)


def _distinct(*volumes: Tensor | None) -> tuple[Int[Tensor, "distinct"], Int[Tensor, "B"]]:
    """Which rows of the volumes differ from all before them, and for each row, which of those it equals."""
    rows = zip(*(volume.flatten(1).cpu().numpy() for volume in volumes if volume is not None), strict=True)
    first: dict[bytes, int] = {}
    which = [first.setdefault(b"".join(part.tobytes() for part in row), len(first)) for row in rows]
    device = next(volume.device for volume in volumes if volume is not None)
    distinct = [which.index(number) for number in range(len(first))]
    return torch.tensor(distinct, device=device), torch.tensor(which, device=device)


def _samples(samples: Tensor | np.ndarray | None, prime: Tensor, actions: Tensor | None) -> Int[Tensor, "B"]:
    """Each sample's number; one prime, one action sequence or one number stands for as many as the rest has."""
    sizes = {"prime": len(prime)}
    if actions is not None:
        sizes["actions"] = len(actions)
    if samples is not None:
        samples = _tensor(samples)
        if samples.ndim != 1 or samples.is_floating_point():
            raise UserError(f"samples must be a list of whole numbers, one a video, not {tuple(samples.shape)}.")
        sizes["samples"] = len(samples)
    batch = max(sizes.values())
    for name, size in sizes.items():
        if size not in (1, batch):
            raise UserError(f"{name} has {size} entries where there are {batch} videos: give 1 or {batch}.")
    return torch.arange(batch) if samples is None else samples.long().expand(batch)


def _known(known: Tensor | np.ndarray | None, prime: Tensor, video: Tensor) -> Bool[Tensor, "B F H W"]:
    whole = torch.zeros(video.shape[:-1], dtype=torch.bool, device=prime.device)
    if known is None:
        whole[:, : prime.shape[1]] = True
        return whole
    known = _tensor(known)
    sizes = [(size, *prime.shape[1:-1]) for size in (1, len(prime), len(video))]
    if known.dtype != torch.bool or tuple(known.shape) not in sizes:
        raise UserError(
            f"known says of each pixel of the prime whether it is given: it must be bool of shape {sizes[1]}, not "
            f"{str(known.dtype).removeprefix('torch.')} of shape {tuple(known.shape)}."
        )
    whole[:, : prime.shape[1]] = known.to(prime.device)
    return whole


def _tensor(array: Tensor | np.ndarray) -> Tensor:
    return torch.from_numpy(np.array(array)) if isinstance(array, np.ndarray) else array
