from __future__ import annotations

import time
import tracemalloc
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from framecast.config import LayerConfig, ModelConfig
from framecast.data.batches import Batch, Batches, drawn_slices
from framecast.data.clip import Clip
from framecast.data.store import Store
from framecast.errors import UserError

MakeStore = Callable[..., Path]


def a_model(
    video_shape: tuple[int, int, int] = (4, 4, 4), subscale_factor: tuple[int, int, int] = (2, 2, 2), **more: object
) -> ModelConfig:
    layers = (LayerConfig((1, 1, 1)),)
    return ModelConfig(video_shape, subscale_factor, layers, layers, **more)


class ManyClips(Store):
    """As much of a store as batches need before they read, of any number of clips."""

    def __init__(self, num_clips: int, num_frames: int = 6):
        self.path = Path("many")
        self._clips = self
        self._shapes = np.broadcast_to(np.array([num_frames, 4, 4, 3]), (num_clips, 4))

    @property
    def shapes(self):
        return self._shapes

    def indices(self, split):
        return range(len(self._shapes))


def many(num_clips: int, batch_size: int, model: ModelConfig | None = None, num_frames: int = 6) -> Batches:
    return Batches(ManyClips(num_clips, num_frames), model or a_model(), batch_size=batch_size)


@given(
    num_clips=st.integers(1, 40),
    batch_size=st.integers(1, 50),
    factor=st.sampled_from([(2, 2, 2), (4, 2, 2), (1, 2, 1), (4, 1, 1)]),
    prime_frames=st.integers(0, 3),
    seed=st.integers(0, 2**64 - 1),
    epoch=st.integers(0, 5),
)
@settings(deadline=None)
def test_an_epoch_is_every_slice_of_every_clip_once(num_clips, batch_size, factor, prime_frames, seed, epoch) -> None:
    batches = many(num_clips, batch_size, a_model(subscale_factor=factor, prime_frames=prime_frames))
    draw = batches.draw(seed, epoch * batches.epoch_size + np.arange(batches.epoch_size))
    pairs = Counter(zip(draw.clip.tolist(), draw.slice_index.tolist(), strict=True))
    assert pairs.keys() == {(clip, index) for clip in range(num_clips) for index in batches.slices}
    assert set(pairs.values()) == {1}


