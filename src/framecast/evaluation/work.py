"""Work that is kept: a folder of pieces, each made once and whole, by whichever process comes first.

Repeating an evaluation finds its pieces; the processes of a job, or of several, share them without speaking to each
other. Who makes a piece holds the kernel's lock on its name, so that what a killed process began is free again.
"""

from __future__ import annotations

import io
import time
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from framecast import durable
from framecast.errors import UserError

SECONDS_BETWEEN_LOOKS = 0.2
WAY_OUT = "choose another folder with --out, or with FRAMECAST_CACHE for what is kept by content"

Arrays = dict[str, np.ndarray]


def missing(folder: Path, names: Iterable[str]) -> list[str]:
    """The pieces that are still to be made."""
    return [name for name in names if not _path(folder, name).is_file()]


def make_all(folder: Path, makers: dict[str, Callable[[], Arrays]], made: Callable[[str], None]) -> None:
    """Make every piece that is not there, leaving out those that another process is at; return when all are there.

    `made` is told the name of each piece that this process has made.
    """
    with durable.plain_errors(folder, WAY_OUT):
        folder.mkdir(parents=True, exist_ok=True)
        while names := missing(folder, makers):
            any_made = False
            for name in names:
                with durable.temporary(folder / f".{name}.unfinished", patience=0) as file:
                    if file is None or _path(folder, name).is_file():
                        continue
                    durable.write(file, _packed(makers[name]()))
                    durable.publish(file, _path(folder, name))
                any_made = True
                made(name)
            if not any_made:  # the rest is in others' hands, or was when we looked
                time.sleep(SECONDS_BETWEEN_LOOKS)


def load(folder: Path, name: str) -> Arrays:
    path = _path(folder, name)
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return dict(arrays)
    except (ValueError, OSError, EOFError, KeyError, zipfile.BadZipFile) as error:
        raise UserError(f"{path} is damaged ({error}): remove it, and it is made again.") from None


def _path(folder: Path, name: str) -> Path:
    return folder / f"{name}.npz"


def _packed(arrays: Arrays) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]  # an array may have any name but numpy's own options'
    return buffer.getvalue()
