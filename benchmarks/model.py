"""Forward and backward of the base model: share of GEMM peak, and peak memory. Each case runs in a process of its own.

`python benchmarks/model.py` prints one JSON object; `--case PRECISION BATCH CHECKPOINTING` is what it starts itself.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import torch
from common import DEVICE, gemm_peak, peak_gib, report, timed

import framecast as fc
from framecast import device
from framecast.model.cost import flops_per_slice_step
from framecast.ops import channels, subscale

CASES = [("fp32", 1, False), ("fp32", 4, False), ("bf16", 1, False), ("bf16", 4, False), ("bf16", 4, True)]
REPEATS = 4


def measure(precision: str, batch: int, checkpointing: bool) -> dict[str, Any]:
    peak = gemm_peak(precision)
    torch.manual_seed(0)
    config = fc.preset("bair-spatiotemporal-base").model
    model = fc.VideoTransformer(config).to(DEVICE)
    if checkpointing:
        model.checkpoint_activations()
    video = torch.randint(0, 256, (batch, *config.video_shape, 3), dtype=torch.uint8, device=DEVICE)
    slice_index = torch.arange(batch, device=DEVICE) * 5 % config.num_slices

    def step() -> None:
        with torch.autocast(DEVICE, torch.bfloat16, enabled=precision == "bf16"):
            loss = model(video, slice_index).sum() / video.numel()
        loss.backward()
        model.zero_grad(set_to_none=True)

    def masks_and_targets() -> None:
        here = subscale.take(video, slice_index, config.subscale_factor)
        channels.rows(channels.split(here, config.code_bits), config.num_code_values)
        subscale.context(video[..., :1], slice_index, config.subscale_factor, config.kernel)

    step()
    times = [timed(step) for _ in range(REPEATS)]
    seconds = min(times)
    case = {"name": "forward+backward", "precision": precision, "batch": batch, "seconds": seconds}
    case["slowest_seconds"] = max(times)
    case["masks_and_targets"] = min(timed(masks_and_targets) for _ in range(REPEATS)) / seconds
    case["gemm_peak_gflops"] = peak / 1e9
    if checkpointing:
        case["checkpointing"] = True
    else:
        case["fraction_of_gemm_peak"] = batch * flops_per_slice_step(config) / seconds / peak
    return {**case, "peak_gib": peak_gib()}


def main() -> None:
    if "--case" in sys.argv:
        precision, batch, checkpointing = sys.argv[sys.argv.index("--case") + 1 :]
        device.keep_freed_memory()
        print(json.dumps(measure(precision, int(batch), checkpointing == "True")))
        return
    results = []
    for case in CASES:
        child = [sys.executable, __file__, "--case", *map(str, case)]
        results.append(json.loads(subprocess.run(child, check=True, stdout=subprocess.PIPE, text=True).stdout))
    report("model", results)


if __name__ == "__main__":
    main()
