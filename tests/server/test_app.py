"""The interface as `docs/serve.md` describes it, against a server that people could have started."""

from __future__ import annotations

import base64
import http.client
import io
import itertools
import json
import math
import os
import signal
import time
import zlib

import httpx
import numpy as np
import pytest

import framecast
from framecast import media
from framecast.data.video_file import read_clip
from framecast.server import limits
from framecast.server.guard import HEADERS


def unpacked(text: str, shape: list[int]) -> np.ndarray:
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), np.uint8).reshape(shape)


def events(server, job: str) -> list[dict]:
    with server.client.stream("GET", f"/api/jobs/{job}/events") as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        return [json.loads(line[6:]) for line in response.iter_lines() if line.startswith("data: ")]


def test_the_page_and_its_parts_carry_the_safety_headers(server):
    for path, kind in {
        "/": "text/html",
        "/static/page.js": "text/javascript",
        "/static/style.css": "text/css",
        "/static/icon.svg": "image/svg+xml",
        "/api/state": "application/json",
        "/nowhere": "application/json",
    }.items():
        answer = server.client.get(path)
        assert answer.status_code == (404 if path == "/nowhere" else 200)
        assert answer.headers["content-type"].startswith(kind)
        assert {name: answer.headers.get(name) for name in HEADERS} == HEADERS
    policy = HEADERS["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


def test_the_state_tells_the_models(server):
    models = server.get("/api/state")["models"]
    assert [model["name"] for model in models] == [str(folder) for folder in server.folders]
    assert [tuple(model["video_shape"]) for model in models] == [config.video_shape for config in server.MODELS]


def test_built_in_clips_are_those_of_moving_mnist_where_a_digit_fits(server):
    assert server.get(f"/api/models/{server.GREY}/clips")["count"] == 10_000
    assert server.get(f"/api/models/{server.COLOUR}/clips")["count"] == 0
    told = server.post("/api/clips/built-in", model=server.GREY, number=3)
    video = unpacked(told["video"], told["shape"])
    assert video.shape == (8, 32, 32, 1)
    assert video.max() > 200


@pytest.mark.parametrize("name", ["clip.mp4", "clip.gif", "clip.webp", "clip.npz"])
def test_an_upload_becomes_what_prepare_would_make_of_it(server, tmp_path, name):
    clip = server.moving(12, 48, 3)
    told = server.upload(clip, name, every=2)
    (tmp_path / name).write_bytes(media.encode(clip, name[5:]))
    expected = read_clip(tmp_path / name, (32, 32), every=2, grey=True)
    np.testing.assert_array_equal(unpacked(told["video"], told["shape"]), expected)


def test_what_cannot_be_a_clip_is_refused_with_its_reason(server, tmp_path):
    def refused(name: str, content: bytes, model: int = 0) -> tuple[int, str]:
        answer = server.client.post("/api/clips/upload", params={"model": model, "name": name}, content=content)
        return answer.status_code, answer.json()["detail"]

    long = media.encode(np.zeros((limits.MAX_CLIP_FRAMES + 1, 8, 8, 1), np.uint8), "npz")
    large = media.encode(np.zeros((1, 4096, 4096, 1), np.uint8), "npz")
    mp4 = media.encode(server.moving(12, 48, 3), "mp4")
    playlist = b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n"
    for content, name, status, words in [
        (mp4, "clip.txt", 415, "of no kind that can be read"),
        (playlist, "clip.mp4", 415, "does not begin like any video"),
        (b"", "clip.mp4", 415, "does not begin like any video"),
        (mp4[: len(mp4) // 2], "clip.mp4", 422, "cut short"),
        (long, "clip.npz", 422, "more than 600 frames"),
        (large, "clip.npz", 422, "its frames are 4096×4096, more than"),
    ]:
        found, sentence = refused(name, content)
        assert (found, words in sentence) == (status, True), sentence
    assert refused("clip.mp4", mp4, model=7)[0] == 404


def test_a_body_that_is_too_large_is_refused_before_it_is_read(server):
    def chunks(num_bytes: int):
        for _ in range(num_bytes >> 20):
            yield bytes(1 << 20)

    params = {"model": server.GREY, "name": "clip.mp4"}
    claiming = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=20)
    claiming.putrequest("POST", "/api/clips/upload?model=0&name=clip.mp4")
    claiming.putheader("content-length", str(limits.MAX_UPLOAD_BYTES + 1))
    claiming.endheaders()
    assert claiming.getresponse().status == 413
    claiming.close()
    with httpx.Client(base_url=server.url, timeout=20) as client:
        answer = client.post("/api/clips/upload", params=params, content=chunks(limits.MAX_UPLOAD_BYTES + (2 << 20)))
        assert answer.status_code == 413
        assert "64 MiB" in answer.json()["detail"]
    with httpx.Client(base_url=server.url, timeout=20) as client:
        answer = client.post("/api/jobs/sample", content=b" " * (limits.MAX_REQUEST_BYTES + 1))
        assert answer.status_code == 413


@pytest.mark.parametrize("model", [0, 1], ids=["grey", "colour"])
def test_a_sample_is_the_one_that_python_draws(server, model):
    clip = server.clip(model)
    settings = {"samples": 2, "temperature": 0.7, "seed": 5}
    told = events(server, server.sample(clip, frames=5, **settings))
    assert [each["state"] for each in told[-1:]] == ["done"]
    shown = [each for each in told if each.get("doing") == "drawing"]
    assert shown, "progress was shown"
    for before, after in itertools.pairwise(shown):
        assert (before["slice"], before["wave"]) < (after["slice"], after["wave"])
    first, last = (unpacked(each["drawn"], -1) for each in (shown[0], told[-1]))
    assert np.unpackbits(first).sum() < np.unpackbits(last).sum() == 5 * math.prod(server.MODELS[model].video_shape[1:])

    content = server.client.get(f"/api/jobs/{told[-1]['id']}/result.npz").content
    video = np.load(io.BytesIO(content))["video"]
    prime = video[:1, :3]
    expected = framecast.sample(
        framecast.VideoTransformer.load(server.folders[model]),
        prime,
        5,
        temperature=0.7,
        seed=5,
        samples=np.arange(2),
    )
    np.testing.assert_array_equal(video, expected)
    np.testing.assert_array_equal(unpacked(told[-1]["video"], told[-1]["shape"]), expected)


def test_results_come_as_video_picture_and_numbers(server, tmp_path):
    job = server.sample(server.clip())
    assert server.client.get(f"/api/jobs/{job}/result.mp4").status_code in (200, 409)
    assert server.ended(job)["state"] == "done"
    for kind, media_type in {"mp4": "video/mp4", "gif": "image/gif", "npz": "application/octet-stream"}.items():
        answer = server.client.get(f"/api/jobs/{job}/result.{kind}")
        assert answer.headers["content-type"] == media_type
        assert answer.headers["content-disposition"] == f'attachment; filename="framecast-sample.{kind}"'
        (tmp_path / f"it.{kind}").write_bytes(answer.content)
    assert np.load(tmp_path / "it.npz")["video"].shape == (1, 4, 32, 32, 1)
    assert len(read_clip(tmp_path / "it.mp4", None)) == 4
    beside = read_clip(tmp_path / "it.gif", None)
    assert beside.shape[1:3] == (7 * 32, 7 * (32 + media.GAP + 32)), "the clip and the sample, enlarged"
    assert server.client.get(f"/api/jobs/{job}/result.exe").status_code == 422


@pytest.mark.parametrize("model", [0, 1], ids=["grey", "colour"])
def test_surprise_is_the_log_probability_in_bits(server, model):
    clip = server.clip(model)
    told = events(server, server.post("/api/jobs/surprise", clip=clip, start=1, frames=6)["id"])[-1]
    assert told["state"] == "done"
    content = np.load(io.BytesIO(server.client.get(f"/api/jobs/{told['id']}/result.npz").content))
    log_prob = framecast.VideoTransformer.load(server.folders[model]).log_prob(content["video"][None])[0]
    np.testing.assert_allclose(content["bits"], -log_prob / math.log(2), rtol=1e-4)
    scaled = unpacked(told["map"], content["bits"].shape) * (told["bits_at_255"] / 255)
    seen = content["bits"] <= told["bits_at_255"]
    np.testing.assert_allclose(scaled[seen], content["bits"][seen], atol=told["bits_at_255"] / 255)
    for kind in ("mp4", "gif"):
        assert server.client.get(f"/api/jobs/{told['id']}/result.{kind}").status_code == 200


def test_settings_that_make_no_sense_are_refused_in_a_sentence(server):
    clip = server.clip()
    good = {"clip": clip, "frames": 4, "prime_frames": 3}
    for wrong, words in [
        ({"temperature": 11}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"samples": 9}, "samples"),
        ({"samples": True}, "samples"),
        ({"seed": -1}, "seed"),
        ({"frames": 3}, "takes 4 or more"),
        ({"frames": 1000}, "frames"),
        ({"prime_frames": 4}, "one must be drawn"),
        ({"prime_frames": 3, "start": 6}, "from frame 6 on the clip has 2"),
        ({"start": 8}, "the clip has 8 frames"),
        ({"hat": 1}, "hat"),
    ]:
        answer = server.client.post("/api/jobs/sample", json=good | wrong)
        assert answer.status_code == 422
        assert words in answer.json()["detail"]
    for body in (b"{", b"\xff", b"[" * 10_000, b"NaN", b'{"clip": NaN}'):
        answer = server.client.post("/api/jobs/sample", content=body, headers={"content-type": "application/json"})
        assert answer.status_code == 422
        assert answer.json()["detail"]
    assert server.client.post("/api/jobs/sample", json=good | {"clip": "no"}).status_code == 404
    assert server.client.get("/api/jobs/no").status_code == 404
    short = server.upload(server.moving(3, 32), "clip.npz")["id"]
    told = server.ended(server.post("/api/jobs/surprise", clip=short, frames=4)["id"])
    assert "at least 4 frames" in told["error"]


def test_jobs_wait_in_order_and_a_cancelled_one_makes_room_at_once(server):
    clip = server.clip()
    first, *others = [server.sample(clip, frames=128, samples=1) for _ in range(4)]
    server.until(first, lambda told: told["state"] == "running" and "wave" in told)
    assert [server.get(f"/api/jobs/{job}")["place"] for job in others] == [1, 2, 3]

    assert server.client.delete(f"/api/jobs/{others[0]}").json()["state"] == "cancelled"
    assert [server.get(f"/api/jobs/{job}")["place"] for job in others[1:]] == [1, 2]
    (worker,) = server.workers()
    start = time.monotonic()
    server.client.delete(f"/api/jobs/{first}")
    assert server.ended(first)["state"] == "cancelled"
    seconds = time.monotonic() - start
    assert seconds < limits.CANCEL_SECONDS, "it stopped by itself"
    server.until(others[1], lambda told: told["state"] == "running")
    for job in others[1:]:
        server.client.delete(f"/api/jobs/{job}")
        assert server.ended(job)["state"] == "cancelled"
    assert server.workers() == [worker]
    assert server.client.get(f"/api/jobs/{first}/result.npz").status_code == 409


def test_a_full_queue_says_so(server):
    clip = server.clip()
    jobs = [server.sample(clip, frames=128)]
    server.until(jobs[0], lambda told: told["state"] == "running")
    jobs += [server.sample(clip) for _ in range(limits.MAX_WAITING)]
    answer = server.client.post("/api/jobs/sample", json={"clip": clip, "frames": 4, "prime_frames": 3})
    assert answer.status_code == 429
    assert answer.headers["retry-after"]
    for job in reversed(jobs):
        server.client.delete(f"/api/jobs/{job}")
    assert server.ended(jobs[0])["state"] == "cancelled"


def test_a_killed_worker_is_replaced(server):
    clip = server.clip()
    job, waiting = server.sample(clip, frames=128), server.sample(clip)
    server.until(job, lambda told: told["state"] == "running" and "wave" in told)
    (worker,) = server.workers()
    os.kill(worker, signal.SIGKILL)
    told = server.ended(job)
    assert (told["state"], told["error"]) == (
        "failed",
        "the worker was killed (SIGKILL) at this job; a new one has taken its place.",
    )
    assert server.ended(waiting)["state"] == "done"
    assert worker not in server.workers()

    (idle,) = server.workers()
    os.kill(idle, signal.SIGKILL)
    time.sleep(0.2)
    assert server.ended(server.sample(clip))["state"] == "done"


def test_a_worker_that_does_not_stop_is_replaced(server):
    job = server.sample(server.clip(), frames=128)
    server.until(job, lambda told: told["state"] == "running" and "wave" in told)
    (worker,) = server.workers()
    os.kill(worker, signal.SIGSTOP)
    server.client.delete(f"/api/jobs/{job}")
    assert server.ended(job)["state"] == "cancelled"
    assert worker not in server.workers()


def test_it_listens_to_its_own_page_alone(server):
    port = server.url.rsplit(":", 1)[1]
    for headers, status in [
        ({}, 200),
        ({"host": f"localhost:{port}"}, 200),
        ({"host": "127.0.0.1:9999"}, 200),  # a tunnel
        ({"host": "[::1]"}, 200),
        ({"host": "evil.example"}, 403),
        ({"host": f"localhost.evil.example:{port}"}, 403),
        ({"host": "127.0.0.1@evil.example"}, 403),
        ({"host": "192.168.1.7"}, 403),  # on loopback nobody else can mean us
        ({"host": ""}, 403),
        ({"host": "["}, 403),
        ({"origin": server.url}, 200),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "http://localhost:3000"}, 403),
        ({"origin": "null"}, 403),
        ({"sec-fetch-site": "same-origin"}, 200),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}, 403),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}, 200),
    ]:
        answer = server.client.get("/api/state", headers=headers)
        assert answer.status_code == status, headers
        assert answer.headers["x-content-type-options"] == "nosniff"
    cross = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert server.client.post("/api/jobs/sample", json={}, headers=cross).status_code == 403


def test_nothing_went_wrong_meanwhile(server):
    """Last: no traceback was printed while all this happened."""
    assert server.process.poll() is None
    assert not [line for line in server.complaints if "Traceback" in line]
