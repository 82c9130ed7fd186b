"""Work that is kept: made once, whole, shared, and never read half."""

from __future__ import annotations

import multiprocessing
import os
import time
from pathlib import Path

import numpy as np
import pytest

from framecast import durable
from framecast.errors import UserError
from framecast.evaluation import work


def makers(log: list[str], names=("a", "b", "c")):
    return {name: lambda name=name: log.append(name) or {"value": np.array(ord(name))} for name in names}


def test_each_piece_is_made_once_and_found_again(tmp_path):
    log, made = [], []
    work.make_all(tmp_path, makers(log, "ab"), made.append)
    work.make_all(tmp_path, makers(log, "abc"), made.append)
    assert log == made == ["a", "b", "c"]
    assert work.missing(tmp_path, "abcd") == ["d"]
    assert int(work.load(tmp_path, "b")["value"]) == ord("b")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.npz", "b.npz", "c.npz"]


def test_a_piece_that_fails_is_not_there(tmp_path):
    def fail():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work.make_all(tmp_path, {"a": lambda: {"x": np.zeros(1)}, "b": fail}, lambda name: None)
    assert [file.name for file in tmp_path.iterdir()] == ["a.npz"]


def test_a_piece_in_other_hands_is_left_to_them_until_they_die(tmp_path, monkeypatch):
    log, naps = [], []
    holder = durable.temporary(tmp_path / ".a.unfinished")
    holder.__enter__()

    def nap(seconds):
        naps.append(list(log))
        holder.__exit__(None, None, None)

    monkeypatch.setattr(work.time, "sleep", nap)
    work.make_all(tmp_path, makers(log, "ab"), lambda name: None)
    assert naps == [["b"]]
    assert log == ["b", "a"]


def _slowly(folder: str, number: int) -> None:
    def make(name: int):
        time.sleep(0.02)
        return {"by": np.array(number)}

    work.make_all(Path(folder), {f"{name}": lambda name=name: make(name) for name in range(12)}, lambda name: None)


def test_processes_share_the_pieces(tmp_path):
    context = multiprocessing.get_context("fork" if os.name == "posix" else None)
    workers = [context.Process(target=_slowly, args=(str(tmp_path), number)) for number in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0]
    by = {int(work.load(tmp_path, f"{name}")["by"]) for name in range(12)}
    assert by == {0, 1}


def test_a_damaged_piece_is_named(tmp_path):
    (tmp_path / "a.npz").write_bytes(b"PK nothing")
    with pytest.raises(UserError, match=r"a.npz is damaged .*: remove it, and it is made again"):
        work.load(tmp_path, "a")
