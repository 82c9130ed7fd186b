"""Kinetics-600: ten-second clips of human actions from YouTube, and the lists that say what they show.

The folder holds the clips, flat or in folders of classes and splits, named `ID_000000_000010.mp4` (video, first and
last second) or `ID.mp4`, and beside or below them the annotation lists, CSV files with `label,youtube_id,time_start,
time_end,split`. A list without labels (the test split is published so) takes them from the folders. Videos vanish from
YouTube, so much of a list is missing everywhere: what is, is listed.

Without lists the folders alone say what there is: `CLASS/FILE`, or `SPLIT/CLASS/FILE`.

Frames are those of the file, as many as there are: cropped to the centre, and resized by antialiased Lanczos-3.
"""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, NamedTuple

from framecast.data import decoder
from framecast.data.clip import Clip, Skipped
from framecast.data.frames import Selection
from framecast.data.resize import Size
from framecast.data.split import split_of
from framecast.errors import UserError

COOKING = re.compile(
    ".*(baking|barbequing|breading|cooking|cutting|pancake|vegetables|"
    "meat|cake|sandwich|pizza|sushi|tea|peeling|fruit|eggs|salad).*"
)
"""The paper's cooking classes: 29 of the 600."""

SUBSETS = {"": re.compile(".*"), "cooking": COOKING}
SPLITS = {"train": "train", "val": "val", "validate": "val", "validation": "val", "test": "test"}
COLUMNS = ("youtube_id", "time_start", "time_end", "split")


class Entry(NamedTuple):
    """One line of a list, or one file where there are no lists. As an item: `split/label/ID_000000_000010`."""

    split: str
    """Empty where there are lists and none names the file."""
    label: str
    """Empty where the list has none."""
    stem: str


@dataclass(frozen=True)
class Kinetics:
    source: str
    """The folder of clips and lists."""
    size: Size = (64, 64)
    subset: str = ""
    """"cooking", or empty for all classes."""

    items_per_part: ClassVar[int] = 128

    def __post_init__(self) -> None:
        if self.subset not in SUBSETS:
            raise UserError(f"Kinetics has no subset {self.subset!r}; there is cooking")
        Selection((self.size[0], self.size[1]))

    def items(self) -> Sequence[str]:
        if not Path(self.source).is_dir():
            raise UserError(f"{self.source} is no folder")
        _tree.cache_clear()  # what is there may have changed since it was last looked at
        tree = _tree(self.source)
        entries = [entry for path in tree.lists for entry in _entries(Path(self.source, path))]
        if entries:
            listed = {_find(tree.files, entry.stem) for entry in entries}
            entries += [Entry("", _label_of(path), stem) for stem, path in tree.files.items() if path not in listed]
        else:
            entries = [_entry_of(path) for path in tree.files.values()]
        wanted = SUBSETS[self.subset]
        found = {
            "/".join(entry)
            for entry in entries
            if wanted.fullmatch(entry.label or _label_of(_find(tree.files, entry.stem)))
        }
        if not found:
            raise UserError(f"{self.source} holds no clips {self.subset and 'of cooking '}and no lists of any")
        return sorted(found)

    def read(self, items: Sequence[str]) -> Iterator[Clip | Skipped]:
        selection = Selection((self.size[0], self.size[1]))
        for item in items:
            entry = Entry(*item.split("/"))
            path = _find(_tree(self.source).files, entry.stem)
            if path is None or not entry.split:
                yield Skipped(item, "its file is missing" if path is None else "no list names it")
                continue
            try:
                video = selection.clip(decoder.decode(Path(self.source, path)))
                yield Clip(video, item, entry.split, entry.label or _label_of(path))
            except UserError as error:
                yield Skipped(item, str(error))


class Tree(NamedTuple):
    lists: list[str]
    files: Mapping[str, str]
    """Of each stem, the path below the folder; the first of several."""


@lru_cache(maxsize=1)
def _tree(source: str) -> Tree:
    """What lies below the folder; one look costs a second where there are 400,000 files."""
    lists: list[str] = []
    files: dict[str, str] = {}
    for folder, folders, names in os.walk(source, followlinks=True):
        folders.sort()
        below = os.path.relpath(folder, source)
        for name in sorted(names):
            stem, suffix = os.path.splitext(name)
            path = os.path.normpath(os.path.join(below, name))
            if name.startswith("."):
                continue
            if suffix.lower() == ".csv":
                lists.append(path)
            elif suffix.lower() in decoder.SUFFIXES:
                files.setdefault(stem, path)
    return Tree(sorted(lists), files)


def _entries(path: Path) -> Iterator[Entry]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = csv.DictReader(file)
            missing = [column for column in COLUMNS if column not in (lines.fieldnames or ())]
            if missing:
                raise UserError(f"{path} is no Kinetics list: it has no column {missing[0]}")
            for line in lines:
                try:
                    stem = f"{line['youtube_id']}_{int(line['time_start']):06}_{int(line['time_end']):06}"
                    entry = Entry(SPLITS[line["split"]], line.get("label") or "", stem)
                except (KeyError, TypeError, ValueError) as error:
                    raise UserError(f"{path} is no Kinetics list: line {lines.line_num} is {dict(line)}") from error
                if any("/" in part for part in entry):
                    raise UserError(f"{path} is no Kinetics list: line {lines.line_num} names a path")
                yield entry
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path} is no Kinetics list: {error}") from error


def _entry_of(path: str) -> Entry:
    """What the folders say of a file."""
    split = next((SPLITS[part] for part in Path(path).parent.parts if part in SPLITS), None)
    return Entry(split or split_of(Path(path).stem), _label_of(path), Path(path).stem)


def _find(files: Mapping[str, str], stem: str) -> str | None:
    return files.get(stem) or files.get(re.sub(r"_\d{6}_\d{6}$", "", stem))


def _label_of(path: str | None) -> str:
    """The class whose folder a file lies in. Labels have spaces, for which folders often have underscores."""
    folder = Path(path).parent.name if path else ""
    return "" if folder in SPLITS else folder.replace("_", " ")
