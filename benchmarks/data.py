"""How quickly data comes in, and how quickly it comes out: one run, each figure beside the yardstick of the same run.

    python benchmarks/data.py [--work FOLDER]

Takes 3 GB of disk for a minute or two. The videos are made here: noise that drifts, at the size and rate of Kinetics.
"""

from __future__ import annotations

import argparse
import multiprocessing
import shutil
import struct
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from framecast.data.clip import Clip, Skipped
from framecast.data.prepare import cores, prepare, prepare_drawn
from framecast.data.sources.bair import ACTION_SIZE, FRAME_SHAPE, FRAMES, STATE_SIZE, Bair
from framecast.data.sources.folder import Folder
from framecast.data.sources.moving_mnist import MovingMnist
from framecast.data.store import Store
from framecast.data.tfrecord import parse_example

NUM_VIDEOS, VIDEO_FRAMES, HEIGHT, WIDTH = 96, 250, 256, 340
NUM_TRAJECTORIES = 256
NUM_CLIPS, CLIP_FRAMES = 544, 300  # of 64×64×3: 2 GB
CROP = 16
NUM_READS = 20_000
ROUNDS = 5


def main() -> None:
    from common import report  # PyTorch, which the processes of a pool would import again were it up there

    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--work", type=Path, help="an existing folder for what is made; a temporary one by default")
    work = Path(tempfile.mkdtemp(dir=arguments.parse_args().work, prefix="benchmark-data-"))
    try:
        store = a_store(work / "store")
        report("data", [*folder(work), tfrecords(work), random_reads(store), *batches(work, store)])
    finally:
        shutil.rmtree(work)


def folder(work: Path) -> Iterator[dict[str, Any]]:
    """Preparing H.264 files against decoding them to RGB arrays, on the same cores; and one core against all.

    Decoding is measured twice: as PyAV's documentation does it, and in the quickest way that PyAV has.
    """
    source = work / "videos"
    source.mkdir()
    write_videos(source)
    paths = sorted(source.iterdir())
    num_frames = NUM_VIDEOS * VIDEO_FRAMES
    stores = count()

    def prepare_all(num_workers: int) -> None:
        prepare("folder", Folder(str(source)), work / f"folder-{next(stores)}", num_workers=num_workers)

    spawn = multiprocessing.get_context("spawn")
    with spawn.Pool(cores()) as pool, spawn.Pool(1) as single:
        pool.map(decode, paths[: cores()])  # imports done
        single.map(decode, paths[:1])
        decoding, quickest, quickest_alone, preparing, alone = best(
            lambda: pool.map(decode, paths, chunksize=1),
            lambda: pool.map(decode_quickly, paths, chunksize=1),
            lambda: single.map(decode_quickly, paths, chunksize=1),
            lambda: prepare_all(cores()),
            lambda: prepare_all(1),
            rounds=2,
        )
    yield case("decode-folder", decoding, frames_per_second=num_frames / decoding)
    yield case(
        "decode-folder-quickly",
        quickest,
        against="1 process",
        speedup=quickest_alone / quickest,
        frames_per_second=num_frames / quickest,
    )
    yield case(
        "prepare-folder",
        preparing,
        against="decode-folder",
        fraction=decoding / preparing,
        bar=0.6,
        fraction_of_quickest=quickest / preparing,
        frames_per_second=num_frames / preparing,
    )
    name = f"prepare-folder-{cores()}-workers"
    yield case(name, preparing, against="1 worker", speedup=alone / preparing, bar=1.8)


def decode(path: Path) -> int:
    import av

    with av.open(str(path)) as file:
        return sum(frame.to_ndarray(format="rgb24").shape[0] > 0 for frame in file.decode(video=0))


def decode_quickly(path: Path) -> int:
    """On one thread, with one converter for all frames."""
    import av
    from av.video.reformatter import VideoReformatter

    to_rgb = VideoReformatter()
    with av.open(str(path)) as file:
        file.streams.video[0].codec_context.thread_count = 1
        pictures = (to_rgb.reformat(frame, format="rgb24", threads=1).to_ndarray() for frame in file.decode(video=0))
        return sum(picture.shape[0] > 0 for picture in pictures)


