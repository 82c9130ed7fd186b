"""LeRobot datasets: an episode a clip, with the actions and states of its table. Needs the extra `framecast[lerobot]`.

`meta/info.json` says the version and the shape of everything else. Version 2 has a table (parquet) and a video (mp4) a
camera for each episode. Version 3 keeps many episodes in one table and one video; `meta/episodes/*/*.parquet` says in
which files an episode is, and from where to where in the video. Times in a table count from the episode's start.

A row's frame is the one whose time is nearest to the row's, which must be less than half a frame away.

T rows · A action size · S state size
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from framecast.data import decoder
from framecast.data.clip import Clip, Skipped
from framecast.data.frames import Frame, Selection
from framecast.data.resize import Fit, Size
from framecast.data.split import split_of
from framecast.errors import Unavailable, UserError

SPLITS = {"train": "train", "val": "val", "validation": "val", "valid": "val", "test": "test"}
CAMERAS = "observation.images."
MAX_ROWS = 1 << 20
"""Of an episode."""


@dataclass(frozen=True)
class Lerobot:
    source: str
    """The folder that holds `meta`, `data` and `videos`."""
    camera: str = ""
    """By its name, with `observation.images.` before it or not; may be left out where there is one."""
    size: Size = (64, 64)
    fit: Fit = "crop"
    every: int = 1
    """Keeps one of so many frames, and the actions that lead from one to the next as one action."""

    items_per_part: ClassVar[int] = 16

    def __post_init__(self) -> None:
        self.selection()

    def selection(self) -> Selection:
        return Selection((self.size[0], self.size[1]), self.fit, every=self.every)

    def items(self) -> Sequence[str]:
        _parquet()  # or say at once that it is missing
        _dataset.cache_clear()  # it may have grown since it was last looked at
        dataset = _dataset(self.source)
        dataset.camera(self.camera)
        if not dataset.episodes:
            raise UserError(f"{self.source} has no episodes")
        return [f"episode_{number:06}" for number in sorted(dataset.episodes)]

    def read(self, items: Sequence[str]) -> Iterator[Clip | Skipped]:
        dataset, selection = _dataset(self.source), self.selection()
        for item in items:
            try:
                yield dataset.clip(int(item.removeprefix("episode_")), self.camera, item, selection)
            except Unavailable:
                raise
            except UserError as error:
                yield Skipped(item, str(error))


@dataclass(frozen=True)
class Dataset:
    root: Path
    info: Mapping[str, Any]
    episodes: Mapping[int, Mapping[str, Any]]
    """What `meta` says of each."""

    def camera(self, name: str) -> str:
        """The camera that was asked for, as the dataset calls it."""
        cameras = [key for key, feature in self.info["features"].items() if feature.get("dtype") == "video"]
        names = ", ".join(key.removeprefix(CAMERAS) for key in cameras)
        if not cameras:
            raise UserError(f"{self.root} has no camera that is stored as video")
        if not name and len(cameras) > 1:
            raise UserError(f"{self.root} has several cameras: choose one by --camera, of {names}")
        for key in cameras:
            if name in ("", key, key.removeprefix(CAMERAS)):
                return key
        raise UserError(f"{self.root} has no camera {name!r}; it has {names}")

    def clip(self, number: int, camera: str, name: str, selection: Selection) -> Clip:
        camera, episode = self.camera(camera), self.episodes[number]
        table = self._table(number, episode)
        times, rate = table["timestamp"].astype(np.float64)[:, 0], float(self.info["fps"])
        if (np.diff(times) <= 0).any():
            raise UserError("the times in its table do not grow")
        path, start = self._video(number, episode, camera)
        if start is None:
            frames = decoder.decode(path)
            video = selection.clip(aligned(frames, times, rate))
            deque(frames, maxlen=0)  # damage may come to light in what follows the last row
        else:
            video = selection.clip(aligned(decoder.decode(path, max(0.0, start - 1 / rate)), start + times, rate))
        actions, states = table.get("action"), table.get("observation.state")
        return Clip(
            video,
            name,
            self._split(number, name),
            "; ".join(map(str, episode.get("tasks") or ())),
            None if actions is None else selection.actions(actions),
            None if states is None else selection.along(states),
        )

    def _table(self, number: int, episode: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """An episode's rows, in order: a column a feature, (T, size)."""
        path = self._path("data_path", number, episode, "data/")
        columns = [name for name in ("action", "observation.state") if name in self.info["features"]]
        rows = _rows(path, ["timestamp", "episode_index", *columns], [("episode_index", "==", number)])
        expected = episode.get("length")
        if not rows.num_rows or (expected is not None and rows.num_rows != expected):
            raise UserError(f"its table has {rows.num_rows} rows where meta says {expected}")
        if rows.num_rows > MAX_ROWS:
            raise UserError(f"its table has {rows.num_rows} rows, more than {MAX_ROWS}")
        return {name: _matrix(rows[name], name) for name in ("timestamp", *columns)}

    def _video(self, number: int, episode: Mapping[str, Any], camera: str) -> tuple[Path, float | None]:
        """The file, and where in it the episode begins, if it is not alone there."""
        place = f"videos/{camera}/"
        return self._path("video_path", number, episode, place, video_key=camera), episode.get(place + "from_timestamp")

    def _path(self, kind: str, number: int, episode: Mapping[str, Any], place: str, **names: Any) -> Path:
        try:
            names["episode_index"], names["episode_chunk"] = number, number // int(self.info.get("chunks_size") or 1000)
            names |= {name: episode[place + name] for name in ("chunk_index", "file_index") if place + name in episode}
            path = Path(self.info[kind].format(**names))
        except (KeyError, ValueError, IndexError, AttributeError, TypeError) as error:
            raise UserError(f"meta does not say where it is: {kind} is {self.info.get(kind)!r}") from error
        if path.is_absolute() or ".." in path.parts:
            raise UserError(f"meta says that it is outside the dataset, at {path}")
        return self.root / path

    def _split(self, number: int, name: str) -> str:
        """As the dataset says, unless it calls everything training data, as nearly all do."""
        splits = self.info.get("splits") or {}
        if set(splits) <= {"train"}:
            return split_of(name)
        for split, span in splits.items():
            first, _, last = str(span).partition(":")
            if split in SPLITS and first.isdigit() and last.isdigit() and int(first) <= number < int(last):
                return SPLITS[split]
        raise UserError(f"it is in none of the splits that are known: {splits}")


