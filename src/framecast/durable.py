"""Files that are there whole or not at all, and locks that die with their holder.

A file is written under a temporary name, brought to the disk, and renamed. Whoever writes it holds the kernel's lock
(flock) on the temporary file meanwhile; a crash drops the lock, so a leftover that can be locked is nobody's.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from framecast.errors import UserError

PATIENCE = 3.0
"""Seconds to wait for a lock: processes whose parent was killed need a moment to notice."""


def locked(file: BinaryIO, *, shared: bool = False, patience: float = PATIENCE) -> bool:
    """Whether the lock of an open file was to be had in time; it is held until the file is closed."""
    deadline = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        except OSError as error:
            raise UserError(
                f"the file system of {file.name} offers no locks ({error.strerror}): "
                f"write to a folder on this machine and move it there when it is finished"
            ) from error


def open_lock(path: Path) -> BinaryIO:
    """An empty file whose lock stands for the folder it lies in; it stays there."""
    return open(path, "ab", buffering=0, opener=_open_or_create)


@contextmanager
def temporary(path: Path, *, patience: float = PATIENCE) -> Iterator[BinaryIO | None]:
    """An empty locked file at `path`, or None when somebody else holds it; gone afterwards, unless it was renamed."""
    while True:
        file = open(path, "r+b", buffering=0, opener=_open_or_create)  # noqa: SIM115
        if not locked(file, patience=patience):
            file.close()
            yield None
            return
        if _is_at(file, path):  # not renamed or removed by its holder while we waited
            break
        file.close()
    with file:
        file.truncate(0)
        try:
            yield file
        finally:
            if _is_at(file, path):
                path.unlink()


def write(file: BinaryIO, data: bytes | memoryview) -> None:
    """All of it, where the kernel may take less at a time."""
    rest = memoryview(data)
    while len(rest):
        rest = rest[file.write(rest) :]


def publish(file: BinaryIO, path: Path) -> None:
    """Give a temporary file its lasting name, once its bytes are on the disk."""
    os.fsync(file.fileno())
    os.replace(file.name, path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Bring a folder's names to the disk, where its file system can."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def plain_errors(folder: Path, way_out: str) -> Iterator[None]:
    """What a file system refuses, in a sentence."""
    try:
        yield
    except OSError as error:
        reasons = {
            errno.ENOSPC: f"the disk that holds {folder} is full",
            errno.EDQUOT: f"the quota of the disk that holds {folder} is used up",
            errno.EROFS: f"{folder} is on a read-only file system",
            errno.EACCES: f"{error.filename or folder} may not be written",
            errno.EPERM: f"{error.filename or folder} may not be written",
            errno.ENOENT: f"{error.filename or folder} was removed by somebody else",
            errno.ENOTDIR: f"{folder} is no folder",
            errno.EEXIST: f"{folder} is no folder",
            errno.ELOOP: f"{error.filename or folder} is a symbolic link",
            errno.EIO: f"the disk that holds {folder} fails to read or write",
        }
        if error.errno not in reasons:
            raise
        raise UserError(f"{reasons[error.errno]}: {way_out}") from error


def _open_or_create(path: str, flags: int) -> int:
    """Never through a symbolic link, which could lead out of the folder."""
    return os.open(path, flags | os.O_CREAT | os.O_NOFOLLOW, 0o666)


def _is_at(file: BinaryIO, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except FileNotFoundError:
        return False
