"""What fuzzing is aimed at: a function of bytes a target, which may raise UserError and nothing else, and whole files
to begin with.

A checksum keeps out accidents, not people, and would keep out fuzzing too. So most targets come twice: the bytes as
they are, and with every checksum made right, as somebody would who knows how.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import io
import json
import struct
import tempfile
import warnings
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import torch

from framecast import media
from framecast.config import LayerConfig, ModelConfig, from_json, to_json
from framecast.data import manifest as manifests
from framecast.data import shard as shards
from framecast.data import tfrecord
from framecast.data.clip import Clip
from framecast.data.manifest import Manifest
from framecast.data.store import Store
from framecast.data.video_file import read_clip
from framecast.errors import UserError
from framecast.model import checkpoint as models
from framecast.model.video_transformer import VideoTransformer
from framecast.presets import preset
from framecast.training import checkpoint as checkpoints
from framecast.training import run as runs

VIDEO_SIZE = (16, 16)
"""What an upload becomes, however large its frames are."""


@dataclass(frozen=True)
class Target:
    attack: Callable[[Path, bytes], None]
    """What is done with the bytes, in an empty folder that is its own."""
    seeds: Callable[[], list[bytes]]

    @cached_property
    def folder(self) -> Path:
        self.__dict__["_kept"] = kept = tempfile.TemporaryDirectory(prefix="framecast-fuzz-")
        return Path(kept.name)

    def __call__(self, data: bytes) -> bool:
        """Whether the bytes were accepted; refused otherwise. Anything else that is raised is a fault of ours."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                self.attack(self.folder, data)
            except UserError:
                return False
        return True


# TFRecord


def attack_records(folder: Path, data: bytes) -> None:
    path = folder / "a.tfrecord"
    path.write_bytes(data)
    for each in tfrecord.read_examples(path):
        if isinstance(each, tfrecord.Example):
            ask_everything(each)


def attack_example(folder: Path, data: bytes) -> None:
    """A message behind the checksums of its record."""
    ask_everything(tfrecord.parse_example(data))


def ask_everything(example: tfrecord.Example) -> None:
    for name in [*example.spans, "action"]:
        for ask in (example.one_bytes, lambda n: example.floats(n, 3), lambda n: example.integers(n, 3)):  # type: ignore[misc]
            with contextlib.suppress(UserError):
                ask(name)


def example_seeds() -> list[bytes]:
    floats, integers = struct.pack("<3f", 0.5, -2, 3), b"\x03\x80\x01\x07"
    features = [
        (b"frame", _field(1, _field(1, bytes(20)))),
        (b"action", _field(2, _field(1, floats))),
        (b"single", _field(2, b"".join(b"\x0d" + floats[n : n + 4] for n in (0, 4, 8)))),
        (b"step", _field(3, _field(1, integers))),
    ]
    entries = [_field(1, _field(1, name) + _field(2, feature)) for name, feature in features]
    return [_field(1, b"".join(entries[:n])) for n in (1, 2, 4)] + [_field(1, entries[3])]


def record_seeds() -> list[bytes]:
    messages = example_seeds()
    return [_record(messages[0]), b"".join(map(_record, messages))]


def _field(number: int, content: bytes) -> bytes:
    assert len(content) < 1 << 14
    size = len(content)
    length = bytes([size]) if size < 128 else bytes([size & 127 | 128, size >> 7])
    return bytes([number << 3 | 2]) + length + content


def _record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + _masked(length) + data + _masked(data)


