"""A run on disk: `config.json` (what was run, with which versions), `metrics.jsonl` (a line a step), `checkpoints/`,
and `model/`, which `sample`, `evaluate` and `serve` take as it is.
"""

from __future__ import annotations

import importlib.metadata
import json
import platform
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

from framecast import durable
from framecast.config import RunConfig, from_json, to_json
from framecast.data.store import Store
from framecast.errors import UserError

CONFIG, METRICS, CHECKPOINTS, MODEL = "config.json", "metrics.jsonl", "checkpoints", "model"
FORMAT = "framecast run 1"

# What may differ when a run is resumed: how long, how it is laid out, what it keeps; none of it changes what it learns.
FREE = ("steps", "checkpoint_every", "keep", "validation_batches", "micro_batch", "parallel", "recompute")


@contextmanager
def held(folder: Path, patience: float = durable.PATIENCE) -> Iterator[None]:
    """Make the folder and keep every other process out of it meanwhile."""
    with durable.plain_errors(folder, "choose another folder with --out"):
        folder.mkdir(parents=True, exist_ok=True)
        lock = durable.open_lock(folder / ".lock")
    with lock:
        if not durable.locked(lock, patience=patience):
            raise UserError(f"{folder} is being trained by another process: wait for it, or choose another --out.")
        yield


def write_config(folder: Path, run: RunConfig, store: Store) -> None:
    body = {
        "format": FORMAT,
        "run": to_json(run),
        "store": {"path": str(store.path), "dataset": store.dataset, "fingerprint": store.fingerprint},
        "versions": versions(),
        "commit": commit(),
    }
    with durable.temporary(folder / f".{CONFIG}") as file:
        assert file is not None, "the folder is held"
        durable.write(file, (json.dumps(body, indent=2) + "\n").encode())
        durable.publish(file, folder / CONFIG)


def read_config(folder: Path) -> tuple[RunConfig, dict[str, str]]:
    """What is run in a folder, and the store that it learns from."""
    file = folder / CONFIG
    try:
        body = json.loads(file.read_bytes())
    except FileNotFoundError:
        raise UserError(f"there is no run at {folder}: a run is a folder that `framecast train` made.") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{file} cannot be read: {error}.") from None
    if not isinstance(body, dict) or body.get("format") != FORMAT or not isinstance(body.get("store"), dict):
        raise UserError(f"{file} is no configuration of a run: it should have the format {FORMAT!r}.")
    return from_json(RunConfig, body.get("run"), where=f"{file}: run"), body["store"]


def check_same(folder: Path, run: RunConfig, store: Store) -> None:
    """Refuse to go on with another model, recipe or data than the run began with."""
    began, data = read_config(folder)
    if data.get("fingerprint") != store.fingerprint:
        raise UserError(
            f"{folder} was trained on {data.get('path')}, and {store.path} holds other clips: choose another --out."
        )
    training = replace(began.training, **{name: getattr(run.training, name) for name in FREE})
    # What the paper says of it and how it is scored may change too.
    began = replace(run, model=began.model, data=began.data, training=training)
    for name, before, now in _differences("", to_json(began), to_json(run)):
        raise UserError(
            f"{folder} was trained with {name} {before}, now it is {now}: repeat the command as it was, "
            f"or choose another --out."
        )


def _differences(name: str, before: Any, now: Any) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(before, dict) and isinstance(now, dict):
        for key in before:
            yield from _differences(f"{name}.{key}".lstrip("."), before[key], now[key])
    elif before != now:
        yield name, before, now


class Metrics:
    """A line of JSON a step, in order and each step once, however often the run was interrupted."""

    def __init__(self, folder: Path, first_step: int) -> None:
        """Steps from `first_step` on will be made again: their lines go, with whatever a crash left half written."""
        self.path = folder / METRICS
        kept = [line for line, body in _lines(self.path) if body["step"] <= first_step]
        with durable.temporary(folder / f".{METRICS}") as file:
            assert file is not None, "the folder is held"
            durable.write(file, "".join(kept).encode())
            durable.publish(file, self.path)
        self.file: TextIO = self.path.open("a")

    def write(self, line: dict[str, Any]) -> None:
        self.file.write(json.dumps(line) + "\n")
        self.file.flush()

    def close(self) -> None:
        self.file.close()


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The steps of a run so far."""
    return [body for _, body in _lines(folder / METRICS)]


def _lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    if not path.exists():
        return
    with path.open() as file:
        for line in file:
            try:
                body = json.loads(line)
            except ValueError:  # the last one, cut short by a crash
                return
            if not line.endswith("\n") or not isinstance(body, dict) or not isinstance(body.get("step"), int):
                return
            yield line, body


def versions() -> dict[str, str]:
    """Of everything that decides what comes out."""
    found = {"python": platform.python_version()}
    for name in ("framecast", "torch", "numpy", "safetensors"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:  # run from a source tree that was not installed
            found[name] = "unknown"
    return found


def commit() -> str | None:
    """Of the source tree that is running, with "+" where files were changed since; None outside of one."""
    git = ["git", "-C", str(Path(__file__).parent)]
    try:
        head = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, timeout=5)
        changed = subprocess.run([*git, "status", "--porcelain", "."], capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return head.stdout.strip() + "+" * bool(changed.stdout.strip()) if head.returncode == 0 else None