def write_videos(folder: Path) -> None:
    """A few are encoded, the rest are copies: what decoding costs does not depend on having been seen."""
    import av

    noise = np.random.default_rng(0)
    for number in range(4):
        coarse = noise.integers(0, 256, (24, 32, 3), np.uint8)
        picture = np.kron(coarse, np.ones((16, 16, 1), np.uint8)) + noise.integers(0, 16, (384, 512, 3), np.uint8)
        with av.open(str(folder / f"{number:03}.mp4"), "w") as file:
            stream = file.add_stream("libx264", rate=25)
            stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
            for t in range(VIDEO_FRAMES):
                top, left = (int(64 + 60 * np.sin(t / 25 + angle)) for angle in (number, number + 2))
                moved = np.ascontiguousarray(picture[top : top + HEIGHT, left : left + WIDTH])
                file.mux(stream.encode(av.VideoFrame.from_ndarray(moved, format="rgb24")))
            file.mux(stream.encode())
    for number in range(4, NUM_VIDEOS):
        shutil.copyfile(folder / f"{number % 4:03}.mp4", folder / f"{number:03}.mp4")


def tfrecords(work: Path) -> dict[str, Any]:
    """Reading BAIR's files with both checksums of every record, against reading the bytes and decoding them."""
    path = work / "bair" / "train" / f"traj_0_to_{NUM_TRAJECTORIES - 1}.tfrecords"
    path.parent.mkdir(parents=True)
    write_trajectories(path)
    source = Bair(str(work / "bair"))

    def with_checksums() -> None:
        assert sum(isinstance(clip, Clip) for clip in source.read(source.items())) == NUM_TRAJECTORIES

    def without() -> None:
        found = 0
        with path.open("rb") as file:
            while header := file.read(12):
                example = parse_example(file.read(struct.unpack_from("<Q", header)[0]))
                file.read(4)
                found += isinstance(source._clip(example, str(found), "train"), Clip)
        assert found == NUM_TRAJECTORIES

    ours, plain = best(with_checksums, without)
    size = path.stat().st_size
    return case("tfrecords", ours, fraction=plain / ours, bar=0.8, bytes_per_second=size / ours)


def write_trajectories(path: Path) -> None:
    """As TensorFlow writes them; records need no more than a few bytes of protobuf."""
    import google_crc32c

    def crc(data: bytes) -> bytes:
        value = google_crc32c.value(data)
        return struct.pack("<I", ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF)

    noise = np.random.default_rng(0)
    with path.open("wb") as file:
        for _ in range(NUM_TRAJECTORIES):
            entries = b""
            for t in range(FRAMES):
                for camera in ("aux1", "main"):
                    pixels = noise.integers(0, 256, FRAME_SHAPE, np.uint8).tobytes()
                    entries += feature(f"{t}/image_{camera}/encoded", 1, message(1, pixels))
                for name, size in (("action", ACTION_SIZE), ("endeffector_pos", STATE_SIZE)):
                    entries += feature(f"{t}/{name}", 2, message(1, np.zeros(size, "<f4").tobytes()))
            data = message(1, entries)
            length = struct.pack("<Q", len(data))
            file.write(length + crc(length) + data + crc(data))


def feature(name: str, kind: int, values: bytes) -> bytes:
    return message(1, message(1, name.encode()) + message(2, message(kind, values)))


def message(number: int, content: bytes) -> bytes:
    size, length = len(content), b""
    while size >= 0x80:
        length += bytes([size & 0x7F | 0x80])
        size >>= 7
    return bytes([number << 3 | 2]) + length + bytes([size]) + content


