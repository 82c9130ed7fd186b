"""Which processes another one runs, read from /proc while they come and go."""

from __future__ import annotations

import os
from pathlib import Path


def workers_of(pid: int) -> list[int]:
    """The processes of its pools, not multiprocessing's own helper; none once it is gone."""
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        children = [int(word) for task in tasks for word in (task / "children").read_text().split()]
    except OSError:
        return []
    return [child for child in children if b"spawn_main" in command_of(child)]


def command_of(pid: int) -> bytes:
    """Its words, with NULs between them; nothing once it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def files_of(pid: int) -> list[str]:
    """What it has open, as far as it is still open when it is looked at."""
    try:
        links = list(Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return []
    names = []
    for link in links:
        try:
            names.append(os.readlink(link))
        except OSError:
            continue
    return names
