"""The state of a run on disk, written while training goes on: `checkpoints/00000400/`, one folder a step.

The engine's own writer puts each rank's share of the tensors into a safetensors file, so nothing here is ever
unpickled. When all ranks are done, `checkpoint.json` seals the folder with the SHA-256 of every file and of itself, and
only then does the folder get its name: a folder with a number for a name is whole.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint import hf_storage, state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException

from framecast import durable
from framecast.config import ModelConfig
from framecast.errors import UserError
from framecast.model import checkpoint as model_checkpoint
from framecast.training.distributed import Job, bare
from framecast.training.optimizer import Optimizer

SEAL = "checkpoint.json"
FORMAT = "framecast checkpoint 1"
MAX_SEAL_BYTES = 1 << 20


@dataclass(frozen=True)
class Saved:
    """A whole checkpoint: its folder, its step, and the score of its weights where they were validated."""

    folder: Path
    step: int
    score: float | None
    files: dict[str, str]
    """SHA-256 of each."""


def tensors(model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    """Everything that a run is made of besides its step, by name; the tensors are those in use."""
    named = {f"model/{name}": weight for name, weight in bare(model).state_dict().items()}
    return named | {f"optimizer/{name}": tensor for name, tensor in optimizer.tensors().items()}


class Writer:
    """Writes checkpoints behind the run's back, one at a time, and removes those that are no longer wanted."""

    def __init__(self, folder: Path, job: Job, keep: int) -> None:
        self.folder, self.job, self.keep = folder, job, keep
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending: Future[None] | None = None

    def save(self, step: int, model: nn.Module, optimizer: Optimizer, score: float | None = None) -> None:
        """Copy the state now and write it in the background, once the checkpoint before is on the disk."""
        self.wait()
        unfinished = self.folder / f".{_name(step)}"
        if self.job.leads:
            self.folder.mkdir(parents=True, exist_ok=True)
            _remove(unfinished)
            unfinished.mkdir()
        self._meet()
        _mean_one_process()
        written = state_dict_saver.async_save(
            tensors(model, optimizer),
            storage_writer=hf_storage.HuggingFaceStorageWriter(str(unfinished), save_distributed=True),
            process_group=self.job.files,
            no_dist=self.job.world_size == 1,
        )
        assert isinstance(written, Future), "the writer stages by itself, so there is one future"
        state = {"step": step, "score": score}
        weights = averaged_names(model, optimizer)
        self._pending = self._thread.submit(self._finish, written, unfinished, state, bare(model).config, weights)

    def export(self, saved: Saved, model: nn.Module, optimizer: Optimizer) -> None:
        """Write the model of a checkpoint in the background: a run that was killed may have left an older one."""
        if self.job.leads:
            names, path = averaged_names(model, optimizer), self.folder.parent / "model"
            self._pending = self._thread.submit(export, saved.folder, bare(model).config, names, path)

    def wait(self) -> None:
        """Until what was being written is whole; its errors are raised here."""
        if self._pending is not None:
            self._pending.result()
            self._pending = None

    def close(self) -> None:
        self.wait()
        self._thread.shutdown()
        self._meet()  # no process leaves before the first has sealed the last checkpoint

    def _finish(
        self,
        written: Future[Any],
        unfinished: Path,
        state: dict[str, Any],
        config: ModelConfig,
        weights: dict[str, str],
    ) -> None:
        with _plain_cause():
            written.result()  # of every rank, as soon as it is there for the first
        if not self.job.leads:
            return
        files = {file.name: _sha256(file) for file in sorted(unfinished.iterdir())}
        body = {"format": FORMAT, **state, "files": files}
        with durable.temporary(unfinished / f".{SEAL}") as seal:
            assert seal is not None
            durable.write(seal, _text({**body, "checksum": _checksum(body)}))
            durable.publish(seal, unfinished / SEAL)
        folder = self.folder / unfinished.name.removeprefix(".")
        _remove(folder)  # of a run that was set back by hand
        unfinished.rename(folder)
        durable.sync_folder(self.folder)
        saved = everything(self.folder)
        chosen = best(saved) or saved[-1]
        if chosen.folder == folder:
            export(folder, config, weights, self.folder.parent / "model")
        for old in saved[: -self.keep]:
            if old != chosen:
                _remove(old.folder)

    def _meet(self) -> None:
        if self.job.files is not None:
            torch.distributed.barrier(self.job.files)


def load(saved: Saved, model: nn.Module, optimizer: Optimizer, job: Job) -> None:
    """Put a checkpoint's state into a model and its optimizer, each rank its own part, with nothing missing or left."""
    if job.leads:
        check(saved)
    wanted = tensors(model, optimizer)
    reader = hf_storage.HuggingFaceStorageReader(str(saved.folder))
    found = reader.read_metadata().state_dict_metadata
    for name in sorted(set(found) ^ set(wanted)):
        lacks = "lacks" if name in wanted else "has"
        raise UserError(f"{saved.folder} {lacks} the tensor {name}: it is of another model or recipe.")
    for name, tensor in wanted.items():
        about = found[name]
        if about.size != tensor.shape or about.properties.dtype != tensor.dtype:  # type: ignore[union-attr]
            raise UserError(
                f"{saved.folder}: {name} is {about.properties.dtype} {tuple(about.size)}, "  # type: ignore[union-attr]
                f"the run needs {tensor.dtype} {tuple(tensor.shape)}."
            )
    _mean_one_process()
    state_dict_loader.load(wanted, storage_reader=reader, process_group=job.files, no_dist=job.world_size == 1)
    optimizer.num_steps = saved.step


