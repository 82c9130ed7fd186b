"""The table of docs/scaling.md: what the large Kinetics model needs on 8 and on 128 accelerators, by the functions that
`framecast train --dry-run` uses. Nothing is measured here: `python benchmarks/scaling.py` prints Markdown.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import framecast as fc
from framecast.training.plan import Plan, plan

PRESET = "kinetics-spatiotemporal-large"
FLOPS = 0.45 * 705e12
"""A second, of the large model at 16 slices on one H200: 0.45 of its GEMM peak, with attention of plain operations."""
NETWORK = 50e9
"""Bytes a second out of each accelerator: a link of 400 Gbit/s for each, as machines of eight commonly have."""

CASES: list[tuple[int, dict[str, Any]]] = [
    (8, {"parallel": "replicate", "micro_batch": 4}),
    (8, {"parallel": "shard", "micro_batch": 4}),
    (8, {"parallel": "shard", "recompute": True}),
    (128, {"parallel": "replicate"}),
    (128, {"parallel": "shard"}),
    (128, {"parallel": "shard", "recompute": True}),
]


def main() -> None:
    print(table())


def table() -> str:
    """A row a way of laying the run out."""
    run = fc.preset(PRESET)
    head = "accelerators|weights|slices at a time|recompute|memory GiB|of it activations|TFLOP"
    head += "|compute s|sent GiB|network s|read MB/s|days"
    rows = [f"| {head.replace('|', ' | ')} |", "|" + " --- |" * len(head.split("|"))]
    for world_size, changes in CASES:
        training = dataclasses.replace(run.training, precision="bf16", **changes)
        rows.append(row(plan(dataclasses.replace(run, training=training), world_size), world_size, changes))
    return "\n".join(rows)


def row(needs: Plan, world_size: int, changes: dict[str, Any]) -> str:
    compute, network = needs.flops / FLOPS, needs.network / NETWORK
    slowest = max(compute, network)  # perfectly beside each other; the sum is the other end
    cells = [
        str(world_size),
        "whole" if changes["parallel"] == "replicate" else "sharded",
        str(needs.micro_batch),
        "yes" if changes.get("recompute") else "no",
        f"{needs.memory / 2**30:.1f}",
        f"{needs.activations / 2**30:.1f}",
        f"{needs.flops / 1e12:.0f}",
        f"{compute:.2f}",
        f"{needs.network / 2**30:.1f}",
        f"{network:.2f}",
        f"{needs.storage / slowest / 1e6:.1f}",
        f"{slowest * 1e6 / 86400:.1f} to {(compute + network) * 1e6 / 86400:.1f}",
    ]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