def _masked(data: bytes) -> bytes:
    crc = google_crc32c.value(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


# Stores


def attack_shard(folder: Path, data: bytes) -> None:
    """A shard with the name that it claims, read to its last array."""
    claims = struct.unpack("<3I", data[20:32].ljust(12, b"\0"))
    for old in folder.iterdir():
        old.unlink()
    path = folder / shards.file_name(*claims)
    path.write_bytes(data)
    shard = shards.Shard(path)
    deque(shard.damage(), maxlen=0)
    for index in range(min(shard.num_clips, 4)):
        with contextlib.suppress(UserError):
            clip = shard.clip(index)
            for array in (clip.video, clip.actions, clip.states, *clip.extras.values()):
                if array is not None:
                    array.sum()
        shard.frames(index).sum()
        if shard.entries["action_size"][index]:
            shard.actions(index).sum()


def attack_sealed_shard(folder: Path, data: bytes) -> None:
    """The same, with checksums that are right."""
    data = data.ljust(shards.HEADER_BYTES, b"\0")
    offset = int.from_bytes(data[40:48], "little")
    header = data[:96] + hashlib.sha256(data[offset:]).digest() + data[128:160]
    attack_shard(folder, header + hashlib.sha256(header).digest() + data[shards.HEADER_BYTES :])


def shard_seeds() -> list[bytes]:
    return [small_shard(1), small_shard(3)]


def small_shard(num_clips: int) -> bytes:
    """The bytes of a shard of a few tiny clips."""
    with tempfile.NamedTemporaryFile(buffering=0) as file:
        writer = shards.ShardWriter(file)  # type: ignore[arg-type]
        for number in range(num_clips):
            writer.add(shards.Record(small_clip(number)))
        writer.skip(b'["left out","why"]')
        writer.finish(bytes(32), 0, 0, 1)
        return Path(file.name).read_bytes()


def small_clip(number: int, side: int = 2, num_frames: int = 2) -> Clip:
    noise = np.random.default_rng(number)
    shape = (num_frames, side, side, 1)
    return Clip(
        video=noise.integers(0, 256, shape, np.uint8),
        name=f"clip {number}",
        split=("train", "val", "test")[number % 3],
        label="label",
        actions=noise.normal(size=(num_frames, 2)).astype(np.float32),
        extras={"visible": noise.integers(0, 2, (num_frames, 3)).astype(bool)},
    )


def attack_manifest(folder: Path, data: bytes) -> None:
    (folder / manifests.NAME).write_bytes(data)
    store = Store(folder)
    deque(store.damage(), maxlen=0)
    for index in range(min(len(store), 2)):
        store.clip(index)


def attack_sealed_manifest(folder: Path, data: bytes) -> None:
    attack_manifest(folder, _sealed(data, manifests._checksum, manifests_text))


def manifests_text(body: dict[str, Any]) -> bytes:
    return (json.dumps(body, indent=2) + "\n").encode()


def manifest_seeds() -> list[bytes]:
    drawn = {name: getattr(_moving_mnist(), name) for name in _moving_mnist().__dataclass_fields__}
    return [
        Manifest("folder", "shards", {"source": "x", "size": [4, 4]}, 3, "0" * 64, 1, {"numpy": "2"}).text(),
        Manifest("moving-mnist", "drawn", json.loads(json.dumps(drawn)), 0, "0" * 64, 1, {}).text(),
    ]


def _moving_mnist() -> Any:
    from framecast.data.sources.moving_mnist import MovingMnist

    return MovingMnist()


# Configurations, models, checkpoints


def attack_run_config(folder: Path, data: bytes) -> None:
    (folder / runs.CONFIG).write_bytes(data)
    runs.read_config(folder)


def run_config_seeds() -> list[bytes]:
    body = {"format": runs.FORMAT, "run": to_json(preset("tiny")), "store": {"path": "x", "fingerprint": "0"}}
    return [json.dumps(body).encode()]


def attack_model_config(folder: Path, data: bytes) -> None:
    """A model whose weights are those of the seed, and whose configuration says anything."""
    if not (folder / "model").exists():
        small_model().save(folder / "model")
    (folder / "model" / models.CONFIG).write_bytes(data)
    VideoTransformer.load(folder / "model")


def attack_sealed_model_config(folder: Path, data: bytes) -> None:
    attack_model_config(folder, _sealed(data, models._checksum, models._text))


def attack_config(folder: Path, data: bytes) -> None:
    """A configuration alone, and what is derived from it."""
    from framecast.model.cost import flops_per_slice_step

    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        return
    config = from_json(ModelConfig, body)
    _ = config.num_slices, config.num_code_values, config.overlap, config.action_window
    flops_per_slice_step(config)


def attack_weights(folder: Path, data: bytes) -> None:
    """Weights that say anything, with a configuration that vouches for them."""
    body = json.loads(model_config_seeds()[0])
    body["weights_sha256"] = hashlib.sha256(data).hexdigest()
    body["checksum"] = models._checksum({name: value for name, value in body.items() if name != "checksum"})
    (folder / models.CONFIG).write_bytes(models._text(body))
    (folder / models.WEIGHTS).write_bytes(data)
    VideoTransformer.load(folder)


def small_config() -> ModelConfig:
    layers = (LayerConfig((1, 2, 2), 1),)
    return ModelConfig(
        video_shape=(2, 4, 4),
        subscale_factor=(2, 2, 2),
        encoder_layers=layers,
        decoder_layers=layers,
        num_channels=1,
        code_bits=(2, 1),
        embedding_size=2,
        hidden_size=4,
        head_size=2,
    )


def small_model() -> VideoTransformer:
    torch.manual_seed(0)
    return VideoTransformer(small_config())


def model_files() -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        small_model().save(Path(folder, "model"))
        return {path.name: path.read_bytes() for path in Path(folder, "model").iterdir()}


def model_config_seeds() -> list[bytes]:
    return [model_files()[models.CONFIG]]


def attack_seal(folder: Path, data: bytes) -> None:
    """What `train` reads of a checkpoint before it resumes."""
    inner = folder / "00000007"
    inner.mkdir(exist_ok=True)
    (inner / "weights.safetensors").write_bytes(b"whole")
    (inner / checkpoints.SEAL).write_bytes(_sealed(data, checkpoints._checksum, checkpoints._text))
    saved = checkpoints.everything(folder)
    checkpoints.best(saved)
    for each in saved:
        checkpoints.check(each)


def seal_seeds() -> list[bytes]:
    files = {"weights.safetensors": hashlib.sha256(b"whole").hexdigest()}
    return [json.dumps({"format": checkpoints.FORMAT, "step": 7, "score": 1.5, "files": files}).encode()]


def _sealed(data: bytes, checksum: Callable[[Any], str], text: Callable[[Any], bytes]) -> bytes:
    """JSON with a checksum that is right, written as we write it; what is no object stays as it is."""
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        return data
    if not isinstance(body, dict):
        return data
    body.pop("checksum", None)
    return text({**body, "checksum": checksum(body)})


# Videos, pictures and arrays that people upload

SUFFIXES = (".mp4", ".webp", ".gif", ".png", ".npz", ".npy", ".webm", ".avi", ".mkv")


def attack_video(folder: Path, data: bytes) -> None:
    """The first byte is the file's suffix, the rest the file."""
    path = folder / f"upload{SUFFIXES[data[0] % len(SUFFIXES)] if data else '.mp4'}"
    path.write_bytes(data[1:])
    try:
        clip = read_clip(path, VIDEO_SIZE)
        assert clip.dtype == np.uint8
        assert clip.shape[1:] == (*VIDEO_SIZE, 3)
    finally:
        path.unlink()


def video_seeds() -> list[bytes]:
    noise = np.random.default_rng(0)
    grey = np.repeat(noise.integers(0, 256, (3, 16, 16, 1), np.uint8), 3, axis=-1)
    files = {f".{kind}": media.encode(grey, kind, 10) for kind in media.FORMATS}  # type: ignore[arg-type]
    array = io.BytesIO()
    np.save(array, grey)
    files[".npy"] = array.getvalue()
    for suffix, codec in ((".webm", "libvpx-vp9"), (".avi", "mpeg4"), (".mkv", "libx264")):
        files[suffix] = _encoded(grey, suffix, codec)
    return [bytes([SUFFIXES.index(suffix)]) + content for suffix, content in files.items()]


def _encoded(video: np.ndarray, suffix: str, codec: str) -> bytes:
    import av

    with tempfile.NamedTemporaryFile(suffix=suffix) as file:
        with av.open(file.name, "w") as container:
            stream = container.add_stream(codec, rate=10)
            stream.height, stream.width = video.shape[1:3]
            stream.pix_fmt = "yuv420p"
            for picture in video:
                container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
            container.mux(stream.encode(None))
        return Path(file.name).read_bytes()


# Requests to the server

ROUTES = ("/api/jobs/sample", "/api/jobs/surprise", "/api/clips/built-in")
ANSWERS = {201, 202, 404, 422}


def attack_request(folder: Path, data: bytes) -> None:
    """The first byte is the route, the rest the body; jobs are taken and never carried out."""
    client, server = _server()
    server.queue.waiting.clear()
    answer = client.post(ROUTES[data[0] % len(ROUTES)] if data else ROUTES[0], content=data[1:])
    assert answer.status_code in ANSWERS, (answer.status_code, answer.text)
    if answer.status_code >= 400:
        raise UserError(answer.text)


@cache
def _server() -> tuple[Any, Any]:
    from starlette.testclient import TestClient

    from framecast.server.app import ServedModel, create_app
    from framecast.server.clips import DrawnClips, LoadedClip
    from framecast.server.jobs import Queue

    model = ServedModel("small", Path("nowhere"), dataclasses.replace(small_config(), code_bits=(4, 4)), 1)
    app = create_app([model], DrawnClips(), "127.0.0.1")
    server = next(route.endpoint.__self__ for route in app.routes if route.path == ROUTES[0])  # type: ignore[attr-defined]
    server.queue = Queue()
    server.loaded.put(LoadedClip(0, "a clip", np.zeros((4, 4, 4, 1), np.uint8)), 64, "a")
    return TestClient(app, base_url="http://127.0.0.1", headers={"content-type": "application/json"}), server


def request_seeds() -> list[bytes]:
    part = {"clip": "a", "frames": 4}
    sample = {**part, "start": 0, "prime_frames": 1, "samples": 2, "temperature": 0.9, "seed": 7}
    bodies = [sample, part, {"model": 0, "number": 0}]
    return [bytes([route]) + json.dumps(body).encode() for route, body in enumerate(bodies)]


TARGETS = {
    "records": Target(attack_records, record_seeds),
    "example": Target(attack_example, example_seeds),
    "shard": Target(attack_shard, shard_seeds),
    "sealed-shard": Target(attack_sealed_shard, shard_seeds),
    "manifest": Target(attack_manifest, manifest_seeds),
    "sealed-manifest": Target(attack_sealed_manifest, manifest_seeds),
    "run-config": Target(attack_run_config, run_config_seeds),
    "model-config": Target(attack_model_config, model_config_seeds),
    "sealed-model-config": Target(attack_sealed_model_config, model_config_seeds),
    "config": Target(attack_config, lambda: [json.dumps(to_json(small_config())).encode()]),
    "weights": Target(attack_weights, lambda: [model_files()[models.WEIGHTS]]),
    "seal": Target(attack_seal, seal_seeds),
    "video": Target(attack_video, video_seeds),
    "request": Target(attack_request, request_seeds),
}