@dataclass(frozen=True)
class Noise:
    """Clips of noise, as many as make two gigabytes."""

    items_per_part: ClassVar[int] = 16

    def items(self) -> Sequence[str]:
        return [f"{number:03}" for number in range(NUM_CLIPS)]

    def read(self, items: Sequence[str]) -> Iterator[Clip | Skipped]:
        for item in items:
            video = np.random.default_rng(int(item)).integers(0, 256, (CLIP_FRAMES, 64, 64, 3), np.uint8)
            yield Clip(video, item, "train")


def a_store(out: Path) -> Store:
    prepare("robot-bin", Noise(), out)
    return Store(out)


def random_reads(store: Store) -> dict[str, Any]:
    """Random 16-frame crops through the store, against copies of the same ranges of plain memory maps."""
    noise = np.random.default_rng(0)
    clips = noise.integers(0, len(store), NUM_READS).tolist()
    starts = noise.integers(0, CLIP_FRAMES - CROP + 1, NUM_READS).tolist()
    maps = {shard.path: np.memmap(shard.path, np.uint8, "r") for shard in store._clips.shards}
    size = CROP * 64 * 64 * 3
    ranges = []
    for clip, start in zip(clips, starts, strict=True):
        shard = store._clips._shard_of[clip]
        first = store._clips._first[shard]
        offset = int(store._clips.shards[shard].entries["offset"][clip - first]) + start * size // CROP
        ranges.append((maps[store._clips.shards[shard].path], offset))
    out = np.empty((CROP, 64, 64, 3), np.uint8)
    flat = out.reshape(-1)

    def through_the_store() -> None:
        for clip, start in zip(clips, starts, strict=True):
            np.copyto(out, store.frames(clip, start, start + CROP))

    def plain_copies() -> None:
        for mapped, offset in ranges:
            np.copyto(flat, mapped[offset : offset + size])

    ours, plain = best(through_the_store, plain_copies)
    return case("random-reads", ours, fraction=plain / ours, bar=0.9, clips_per_second=NUM_READS / ours)


def batches(work: Path, store: Store) -> Iterator[dict[str, Any]]:
    """Slices a second on all cores, from pixels on disk and from digits; and what memory does meanwhile."""
    from framecast import presets
    from framecast.data.batches import Batches

    prepare_drawn("moving-mnist", MovingMnist(), work / "moving-mnist", None)
    for name, source, preset in (
        ("batches", store, "bair-spatiotemporal-base"),
        ("batches-moving-mnist", Store(work / "moving-mnist"), "moving-mnist-spatiotemporal-base"),
    ):
        config = presets.preset(preset).model
        assert config.slice_shape == (4, 32, 32)
        num_batches = 200
        pipeline = Batches(source, config, batch_size=64, num_workers=cores())
        stream = pipeline.stream(seed=0)
        next(stream)
        seconds = timed(lambda: list(map(touch, islice(stream, num_batches))))  # noqa: B023
        yield case(name, seconds, batch=64, slices_per_second=num_batches * 64 / seconds, bar=2000)
    small = Batches(store, presets.preset("bair-spatiotemporal-base").model, batch_size=4, num_workers=cores())
    stream = small.stream(seed=0)
    for _ in range(1000):
        next(stream)
    before = anonymous_bytes()
    seconds = timed(lambda: [touch(batch) for batch in islice(stream, 10_000)] and None)
    yield case("memory", seconds, batch=4, batches=10_000, grown_mib=(anonymous_bytes() - before) / 2**20, bar=16)


def touch(batch: Any) -> int:
    return int(batch.slice_index[0])


def anonymous_bytes() -> int:
    """What this process holds of its own: pages of mapped files come and go as the system likes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise OSError("this system does not say how much memory a process holds")


def best(*works: Callable[[], object], rounds: int = ROUNDS) -> list[float]:
    """Seconds of each, the best of some rounds in turn, so that all meet the same moments."""
    times = [[timed(work) for work in works] for _ in range(rounds)]
    return [min(each) for each in zip(*times, strict=True)]


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def case(name: str, seconds: float, **more: Any) -> dict[str, Any]:
    return {"name": name, "precision": "uint8", "seconds": seconds, **more}


if __name__ == "__main__":
    main()
