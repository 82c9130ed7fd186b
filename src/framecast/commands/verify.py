"""`framecast verify`: read every byte of a store, a run or a model, and say what is not as it was written."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import tyro

from framecast.errors import UserError


def verify(
    what: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="STORE|RUN|MODEL", help_behavior_hint="")], /
) -> None:
    """Read every byte of a store, a run or a model, and say what is damaged. Exit status 0: nothing is.

    Args:
        what: the folder of a store, a run or a model, or the name of a model that ships.
    """
    path = Path(what)
    if (path / "store.json").exists():
        print(verify_store(path))
    elif (path / "checkpoints").is_dir():
        print(verify_run(path))
    else:
        print(verify_model(what))


def verify_store(path: Path) -> str:
    from framecast.data.store import Store

    store = Store(path)
    if store.missing_parts:
        parts = store.manifest.num_parts
        raise UserError(
            f"{path} is not finished: {len(store.missing_parts)} of {parts} parts are missing. Repeat the command that "
            f"prepares it; what is there holds {len(store)} clips"
        )
    num_damages = 0
    for sentence in store.damage():
        num_damages += 1
        print(sentence, file=sys.stderr)
    if num_damages:
        raise UserError(
            f"{path} is damaged in {num_damages} places. Remove the files named above and repeat the command that "
            f"prepared it: only they are made again"
        )
    return f"{path} is whole: {len(store):,} clips, fingerprint {store.fingerprint}"


def verify_run(path: Path) -> str:
    from framecast.training import checkpoint, run

    run.read_config(path)
    lines = run.read_metrics(path)
    saved = checkpoint.everything(path / "checkpoints")
    for each in saved:
        checkpoint.check(each)
    model = f"\n{verify_model(str(path))}" if (path / "model").exists() else ""
    return f"{path} is whole: {len(lines):,} lines of metrics, {len(saved)} checkpoints{model}"


def verify_model(name: str) -> str:
    from framecast.model import checkpoint
    from framecast.model.video_transformer import VideoTransformer

    model = VideoTransformer.load(name)
    num_weights = sum(weight.numel() for weight in model.parameters())
    return f"{checkpoint.find(name)} is whole: {num_weights:,} weights"
