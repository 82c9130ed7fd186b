"""The paper's own numbers, and those of the other models in its tables, to stand beside ours."""

from __future__ import annotations

from dataclasses import dataclass

Pair = tuple[float | int, float | int | None]


@dataclass(frozen=True)
class Row:
    name: str
    scores: dict[str, Pair]
    """By the name that they have in results.json: the number, and its deviation over trials."""
    note: str = ""


@dataclass(frozen=True)
class Table:
    title: str
    rows: tuple[Row, ...]


def _row(
    name: str,
    bits: float | None = None,
    fvd: Pair | None = None,
    unrolled: Pair | None = None,
    nats: float | None = None,
    note: str = "",
) -> Row:
    scores: dict[str, Pair | None] = {
        "bits_per_dim": None if bits is None else (bits, None),
        "nats_per_frame": None if nats is None else (nats, None),
        "fvd": fvd,
        "fvd_unrolled": unrolled,
    }
    return Row(name, {metric: pair for metric, pair in scores.items() if pair}, note)


_LONGER_PRIMING = "not strictly comparable: given two frames (SV2P, SAVP) or three (VideoFlow)"

TABLES = {
    "bair": Table(
        "Table 1, left: BAIR Robot Pushing, 1 frame given",
        (
            _row("Single Frame", 1.49, (104, 4), (99, 2)),
            _row("Spatial Sub.", 1.57, (111, 4), (108, 1)),
            _row("Spatiotemp. Sub.", 1.53, (106, 3), (106, 2)),
            _row("Spatiotemp. Sub. (L)", 1.35, (94, 2), (96, 2)),
            _row("SV2P", fvd=(263, None), note=_LONGER_PRIMING),
            _row("SAVP", fvd=(116, None), note=_LONGER_PRIMING),
            _row("VideoFlow", 1.87, note=_LONGER_PRIMING),
        ),
    ),
    "kinetics600": Table(
        "Table 1, right: Kinetics, 1 frame given for bits/dim and 5 for FVD",
        (
            _row("Single Frame", 1.40, (243, 6), (413, 11)),
            _row("Spatial Sub.", 1.47, (263, 6), (450, 15)),
            _row("Spatiotemp. Sub.", 1.49, (195, 7), (375, 11)),
            _row("Single Frame (L)", 1.14, (207, 8), (353, 13)),
            _row("Spatiotemp. Sub. (L)", 1.19, (170, 5), (316, 12)),
        ),
    ),
    "moving-mnist": Table(
        "Table 2: Moving MNIST, 10 frames given",
        (
            _row("Single Frame", nats=86.2),
            _row("Spatial Subscaling", nats=91.8),
            _row("Spatiotemporal Subscaling", nats=90.0),
            _row("VPN", nats=87.6),
            _row("Lower bound", nats=85.1, note="86.3 in VPN's paper: it depends on the digits drawn"),
        ),
    ),
    "robotic-pushing": Table(
        "Robotic Pushing, 2 frames and all actions given (text of the appendix)",
        (
            _row("Spatiotemp. Sub. (L), seen objects", 0.51),
            _row("Spatiotemp. Sub. (L), novel objects", 0.47),
            _row("VPN, seen and novel objects", 0.92),
        ),
    ),
}
"""By the dataset's name, as `framecast prepare` has it."""