def everything(folder: Path) -> list[Saved]:
    """The whole checkpoints of a run, oldest first."""
    names = sorted(path.name for path in folder.iterdir() if path.name.isdecimal()) if folder.is_dir() else []
    return [_read_seal(folder / name) for name in names]


def best(saved: Sequence[Saved]) -> Saved | None:
    """The one with the lowest score, the first among equals; None where none was validated."""
    return min((each for each in saved if each.score is not None), key=lambda each: each.score or 0.0, default=None)


def check(saved: Saved) -> None:
    """Refuse a checkpoint that is not byte for byte what was written."""
    present = {file.name for file in saved.folder.iterdir()} - {SEAL}
    for name in sorted(present ^ set(saved.files)):
        what = "lacks" if name in saved.files else "holds a file that was not written with it,"
        raise UserError(f"{saved.folder} {what} {name}: {_WAY_OUT}")
    for name, expected in saved.files.items():
        file = saved.folder / name
        if file.is_symlink() or not file.is_file():
            raise UserError(f"{file} is no plain file: {_WAY_OUT}")
        if (sha256 := _sha256(file)) != expected:
            raise UserError(f"{file} is damaged: its SHA-256 is {sha256}, {SEAL} says {expected}; {_WAY_OUT}")


_WAY_OUT = "remove this folder to go on from the checkpoint before it."


def remove_unfinished(run: Path) -> None:
    """What a run that was killed left half written: checkpoints, and models on their way into place."""
    for path in [*run.glob("checkpoints/.*"), *run.glob(".model.*")]:
        _remove(path)


def averaged_names(model: nn.Module, optimizer: Optimizer) -> dict[str, str]:
    """Under which name a checkpoint has each weight that is to be used: its moving average, where there is one."""
    kind = "optimizer/average" if optimizer.average else "model"
    return {name: f"{kind}/{name}" for name in bare(model).state_dict()}


def export(checkpoint: Path, config: ModelConfig, weights: dict[str, str], path: Path) -> None:
    """Write a checkpoint's weights as a model folder. Read from the files, so that no rank gathers anything."""
    reader = hf_storage.HuggingFaceStorageReader(str(checkpoint))
    found = reader.read_metadata().state_dict_metadata
    wanted = {place: torch.empty(found[place].size) for place in weights.values()}  # type: ignore[union-attr]
    _mean_one_process()
    state_dict_loader.load(wanted, storage_reader=reader, no_dist=True)
    model_checkpoint.write(path, config, {name: wanted[place] for name, place in weights.items()})


@contextmanager
def _plain_cause() -> Iterator[None]:
    """What a file system refused to some rank, out of the engine's own exception."""
    try:
        yield
    except CheckpointException as error:
        for cause, _ in error.failures.values():
            if isinstance(cause, OSError):
                raise cause from error
        raise


def _mean_one_process() -> None:
    """The engine warns each time that it works for one process alone, even when it is told to (`no_dist`)."""
    warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)


def _read_seal(folder: Path) -> Saved:
    file = folder / SEAL
    if file.is_symlink() or not file.is_file() or file.stat().st_size > MAX_SEAL_BYTES:
        raise UserError(f"{folder} has no {SEAL}: {_WAY_OUT}")
    try:
        text = file.read_bytes()
        body = json.loads(text)
        whole = text == _text(body)  # the same values written in another way are not what was written either
        checksum = body.pop("checksum")
        whole = whole and body["format"] == FORMAT and checksum == _checksum(body)
        saved = Saved(folder, body["step"], body["score"], body["files"])
        whole = whole and _has_types(saved)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        whole = False
    if not whole:
        raise UserError(f"{file} is damaged: it is not what was written; {_WAY_OUT}")
    if _name(saved.step) != folder.name:
        raise UserError(f"{folder} holds step {saved.step}: {_WAY_OUT}")
    if any(Path(name).name != name for name in saved.files):  # a folder speaks of its own files alone
        raise UserError(f"{file} names files outside its folder: {_WAY_OUT}")
    if saved.score is not None and not math.isfinite(saved.score):
        raise UserError(f"{file} has the score {saved.score}: {_WAY_OUT}")
    return saved


def _has_types(saved: Saved) -> bool:
    """Whether what a seal says is of the kinds that it should be: its checksum is no secret."""
    named = isinstance(saved.files, dict) and all(isinstance(sha256, str) for sha256 in saved.files.values())
    return named and type(saved.step) is int and isinstance(saved.score, (float, int, type(None)))


def _name(step: int) -> str:
    return f"{step:08}"


def _remove(path: Path) -> None:
    """First out of sight, so that what is half removed is never met under its name."""
    if not path.exists():
        return
    hidden = path if path.name.startswith(".") else path.with_name(f".{path.name}.removed")
    if hidden != path:
        shutil.rmtree(hidden, ignore_errors=True)
        path.rename(hidden)
    shutil.rmtree(hidden) if hidden.is_dir() else hidden.unlink()


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _text(body: dict[str, Any]) -> bytes:
    return (json.dumps(body, indent=1) + "\n").encode()


def _checksum(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
