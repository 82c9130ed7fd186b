"""`framecast prepare`: real videos into a store. Each kind of source is a subcommand, its fields are the options."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, get_args, get_origin

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from framecast.data import prepare as data
from framecast.data.assets import METAWORLD, fetch
from framecast.data.clip import SPLITS
from framecast.data.resize import Size
from framecast.data.sources.bair import Bair
from framecast.data.sources.folder import Folder
from framecast.data.sources.kinetics import Kinetics
from framecast.data.sources.lerobot import Lerobot
from framecast.data.sources.moving_mnist import MovingMnist, PublishedMovingMnist, source_of
from framecast.data.sources.robot_bin import RobotBin
from framecast.data.sources.robotic_pushing import RoboticPushing
from framecast.errors import UserError

REGISTRY = ConstructorRegistry()


@REGISTRY.primitive_rule
def _size_rule(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Size] | None:
    if get_origin(info.type) is not tuple or get_args(info.type) != get_args(Size):
        return None
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="N|HxW",
        instance_from_str=lambda words: size_of(words[0]),
        is_instance=lambda value: isinstance(value, tuple) and len(value) == 2,
        str_from_instance=lambda size: ["x".join(map(str, size))],
    )


@dataclass(frozen=True)
class MovingMnistOptions(MovingMnist):
    """Digits that move and bounce, drawn whenever a clip is wanted: the store keeps digits and seeds."""

    source: str | None = None
    """A folder with MNIST's four files, where they are not to be downloaded; or the published mnist_test_seq.npy."""


@dataclass(frozen=True)
class RobotBinOptions(RobotBin):
    """A SIMULATED robot arm among objects in a bin: it looks like BAIR and is not BAIR."""

    source: str | None = None
    """Meta-World's wheel or the folder that holds it, where it is not to be downloaded."""


NAMES = {
    MovingMnistOptions: "moving-mnist",
    RobotBinOptions: "robot-bin",
    Bair: "bair",
    RoboticPushing: "robotic-pushing",
    Kinetics: "kinetics600",
    Lerobot: "lerobot",
    Folder: "folder",
}


Files = Bair | RoboticPushing | Kinetics | Lerobot | Folder
_named = tyro.conf.subcommand
AnySource = (
    Annotated[MovingMnistOptions, _named("moving-mnist", description="handwritten digits that move, drawn endlessly")]
    | Annotated[
        RobotBinOptions, _named("robot-bin", description="SIMULATED robot video, not BAIR; needs framecast[sim]")
    ]
    | Annotated[Bair, _named("bair", description="BAIR robot pushing, softmotion30_44k")]
    | Annotated[RoboticPushing, _named("robotic-pushing", description="ten arms pushing seen and unseen objects")]
    | Annotated[Kinetics, _named("kinetics600", description="a folder of Kinetics-600 clips and its lists")]
    | Annotated[Lerobot, _named("lerobot", description="a LeRobot dataset; needs framecast[lerobot]")]
    | Annotated[Folder, _named("folder", description="any folder of videos, pictures or arrays")]
)


@tyro.conf.configure(
    tyro.conf.CascadeSubcommandArgs, tyro.conf.OmitSubcommandPrefixes, tyro.conf.OmitArgPrefixes, tyro.conf.DisallowNone
)
def prepare(
    source: AnySource,
    *,
    out: Path,
    workers: int | None = None,
    part: Annotated[str, tyro.conf.arg(metavar="I/N")] = "1/1",
    ray: Annotated[str | None, tyro.conf.arg(metavar="ADDRESS")] = None,
) -> None:
    """Turn videos into a store to train on. Repeating the same command goes on where it was interrupted.

    Args:
        out: the store's folder.
        workers: processes that read videos; as many as there are cores by default.
        part: do the Ith of N equal shares of the work, as one command of a job array.
        ray: address of a Ray cluster to do the work, whose machines see the same folders.
    """
    if workers is not None and workers < 1:
        raise UserError(f"--workers is {workers}: it must be at least 1")
    share = share_of(part)
    dataset = NAMES[type(source)]
    made_of: Files | PublishedMovingMnist | RobotBin
    if isinstance(source, MovingMnistOptions):
        settings = MovingMnist(*(getattr(source, field.name) for field in dataclasses.fields(MovingMnist)))
        drawn_or_published = source_of(source.source, settings)
        if isinstance(drawn_or_published, MovingMnist):
            data.prepare_drawn(dataset, drawn_or_published, out, source.source)
            print(f"{out}: clips are drawn when they are wanted")
            return
        made_of = drawn_or_published
    elif isinstance(source, RobotBinOptions):
        fetch(METAWORLD, source.source)
        made_of = RobotBin(source.clips, source.seed, source.size, source.num_frames)
    else:
        made_of = source
    if not isinstance(made_of, RobotBin):
        made_of = dataclasses.replace(made_of, source=os.path.abspath(made_of.source))  # whichever folder we are in
    with progress() as show:
        account = data.prepare(dataset, made_of, out, num_workers=workers, share=share, ray_address=ray, progress=show)
    print(table(out, account))
    if account.skipped and not sum(account.num_clips.values()):
        raise UserError(f"nothing went into {out}: all {len(account.skipped)} were left out for the reasons above")


def size_of(word: str) -> Size:
    """`64` and `64x80` as (height, width)."""
    try:
        sides = [int(side) for side in word.lower().split("x")]
    except ValueError:
        sides = []
    if len(sides) not in (1, 2) or min(sides) < 1:
        raise ValueError(f"{word!r} is no size: write N for a square or HxW, as in 64 or 64x80")
    return sides[0], sides[-1]


def share_of(word: str) -> data.Share:
    numbers = word.split("/")
    if len(numbers) != 2 or not all(number.isdecimal() for number in numbers):
        raise UserError(f"--part is {word!r}: write I/N, as in 3/8")
    share = int(numbers[0]), int(numbers[1])
    if not 1 <= share[0] <= share[1]:
        raise UserError(f"--part {word} is none: of {share[1]} shares, the first is 1 and the last is {share[1]}")
    return share


def table(out: Path, account: data.Account) -> str:
    """What went in, what did not, and why."""
    lines = [f"{out}: {account.num_bytes:,} bytes", f"{'split':<8}{'clips':>12}{'frames':>14}"]
    for split in SPLITS:
        lines.append(f"{split:<8}{account.num_clips[split]:>12,}{account.num_frames[split]:>14,}")
    lines += [f"left out: {len(account.skipped):,}"]
    lines += [f"  {_printable(each.name)}: {_printable(each.reason)}" for each in account.skipped]
    if account.missing_parts:
        lines.append(f"{account.missing_parts:,} parts of the whole store are for other commands to make")
    return "\n".join(lines)


def _printable(text: str) -> str:
    """Names come from file systems and may hold anything, also what a terminal would obey."""
    return "".join(character if character.isprintable() else "�" for character in text)


@contextmanager
def progress() -> Iterator[Callable[[int, int], None]]:
    """A bar on a terminal, a line now and then elsewhere; both on stderr."""
    if not sys.stderr.isatty():
        yield _Lines()
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True)) as bar:
        task = bar.add_task("parts")
        yield lambda done, total: bar.update(task, completed=done, total=total)


class _Lines:
    """A line for every tenth of the work."""

    def __init__(self) -> None:
        self.tenth = -1

    def __call__(self, done: int, total: int) -> None:
        tenth = 10 * done // total if total else 10
        if tenth > self.tenth:
            self.tenth = tenth
            print(f"{done} of {total} parts", file=sys.stderr, flush=True)
