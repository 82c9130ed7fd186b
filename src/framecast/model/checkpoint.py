"""A model on disk: a folder with `model.safetensors` and `config.json`, strict in both directions.

The JSON holds the weights' SHA-256 and a checksum of itself, so that whatever was altered is found when it is read.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from framecast import durable
from framecast.config import ModelConfig, from_json, to_json
from framecast.errors import UserError

WEIGHTS, CONFIG = "model.safetensors", "config.json"
FORMAT = "framecast model 1"
MAX_CONFIG_BYTES = 1 << 20


SHIPPED = Path(__file__).parents[1] / "shipped"
"""Models that come with the package, a folder each."""


def find(name: str | Path) -> Path:
    """The folder of the model that a person means: a model's folder, a run's (its `model`), or one that ships."""
    path = Path(name)
    if (path / "model" / CONFIG).is_file():
        return path / "model"
    shipped = SHIPPED / path
    return shipped if not path.exists() and path.parts == (path.name,) and shipped.is_dir() else path


def write(path: Path, config: ModelConfig, weights: dict[str, Tensor]) -> None:
    """Write the folder beside its place and then move it there, so that no reader ever meets half a model."""
    from safetensors.torch import save_file

    if path.exists() and not (path.is_dir() and (path / CONFIG).is_file()):
        raise UserError(f"{path} exists and is no model: it is not overwritten. Choose another path.")
    with durable.plain_errors(path.parent, "make room, or choose another folder"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with durable.temporary(_beside(path, "lock")) as lock:
            if lock is None:
                raise UserError(f"another process is saving a model at {path}: let it finish, or choose another path.")
            _recover(path)
            fresh = _beside(path, "unfinished")
            fresh.mkdir()
            try:
                with _plain_cause():
                    save_file(
                        {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}, fresh / WEIGHTS
                    )
                body = {"format": FORMAT, "weights_sha256": _sha256(fresh / WEIGHTS), "model": to_json(config)}
                (fresh / CONFIG).write_bytes(_text({**body, "checksum": _checksum(body)}))
                for file in (fresh / WEIGHTS, fresh / CONFIG):
                    file.chmod(0o644)
                    _sync(file)
                _move_into_place(fresh, path)
            finally:
                shutil.rmtree(fresh, ignore_errors=True)


def read(path: Path) -> tuple[ModelConfig, dict[str, Tensor]]:
    """Configuration and weights of a folder that `write` made; anything else is refused with its reason."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    config, weights_sha256 = _read_config(path)
    file = path / WEIGHTS
    _check_plain_file(file)
    if (found := _sha256(file)) != weights_sha256:
        raise UserError(
            f"{file} is not the file that {CONFIG} describes: its SHA-256 is {found}, {CONFIG} says {weights_sha256}."
        )
    try:
        weights = load_file(file)
    except SafetensorError as error:
        raise UserError(f"{file} is no safetensors file: {error}.") from None
    for name, tensor in weights.items():
        if not tensor.is_floating_point():
            raise UserError(f"{file}: the weight {name} holds {tensor.dtype}, not floating-point numbers.")
        if not torch.isfinite(tensor).all():
            raise UserError(f"{file}: the weight {name} has a NaN or an infinity.")
    # Halves are a way of storing weights, not of computing with them.
    return config, {name: _at_least_float32(tensor) for name, tensor in weights.items()}


def check_fits(weights: dict[str, Tensor], expected: dict[str, Tensor], path: Path) -> None:
    """Refuse weights that are not those of the configured model, naming the first that differs."""
    for name in sorted(set(weights) ^ set(expected)):
        where = f"{WEIGHTS} has the weight {name}, which its configuration does not"
        if name in expected:
            where = f"{WEIGHTS} lacks the weight {name} of its configuration"
        raise UserError(f"{path}: {where}.")
    for name, tensor in weights.items():
        if tensor.shape != expected[name].shape:
            found, wanted = tuple(tensor.shape), tuple(expected[name].shape)
            raise UserError(f"{path}: the weight {name} has shape {found}, its configuration says {wanted}.")
    if len(kinds := {tensor.dtype for tensor in weights.values()}) != 1:
        raise UserError(f"{path}: the weights are of several precisions, {sorted(map(str, kinds))}.")


def _read_config(path: Path) -> tuple[ModelConfig, str]:
    file = path / CONFIG
    if not path.is_dir() or not os.path.lexists(file):
        raise UserError(f"there is no model at {path}: a model is a folder with {WEIGHTS} and {CONFIG}.")
    _check_plain_file(file)
    if (size := file.stat().st_size) > MAX_CONFIG_BYTES:
        raise UserError(f"{file} has {size} bytes: no configuration has more than {MAX_CONFIG_BYTES}.")
    text = file.read_bytes()
    try:
        body = json.loads(text, object_pairs_hook=_without_repeats)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file} is no JSON: {error}.") from None
    fields = {"format", "weights_sha256", "model", "checksum"}
    if not isinstance(body, dict) or set(body) != fields:
        raise UserError(f"{file} is no model configuration: it must hold {', '.join(sorted(fields))} and nothing else.")
    if body["format"] != FORMAT:
        raise UserError(f"{file} is of the format {body['format']!r}, this version reads {FORMAT!r}.")
    if text != _text(body):  # the same values written in another way are not what `write` wrote either
        raise UserError(f"{file} was altered: it is not written as framecast writes it.")
    checksum = body.pop("checksum")
    if checksum != _checksum(body):
        raise UserError(f"{file} was altered: its checksum is {_checksum(body)}, it says {checksum}.")
    return from_json(ModelConfig, body["model"], where=f"{file}: model"), body["weights_sha256"]


@contextmanager
def _plain_cause() -> Iterator[None]:
    """What a file system refused, out of safetensors' own exception, which has it in words only."""
    from safetensors import SafetensorError

    try:
        yield
    except SafetensorError as error:
        if refused := re.search(r"os error (\d+)", str(error)):
            raise OSError(int(refused[1]), os.strerror(int(refused[1]))) from error
        raise


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"the field {repeated[0]!r} stands there twice")
    return dict(pairs)


def _check_plain_file(file: Path) -> None:
    """A model folder may come from anywhere: it must not make us read files outside itself."""
    if file.is_symlink() or not file.is_file():
        raise UserError(f"{file} is missing or no plain file.")


def _text(body: dict[str, Any]) -> bytes:
    return (json.dumps(body, indent=2) + "\n").encode()


def _checksum(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _sync(file: Path) -> None:
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _beside(path: Path, what: str) -> Path:
    return path.with_name(f".{path.name}.{what}")


def _recover(path: Path) -> None:
    """Put right what a process that was killed while it saved a model here has left."""
    replaced = _beside(path, "replaced")
    if replaced.exists() and not path.exists():
        replaced.rename(path)
    for leftover in (replaced, _beside(path, "unfinished")):
        shutil.rmtree(leftover, ignore_errors=True)


def _move_into_place(fresh: Path, path: Path) -> None:
    if not path.exists():
        fresh.rename(path)
        return
    replaced = _beside(path, "replaced")
    path.rename(replaced)
    fresh.rename(path)
    shutil.rmtree(replaced)


def _at_least_float32(tensor: Tensor) -> Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))
