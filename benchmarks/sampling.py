"""Sampling: the whole decoder for every pixel, the cached raster and the cached waves, beside what the machine allows.

`python benchmarks/sampling.py` prints one JSON object; `--only NAME…` measures some cases. Each sampling runs in a
process of its own (`--case`), so that its peak memory is its own. A case's `seconds` are those of the whole sampling,
encoder included; `seconds_per_pixel` divides them by the pixels drawn and the batch.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any

import torch
from common import DEVICE, gemm_peak, memory_bandwidth, peak_gib, report, timed

import framecast as fc
from framecast import device
from framecast.config import LayerConfig, ModelConfig
from framecast.model.video_transformer import VideoTransformer
from framecast.ops import channels, subscale
from framecast.presets import FRAME_BLOCKS
from framecast.sampling.choose import Where, draw
from framecast.sampling.sampler import Drawing

BYTES = {"fp32": 4, "bf16": 2}
CASES = [
    *((name, "bf16", batch) for name in ("raster", "waves") for batch in (1, 4, 16)),
    *(("waves", "fp32", batch) for batch in (1, 4, 16)),
    ("video", "bf16", 1),
    ("moving-mnist", "fp32", 1),
    ("tipped", "fp32", 4),
]


def base() -> VideoTransformer:
    torch.manual_seed(0)
    return VideoTransformer(fc.preset("bair-spatiotemporal-base").model).to(DEVICE)


def small_moving_mnist() -> VideoTransformer:
    """A single-frame model of about four million parameters."""
    torch.manual_seed(0)
    layers = tuple(LayerConfig(block, num_heads=4) for block in FRAME_BLOCKS)
    config = ModelConfig(
        (20, 64, 64), (20, 1, 1), layers, layers, context_kernel=(6, 1, 1), num_channels=1, prime_frames=10,
        hidden_size=256, head_size=64,
    )  # fmt: skip
    return VideoTransformer(config).to(DEVICE)


def whole_decoder(model: VideoTransformer) -> float:
    """Seconds of one pixel when the whole decoder runs for it, in float32."""
    t, h, w = model.config.slice_shape
    pixels = torch.zeros(1, t, h, w, model.config.num_channels, dtype=torch.uint8, device=DEVICE)
    features = model.features(pixels)
    z = torch.randn(1, t, h, w, model.config.hidden_size, device=DEVICE)

    @torch.inference_mode()
    def pixel() -> None:
        y = model.decoder(features, z)[:, -1, -1, -1]
        model.head(y, features[:, -1, -1, -1])

    pixel()
    return min(timed(pixel) for _ in range(4))


def one_slice(batch: int) -> tuple[VideoTransformer, torch.Tensor, torch.Tensor]:
    """The base model, videos, and what of them is known: all but the sixth slice."""
    model = base()
    config = model.config
    video = torch.randint(0, 256, (batch, *config.video_shape, config.num_channels), dtype=torch.uint8, device=DEVICE)
    known = torch.ones(batch, *config.video_shape, dtype=torch.bool, device=DEVICE)
    index = torch.full((batch,), 5, device=DEVICE)
    subscale.put(known, known.new_zeros(batch, *config.slice_shape), index, config.subscale_factor)
    return model, video, known


def measure(name: str, precision: str, batch: int) -> dict[str, Any]:
    if name == "tipped":
        return tipped()
    known = None
    if name in ("raster", "waves"):
        model, video, known = one_slice(batch)
    else:
        model = base() if name == "video" else small_moving_mnist()
        config = model.config
        video = torch.zeros(batch, config.prime_frames, *config.video_shape[1:], config.num_channels, dtype=torch.uint8)
    num_waves = 0
    with torch.autocast(DEVICE, torch.bfloat16, enabled=precision == "bf16"):
        start = time.perf_counter()
        drawing = Drawing(model, video, None, draw(0.9), known=known, raster=name == "raster")
        num_pixels = int((~drawing.given).sum())
        for state in drawing:  # noqa: B007 - its last value is read
            num_waves += 1
        if DEVICE == "cuda":
            torch.cuda.synchronize()
        seconds = time.perf_counter() - start
    return {
        "name": name,
        "precision": precision,
        "batch": batch,
        "seconds": seconds,
        "pixels": num_pixels,
        "waves": num_waves,
        "seconds_per_pixel": seconds / num_pixels / batch,
        "microseconds_per_wave": 1e6 * state.seconds / num_waves,
        "peak_gib": peak_gib(),
    }


class Told:
    """A chooser that takes the codes of a finished video, and counts the pixels that it would have drawn otherwise."""

    def __init__(self, video: torch.Tensor) -> None:
        self.codes = channels.split(video, (4, 4)).flatten(1, 3)
        self.tipped = torch.zeros(self.codes.shape[:2], dtype=torch.bool)

    def __call__(self, logits: torch.Tensor, where: Where) -> torch.Tensor:
        told = self.codes[:, where.pixels, where.code].T.long()
        self.tipped[:, where.pixels] |= (draw(0.9)(logits, where) != told).T
        return told


def tipped() -> dict[str, Any]:
    """How often rounding tips a draw: of the pixels that float32 drew for four videos at once, given the same past, the
    fraction that it draws otherwise for one at a time, and that bf16 does."""
    model, video, known = one_slice(4)
    drawn = finished(Drawing(model, video, None, draw(0.9), known=known))
    alone, narrow = Told(drawn[:1]), Told(drawn)
    finished(Drawing(model, video[:1], None, alone, known=known[:1]))
    with torch.autocast(DEVICE, torch.bfloat16):
        finished(Drawing(model, video, None, narrow, known=known))
    num_pixels = int((~known[0]).sum())
    return {
        "name": "tipped",
        "pixels": num_pixels,
        "alone_in_fp32": int(alone.tipped.sum()) / num_pixels,
        "in_bf16": int(narrow.tipped.sum()) / num_pixels / 4,
    }


def finished(drawing: Drawing) -> torch.Tensor:
    for _ in drawing:
        pass
    return drawing.video


def floors(model: VideoTransformer, case: dict[str, Any], bandwidth: float, peak: float) -> dict[str, float]:
    """Seconds a pixel cannot cost less than: the decoder's weights read once a wave, and its multiplications."""
    config = model.config
    weights = sum(weight.numel() for part in (model.decoder, model.head) for weight in part.parameters())
    attended = sum(layer.num_heads * config.head_size * 2 * 64 for layer in config.decoder_layers)  # half of 128 places
    drawn = case["pixels"] * case["batch"]
    return {
        "floor_streaming": case["waves"] * weights * BYTES[case["precision"]] / bandwidth / drawn,
        "floor_arithmetic": 2 * (weights + attended) / peak,
    }


