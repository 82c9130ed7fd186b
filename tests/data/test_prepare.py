from __future__ import annotations

import dataclasses
import functools
import importlib
import os
import random
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import BinaryIO

import numpy as np
import pytest

from framecast import durable
from framecast.config import LayerConfig, ModelConfig
from framecast.data.batches import Batches
from framecast.data.manifest import NAME
from framecast.data.part import Part, Source
from framecast.data.prepare import describe, prepare
from framecast.data.store import Store
from framecast.errors import UserError

from ..processes import files_of, workers_of

PREPARE = """
import sys
from pathlib import Path
from disturbed import Disturbed
from framecast.data.prepare import prepare
num_frames, *seconds = map(float, sys.argv[3:])
prepare("folder", Disturbed(sys.argv[1], int(num_frames), *seconds), Path(sys.argv[2]), num_workers=2)
"""


@pytest.fixture
def disturbed(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module of the source, where the processes of a pool find it too."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    return importlib.import_module("disturbed")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder of 70 items, which make 70 parts of one; some of them in 2 shards."""
    return a_source(tmp_path / "source", 70)


def a_source(folder: Path, num_items: int) -> Path:
    folder.mkdir()
    for number in range(num_items):
        (folder / f"{number:03}.txt").touch()
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def assert_whole(folder: Path, disturbed: ModuleType) -> int:
    """Every clip that can be read is right, as far as the store has got; says how many there are."""
    store = Store(folder)
    for number in range(len(store)):
        clip = store.clip(number)
        expected = disturbed.a_clip(clip.name, store.manifest.source["num_frames"])
        np.testing.assert_array_equal(clip.video, expected.video)
        np.testing.assert_array_equal(clip.actions, expected.actions)
        assert clip.split == expected.split
    assert not list(store.damage())
    return len(store)


def test_workers_and_shares_and_order_change_nothing(tmp_path: Path, source: Path, disturbed: ModuleType) -> None:
    made_of = disturbed.Disturbed(str(source))
    whole = prepare("folder", made_of, tmp_path / "one", num_workers=1)
    assert (sum(whole.num_clips.values()), sum(whole.num_frames.values()), whole.skipped) == (70, 210, [])
    assert assert_whole(tmp_path / "one", disturbed) == 70
    prepare("folder", made_of, tmp_path / "two", num_workers=2)
    accounts = [prepare("folder", made_of, tmp_path / "shares", num_workers=1, share=(i, 3)) for i in (2, 3, 1)]
    assert contents(tmp_path / "one") == contents(tmp_path / "two") == contents(tmp_path / "shares")
    assert [account.missing_parts for account in accounts] == [47, 24, 0]
    assert sum(sum(account.num_clips.values()) for account in accounts) == 70
    names = [Store(tmp_path / "one").clip(number).name for number in range(70)]
    assert names == list(made_of.items())


def test_again_does_nothing_and_other_settings_are_refused(tmp_path: Path, source: Path, disturbed: ModuleType) -> None:
    made_of, folder = disturbed.Disturbed(str(source)), tmp_path / "store"
    prepare("folder", made_of, folder, num_workers=1)
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    prepare("folder", made_of, folder, num_workers=1)
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before
    with pytest.raises(UserError, match="is made with num_frames 3, this command has num_frames 4"):
        prepare("folder", disturbed.Disturbed(str(source), 4), folder)
    with pytest.raises(UserError, match="a store of folder, not of bair"):
        prepare("bair", made_of, folder)
    (source / "new.txt").touch()
    with pytest.raises(UserError, match="it had 70 items and now has 71"):
        prepare("folder", made_of, folder)
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before


def test_folders_that_are_no_stores(tmp_path: Path, source: Path, disturbed: ModuleType) -> None:
    made_of = disturbed.Disturbed(str(source))
    with pytest.raises(UserError, match="is no store and not empty"):
        prepare("folder", made_of, source)
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="is no folder"):
        prepare("folder", made_of, tmp_path / "file")


