"""The manifest of a store: how the store is made, in one small file that is written first and never again.

It is the same on every machine that works on a store, so shards that were made apart can be gathered by copying them.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from framecast.data.shard import open_inside
from framecast.errors import UserError

NAME = "store.json"
FORMAT = "framecast store 1"
MAX_BYTES = 1 << 20
MAX_PARTS = 1_000_000  # what the names of shards have room for


@dataclass(frozen=True)
class Manifest:
    dataset: str
    """As `framecast prepare` names it."""
    kind: str
    """"shards" of clips, or what clips are "drawn" from whenever one is wanted."""
    source: dict[str, Any]
    """The settings of the source, field by field."""
    num_items: int
    """The units of work: files, or clips where there are no files."""
    items_sha256: str
    """Of their names, in order."""
    items_per_part: int
    made_by: dict[str, str]
    """The versions of what decides how pixels come out."""

    @property
    def num_parts(self) -> int:
        return -(-self.num_items // self.items_per_part)

    def text(self) -> bytes:
        body = {"format": FORMAT, **vars(self)}
        return (json.dumps({**body, "checksum": _checksum(body)}, indent=2) + "\n").encode()

    def sha256(self) -> bytes:
        """What every shard of the store repeats."""
        return hashlib.sha256(self.text()).digest()


def read_manifest(folder: Path) -> Manifest:
    path = folder / NAME
    if not os.path.lexists(path):
        raise UserError(f"there is no store at {folder}: a store is a folder with {NAME}, made by `framecast prepare`")
    with open_inside(path) as file:
        text = file.read(MAX_BYTES + 1)
    try:
        body = json.loads(text) if len(text) <= MAX_BYTES else None
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict) or "checksum" not in body:
        raise UserError(f"{path} is damaged: it is no manifest of a store")
    if body.get("format") != FORMAT:
        raise UserError(f"{path} is of format {body.get('format')!r}, this framecast reads {FORMAT!r}: update it")
    if body.pop("checksum") != _checksum(body):
        raise UserError(f"{path} is damaged: it does not have the checksum that it gives")
    body.pop("format")
    kinds = {
        "dataset": str,
        "kind": str,
        "source": dict,
        "num_items": int,
        "items_sha256": str,
        "items_per_part": int,
        "made_by": dict,
    }
    if body.keys() != kinds.keys() or any(type(body[name]) is not kind for name, kind in kinds.items()):
        raise UserError(f"{path} was altered: it must hold {', '.join(kinds)} and nothing else")
    manifest = Manifest(**body)
    if manifest.num_items < 0 or manifest.items_per_part < 1 or manifest.num_parts > MAX_PARTS:
        raise UserError(f"{path} was altered: it speaks of {manifest.num_items} items by {manifest.items_per_part}")
    if manifest.text() != text:  # the same values written in another way are not what was written either
        raise UserError(f"{path} was altered: it is not written as framecast writes it")
    return manifest


def _checksum(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
