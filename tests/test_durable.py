from __future__ import annotations

import errno
import multiprocessing
import os
from pathlib import Path

import pytest

from framecast import durable
from framecast.errors import UserError


def test_a_file_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with durable.temporary(tmp_path / "file.tmp") as file:
        assert file is not None
        durable.write(file, b"half")
        assert not path.exists()
        durable.publish(file, path)
    assert path.read_bytes() == b"half"
    assert os.listdir(tmp_path) == ["file"]


def test_a_temporary_file_goes_with_whoever_fails(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), durable.temporary(tmp_path / "file.tmp"):
        raise ZeroDivisionError
    assert os.listdir(tmp_path) == []


def test_leftovers_are_taken_over_and_emptied(tmp_path: Path) -> None:
    (tmp_path / "file.tmp").write_bytes(b"of somebody who was killed")
    with durable.temporary(tmp_path / "file.tmp") as file:
        assert file is not None
        assert os.fstat(file.fileno()).st_size == 0


def test_a_file_is_one_writer_s(tmp_path: Path) -> None:
    with durable.temporary(tmp_path / "file.tmp"), durable.temporary(tmp_path / "file.tmp", patience=0.05) as other:
        assert other is None
    with durable.temporary(tmp_path / "file.tmp", patience=0) as file:
        assert file is not None


def test_the_one_who_waited_gets_a_file_that_is_still_there(tmp_path: Path) -> None:
    """The lock that was waited for is on a file that was renamed meanwhile: another one must be opened."""
    path = tmp_path / "file.tmp"
    with durable.temporary(path) as first:
        assert first is not None
        holder = path.open("r+b", buffering=0)
        durable.publish(first, tmp_path / "file")
    with durable.temporary(path) as second:
        assert second is not None
        assert not os.path.sameopenfile(holder.fileno(), second.fileno())
    holder.close()
    assert (tmp_path / "file").exists()


def test_links_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_bytes(b"precious")
    (tmp_path / "file.tmp").symlink_to(tmp_path / "precious")
    with pytest.raises(OSError, match="symbolic link"), durable.temporary(tmp_path / "file.tmp"):
        pass
    assert (tmp_path / "precious").read_bytes() == b"precious"


def test_locks_die_with_their_holder(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    ready, theirs = context.Pipe()
    process = context.Process(target=hold, args=(tmp_path / "lock", theirs))
    process.start()
    ready.recv()
    with (tmp_path / "lock").open("ab", buffering=0) as file:
        assert not durable.locked(file, patience=0)
        process.kill()
        process.join()
        assert durable.locked(file)


def hold(path: Path, connection: object) -> None:
    file = path.open("ab", buffering=0)
    connection.send(durable.locked(file))
    connection.recv()


def test_locks_can_be_shared(tmp_path: Path) -> None:
    files = [(tmp_path / "lock").open("ab", buffering=0) for _ in range(3)]
    assert durable.locked(files[0], shared=True, patience=0)
    assert durable.locked(files[1], shared=True, patience=0)
    assert not durable.locked(files[2], patience=0)
    for file in files:
        file.close()


@pytest.mark.parametrize(
    ("number", "sentence"),
    [
        (errno.ENOSPC, "the disk that holds .* is full: go elsewhere"),
        (errno.EROFS, "is on a read-only file system"),
        (errno.EACCES, "may not be written"),
    ],
)
def test_what_a_file_system_refuses(tmp_path: Path, number: int, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence), durable.plain_errors(tmp_path, "go elsewhere"):
        raise OSError(number, os.strerror(number))


def test_what_nobody_expects_is_passed_on(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="Bad address"), durable.plain_errors(tmp_path, "go elsewhere"):
        raise OSError(errno.EFAULT, os.strerror(errno.EFAULT))
