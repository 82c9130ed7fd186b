"""A server as people start it, with two random models that draw a clip in a second or two."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch

from framecast import media
from framecast.config import LayerConfig, ModelConfig
from framecast.data.assets import MNIST, fetch
from framecast.model.video_transformer import VideoTransformer

from ..processes import workers_of

GREY, COLOUR = 0, 1
SIZES = {"embedding_size": 8, "hidden_size": 16, "head_size": 8}
LAYERS = (LayerConfig((1, 8, 8), 2),)
MODELS = [
    ModelConfig((4, 32, 32), (4, 2, 2), LAYERS, LAYERS, num_channels=1, prime_frames=1, **SIZES),
    ModelConfig((4, 16, 16), (4, 1, 1), LAYERS, LAYERS, context_kernel=(4, 1, 1), prime_frames=2, **SIZES),
]


def moving(num_frames: int, side: int, channels: int = 1) -> np.ndarray:
    """A bright square on its way over a dark ground."""
    clip = np.full((num_frames, side, side, channels), 20, np.uint8)
    for frame, picture in enumerate(clip):
        corner = frame % (side // 2)
        picture[corner : corner + side // 4, corner : corner + side // 4] = 220
    return clip


@dataclass
class Running:
    """A `framecast serve` and what people ask of it."""

    process: subprocess.Popen[str]
    url: str
    folders: list[Path]
    client: httpx.Client
    complaints: list[str]

    GREY, COLOUR = GREY, COLOUR
    MODELS = MODELS
    moving = staticmethod(moving)

    def get(self, path: str) -> dict:
        return _answer(self.client.get(path))

    def post(self, path: str, **body: object) -> dict:
        return _answer(self.client.post(path, json=body))

    def clip(self, model: int = GREY, number: int = 0) -> str:
        if model == GREY:
            return self.post("/api/clips/built-in", model=model, number=number)["id"]
        return self.upload(moving(8, 16, 3), "clip.npz", model)["id"]

    def upload(self, clip: np.ndarray, name: str, model: int = GREY, every: int = 1) -> dict:
        content = media.encode(clip, Path(name).suffix[1:])
        params = {"model": model, "name": name, "every": every}
        return _answer(self.client.post("/api/clips/upload", params=params, content=content))

    def sample(self, clip: str, frames: int = 4, prime_frames: int = 3, **settings: object) -> str:
        return self.post("/api/jobs/sample", clip=clip, frames=frames, prime_frames=prime_frames, **settings)["id"]

    def ended(self, job: str, seconds: float = 60) -> dict:
        return self.until(job, lambda told: told["state"] in ("done", "failed", "cancelled"), seconds)

    def until(self, job: str, holds, seconds: float = 60) -> dict:
        end = time.monotonic() + seconds
        while not holds(told := self.get(f"/api/jobs/{job}")):
            assert time.monotonic() < end, f"after {seconds} seconds: { {**told, 'video': ''} }"
            time.sleep(0.05)
        return told

    def workers(self) -> list[int]:
        return workers_of(self.process.pid)


def _answer(response: httpx.Response) -> dict:
    assert response.is_success, f"{response.status_code}: {response.text}"
    return response.json()


@pytest.fixture(scope="session")
def server(test_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    root = tmp_path_factory.mktemp("serve")
    folders = [root / "grey <b>model</b>", root / "colour"]
    for config, folder in zip(MODELS, folders, strict=True):
        torch.manual_seed(0)
        VideoTransformer(config).save(folder)
    cache = {"FRAMECAST_CACHE": str(root / "cache"), "PYTHONUNBUFFERED": "1"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FRAMECAST_CACHE", cache["FRAMECAST_CACHE"])
        fetch(MNIST, test_data / "mnist")
    words = [sys.executable, "-m", "framecast", "serve", *map(str, folders), "--port", "0"]
    process = subprocess.Popen(words, env=os.environ | cache, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    complaints: list[str] = []
    listening = threading.Thread(target=lambda: complaints.extend(process.stderr))
    listening.start()
    found = re.search(r"http://\S+", process.stdout.readline())
    assert found, f"it printed no address; it said {complaints}"
    url = found[0].rstrip("/")
    with httpx.Client(base_url=url, timeout=60) as client:
        yield Running(process, url, folders, client, complaints)
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 130
    listening.join()
    process.stdout.close()
    process.stderr.close()
