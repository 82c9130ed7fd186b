"""Processes that make parts: those of this machine, or those of a Ray cluster.

A decoder may take its process with it. The part is then made again by another process; the item that was being read is
left out if it happens twice, so that a process which somebody killed costs nothing and a broken file costs itself.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import threading
import traceback
from collections import Counter, deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

from framecast.data.part import Part
from framecast.errors import UserError

MAX_DEATHS = 2  # of processes at the same place
RAY_RETRIES = 3
RAY_SECONDS = 10


@dataclass(eq=False)
class Job:
    part: Part
    lost: dict[str, str] = field(default_factory=dict)
    deaths: Counter[int] = field(default_factory=Counter)
    """By the place of the item that was being read."""
    place: int = -1

    def died(self, how: str) -> None:
        """Take note of a process's death; raises if no item can be blamed for it."""
        self.deaths[self.place] += 1
        if self.deaths[self.place] < MAX_DEATHS:
            return
        if not 0 <= self.place < len(self.part.items):
            raise RuntimeError(f"the processes that make part {self.part.number} die: {how}")
        self.lost[self.part.items[self.place]] = f"its decoder crashed: {how}"


class Worker:
    """One process of this machine, and the job it is at."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs,), daemon=True)
        with _single_threaded():
            self.process.start()
        theirs.close()  # so that its death ends the pipe
        self.job: Job | None = None

    def begin(self, job: Job) -> None:
        self.job, job.place = job, -1
        with suppress(BrokenPipeError):  # it died just now, which is found out when it should answer
            self.connection.send((job.part, job.lost))

    def how_it_died(self) -> str:
        self.process.join()
        code = self.process.exitcode or 0
        return signal.Signals(-code).name if code < 0 else f"exit status {code}"

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.connection.close()


def make_here(parts: Sequence[Part], num_workers: int) -> Generator[int, None, None]:
    """Make parts in processes of this machine; yields the number of each as it is done."""
    waiting = deque(map(Job, parts))
    workers: list[Worker] = []
    try:
        while waiting or workers:
            while waiting and len(workers) < num_workers:
                workers.append(Worker())
                workers[-1].begin(waiting.popleft())
            for ready in wait([worker.connection for worker in workers]):
                worker = next(worker for worker in workers if worker.connection is ready)
                job = worker.job
                assert job is not None, "every process has a job or is gone"
                try:
                    message = worker.connection.recv()
                except (EOFError, OSError):
                    workers.remove(worker)
                    job.died(worker.how_it_died())
                    worker.end()
                    waiting.appendleft(job)
                    continue
                if isinstance(message, int):
                    job.place = message
                elif isinstance(message, Exception):
                    raise message
                else:
                    yield job.part.number
                    if waiting:
                        worker.begin(waiting.popleft())
                    else:
                        workers.remove(worker)
                        worker.end()
    finally:
        for worker in workers:
            worker.end()


def make_on_ray(parts: Sequence[Part], address: str) -> Generator[int, None, None]:
    """Make parts on a Ray cluster whose machines all see the source and the store under the same paths."""
    try:
        import ray
    except ImportError as error:
        raise UserError("--ray needs the package ray: pip install 'framecast[ray]'") from error
    try:
        host, _, port = address.removeprefix("ray://").rpartition(":")
        if port.isdecimal():  # Ray itself would wait for minutes
            socket.create_connection((host, int(port)), timeout=RAY_SECONDS).close()
        ray.init(address=address, log_to_driver=False)
    except OSError as error:
        raise UserError(f"there is no Ray cluster at {address}: {error}") from error
    # A process under Ray's own, as here, so that a crashing decoder costs its file there too.
    make = ray.remote(_make_one).options(max_retries=RAY_RETRIES, num_cpus=1)
    waiting = deque(parts)
    running: dict[Any, int] = {}
    try:
        while waiting or running:
            while waiting and len(running) < 2 * ray.cluster_resources().get("CPU", 1):
                part = waiting.popleft()
                running[make.remote(part)] = part.number
            for done in ray.wait(list(running), num_returns=1)[0]:
                try:
                    ray.get(done)
                except ray.exceptions.RayTaskError as error:
                    raise error.cause if isinstance(error.cause, UserError) else error from error
                yield running.pop(done)
    finally:
        for reference in running:
            ray.cancel(reference)
        ray.shutdown()


def _make_one(part: Part) -> None:
    assert list(make_here([part], 1)) == [part.number]


def _work(connection: Connection) -> None:
    """What a process does: make part after part, as told."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all; the one who started us ends us
    threading.Thread(target=_die_with_parent, daemon=True).start()
    while True:
        part, lost = connection.recv()
        try:
            part.make(lost, connection.send)
            connection.send(None)
        except UserError as error:
            connection.send(error)
        except Exception:
            connection.send(RuntimeError(traceback.format_exc()))


def _die_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None, "started by make_here"
    parent.join()
    os._exit(1)


@contextmanager
def _single_threaded() -> Iterator[None]:
    """Processes are started with one thread each for numpy's products: theirs are the cores, all of them."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(dict.fromkeys(names, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
