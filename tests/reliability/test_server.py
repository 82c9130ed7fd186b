"""The server among people who mean well, badly, or nothing: it gives no answer but the documented ones, keeps its size,
and its worker is free again soon.

Each refusal alone: tests/server. Short: half a minute's load of 12 clients; long: 50 for two minutes, and 500 samples.
"""

from __future__ import annotations

import http.client
import importlib
import io
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from framecast.config import LayerConfig, ModelConfig
from framecast.model.video_transformer import VideoTransformer

from ..processes import workers_of

HERE = Path(__file__).parent
pytest.importorskip("fastapi")

SAFE = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
}


@dataclass
class Server:
    process: subprocess.Popen[str]
    port: int

    def ask(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None, timeout: float = 60
    ) -> tuple[int, Any]:
        """The status, and the answer's JSON if it is some. Every answer has the safety headers."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            content = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
            kind = {"content-type": "application/json"} if content is not None else {}
            connection.request(method, path, content, {**kind, **(headers or {})})
            answer = connection.getresponse()
            text = answer.read()
            for name, value in SAFE.items():
                assert answer.headers[name] == value, (method, path, answer.status, name)
            assert "default-src 'none'" in answer.headers["content-security-policy"], (method, path, answer.status)
            try:
                return answer.status, json.loads(text)
            except ValueError:
                return answer.status, text
        finally:
            connection.close()

    def clip(self, frames: int = 2) -> str:
        """Upload one; its name."""
        file = io.BytesIO()
        np.save(file, np.random.default_rng(0).integers(0, 256, (frames, 8, 8, 1), np.uint8))
        status, answer = self.ask("POST", "/api/clips/upload?model=0&name=a.npy", file.getvalue())
        assert status == 201, answer
        return str(answer["id"])

    def submit(self, clip: str, frames: int = 2, samples: int = 1, seed: int = 0) -> str:
        order = {"clip": clip, "frames": frames, "prime_frames": 1, "samples": samples, "seed": seed}
        status, answer = self.ask("POST", "/api/jobs/sample", order)
        assert status == 202, answer
        return str(answer["id"])

    def wait(self, job: str, state: Callable[[dict[str, Any]], bool], seconds: float = 60) -> dict[str, Any]:
        deadline = time.monotonic() + seconds
        while True:
            status, told = self.ask("GET", f"/api/jobs/{job}")
            assert status == 200, told
            if state(told):
                return told
            assert time.monotonic() < deadline, told
            time.sleep(0.01)

    def workers(self) -> list[int]:
        return workers_of(self.process.pid)


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[Server]:
    """One of a model that is drawn in no time."""
    layers = (LayerConfig((1, 2, 2), 1),)
    torch.manual_seed(0)
    small = {"embedding_size": 4, "hidden_size": 8, "head_size": 4, "num_channels": 1}
    config = ModelConfig((2, 8, 8), (2, 2, 2), layers, layers, **small)
    model = tmp_path_factory.mktemp("served") / "model"
    VideoTransformer(config).save(model)
    command = [sys.executable, "-m", "framecast", "serve", str(model), "--port", "0"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        try:
            yield Server(process, int(line.rpartition(":")[2].split("/")[0]))
            assert process.poll() is None, "it lives through it all"
        finally:
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=30)
    assert "Traceback" not in errors, errors


@pytest.fixture(scope="module")
def look() -> Callable[[int], tuple[float, int, int]]:
    sys.path.insert(0, str(HERE))
    module = importlib.import_module("long_run")
    sys.path.remove(str(HERE))
    return module.look


def finished(told: dict[str, Any]) -> bool:
    return told["state"] in ("done", "failed", "cancelled")


def drawing(told: dict[str, Any]) -> bool:
    return told.get("doing") == "drawing"


@pytest.mark.torture
def test_a_cancelled_job_frees_its_worker(server, figures):
    clip, (worker,) = server.clip(), server.workers()
    delays = []
    for _ in range(20):
        job = server.submit(clip, frames=128, samples=8)
        server.wait(job, drawing)
        start = time.monotonic()
        server.ask("DELETE", f"/api/jobs/{job}")
        assert server.wait(job, finished)["state"] == "cancelled"
        delays.append(time.monotonic() - start)
    assert server.workers() == [worker], "it was asked, not killed"
    assert max(delays) < 2
    figures(cancels=len(delays), milliseconds_worst=round(1000 * max(delays)))


@pytest.mark.torture
def test_a_killed_worker_is_replaced(server, figures):
    clip, kills = server.clip(), 10
    for _ in range(kills):
        job = server.submit(clip, frames=128, samples=8)
        server.wait(job, drawing)
        (worker,) = server.workers()
        os.kill(worker, signal.SIGKILL)
        told = server.wait(job, finished)
        assert told["state"] == "failed"
        assert "the worker was killed (SIGKILL) at this job; a new one has taken its place" in told["error"]
        assert server.wait(server.submit(clip), finished)["state"] == "done"
        assert worker not in server.workers()
    figures(kills=kills)


def test_loopback_unless_told_otherwise(server):
    listening = Path("/proc/net/tcp").read_text().splitlines()[1:]
    addresses = {row.split()[1] for row in listening if row.split()[3] == "0A"}
    assert f"0100007F:{server.port:04X}" in addresses
    assert f"00000000:{server.port:04X}" not in addresses


ANSWERS = {
    "page": {200},
    "state": {200},
    "upload": {201, 429},
    "upload of rubbish": {415, 422, 429},
    "upload of another kind": {415},
    "upload that is too large": {413},
    "upload for no model": {404},
    "sample": {202, 429},
    "sample, badly": {404, 422},
    "surprise": {202, 429},
    "body that is no JSON": {422},
    "body that is too large": {413},
    "foreign host": {403},
    "foreign origin": {403},
    "nowhere": {404},
    "another method": {405},
    "no HTTP": {400},
}


@dataclass
class Client(threading.Thread):
    """Does one thing after the other until the time is up."""

    server: Server
    number: int
    until: float
    counted: Counter[tuple[str, int]] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    error: BaseException | None = None

    def __post_init__(self) -> None:
        super().__init__(daemon=True)
        self.chance = random.Random(self.number)

    __hash__ = threading.Thread.__hash__

    def run(self) -> None:
        try:
            while time.monotonic() < self.until:
                self.chance.choice([self.well, self.well, self.badly, self.badly, self.badly, self.slowly])()
        except BaseException as error:  # told in the main thread
            self.error = error

    def ask(self, what: str, *words: Any, **options: Any) -> Any:
        status, answer = self.server.ask(*words, **options)
        self.counted[what, status] += 1
        assert status in ANSWERS[what], (what, status, answer)
        return answer if status < 300 else None

    def well(self) -> None:
        """A visit: look, upload, draw or measure; wait for it, leave it, or cancel it."""
        self.ask("page", "GET", "/")
        self.ask("state", "GET", "/api/state")
        file = io.BytesIO()
        np.save(file, np.random.default_rng(self.number).integers(0, 256, (4, 16, 16, 3), np.uint8))
        clip = self.ask("upload", "POST", "/api/clips/upload?model=0&name=clip.npy", file.getvalue())
        if clip is None:
            return
        part = {"clip": clip["id"], "frames": self.chance.choice([2, 4, 60])}
        if self.chance.random() < 0.7:
            order = {**part, "prime_frames": 1, "samples": self.chance.randint(1, 8), "seed": self.number}
            job = self.ask("sample", "POST", "/api/jobs/sample", order)
        else:
            job = self.ask("surprise", "POST", "/api/jobs/surprise", part)
        if job is None:
            return
        match self.chance.choice(["follow", "poll", "cancel", "leave"]):
            case "follow":
                self.follow(job["id"])
            case "poll":
                self.end(self.server.wait(job["id"], finished, seconds=300))
                status, _ = self.server.ask("GET", f"/api/jobs/{job['id']}/result.gif")
                assert status in (200, 409), status
            case "cancel":
                time.sleep(self.chance.uniform(0, 1))
                status, _ = self.server.ask("DELETE", f"/api/jobs/{job['id']}")
                assert status == 200, status
                self.end(self.server.wait(job["id"], finished, seconds=300))

    def follow(self, job: str) -> None:
        """Its events, to the last one or as far as we care."""
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=60)
        connection.request("GET", f"/api/jobs/{job}/events")
        answer, patience = connection.getresponse(), self.chance.choice([3, 10**6])
        assert answer.status == 200
        told: dict[str, Any] = {}
        for _ in range(patience):
            line = answer.readline()
            if line.startswith(b"data: "):
                told = json.loads(line[6:])
            if not line or finished(told):
                break
        connection.close()
        if told and finished(told):
            self.end(told)

    def end(self, told: dict[str, Any]) -> None:
        assert told["state"] != "failed", told
        self.ends[told["state"]] += 1

    def badly(self) -> None:
        rubbish = self.chance.randbytes(2000)
        upload = "/api/clips/upload?model=0&name="
        bad = {"clip": "none", "frames": 2, "prime_frames": 1}
        wrong: Any = self.chance.choice(["x", -1, 10**30, None, [], {}, 1.5, True, "a" * 3000])
        bad_field = {**bad, self.chance.choice([*bad, "samples", "temperature", "seed", "extra"]): wrong}
        what, *request = self.chance.choice(
            [
                ("upload of rubbish", "POST", upload + "a.mp4", b"\0\0\0\x20ftypisom" + rubbish),
                ("upload of rubbish", "POST", upload + "a.gif", b"GIF89a" + rubbish),
                ("upload of rubbish", "POST", upload + "a.npy", b"\x93NUMPY" + rubbish),
                ("upload of rubbish", "POST", upload + "a.png", rubbish),
                ("upload of another kind", "POST", upload + "a.exe", rubbish),
                ("upload that is too large", "POST", upload + "a.mp4", b"", {"content-length": str(1 << 40)}),
                ("upload for no model", "POST", "/api/clips/upload?model=99&name=a.mp4", rubbish),
                ("sample, badly", "POST", "/api/jobs/sample", bad),
                ("sample, badly", "POST", "/api/jobs/sample", bad_field),
                ("body that is no JSON", "POST", "/api/jobs/sample", rubbish),
                ("body that is no JSON", "POST", "/api/jobs/surprise", b"[" * 50_000),
                ("body that is too large", "POST", "/api/jobs/sample", bytes(100_000)),
                ("foreign host", "GET", "/api/state", None, {"host": "attacker.example"}),
                ("foreign origin", "POST", "/api/jobs/sample", bad, {"origin": "https://attacker.example"}),
                ("foreign origin", "GET", "/api/state", None, {"origin": "null"}),
                ("nowhere", "GET", "/api/jobs/../../etc/passwd"),
                ("nowhere", "GET", "/static/../../../etc/passwd"),
                ("nowhere", "GET", "/static/%2e%2e/%2e%2e/app.py"),
                ("nowhere", "DELETE", "/api/jobs/none"),
                ("another method", "PUT", "/api/state", bad),
            ]
        )
        try:
            self.ask(what, *request)
        except (ConnectionResetError, BrokenPipeError):
            assert "large" in what, what  # refused, and hung up on, before all of it was sent
            self.counted[what, 413] += 1

    def slowly(self) -> None:
        """Connections that say nothing, half of something, or nonsense, and then go, or stay."""
        beginning = self.chance.choice(
            [
                b"",
                b"GET / HT",
                b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\n",
                b"POST /api/jobs/sample HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 1000\r\n\r\n{",
                b"POST /api/clips/upload?model=0&name=a.mp4 HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 9\r\n\r\n\0",
                b"\x16\x03\x01\x02\x00\x01" + self.chance.randbytes(100),
            ]
        )
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=15) as connection:
            if beginning[:1] == b"\x16":
                connection.send(beginning)
                answer = connection.recv(1000)
                assert not answer or b" 400 " in answer, answer
                self.counted["no HTTP", 400] += 1
                return
            for byte in beginning[:40]:
                connection.send(bytes([byte]))
                time.sleep(self.chance.choice([0, 0, 0.05]))
            if len(beginning) < 40 and self.chance.random() < 0.2:
                assert connection.recv(1000) == b"", "hung up on, after ten seconds"
                self.ends["hung up on"] += 1


def test_among_people(server, look, figures, length):
    """Everybody at once, for as long as it takes."""
    num_clients, seconds = length(12, 50), length(20, 120)
    server.wait(server.submit(server.clip()), finished)
    start = time.monotonic()
    clients = [Client(server, number, start + seconds) for number in range(num_clients)]
    for client in clients:
        client.start()
    seen = []
    while any(client.is_alive() for client in clients) and time.monotonic() < start + seconds + 400:
        seen.append(look(server.process.pid))
        time.sleep(0.5)
    errors = [client.error for client in clients if client.error is not None]
    assert not errors, errors[:3]
    assert not any(client.is_alive() for client in clients)
    counted = sum((client.counted for client in clients), Counter())
    ends = sum((client.ends for client in clients), Counter())
    assert server.wait(server.submit(server.clip()), finished)["state"] == "done"
    sizes = [size for size, _, _ in filter(None, seen)]
    early, late = max(sizes[: len(sizes) // 3]), max(sizes[2 * len(sizes) // 3 :])
    assert late < early + 150, sizes
    by_status = Counter({status: 0 for _, status in counted})
    for (_, status), count in counted.items():
        by_status[status] += count
    figures(
        clients=num_clients,
        load_seconds=seconds,
        answers=dict(sorted(by_status.items())),
        ends=dict(sorted(ends.items())),
        mebibytes_first_third=round(early),
        mebibytes_last_third=round(late),
    )


@pytest.mark.torture
def test_five_hundred_samples(server, look, figures, tmp_path):
    clip, rows, start = server.clip(), [], time.monotonic()
    for number in range(500):
        assert server.wait(server.submit(clip, frames=4, samples=2, seed=number), finished)["state"] == "done"
        if seen := look(server.process.pid):
            rows.append((time.monotonic() - start, *seen))
    table = np.array(rows)
    module = sys.modules["long_run"]
    (HERE.parents[1] / "build").mkdir(exist_ok=True)
    (HERE.parents[1] / "build" / "server.svg").write_text(module.drawing(table))
    summary = module.summary(table)
    assert summary["mebibytes_most_in_second_half"] < summary["mebibytes_most_in_first_half"] + 30
    assert summary["files_last"] <= summary["files_first"] + 5
    figures(samples=500, **summary)