def test_other_versions_are_refused_while_there_is_work(
    tmp_path: Path, source: Path, disturbed: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_of, folder = disturbed.Disturbed(str(source)), tmp_path / "store"
    prepare("folder", made_of, folder, num_workers=1)
    monkeypatch.setattr("framecast.data.prepare.versions", lambda: {"numpy": "9.9", "new": "1"})
    prepare("folder", made_of, folder)
    next(folder.glob("*.shard")).unlink()
    with pytest.raises(UserError, match=r"was begun with numpy .*, here is 9\.9"):
        prepare("folder", made_of, folder)


def test_what_is_wrong_with_an_item_costs_the_item(tmp_path: Path, source: Path, disturbed: ModuleType) -> None:
    for number, what in enumerate(["refuse", "surprise", "skip", "wrong", "crash", "crash once"]):
        (source / f"{10 * number:03}.txt").write_text(what)
    account = prepare("folder", disturbed.Disturbed(str(source)), tmp_path / "store", num_workers=2)
    assert {each.name: each.reason for each in account.skipped} == {
        "000.txt": "it is not to our taste",
        "010.txt": "ZeroDivisionError: surprise",
        "020.txt": "it asked for it",
        "030.txt": "clip '030.txt' is uint8 (3, 4, 4, 2), not uint8 (T, H, W, 1 or 3)",
        "040.txt": "its decoder crashed: SIGSEGV",
    }
    assert assert_whole(tmp_path / "store", disturbed) == sum(account.num_clips.values()) == 65


def test_what_the_machine_lacks_costs_no_item(tmp_path: Path, source: Path, disturbed: ModuleType) -> None:
    (source / "030.txt").write_text("lack")
    with pytest.raises(UserError, match="this machine has no taste"):
        prepare("folder", disturbed.Disturbed(str(source)), tmp_path / "store", num_workers=1)
    (source / "030.txt").write_text("")
    assert not prepare("folder", disturbed.Disturbed(str(source)), tmp_path / "store", num_workers=1).skipped


def test_a_part_of_several_items_survives_a_crash(tmp_path: Path, disturbed: ModuleType) -> None:
    source = a_source(tmp_path / "source", 130)  # of which two make a part
    (source / "007.txt").write_text("crash")
    (source / "006.txt").write_text("crash once")
    account = prepare("folder", disturbed.Disturbed(str(source)), tmp_path / "store", num_workers=1)
    assert [each.name for each in account.skipped] == ["007.txt"]
    assert assert_whole(tmp_path / "store", disturbed) == 129
    assert Store(tmp_path / "store").manifest.num_parts == 65


@pytest.mark.parametrize("room", [600, 900, 3000])
def test_shards_are_bounded(tmp_path: Path, disturbed: ModuleType, room: int) -> None:
    source = a_source(tmp_path / "source", 140)
    (source / "008.txt").write_text("skip")
    made_of = disturbed.Disturbed(str(source))
    account = prepare("folder", made_of, tmp_path / "store", num_workers=1, max_shard_bytes=room)
    assert all(path.stat().st_size <= room for path in (tmp_path / "store").glob("*.shard"))
    if room < 700:
        assert len(account.skipped) == 140
        assert account.skipped[0].reason == "it would take 642 bytes, more than the 600 of a shard"
    else:
        assert assert_whole(tmp_path / "store", disturbed) == 139
        assert [each.name for each in account.skipped] == ["008.txt"]


@pytest.mark.parametrize("seed", range(3))
def test_killed_again_and_again(tmp_path: Path, disturbed: ModuleType, seed: int) -> None:
    """SIGKILL at moments that nobody chose: what there is reads right, and in the end it is the undisturbed store."""
    source, folder, chance = a_source(tmp_path / "source", 140), tmp_path / "store", random.Random(seed)
    prepare("folder", disturbed.Disturbed(str(source), 400), tmp_path / "undisturbed", num_workers=2)
    found = []
    while len(list(folder.glob("*.shard"))) < 70:
        enough = len(list(folder.glob("*.shard"))) + chance.randrange(1, 30)
        process = subprocess.Popen([sys.executable, "-c", PREPARE, source, folder, "400"], env=environment())
        wait_for(lambda: len(list(folder.glob("*.shard"))) >= enough or process.poll() is not None)  # noqa: B023
        time.sleep(chance.uniform(0, 0.01))
        process.kill()
        process.wait()
        found.append(assert_whole(folder, disturbed))
    assert len(found) > 1
    prepare("folder", disturbed.Disturbed(str(source), 400), folder)
    assert contents(folder) == contents(tmp_path / "undisturbed")


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}


