"""FVD's costs: I3D features of 16×64×64 clips as a share of GEMM peak, memory by the number of clips, the moments.

`python benchmarks/fvd.py [--weights i3d-kinetics-400.ckpt] [--universome]` prints one JSON object. `--universome` adds
the FVD of two sets of 128 noise clips of 224×224 that universome/fvd-comparison publishes (10.138), which takes
minutes on a CPU.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from typing import Any

import numpy as np
import torch
from common import DEVICE, gemm_peak, peak_gib, report, timed

from framecast.evaluation import fvd, i3d

MULTIPLY_ADDS = 27_787_569_152 + 1024 * 400  # of a clip of 16 frames: every convolution, and the logits
UNIVERSOME = 10.13808536529541


def features(weights: str | None, num_clips: int, peak: float | None) -> dict[str, Any]:
    network = i3d.load(weights, DEVICE)
    clips = np.random.default_rng(0).integers(0, 256, (num_clips, 16, 64, 64, 3), dtype=np.uint8)
    if peak is None:
        fvd.features(network, clips)
        return {"name": f"memory-{num_clips}-clips", "precision": "fp32", "batch": num_clips, "peak_gib": peak_gib()}
    fvd.features(network, clips)
    seconds = min(timed(lambda: fvd.features(network, clips)) for _ in range(3)) / num_clips
    return {
        "name": "i3d-features",
        "precision": "fp32",
        "batch": fvd.BATCH_CLIPS[DEVICE],
        "seconds": seconds,
        "fraction_of_gemm_peak": 2 * MULTIPLY_ADDS / seconds / peak,
        "gemm_peak_gflops": peak / 1e9,
    }


def moments() -> dict[str, Any]:
    rows = torch.randn(10_000, 400)
    seconds = min(timed(lambda: fvd.Moments.of(rows)) for _ in range(3))
    pieces = rows.split(16)

    def streamed() -> fvd.Moments:
        total = fvd.Moments.of(pieces[0])
        for piece in pieces[1:]:
            total = total + fvd.Moments.of(piece)
        return total

    one, other = fvd.Moments.of(rows), fvd.Moments.of(torch.randn(10_000, 400))
    error = float((streamed().covariance - one.covariance).abs().max() / one.covariance.abs().max())
    return {
        "name": "moments-10000x400",
        "precision": "fp64",
        "batch": len(rows),
        "seconds": seconds,
        "streamed_seconds": min(timed(streamed) for _ in range(3)),
        "distance_seconds": timed(lambda: fvd.frechet(one, other)),
        "error": error,
    }


@torch.no_grad()
def universome(weights: str | None) -> dict[str, Any]:
    """The clips are fed as they are, neither scaled nor resized; one at a time, as the random stream brings them."""
    network = i3d.load(weights, DEVICE)

    def of(seed: int) -> fvd.Moments:
        random = np.random.RandomState(seed)
        clips = (torch.from_numpy(random.rand(4, 16, 224, 224, 3).astype(np.float32)) for _ in range(32))
        return fvd.Moments.of(torch.cat([network(clip.to(DEVICE)).cpu() for clip in clips]))

    found = fvd.frechet(of(1), of(2))
    return {"name": "universome", "precision": "fp32", "batch": 128, "fvd": found, "error": abs(found / UNIVERSOME - 1)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--weights", help="i3d-kinetics-400.ckpt, where it is not in the cache")
    parser.add_argument("--universome", action="store_true")
    parser.add_argument("--memory", type=int, help="what it starts itself: a process that reads so many clips")
    options = parser.parse_args()
    if options.memory:
        print(json.dumps(features(options.weights, options.memory, None)))
        return
    cases = [features(options.weights, 8, gemm_peak("fp32")), moments()]
    given = ["--weights", options.weights] if options.weights else []
    for num_clips in (4, 64):  # in processes of their own, which show that the number makes no difference
        command = [sys.executable, __file__, "--memory", str(num_clips), *given]
        cases.append(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout))
    if options.universome:
        cases.append(universome(options.weights))
    report("fvd", cases)


if __name__ == "__main__":
    main()