def aligned(frames: Iterator[Frame], times: np.ndarray, rate: float) -> Iterator[Frame]:
    """For each time the frame nearest to it."""
    before, after = None, next(frames, None)
    for row, time in enumerate(times):
        while after is not None and after.time is not None and after.time <= time:
            before, after = after, next(frames, None)
        near = [frame for frame in (before, after) if frame is not None]
        distances = [_distance(frame, time) for frame in near]
        if min(distances, default=np.inf) >= 0.5 / rate:
            raise UserError(f"its video has no frame for row {row} of its table, at {time:.3f} s")
        yield near[int(np.argmin(distances))]


def _distance(frame: Frame, time: float) -> float:
    assert frame.time is not None, "decoded frames have times"
    return abs(frame.time - time)


@lru_cache(maxsize=1)
def _dataset(source: str) -> Dataset:
    root = Path(source)
    try:
        info = json.loads((root / "meta" / "info.json").read_text())
        version, features = str(info["codebase_version"]), info["features"]
        if not isinstance(features, dict) or not float(info["fps"]) > 0:
            raise ValueError("its features or fps are none")
    except OSError as error:
        raise UserError(f"{source} is no LeRobot dataset: it has no meta/info.json that can be read") from error
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{root / 'meta' / 'info.json'} is not that of a LeRobot dataset: {error!r}") from error
    if version.startswith("v2."):
        episodes = _lines(root / "meta" / "episodes.jsonl")
    elif version.startswith("v3."):
        episodes = [
            row
            for path in sorted((root / "meta" / "episodes").glob("*/*.parquet"))
            for row in _rows(path, _episode_columns(path), None).to_pylist()
        ]
    else:
        raise UserError(f"{source} is of LeRobot version {version}; versions 2 and 3 can be read")
    return Dataset(root, info, {int(episode["episode_index"]): episode for episode in episodes})


def _lines(path: Path) -> list[dict[str, Any]]:
    try:
        return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error


def _episode_columns(path: Path) -> list[str]:
    """All but the statistics, which are most of the table."""
    parquet = _parquet()
    with _plain_errors(path):
        return [name for name in parquet.read_schema(path).names if not name.startswith("stats/")]


def _rows(path: Path, columns: Sequence[str], filters: Any) -> Any:
    parquet = _parquet()
    with _plain_errors(path):
        return parquet.read_table(path, columns=list(columns), filters=filters)


def _matrix(column: Any, name: str) -> np.ndarray:
    """A feature's rows as float32, whatever its own shape is."""
    if column.null_count:
        raise UserError(f"its table has no {name} in some row")
    try:
        rows = np.array(column.to_pylist(), np.float32).reshape(len(column), -1)
    except (TypeError, ValueError) as error:
        raise UserError(f"the {name} in its table is no array of numbers: {error}") from error
    if not np.isfinite(rows).all():
        raise UserError(f"its {name} holds a number that is not finite")
    return rows


def _parquet() -> Any:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise Unavailable("LeRobot tables need pyarrow: pip install 'framecast[lerobot]'") from error
    return pyarrow.parquet


@contextmanager
def _plain_errors(path: Path) -> Iterator[None]:
    import pyarrow

    try:
        yield
    except FileNotFoundError as error:
        raise UserError(f"there is no {path}") from error
    except (OSError, pyarrow.ArrowException, KeyError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {' '.join(str(error).split())}") from error