def test_processes_do_not_outlive_their_parent(tmp_path: Path, source: Path) -> None:
    command = [sys.executable, "-c", PREPARE, source, tmp_path / "store", "3", "100"]
    with subprocess.Popen(command, env=environment()) as process:
        try:
            wait_for(lambda: len(children := workers_of(process.pid)) == 2 and all(map(is_reading, children)))
            children = workers_of(process.pid)
        finally:
            process.kill()
    wait_for(lambda: not any(map(is_alive, children)))


def is_reading(pid: int) -> bool:
    """Whether a process has come as far as its first item: it has a temporary file open."""
    return any(name.endswith(".tmp") for name in files_of(pid))


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def wait_for(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_two_commands_at_once_are_refused(
    tmp_path: Path, source: Path, disturbed: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durable, "locked", functools.partial(durable.locked, patience=0))
    folder = tmp_path / "store"
    command = [sys.executable, "-c", PREPARE, source, folder, "3", "100"]
    with subprocess.Popen(command, env=environment()) as process:
        try:
            wait_for(lambda: any(folder.glob("*.tmp")))
            made_of = disturbed.Disturbed(str(source), 3, 100.0)
            with pytest.raises(UserError, match="another command is writing"):
                prepare("folder", made_of, folder)
            with pytest.raises(UserError, match="another command is writing"):
                prepare("folder", made_of, folder, share=(1, 2))
        finally:
            process.kill()


def test_a_part_that_is_half_renamed(
    tmp_path: Path, disturbed: ModuleType, monkeypatch: pytest.MonkeyPatch, make_part: Callable[..., None]
) -> None:
    """A part of several shards is there with its last one or not at all, and made again to the same bytes."""
    source, folder = a_source(tmp_path / "source", 4), tmp_path / "store"
    make_part(folder, disturbed.Disturbed(str(source)))
    whole = contents(folder)
    assert len(whole) == 5
    published = durable.publish
    for survivors in range(4):
        for path in folder.glob("*.shard"):
            path.unlink()
        left = iter(range(survivors))

        def publish(file: BinaryIO, path: Path) -> None:
            next(left)  # noqa: B023
            published(file, path)

        monkeypatch.setattr(durable, "publish", publish)
        with pytest.raises(StopIteration):
            make_part(folder, disturbed.Disturbed(str(source)))
        monkeypatch.setattr(durable, "publish", published)
        assert len(list(folder.glob("*.shard"))) == survivors
        assert len(Store(folder)) == 0
        make_part(folder, disturbed.Disturbed(str(source)))
        assert contents(folder) == whole


@pytest.fixture
def make_part() -> Callable[..., None]:
    """Makes a store of one part, with a shard a clip, in this process."""

    def make(folder: Path, source: Source) -> None:
        items = source.items()
        manifest = dataclasses.replace(describe("folder", source, items), items_per_part=len(items))
        folder.mkdir(exist_ok=True)
        (folder / NAME).write_bytes(manifest.text())
        Part(folder, 0, source, items, manifest.sha256(), max_shard_bytes=800).make({}, lambda place: None)

    return make


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk takes root")
def test_a_full_disk(tmp_path: Path, disturbed: ModuleType) -> None:
    source = a_source(tmp_path / "source", 70)
    made_of = disturbed.Disturbed(str(source), 400)
    prepare("folder", made_of, tmp_path / "undisturbed", num_workers=2)
    disk, folder = tmp_path / "disk", tmp_path / "disk" / "store"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", disk], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"this system lets nobody mount: {mounted.stderr.decode()}")
    try:
        for size in ("1m", "2m"):
            subprocess.run(["mount", "-o", f"remount,size={size}", disk], check=True)
            with pytest.raises(UserError, match="is full: make room and repeat the command"):
                prepare("folder", made_of, folder, num_workers=2)
            assert 0 < assert_whole(folder, disturbed) < 70
            assert not list(folder.glob("*.tmp"))
        subprocess.run(["mount", "-o", "remount,size=16m", disk], check=True)
        prepare("folder", made_of, folder, num_workers=2)
        assert contents(folder) == contents(tmp_path / "undisturbed")
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


ON_A_CLUSTER = """
import sys
from pathlib import Path
from ray.cluster_utils import Cluster
from disturbed import Disturbed
from framecast.data.prepare import prepare

if __name__ == "__main__":
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    cluster.add_node(num_cpus=1)
    account = prepare("folder", Disturbed(sys.argv[1]), Path(sys.argv[2]), ray_address=cluster.address)
    assert [each.reason for each in account.skipped] == ["its decoder crashed: SIGSEGV"], account
    cluster.shutdown()
"""


@pytest.mark.slow
def test_ray_on_two_nodes_with_a_worker_killed(tmp_path: Path, disturbed: ModuleType) -> None:
    source, script = a_source(tmp_path / "source", 16), tmp_path / "script.py"
    (source / "003.txt").write_text("crash")
    (source / "008.txt").write_text("kill the parent once")
    script.write_text(ON_A_CLUSTER)
    quiet = {"RAY_USAGE_STATS_ENABLED": "0"}
    subprocess.run([sys.executable, script, source, tmp_path / "store"], env=environment() | quiet, check=True)
    assert (source / "008.txt").read_text() == ""
    assert assert_whole(tmp_path / "store", disturbed) == 15
    prepare("folder", disturbed.Disturbed(str(source)), tmp_path / "here", num_workers=2)
    assert contents(tmp_path / "store") == contents(tmp_path / "here")


def test_ray_that_is_not_there(tmp_path: Path, disturbed: ModuleType) -> None:
    made_of = disturbed.Disturbed(str(a_source(tmp_path / "source", 1)))
    with pytest.raises(UserError, match="there is no Ray cluster at"):
        prepare("folder", made_of, tmp_path / "store", ray_address="127.0.0.1:9")


@pytest.mark.slow
def test_400_000_clips_take_an_index_and_no_more(tmp_path: Path, disturbed: ModuleType) -> None:
    made_of, num_clips = disturbed.Tiny(400_000), 400_000
    for share in ((2, 2), (1, 2)):
        prepare("kinetics600", made_of, tmp_path / "store", share=share, num_workers=2)
    began = time.perf_counter()
    prepare("kinetics600", made_of, tmp_path / "store")
    assert time.perf_counter() - began < 5
    layers = (LayerConfig((1, 1, 1)),)
    model = ModelConfig((16, 2, 2), (4, 2, 2), layers, layers, num_channels=1)

    def begin() -> float:
        began = time.perf_counter()
        batch = Batches(Store(tmp_path / "store"), model, batch_size=64).batch_at(seed=0, step=10**5)
        assert batch.video.shape == (64, 16, 2, 2, 1)
        return time.perf_counter() - began

    assert min(begin() for _ in range(3)) < 1
    tracemalloc.start()
    store = Store(tmp_path / "store")
    assert (len(store), store.missing_parts) == (num_clips, [])
    assert len(store.indices("train")) == num_clips
    assert tracemalloc.get_traced_memory()[1] < 300 * num_clips
    tracemalloc.stop()
