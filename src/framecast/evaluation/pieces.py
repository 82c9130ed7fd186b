"""The pieces of work of an evaluation: where each is kept, how it is made, and what lies in it.

A folder's name tells all that its pieces depend on, so that nothing is ever taken for something else: the model's
weights, the store's content, priming, lengths, temperature, seed. A piece is of some clips in the order of their split.

N clips · B clips of a block · T frames · F predicted frames · S trials
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from framecast.config import EvaluationConfig
from framecast.data.assets import cache_folder
from framecast.evaluation import fvd, i3d, likelihood, work
from framecast.evaluation.frame_metrics import WINDOW, psnr, ssim
from framecast.evaluation.fvd import Moments, Resize
from framecast.evaluation.subject import Clips, Subject
from framecast.evaluation.work import Arrays
from framecast.ops.windows import windows
from framecast.sampling.sampler import Progress, sample

if TYPE_CHECKING:
    from jaxtyping import Float, Float32, UInt8

SHOWN = 8  # clips that the report shows
MEASURED_SECONDS = 3.0  # of sampling, to tell how long the rest will take

Makers = dict[str, Callable[[], Arrays]]


@dataclass(frozen=True)
class Evaluation:
    """One model on one set of clips, its work kept in `folder`."""

    subject: Subject
    clips: Clips
    metrics: tuple[str, ...]
    folder: Path
    seed: int = 0
    network: i3d.I3D | None = None  # where FVD is asked for
    resize: Resize = "tf1"

    @property
    def settings(self) -> EvaluationConfig:
        return self.subject.settings

    @property
    def wants_likelihood(self) -> bool:
        return bool({"bits", "nats"} & set(self.metrics))

    @property
    def wants_samples(self) -> bool:
        return bool({"fvd", "psnr", "ssim"} & set(self.metrics))

    @property
    def num_windows(self) -> int:
        return self.settings.num_frames_samples - fvd.NUM_FRAMES + 1

    @cached_property
    def others(self) -> Clips | None:
        """As many real clips that are not scored, for ground truth against ground truth."""
        store = self.clips.store
        for split in ("train", "val", "test"):
            indices = store.indices_or_range(split)[: len(self.clips)]
            others = Clips(store, split, [int(index) for index in indices])
            if split != self.clips.split and len(others) == len(self.clips):
                return others if others.shortest >= self.settings.num_frames_samples else None
        return None

    # Pieces of work: where they are kept, and how each is made. A folder's name tells all that its content depends on.

    def work(self) -> dict[str, tuple[Path, Makers]]:
        """What is to be made, in this order."""
        kinds: dict[str, tuple[Path, Makers]] = {}
        if self.wants_likelihood:
            kinds["likelihood"] = self.likelihood_folder, self._makers(self.clips, self._score)
        if self.wants_samples:
            kinds["samples"] = self.samples_folder, self._of_trials(self._sample)
            kinds["copies"] = self.copies_folder, self._makers(self.clips, self._copy)
        if "fvd" in self.metrics:
            kinds["features of samples"] = self.sample_features_folder, self._of_trials(self._sample_features)
            real = self._makers(self.clips, partial(self._real_features, self.clips))
            kinds["features of real clips"] = self.real_features_folder(self.clips), real
            kinds["features of copies"] = self.copy_features_folder, self._makers(self.clips, self._copy_features)
            if self.others is not None:
                real = self._makers(self.others, partial(self._real_features, self.others))
                kinds["features of other real clips"] = self.real_features_folder(self.others), real
        return kinds

    @property
    def likelihood_folder(self) -> Path:
        facts = (self.settings.prime_frames_likelihood, self.settings.num_frames_likelihood, "nats" in self.metrics)
        return self.folder / f"likelihood-{_key(self._model_and_data, facts)}"

    @property
    def samples_folder(self) -> Path:
        temperature = self.settings.temperature if self.subject.draws else None
        return self.folder / f"samples-{_key(self._model_and_data, self._continuation, temperature, self.seed)}"

    @property
    def copies_folder(self) -> Path:
        return self.folder / f"copies-{_key(self._data(self.clips), self._continuation)}"

    @property
    def sample_features_folder(self) -> Path:
        return self.folder / f"{self.samples_folder.name}-features-{self.resize}"

    def real_features_folder(self, clips: Clips) -> Path:
        """By content, for every evaluation on the same clips."""
        facts = (self._data(clips), self.settings.num_frames_samples, self.resize, i3d.ARRAYS_SHA256)
        return cache_folder() / "features" / f"real-{_key(*facts)}"

    @property
    def copy_features_folder(self) -> Path:
        facts = (self._data(self.clips), self._continuation, self.resize, i3d.ARRAYS_SHA256)
        return cache_folder() / "features" / f"copies-{_key(*facts)}"

    @property
    def _continuation(self) -> tuple[int, int]:
        return self.settings.prime_frames_samples, self.settings.num_frames_samples

    @property
    def _model_and_data(self) -> list[Any]:
        return [self.subject.sha256, *self._data(self.clips)]

    def _data(self, clips: Clips) -> list[Any]:
        """The clips of a piece follow from its name, since they are taken in the order of the split."""
        return [clips.store.fingerprint, clips.split]

    def _makers(self, clips: Clips, make: Callable[[range], Arrays]) -> Makers:
        return {name_of(block): partial(make, block) for block in clips.blocks}

    def _of_trials(self, make: Callable[[int, range], Arrays]) -> Makers:
        trials, blocks = range(self.settings.trials), self.clips.blocks
        return {f"{trial:03}-{name_of(block)}": partial(make, trial, block) for trial in trials for block in blocks}

    def _actions(self, block: range, num_frames: int) -> Float32[np.ndarray, "B T A"] | None:
        return self.clips.actions(block, num_frames) if self.subject.model.config.action_size else None

    def _score(self, block: range) -> Arrays:
        prime, num_frames = self.settings.prime_frames_likelihood, self.settings.num_frames_likelihood
        videos, actions = self.clips.videos(block, num_frames), self._actions(block, num_frames)
        nats = likelihood.score(self.subject.model, videos, actions, prime, intensity="nats" in self.metrics)
        arrays: Arrays = {}
        for name, pixels in (("codes", nats.codes), ("intensity", nats.intensity)):
            if pixels is not None:
                arrays[name] = pixels[:, prime:].sum(dim=(2, 3)).cpu().numpy()
        if nats.intensity is not None:
            arrays["floor"] = likelihood.floor(videos[:, prime:])
        if block.start == 0:
            of_pixels = nats.codes if nats.codes is not None else nats.intensity
            assert of_pixels is not None, "every head has the one or the other"
            arrays["surprise"] = (of_pixels[:SHOWN] / math.log(2)).float().cpu().numpy()
        return arrays

    def _sample(self, trial: int, block: range) -> Arrays:
        prime, num_frames = self._continuation
        videos = self.clips.videos(block, num_frames)
        drawn = self.draw(trial, block)
        return {"videos": drawn, **_frame_scores(videos[:, prime:], drawn[:, prime:])}

    def draw(self, trial: int, block: range, **how: Any) -> UInt8[np.ndarray, "B T H W C"]:
        """Continuations of a block's clips; each trial has its own."""
        prime, num_frames = self._continuation
        identity = np.array([trial << 40 | self.clips.indices[i] for i in block], np.int64)
        if self.subject.draws:
            how["temperature"] = self.settings.temperature
        primes = self.clips.videos(block, prime)
        drawn = sample(
            self.subject.model,
            primes,
            num_frames,
            seed=self.seed,
            actions=self._actions(block, num_frames),
            samples=identity,
            **how,
        )
        return drawn.cpu().numpy()

    def _copied(self, block: range) -> UInt8[np.ndarray, "B T H W C"]:
        """The last primed frame, and it again ever after."""
        prime, num_frames = self._continuation
        given = self.clips.videos(block, prime)
        return np.concatenate([given, given[:, -1:].repeat(num_frames - prime, axis=1)], axis=1)

    def _copy(self, block: range) -> Arrays:
        prime, num_frames = self._continuation
        return _frame_scores(self.clips.videos(block, num_frames)[:, prime:], self._copied(block)[:, prime:])

    def _features(self, videos: UInt8[np.ndarray, "B T H W C"]) -> Arrays:
        assert self.network is not None, "loaded where FVD is asked for"
        return {"features": fvd.window_features(self.network, videos, self.resize)}

    def _real_features(self, clips: Clips, block: range) -> Arrays:
        return self._features(clips.videos(block, self.settings.num_frames_samples))

    def _copy_features(self, block: range) -> Arrays:
        return self._features(self._copied(block))

    def _sample_features(self, trial: int, block: range) -> Arrays:
        return self._features(work.load(self.samples_folder, f"{trial:03}-{name_of(block)}")["videos"])

    # How long it will take.

    def seconds_left(self) -> dict[str, float]:
        """Of each kind of work that is not done, at the rate just measured on this device."""
        kinds = self.work()
        pieces = {kind: len(work.missing(folder, makers)) for kind, (folder, makers) in kinds.items()}
        seconds = {"likelihood": self._likelihood_seconds, "samples": self._sampling_seconds}
        left = {kind: pieces[kind] * seconds[kind]() for kind in seconds if pieces.get(kind)}
        if features := sum(count for kind, count in pieces.items() if "features" in kind):
            left["features"] = features * self._features_seconds()
        return left

    def _likelihood_seconds(self) -> float:
        """From one slice of a few clips."""
        model, config = self.subject.model, self.subject.model.config
        block = self.clips.blocks[0]
        some = block[: likelihood.AT_ONCE]
        num_frames = config.video_shape[0]
        video, actions = model.checked(self.clips.videos(some, num_frames), self._actions(some, num_frames))
        here = torch.full((len(some),), config.num_slices - 1, device=video.device)

        def one_slice() -> None:
            with torch.no_grad():
                float(model(video, here, actions).sum())  # waits for the device too

        prime, num_frames = self.settings.prime_frames_likelihood, self.settings.num_frames_likelihood
        num_slices = config.num_slices * len(windows(num_frames, config.video_shape[0], config.overlap))
        return _seconds(one_slice) * num_slices * (1 - prime / num_frames) * len(block) / len(some)

    def _sampling_seconds(self) -> float:
        """From the first waves of the first piece, which are drawn again afterwards."""
        seen: list[Progress] = []

        def look(state: Progress) -> bool:
            seen.append(state)
            return state.seconds > MEASURED_SECONDS

        self.draw(0, self.clips.blocks[0], progress=look)
        return seen[-1].seconds + seen[-1].seconds_left if seen else 0.0

    def _features_seconds(self) -> float:
        block = self.clips.blocks[0]
        clips = self.clips.videos(block[: fvd.BATCH_CLIPS["cpu"]], fvd.NUM_FRAMES)
        return _seconds(lambda: self._features(clips)) * self.num_windows * len(block) / len(clips)

    # What lies in the pieces, once all are there.

    def real_moments(self, clips: Clips, rows: slice = slice(None)) -> list[Moments]:
        """Of each window's features, over all of the clips or some of each piece."""
        return self._moments(self.real_features_folder(clips), [name_of(block) for block in clips.blocks], rows)

    def copy_moments(self) -> list[Moments]:
        return self._moments(self.copy_features_folder, self._names())

    def sample_moments(self, trial: int) -> list[Moments]:
        return self._moments(self.sample_features_folder, self._names(trial))

    def _moments(self, folder: Path, names: list[str], rows: slice = slice(None)) -> list[Moments]:
        total: list[Moments] = []
        for name in names:
            features = torch.from_numpy(work.load(folder, name)["features"][rows])
            if len(features):
                part = [Moments.of(features[:, window]) for window in range(self.num_windows)]
                total = [a + b for a, b in zip(total, part, strict=True)] if total else part
        return total

    def _names(self, trial: int | None = None) -> list[str]:
        return [("" if trial is None else f"{trial:03}-") + name_of(block) for block in self.clips.blocks]

    def likelihood(self, name: str) -> Float[np.ndarray, "N F"]:
        """Nats of every predicted frame of every clip."""
        return np.concatenate([work.load(self.likelihood_folder, piece)[name] for piece in self._names()])

    def frame_scores(self, metric: str) -> Float[np.ndarray, "S N F"]:
        trials = range(self.settings.trials)
        return np.stack([self._column(self.samples_folder, self._names(trial), metric) for trial in trials])

    def copy_scores(self, metric: str) -> Float[np.ndarray, "N F"]:
        return self._column(self.copies_folder, self._names(), metric)

    def _column(self, folder: Path, names: list[str], metric: str) -> np.ndarray:
        return np.concatenate([work.load(folder, name)[metric] for name in names])

    # What the report shows, of the first clips.

    def shown(self) -> range:
        return range(min(SHOWN, len(self.clips)))

    def surprise(self) -> Float32[np.ndarray, "B T H W"]:
        """Bits of each pixel."""
        return work.load(self.likelihood_folder, self._names()[0])["surprise"]

    def samples(self, trial: int) -> UInt8[np.ndarray, "B T H W C"]:
        return work.load(self.samples_folder, self._names(trial)[0])["videos"][: len(self.shown())]


def _frame_scores(real: np.ndarray, drawn: np.ndarray) -> Arrays:
    scores = {"psnr": psnr(real, drawn).numpy()}
    if min(real.shape[2:4]) >= WINDOW:
        scores["ssim"] = ssim(real, drawn).numpy()
    return scores


def _seconds(once: Callable[[], object]) -> float:
    """Of the second time, since the first sets things up."""
    once()
    start = time.perf_counter()
    once()
    return time.perf_counter() - start


def name_of(block: range) -> str:
    return f"{block.start:06}-{block.stop:06}"


def _key(*facts: Any) -> str:
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]
