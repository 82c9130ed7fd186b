"""Disks that fill up or may not be written, files that vanish, two commands at once: a sentence, nothing lost, and the
same command finishes the work once there is room. A full disk under prepare: tests/data/test_prepare.py.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from framecast.data.store import Store
from framecast.errors import UserError
from framecast.model.video_transformer import VideoTransformer
from framecast.training import checkpoint as checkpoints

root = pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk takes root")


@contextmanager
def mounted(folder: Path, *options: str) -> Iterator[Path]:
    folder.mkdir(exist_ok=True)
    done = subprocess.run(["mount", *options, str(folder)], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"this system lets nobody mount: {done.stderr}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def room(folder: Path, size: str) -> None:
    subprocess.run(["mount", "-o", f"remount,size={size}", str(folder)], check=True)


@pytest.fixture
def train(framecast, digits) -> Callable[..., tuple[int, str]]:
    """`train(run)`: the exit status and what was said on stderr."""

    def go(run: Path, *, store: Path = digits, steps: int = 12, **options) -> tuple[int, str]:
        words = ["train", "tiny", "--data", store, "--out", run, "--steps", steps, "--checkpoint-every", 4]
        process = framecast(*words, **options)
        _, errors = process.communicate(timeout=200)
        return process.returncode, errors

    return go


def plain(errors: str, *words: str) -> bool:
    """One sentence of ours with these words, no traceback."""
    return "Traceback" not in errors and all(word in errors for word in words)


@root
def test_a_full_disk_under_a_run(train, tmp_path, state, figures):
    assert train(tmp_path / "undisturbed")[0] == 0
    with mounted(tmp_path / "disk", "-t", "tmpfs", "-o", "size=64k", "none") as disk:
        run, refusals = disk / "a rün", []
        for size in ("64k", "1500k", "2500k", "3500k"):
            room(disk, size)
            status, errors = train(run)
            if status == 0:
                break
            assert status == 2, errors
            assert plain(errors, "the disk that holds", "is full"), errors
            refusals.append(size)
            for saved in checkpoints.everything(run / "checkpoints"):
                checkpoints.check(saved)
            if (run / "model").exists():
                VideoTransformer.load(run)
        room(disk, "32m")
        assert train(run)[0] == 0
        assert state(run) == state(tmp_path / "undisturbed")
    assert len(refusals) >= 2
    figures(refused_at=refusals)


@root
def test_folders_that_may_not_be_written(train, framecast, digits, test_data, tmp_path):
    with mounted(tmp_path / "disk", "-t", "tmpfs", "-o", "size=1m", "none") as disk:
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        status, errors = train(disk / "run")
        assert (status, plain(errors, "read-only file system")) == (2, True), errors
        process = framecast("prepare", "moving-mnist", "--source", test_data / "mnist", "--out", disk / "store")
        _, errors = process.communicate()
        assert (process.returncode, plain(errors, "read-only file system")) == (2, True), errors
        with pytest.raises(UserError, match="read-only"):
            VideoTransformer.load(some_model(tmp_path)).save(disk / "model")


@root
def test_data_and_models_are_used_where_nothing_may_be_written(train, digits, tmp_path):
    """Reading takes no lock and no temporary file."""
    with mounted(tmp_path / "disk", "-t", "tmpfs", "-o", "size=80m", "none") as disk:
        shutil.copytree(digits, disk / "store")
        shutil.copytree(some_model(tmp_path), disk / "model")
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        assert not list(Store(disk / "store").damage())
        VideoTransformer.load(disk / "model")
        assert train(tmp_path / "run", store=disk / "store", steps=1)[0] == 0


def some_model(tmp_path: Path) -> Path:
    from framecast.presets import preset

    if not (tmp_path / "model").exists():
        VideoTransformer(preset("tiny").model).save(tmp_path / "model")
    return tmp_path / "model"


def test_a_store_that_vanishes_under_a_run(targets, make_store, tmp_path):
    """The mapped pixels stay; what was not yet mapped is a sentence, and never a crash of the process."""
    store = Store(
        make_store(tmp_path / "störe with spaces", [targets.small_clip(n) for n in range(4)], clips_per_part=2)
    )
    mapped = store[0].copy()
    for shard in store.path.glob("*.shard"):
        shard.unlink()
    assert (store[1] == targets.small_clip(1).video).all()
    assert (store[0] == mapped).all()
    with pytest.raises(UserError, match="was removed or cut short since the store was opened"):
        store[2]


def test_a_run_whose_files_vanish(train, tmp_path, state):
    """The last checkpoint was removed, or the model, or the metrics: the same command makes them again."""
    run = tmp_path / "run"
    assert train(run)[0] == 0
    whole = state(run)
    shutil.rmtree(run / "model")
    shutil.rmtree(run / "checkpoints" / "00000012")
    assert train(run)[0] == 0
    assert state(run) == whole


def test_two_trainings_of_one_run(train, framecast, digits, tmp_path):
    """The second is refused while the first lives, and not a moment longer: locks die with their holder."""
    run = tmp_path / "run"
    words = ["train", "tiny", "--data", digits, "--out", run, "--steps", 5000, "--checkpoint-every", 4]
    first = framecast(*words)
    while not (run / "checkpoints").is_dir():
        assert first.poll() is None
    status, errors = train(run)
    assert (status, plain(errors, "is being trained by another process")) == (2, True), errors
    first.kill()
    first.communicate()
    assert train(run, steps=1)[0] == 0


def test_words_that_nobody_takes():
    """Standard output is a full disk, or a program that has read enough: no traceback, and a status that says so."""
    command = [sys.executable, "-m", "framecast", "info", "tiny"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, plain(done.stderr, "No space left on device")) == (2, True), done.stderr
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 141


@root
def test_no_room_for_an_upload(framecast, tmp_path):
    """The server's own folder for what is sent to it is full: a status that says so, and it goes on."""
    import http.client

    with mounted(tmp_path / "disk", "-t", "tmpfs", "-o", "size=1m", "none") as disk:
        process = framecast("serve", some_model(tmp_path), "--port", 0, environment={"TMPDIR": str(disk)})
        try:
            port = int(process.stdout.readline().rpartition(":")[2].split("/")[0])
            for size, status in ((5 << 20, 507), (100, 422)):
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
                connection.request("POST", "/api/clips/upload?model=0&name=a.gif", b"GIF89a" + bytes(size))
                answer = connection.getresponse()
                assert answer.status == status, answer.read()
                connection.close()
        finally:
            process.terminate()
            _, errors = process.communicate(timeout=30)
    assert process.returncode == 143
    assert "Traceback" not in errors


def test_locks_and_unfinished_files_are_never_links(framecast, test_data, train, tmp_path):
    """A folder from elsewhere cannot make a command write outside of it."""
    target = tmp_path / "elsewhere"
    target.write_text("precious")
    for name in ("store.lock", "store.json.tmp"):
        store = tmp_path / f"store of {name}"
        store.mkdir()
        (store / name).symlink_to(target)
        process = framecast("prepare", "moving-mnist", "--source", test_data / "mnist", "--out", store)
        _, errors = process.communicate()
        assert (process.returncode, plain(errors, "is a symbolic link")) == (2, True), errors
    for name in (".lock", ".config.json", ".metrics.jsonl"):
        run = tmp_path / f"run of {name}"
        run.mkdir()
        (run / name).symlink_to(target)
        status, errors = train(run, steps=1)
        assert (status, plain(errors, "is a symbolic link")) == (2, True), errors
    assert target.read_text() == "precious"
