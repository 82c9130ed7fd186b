"""The queue, with a worker that never ends by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from framecast.server import jobs, limits
from framecast.server.jobs import Job, Queue
from framecast.server.shelf import Shelf
from framecast.server.worker import Order, Report, Stopped, Surprise

CLIP = np.zeros((2, 2, 2, 1), np.uint8)


class Patient:
    """In the place of the process: computes until it is stopped."""

    alive = True

    def __init__(self) -> None:
        self.stop = SimpleNamespace(value=0)
        self.process = SimpleNamespace(kill=lambda: None)

    async def send(self, order: Order) -> None:
        pass

    async def receive(self) -> Report:
        while not self.stop.value:
            await asyncio.sleep(0.01)
        return Stopped()

    def kill(self) -> None:
        pass


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Queue], Awaitable[None]]], None]:
    monkeypatch.setattr(jobs, "WorkerProcess", Patient)
    monkeypatch.setattr(jobs, "HEARTBEAT_SECONDS", 0.05)

    def run_it(test: Callable[[Queue], Awaitable[None]]) -> None:
        async def with_queue() -> None:
            queue = Queue()
            running = asyncio.create_task(queue.run())
            await test(queue)
            running.cancel()
            await asyncio.wait([running])

        asyncio.run(with_queue())

    return run_it


def submitted(queue: Queue) -> Job:
    return queue.submit(Surprise(Path("model"), CLIP, None), CLIP)


def test_a_job_that_nobody_asks_about_is_cancelled(run, monkeypatch):
    monkeypatch.setattr(limits, "ABANDONED_SECONDS", 0.3)

    async def test(queue: Queue) -> None:
        running, abandoned, followed = (submitted(queue) for _ in range(3))
        told = []

        async def follow() -> None:
            async for each in followed.follow():
                told.append(each)

        following = asyncio.create_task(follow())
        await asyncio.sleep(2.3)
        assert running.state == abandoned.state == "cancelled"
        assert followed.state == "running"
        queue.cancel(followed)
        await following
        states = [each["state"] for each in told if each]
        assert (states[0], states[-1]) == ("waiting", "cancelled")
        assert None in told, "and sometimes it only says that it is there"

    run(test)


def test_who_follows_late_sees_the_latest(run):
    async def test(queue: Queue) -> None:
        job = submitted(queue)
        following = job.follow()
        assert (await anext(following))["state"] == "waiting"
        for wave in range(5):
            job.change("running", facts={"wave": wave})
        assert (await anext(following))["wave"] == 4
        queue.cancel(job)

    run(test)


def test_a_shelf_keeps_the_newest_up_to_its_size():
    shelf: Shelf[str] = Shelf(max_bytes=10, max_items=3)
    first, second, third = (shelf.put(name, 3) for name in ("first", "second", "third"))
    assert shelf.get(first) == "first"  # asked for, so it stays
    fourth = shelf.put("fourth", 1)
    assert [shelf.get(name) for name in (first, second, third, fourth)] == ["first", None, "third", "fourth"]
    large = shelf.put("large", 100)
    assert shelf.get(large) == "large"
    assert shelf.get(fourth) is None
