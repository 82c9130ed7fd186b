"""Batches out of a store: which clips, which frames of them and which slice, as a pure function of (seed, step).

An epoch takes each of S slices of each of N clips exactly once. It is S rounds; a round takes every clip once, and for
each clip the rounds take its slices in an order of the clip's own. So that neighbours are different clips across two
rounds as well, the clips are dealt into groups once per seed, and a round shuffles one group after the other: a clip
comes back only after all other groups. All orders are computed place by place (`keyed.order`), none is written down.

B slices of a batch · T frames · H rows · W columns · C channels · A action size
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from framecast.config import ModelConfig
from framecast.data import keyed
from framecast.data.store import Store
from framecast.errors import UserError

if TYPE_CHECKING:
    from jaxtyping import Float, Int, UInt8

# What a word of randomness is for, so that no two purposes share one.
_GROUPS, _ROUNDS, _SLICES, _CROPS = range(4)


@dataclass(frozen=True, eq=False)
class Batch:
    video: UInt8[Tensor, "B T H W C"]
    slice_index: Int[Tensor, "B"]
    actions: Float[Tensor, "B T A"] | None


@dataclass(frozen=True, eq=False)
class Draw:
    """What one batch is made of, before any pixel is read."""

    clip: Int[np.ndarray, "B"]
    start: Int[np.ndarray, "B"]
    """The first frame of the crop."""
    slice_index: Int[np.ndarray, "B"]


class Batches:
    """The batches of one split for one model; of `world_size` ranks, each gets its share of the same global batch."""

    def __init__(
        self,
        store: Store,
        config: ModelConfig,
        *,
        split: str = "train",
        batch_size: int,
        clip_frames: int | None = None,
        rank: int = 0,
        world_size: int = 1,
        num_workers: int = 0,
    ):
        """`batch_size` counts the slices of all ranks; of each clip, only the first `clip_frames` frames are used."""
        assert 0 <= rank < world_size, f"rank {rank} of {world_size}"
        if batch_size < 1 or batch_size % world_size:
            raise UserError(f"a batch of {batch_size} slices cannot be shared evenly by {world_size} processes")
        self.store = store
        self.config = config
        self.batch_size = batch_size
        self.clip_frames = clip_frames
        self.rank, self.world_size, self.num_workers = rank, world_size, num_workers
        self.slices = drawn_slices(config)
        self.clips = usable_clips(store, config, split, clip_frames)
        # A clip comes back after all groups but its own, so its own must leave enough of them to fill a batch.
        largest_group = max(len(self.clips) - batch_size + 1, 1)
        num_groups = max(2, -(-len(self.clips) // largest_group))
        self._bounds = np.array([len(self.clips) * group // num_groups for group in range(num_groups + 1)], np.int64)

    @property
    def epoch_size(self) -> int:
        """Slices in an epoch."""
        return len(self.clips) * len(self.slices)

    def batch_at(self, seed: int, step: int) -> Batch:
        """This rank's share of the batch of one step; the ranks' shares in order are the global batch."""
        share = self.batch_size // self.world_size
        first = step * self.batch_size + self.rank * share
        return self._read(self.draw(seed, np.arange(first, first + share)))

    def stream(self, seed: int, first_step: int = 0) -> Iterator[Batch]:
        """Batch after batch, endlessly; `num_workers` threads read the next ones meanwhile."""
        if self.num_workers == 0:
            yield from (self.batch_at(seed, step) for step in count(first_step))
            return
        pool = ThreadPoolExecutor(self.num_workers, thread_name_prefix="batches")
        ahead: deque[Future[Batch]] = deque()
        try:
            for step in count(first_step):
                ahead.append(pool.submit(self.batch_at, seed, step))
                if len(ahead) > 2 * self.num_workers:
                    yield ahead.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)

    def draw(self, seed: int, place: Int[np.ndarray, "B"]) -> Draw:
        """What stands at each place of the endless sequence of epochs."""
        turn, within = np.divmod(place, len(self.clips))
        clip = self._clip_at(seed, turn, within)
        epoch, turn_in_epoch = np.divmod(turn, len(self.slices))
        which = keyed.order(turn_in_epoch, len(self.slices), keyed.words(seed, _SLICES, epoch, clip))
        num_starts = self._lengths(clip) - self.config.video_shape[0] + 1
        start = keyed.below(keyed.words(seed, _CROPS, turn, clip), num_starts)
        return Draw(clip, start, self.slices[which])

    def _clip_at(self, seed: int, turn: Int[np.ndarray, "B"], within: Int[np.ndarray, "B"]) -> Int[np.ndarray, "B"]:
        """The clip at each place of a round: its group's clips, fixed by the seed, in an order of this round's own."""
        group = np.searchsorted(self._bounds, within, side="right") - 1
        place = np.empty_like(within)
        for each in np.unique(group):
            here, first, end = group == each, self._bounds[each], self._bounds[each + 1]
            key = keyed.words(seed, _ROUNDS, turn[here])
            place[here] = first + keyed.order(within[here] - first, int(end - first), key)
        clip = keyed.order(place, len(self.clips), keyed.words(seed, _GROUPS))
        return self.clips.start + clip if isinstance(self.clips, range) else self.clips[clip]

    def _lengths(self, clip: Int[np.ndarray, "B"]) -> Int[np.ndarray, "B"]:
        """How many frames of each clip count."""
        lengths = self.store.shapes[clip, 0]
        return lengths if self.clip_frames is None else np.minimum(lengths, self.clip_frames)

    def _read(self, draw: Draw) -> Batch:
        shape = (len(draw.clip), *self.config.video_shape, self.config.num_channels)
        video = np.empty(shape, np.uint8)
        actions = np.empty((*shape[:2], self.config.action_size), np.float32) if self.config.action_size else None
        for row, (clip, start) in enumerate(zip(draw.clip.tolist(), draw.start.tolist(), strict=True)):
            stop = start + shape[1]
            video[row] = self.store.frames(clip, start, stop)
            if actions is not None:
                actions[row] = self.store.actions(clip, start, stop)
        return Batch(
            torch.from_numpy(video),
            torch.from_numpy(draw.slice_index),
            None if actions is None else torch.from_numpy(actions),
        )


def drawn_slices(config: ModelConfig) -> Int[np.ndarray, "S"]:
    """The slices with a value that training scores: those whose last frame is not one it always masks."""
    factor_t, factor_h, factor_w = config.subscale_factor
    last_frame = np.arange(factor_t) + (config.slice_shape[0] - 1) * factor_t
    return np.flatnonzero(np.repeat(last_frame >= config.prime_frames, factor_h * factor_w))


def usable_clips(
    store: Store, config: ModelConfig, split: str, clip_frames: int | None
) -> Int[np.ndarray, "N"] | range:
    """The clips of a split that are long enough for the model; all must have its frames and actions."""
    num_frames, *frame = (*config.video_shape, config.num_channels)
    if clip_frames is not None and clip_frames < num_frames:
        raise UserError(f"clips of {clip_frames} frames are too short for a model of {num_frames}")
    if config.action_size and config.action_size != store.action_size:
        raise UserError(
            f"the model takes actions of {config.action_size} numbers, {store.path} has "
            f"{f'actions of {store.action_size}' if store.action_size else 'none'}"
        )
    clips = store.indices_or_range(split)
    if not len(clips):
        raise UserError(f"{store.path} has no clips of the split {split!r}")
    shapes = store.shapes[clips[:1] if isinstance(clips, range) else clips]  # clips that are drawn are all alike
    if (others := np.flatnonzero((shapes[:, 1:] != frame).any(axis=1))).size:
        found, wanted = ("×".join(map(str, size)) for size in (shapes[others[0], 1:].tolist(), frame))
        raise UserError(
            f"clip {clips[others[0]]} of {store.path} has frames of {found}, the model takes {wanted}: "
            f"prepare the store with --size {frame[0]}x{frame[1]}, or take a model of the store's size"
        )
    if not (long_enough := shapes[:, 0] >= num_frames).any():
        raise UserError(
            f"no clip of the split {split!r} of {store.path} is long enough: the longest has {shapes[:, 0].max()} "
            f"frames, the model takes {num_frames}"
        )
    return clips if isinstance(clips, range) else clips[long_enough]