@given(
    num_clips=st.integers(1, 200),
    batch_size=st.integers(1, 100),
    seed=st.integers(0, 2**64 - 1),
    step=st.integers(0, 10**9),
)
@settings(deadline=None)
def test_the_clips_of_a_batch_differ(num_clips, batch_size, seed, step) -> None:
    draw = many(num_clips, batch_size).draw(seed, step * batch_size + np.arange(batch_size))
    times = Counter(draw.clip.tolist())
    assert max(times.values()) == -(-batch_size // num_clips)


@given(
    rows=st.integers(1, 12), world_size=st.integers(1, 6), step=st.integers(0, 10**6), seed=st.integers(0, 2**64 - 1)
)
@settings(deadline=None)
def test_ranks_share_one_global_batch(rows, world_size, step, seed) -> None:
    batch_size = rows * world_size
    whole = many(50, batch_size).draw(seed, step * batch_size + np.arange(batch_size))
    places = [step * batch_size + rank * rows + np.arange(rows) for rank in range(world_size)]
    shares = [many(50, batch_size).draw(seed, place) for place in places]
    for name in ("clip", "start", "slice_index"):
        np.testing.assert_array_equal(np.concatenate([getattr(share, name) for share in shares]), getattr(whole, name))


def test_a_batch_depends_on_seed_and_step_alone(tmp_path: Path, make_store: MakeStore) -> None:
    store = Store(make_store(tmp_path / "store", [a_clip(number, 4 + number % 5) for number in range(30)]))
    batches = Batches(store, a_model(action_size=2), batch_size=8)
    again = Batches(store, a_model(action_size=2), batch_size=8, num_workers=3)
    for step, one, other in zip(range(7, 20), batches.stream(5, 7), again.stream(5, 7), strict=False):
        for batch in (one, other):
            assert_same(batch, batches.batch_at(5, step))
    assert not torch.equal(batches.batch_at(5, 7).video, batches.batch_at(6, 7).video)


def assert_same(one: Batch, other: Batch) -> None:
    assert torch.equal(one.video, other.video)
    assert torch.equal(one.slice_index, other.slice_index)
    assert (one.actions is None) == (other.actions is None)
    assert one.actions is None or torch.equal(one.actions, other.actions)


def test_a_batch_is_crops_of_the_clips_with_their_actions(tmp_path: Path, make_store: MakeStore) -> None:
    clips = [a_clip(number, 4 + number % 5) for number in range(30)]
    store = Store(make_store(tmp_path / "store", clips, clips_per_part=7))
    batches = Batches(store, a_model(action_size=2), batch_size=16)
    for step in range(20):
        draw, batch = batches.draw(3, step * 16 + np.arange(16)), batches.batch_at(3, step)
        assert batch.video.shape == (16, 4, 4, 4, 3)
        for row, (clip, start) in enumerate(zip(draw.clip, draw.start, strict=True)):
            frames = slice(start, start + 4)
            np.testing.assert_array_equal(batch.video[row], clips[clip].video[frames])
            np.testing.assert_array_equal(batch.actions[row], clips[clip].actions[frames])
    assert Batches(store, a_model(), batch_size=16).batch_at(3, 0).actions is None


def test_crops_begin_anywhere_that_leaves_room(tmp_path: Path, make_store: MakeStore) -> None:
    batches = many(50, 50, num_frames=9)
    starts = Counter(batches.draw(0, np.arange(20_000)).start.tolist())
    assert starts.keys() == set(range(6))
    assert all(abs(count - 20_000 / 6) < 250 for count in starts.values())  # four standard deviations are 210
    store = Store(make_store(tmp_path / "store", [a_clip(number, 9) for number in range(5)]))
    first = Batches(store, a_model(), batch_size=5, clip_frames=5)
    assert set(first.draw(0, np.arange(200)).start.tolist()) == {0, 1}


def test_epochs_and_seeds_and_rounds_differ() -> None:
    batches = many(100, 10)
    rounds = batches.draw(1, np.arange(3 * batches.epoch_size)).clip.reshape(-1, 100)
    assert len({tuple(clips) for clips in rounds.tolist()}) == len(rounds)
    assert (batches.draw(2, np.arange(100)).clip != rounds[0]).any()
    first_slices = [batches.draw(1, epoch * batches.epoch_size + np.arange(100)) for epoch in range(2)]
    order = [draw.slice_index[np.argsort(draw.clip)] for draw in first_slices]
    assert (order[0] != order[1]).any()
    assert len(set(order[0].tolist())) > 1


def test_slices_of_masked_frames_are_never_drawn() -> None:
    single_frame = {"video_shape": (4, 4, 4), "subscale_factor": (4, 1, 1)}
    assert drawn_slices(a_model(**single_frame, prime_frames=3)).tolist() == [3]
    assert drawn_slices(a_model(**single_frame, prime_frames=1)).tolist() == [1, 2, 3]
    assert drawn_slices(a_model(prime_frames=3)).tolist() == [4, 5, 6, 7]  # offset 0 holds frames 0 and 2
    assert drawn_slices(a_model(prime_frames=2)).tolist() == list(range(8))


def test_400_000_videos_start_in_a_moment() -> None:
    store = ManyClips(400_000, 300)
    model = a_model(video_shape=(16, 4, 4), subscale_factor=(4, 2, 2))
    tracemalloc.start()
    began = time.perf_counter()
    Batches(store, model, batch_size=64).draw(0, 10**6 + np.arange(64))
    assert time.perf_counter() - began < 1
    assert tracemalloc.get_traced_memory()[1] < 10 * 400_000  # bytes: nothing that grows with slices
    tracemalloc.stop()


def test_only_what_fits_the_model_is_drawn(tmp_path: Path, make_store: MakeStore) -> None:
    store = Store(make_store(tmp_path / "store", [a_clip(number, 2 + number % 4) for number in range(12)]))
    batches = Batches(store, a_model(), batch_size=2)
    assert batches.clips.tolist() == [2, 3, 6, 7, 10, 11]
    refusals = {
        "no clip of the split 'train' .* is long enough: the longest has 5 frames, the model takes 8": {
            "config": a_model((8, 4, 4))
        },
        "clips of 3 frames are too short for a model of 4": {"clip_frames": 3},
        "has frames of 4×4×3, the model takes 8×4×3: prepare the store with --size 8x4": {"config": a_model((4, 8, 4))},
        "has no clips of the split 'test'": {"split": "test"},
        "there is no split 'training'": {"split": "training"},
        "the model takes actions of 3 numbers, .* has actions of 2": {"config": a_model(action_size=3)},
        "a batch of 2 slices cannot be shared evenly by 4 processes": {"world_size": 4},
    }
    for sentence, options in refusals.items():
        options = {"config": a_model(), **options}
        with pytest.raises(UserError, match=sentence):
            Batches(store, options.pop("config"), batch_size=2, **options)
    grey = Store(make_store(tmp_path / "grey", [Clip(np.zeros((4, 4, 4, 1), np.uint8), "a", "train")]))
    with pytest.raises(UserError, match="has frames of 4×4×1, the model takes 4×4×3"):
        Batches(grey, a_model(), batch_size=2)
    with pytest.raises(UserError, match=r"the model takes actions of 2 numbers, .* has none"):
        Batches(grey, a_model(num_channels=1, action_size=2), batch_size=2)


def test_what_batches_are_may_not_change() -> None:
    """Another order would make runs that resume see clips twice; a change here is a change of results."""
    draw = many(1000, 6, num_frames=20).draw(7, 12_345 + np.arange(6))
    assert draw.clip.tolist() == [332, 405, 962, 624, 747, 13]
    assert draw.start.tolist() == [15, 0, 3, 2, 4, 11]
    assert draw.slice_index.tolist() == [6, 2, 2, 5, 4, 0]


def a_clip(number: int, num_frames: int) -> Clip:
    noise = np.random.default_rng(number)
    return Clip(
        noise.integers(0, 256, (num_frames, 4, 4, 3), np.uint8),
        str(number),
        "train",
        actions=noise.normal(size=(num_frames, 2)).astype(np.float32),
    )
