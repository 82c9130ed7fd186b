"""One queue, one worker: jobs wait in order, see their place, report as they go, and can be cancelled at any time.

The worker is a process. One that dies, or does not stop when it is told to, is replaced.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import signal
import time
from collections import deque
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Literal

import numpy as np

from framecast.server import limits
from framecast.server.shelf import Shelf, new_name
from framecast.server.worker import Done, Failed, Order, Report, Sampling, Stage, Stopped, work

State = Literal["waiting", "running", "done", "failed", "cancelled"]

HEARTBEAT_SECONDS = 10


class QueueFull(Exception):
    pass


class Job:
    """An order on its way. `follow` tells of every change, skipping those that a slow reader is too late for."""

    def __init__(self, order: Order, truth: np.ndarray) -> None:
        self.name = new_name()
        self.order, self.truth = order, truth
        self.state: State = "waiting"
        self.place = 0  # how many are before it, the running one among them
        self.facts: dict[str, Any] = {}
        self.error: str | None = None
        self.result: np.ndarray | None = None
        self.unwanted = False
        self.seen = time.monotonic()
        self._changed = asyncio.Event()

    @property
    def kind(self) -> str:
        return "sample" if isinstance(self.order, Sampling) else "surprise"

    @property
    def finished(self) -> bool:
        return self.state in ("done", "failed", "cancelled")

    @property
    def num_bytes(self) -> int:
        kept = [array.nbytes for array in (self.truth, self.result) if array is not None]
        return sum(kept) + sum(len(fact) for fact in self.facts.values() if isinstance(fact, str))

    def told(self) -> dict[str, Any]:
        """Everything about it that its owner is told."""
        about = {"id": self.name, "kind": self.kind, "state": self.state, "place": self.place, **self.facts}
        return about if self.error is None else {**about, "error": self.error}

    def change(self, state: State, error: str | None = None, facts: dict[str, Any] | None = None) -> None:
        self.state, self.error = state, error
        self.facts = self.facts if facts is None else facts
        self._changed.set()
        self._changed = asyncio.Event()

    async def follow(self) -> AsyncIterator[dict[str, Any] | None]:
        """What it is, and what it becomes, to its end; None now and then where nothing happens."""
        changed = self._changed
        yield self._seen()
        while not self.finished:
            try:
                await asyncio.wait_for(changed.wait(), HEARTBEAT_SECONDS)
            except TimeoutError:
                self.seen = time.monotonic()
                yield None
                continue
            changed = self._changed
            yield self._seen()

    def _seen(self) -> dict[str, Any]:
        self.seen = time.monotonic()
        return self.told()


class Queue:
    def __init__(self) -> None:
        self.waiting: deque[Job] = deque()
        self.running: Job | None = None
        self.finished: Shelf[Job] = Shelf(limits.KEPT_BYTES, limits.KEPT_ITEMS)
        self._filled = asyncio.Event()
        self._worker: WorkerProcess | None = None

    def submit(self, order: Order, truth: np.ndarray) -> Job:
        if len(self.waiting) >= limits.MAX_WAITING:
            raise QueueFull
        job = Job(order, truth)
        self.waiting.append(job)
        self._tell_places()
        self._filled.set()
        return job

    def find(self, name: str) -> Job | None:
        unfinished = [job for job in (self.running, *self.waiting) if job is not None]
        job = next((job for job in unfinished if job.name == name), None) or self.finished.get(name)
        if job is not None:
            job.seen = time.monotonic()
        return job

    def cancel(self, job: Job) -> None:
        """A waiting job is gone at once; a running one when the worker stops, at the latest when it is stopped."""
        if job in self.waiting:
            self.waiting.remove(job)
            self._finish(job, "cancelled")
            self._tell_places()
        elif job is self.running and not job.unwanted and self._worker is not None:
            job.unwanted = True
            self._worker.stop.value = 1
            asyncio.get_running_loop().call_later(limits.CANCEL_SECONDS, self._lose_patience, job, self._worker)

    async def run(self) -> None:
        """Carry out what is submitted, for ever."""
        watch = asyncio.create_task(self._cancel_abandoned())
        try:
            self._worker = WorkerProcess()
            while True:
                await self._filled.wait()
                while self.waiting:
                    self.running = self.waiting.popleft()
                    self._tell_places()
                    await self._carry_out(self.running)
                    self.running = None
                self._filled.clear()
        finally:
            watch.cancel()
            if self._worker is not None:
                self._worker.kill()

    async def _carry_out(self, job: Job) -> None:
        assert self._worker is not None
        if not self._worker.alive:
            self._replace_worker()
        self._worker.stop.value = 0
        job.change("running")
        try:
            await self._worker.send(job.order)
            while isinstance(report := await self._worker.receive(), Stage):
                job.change("running", facts=report.facts)
        except (EOFError, OSError):
            why = self._worker.epitaph()
            self._replace_worker()
            if job.unwanted:
                self._finish(job, "cancelled")
            else:
                self._finish(job, "failed", f"the worker {why} at this job; a new one has taken its place.")
            return
        if isinstance(report, Done):
            job.result = report.result
            self._finish(job, "done")
        elif isinstance(report, Failed):
            self._finish(job, "failed", report.sentence)
        else:
            assert isinstance(report, Stopped)
            self._finish(job, "cancelled")

    def _finish(self, job: Job, state: State, error: str | None = None) -> None:
        job.change(state, error)
        self.finished.put(job, job.num_bytes, job.name)

    def _replace_worker(self) -> None:
        assert self._worker is not None
        self._worker.kill()
        self._worker = WorkerProcess()

    def _lose_patience(self, job: Job, worker: WorkerProcess) -> None:
        if job is self.running and worker is self._worker:
            worker.process.kill()

    async def _cancel_abandoned(self) -> None:
        while True:
            await asyncio.sleep(1)
            for job in [*self.waiting, *([self.running] if self.running else [])]:
                if time.monotonic() - job.seen > limits.ABANDONED_SECONDS:
                    self.cancel(job)

    def _tell_places(self) -> None:
        before = int(self.running is not None)
        for place, job in enumerate(self.waiting):
            if job.place != place + before:
                job.place = place + before
                job.change("waiting")


class WorkerProcess:
    """The process, its pipe, and one thread that waits at it."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.stop = context.RawValue("b", 0)  # without a lock, which a killed process would keep
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=work, args=(theirs, self.stop), name="framecast-worker", daemon=True)
        self.process.start()
        theirs.close()  # so that its end is the end of the pipe
        self._thread = ThreadPoolExecutor(1, "worker-pipe")

    @property
    def alive(self) -> bool:
        return self.process.is_alive()

    async def send(self, order: Order) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, self.pipe.send, order)

    async def receive(self) -> Report:
        report: Report = await asyncio.get_running_loop().run_in_executor(self._thread, self.pipe.recv)
        return report

    def epitaph(self) -> str:
        self.process.join(timeout=1)
        code = self.process.exitcode
        if code is not None and code < 0:
            with suppress(ValueError):
                return f"was killed ({signal.Signals(-code).name})"
        return "ended"

    def kill(self) -> None:
        self.process.kill()
        self.process.join()
        self._thread.shutdown(wait=True)
        self.pipe.close()