def main() -> None:
    device.keep_freed_memory()
    if "--case" in sys.argv:
        name, precision, batch = sys.argv[sys.argv.index("--case") + 1 :]
        print(json.dumps(measure(name, precision, int(batch))))
        return
    names = sys.argv[sys.argv.index("--only") + 1 :] if "--only" in sys.argv else [name for name, _, _ in CASES]
    bandwidth, peaks = memory_bandwidth(), {precision: gemm_peak(precision) for precision in BYTES}
    model = base()
    whole = whole_decoder(model)
    cases = [{"name": "whole-decoder", "precision": "fp32", "batch": 1, "seconds": whole, "seconds_per_pixel": whole}]
    for case in CASES:
        if case[0] in names or "-".join(map(str, case)) in names:
            child = [sys.executable, __file__, "--case", *map(str, case)]
            found = json.loads(subprocess.run(child, check=True, stdout=subprocess.PIPE, text=True).stdout)
            if "seconds" in found:
                found["against"], found["speedup"] = "whole-decoder", whole / found["seconds_per_pixel"]
            if case[0] in ("raster", "waves", "video"):
                least = floors(model, found, bandwidth, peaks[case[1]])
                found |= {**least, "times_floor": found["seconds_per_pixel"] / max(least.values())}
            if case[0] == "video":
                found["whole_decoder_pixels"] = found["seconds"] / whole
            cases.append(found)
    gemm = {f"gemm_peak_gflops_{precision}": peak / 1e9 for precision, peak in peaks.items()}
    report("sampling", cases, memory_bandwidth_gb=bandwidth / 1e9, **gemm)


if __name__ == "__main__":
    main()
