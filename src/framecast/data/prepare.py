"""From a source to a store: plan the parts, make those that are not done, say what went in and what did not.

Repeating the same call resumes: parts that are done are left alone, and other settings are refused. The items are split
into parts in order, so a share I of N of them (a job array) is every Nth part.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from framecast import durable
from framecast.data import manifest as manifests
from framecast.data.clip import SPLITS, Skipped
from framecast.data.manifest import Manifest, read_manifest
from framecast.data.part import MAX_ITEMS, Part, Source
from framecast.data.pool import make_here, make_on_ray
from framecast.data.shard import MAX_SHARD_BYTES, Shard
from framecast.data.store import finished_parts
from framecast.errors import UserError

if TYPE_CHECKING:
    from framecast.data.sources.moving_mnist import MovingMnist

LOCK = "store.lock"
DECIDERS = ("framecast", "av", "mujoco", "numpy", "pillow", "pyarrow")
"""Packages that decide how pixels and numbers come out."""

MIN_PARTS = 64
"""A source with fewer items than this has a part for each, so that every core finds work."""

Share = tuple[int, int]
"""(I, N): every Nth part, beginning with the Ith; I counts from 1."""


@dataclass
class Account:
    """What went in and what did not."""

    num_clips: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SPLITS, 0))
    num_frames: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SPLITS, 0))
    num_bytes: int = 0
    skipped: list[Skipped] = field(default_factory=list)
    missing_parts: int = 0
    """Of the whole store, where this was a share of it."""


def prepare(
    dataset: str,
    source: Source,
    folder: Path,
    *,
    num_workers: int | None = None,
    share: Share = (1, 1),
    ray_address: str | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> Account:
    """Make a store, or what is missing of it. `progress` is told how many parts of how many are done."""
    folder = folder.resolve()
    items = source.items()
    manifest = describe(dataset, source, items)
    with durable.plain_errors(folder, "give --out a folder that can be written"):
        folder.mkdir(parents=True, exist_ok=True)
        with held(folder, shared=share != (1, 1)):
            manifest = settle(folder, manifest)
            mine = range(share[0] - 1, manifest.num_parts, share[1])
            done = finished_parts(folder)
            sha256, size = manifest.sha256(), manifest.items_per_part
            parts = [
                Part(folder, number, source, items[number * size : (number + 1) * size], sha256, max_shard_bytes)
                for number in mine
                if number not in done
            ]
            if parts:
                refuse_other_versions(folder, manifest)
            progress(len(mine) - len(parts), len(mine))
            makers = make_on_ray(parts, ray_address) if ray_address else make_here(parts, num_workers or cores())
            try:
                with closing(makers):  # on Ctrl-C too, whoever works is gone before their files are removed
                    for made, _ in enumerate(makers, start=1):
                        progress(len(mine) - len(parts) + made, len(mine))
            finally:
                remove_leftovers(folder, mine)
            return account(folder, manifest, mine)


def prepare_drawn(dataset: str, settings: MovingMnist, folder: Path, digits: str | None) -> None:
    """Make a store whose clips are drawn when they are wanted; `digits` is where MNIST is, if not to be fetched."""
    folder = folder.resolve()
    nothing = hashlib.sha256().hexdigest()
    manifest = Manifest(dataset, settings.kind, fields_of(settings), 0, nothing, 1, versions())
    with durable.plain_errors(folder, "give --out a folder that can be written"):
        folder.mkdir(parents=True, exist_ok=True)
        with held(folder, shared=False):
            settle(folder, manifest)
            settings.write_digits(folder, digits)


def describe(dataset: str, source: Source, items: Sequence[str]) -> Manifest:
    assert 1 <= source.items_per_part <= MAX_ITEMS
    items_per_part = max(1, min(source.items_per_part, len(items) // MIN_PARTS))
    if -(-len(items) // items_per_part) > manifests.MAX_PARTS:
        raise UserError(f"{len(items)} items are more than one store takes: prepare them in several")
    digest = hashlib.sha256()
    for item in items:
        digest.update(item.encode("utf-8", "surrogatepass") + b"\0")
    return Manifest(
        dataset=dataset,
        kind="shards",
        source=fields_of(source),
        num_items=len(items),
        items_sha256=digest.hexdigest(),
        items_per_part=items_per_part,
        made_by=versions(),
    )


def fields_of(source: Any) -> dict[str, Any]:
    """The fields of a source as JSON has them: tuples are lists there."""
    fields: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(source)))
    return fields


def versions() -> dict[str, str]:
    found = {}
    for name in DECIDERS:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


@contextmanager
def held(folder: Path, *, shared: bool) -> Iterator[None]:
    """Nobody else may write the store meanwhile, but who makes other parts of it."""
    with durable.open_lock(folder / LOCK) as file:
        if not durable.locked(file, shared=shared):
            raise UserError(
                f"another command is writing {folder}: let it finish, or give each of several commands its share "
                f"of the work with --part I/N"
            )
        yield


def settle(folder: Path, manifest: Manifest) -> Manifest:
    """Write the manifest of a new store, or read the one that is there and find that it says the same."""
    path = folder / manifests.NAME
    with durable.temporary(folder / f"{manifests.NAME}.tmp") as file:
        if file is None:
            raise UserError(f"another command is beginning the store {folder}: try again")
        if not os.path.lexists(path):
            if strange := sorted(set(os.listdir(folder)) - {LOCK, f"{manifests.NAME}.tmp"}):
                raise UserError(f"{folder} is no store and not empty (it has {strange[0]}): give --out another folder")
            durable.write(file, manifest.text())
            durable.publish(file, path)
            return manifest
    existing = read_manifest(folder)
    refuse_other_settings(folder, existing, manifest)
    return existing


def refuse_other_settings(folder: Path, existing: Manifest, wanted: Manifest) -> None:
    way_out = "repeat the command that began it, or give --out another folder"
    if (existing.dataset, existing.kind) != (wanted.dataset, wanted.kind):
        raise UserError(f"{folder} is a store of {existing.dataset}, not of {wanted.dataset}: {way_out}")
    for name in sorted(existing.source.keys() | wanted.source.keys()):
        before, now = (json.dumps(each.source.get(name)) for each in (existing, wanted))
        if before != now:
            raise UserError(f"{folder} is made with {name} {before}, this command has {name} {now}: {way_out}")
    if (existing.num_items, existing.items_sha256) != (wanted.num_items, wanted.items_sha256):
        raise UserError(
            f"the source has changed since {folder} was begun: it had {existing.num_items} items and now has "
            f"{wanted.num_items}, or others. A store is of one state of its source: give --out another folder"
        )
    assert existing.items_per_part == wanted.items_per_part, "one source, one size of parts"


def refuse_other_versions(folder: Path, manifest: Manifest) -> None:
    """Two versions of a decoder may give two kinds of pixels, and the manifest would be true of one."""
    here = versions()
    for name, before in manifest.made_by.items():
        if (now := here.get(name, before)) != before:
            raise UserError(
                f"{folder} is not finished and was begun with {name} {before}, here is {now}: "
                f"install that version, or give --out another folder"
            )


def remove_leftovers(folder: Path, parts: range) -> None:
    """Temporary files of processes that were killed; those of living ones are locked and stay."""
    for path in folder.glob("*.tmp"):
        if path.name[:6].isdecimal() and int(path.name[:6]) in parts:
            with durable.temporary(path, patience=0):
                pass


def account(folder: Path, manifest: Manifest, parts: range) -> Account:
    """What the shards of these parts say of themselves; one is open at a time."""
    done = finished_parts(folder)
    found = Account(missing_parts=manifest.num_parts - len(done))
    for path in (folder / name for part in parts for name in done[part]):
        shard = Shard(path)
        for place, split in enumerate(SPLITS):
            of_split = shard.entries["split"] == place
            found.num_clips[split] += int(of_split.sum())
            found.num_frames[split] += int(shard.shapes[of_split, 0].sum())
        found.num_bytes += path.stat().st_size
        found.skipped += shard.skipped
    return found


def cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
