"""What every source yields and every store keeps: one clip of video with what belongs to it.

T frames · H rows · W columns · C channels (1 or 3) · A action size · S state size
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Float, UInt8


SPLITS = ("train", "val", "test")


@dataclass(frozen=True, eq=False)
class Clip:
    video: UInt8[np.ndarray, "T H W C"]
    name: str
    """Unique within the store."""
    split: str
    """One of SPLITS."""
    label: str = ""
    actions: Float[np.ndarray, "T A"] | None = None
    """float32; `actions[t]` leads from frame t to frame t + 1."""
    states: Float[np.ndarray, "T S"] | None = None
    """float32"""
    extras: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Further facts a frame, such as where each object of a simulated scene is; first axis T."""


@dataclass(frozen=True)
class Skipped:
    """Something that could not become a clip."""

    name: str
    reason: str
    """One phrase, for the table at the end."""
