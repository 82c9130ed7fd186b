"""Any folder of videos: files that FFmpeg decodes, animated GIF and WebP, arrays, and folders of numbered pictures.

Everything below the folder counts, except what begins with a dot. A folder with pictures and no videos in it is one
clip. The folder that a clip lies in is its label. An .npz may hold `video` with its `action` and `state`, of one clip
or of several (`name.npz#0` and so on).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from framecast.data import arrays
from framecast.data.clip import Clip, Skipped
from framecast.data.frames import Selection
from framecast.data.pictures import by_number, is_still
from framecast.data.resize import Fit, Size
from framecast.data.split import split_of
from framecast.data.video_file import SUFFIXES, read_frames
from framecast.errors import UserError


@dataclass(frozen=True)
class Folder:
    source: str
    """The folder."""
    size: Size = (64, 64)
    fit: Fit = "crop"
    fps: float | None = None
    """Frames a second; None takes every frame there is."""
    every: int = 1
    """Keeps one of so many frames, after `fps`, and the actions that lead from one to the next as one action."""

    items_per_part: ClassVar[int] = 64

    def __post_init__(self) -> None:
        self.selection()

    def selection(self) -> Selection:
        return Selection((self.size[0], self.size[1]), self.fit, self.fps, self.every)

    def items(self) -> Sequence[str]:
        """Files and folders of pictures, by their paths below the folder."""
        if not Path(self.source).is_dir():
            raise UserError(f"{self.source} is no folder")
        found = []
        for folder, names in _walk(self.source):
            below = Path(folder).relative_to(self.source)
            videos = [name for name in names if Path(name).suffix.lower() in SUFFIXES]
            if not videos and any(is_still(Path(name)) for name in names):
                found.append(below.as_posix())
            found.extend((below / name).as_posix() for name in videos)
        if not found:
            raise UserError(f"{self.source} holds no videos: no files {' '.join(sorted(SUFFIXES))}, and no pictures")
        return sorted(found, key=by_number)

    def read(self, items: Sequence[str]) -> Iterator[Clip | Skipped]:
        for item in items:
            try:
                yield from self._clips(item)
            except UserError as error:
                yield Skipped(item, str(error))

    def _clips(self, item: str) -> Iterator[Clip]:
        path, selection = Path(self.source, item), self.selection()
        label, split = path.parent.relative_to(self.source).as_posix() if item != "." else "", split_of(item)
        label = "" if label == "." else label
        if path.suffix.lower() not in arrays.SUFFIXES or path.is_dir():
            yield Clip(selection.clip(read_frames(path)), item, split, label)
            return
        recorded = arrays.read(path)
        for number, each in enumerate(recorded):
            name = item if len(recorded) == 1 else f"{item}#{number}"
            video = selection.clip(each.frames())
            actions = None if each.actions is None else selection.actions(each.actions)
            states = None if each.states is None else selection.along(each.states)
            yield Clip(video, name, split_of(name), label, actions, states)


def _walk(top: str) -> Iterator[tuple[str, list[str]]]:
    """Every folder below `top` with the names of its files; links to folders are followed, but not in circles."""
    seen = set()
    for folder, folders, files in os.walk(top, followlinks=True):
        here = os.path.realpath(folder)
        if here in seen:
            folders.clear()
            continue
        seen.add(here)
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield folder, [name for name in files if not name.startswith(".")]
