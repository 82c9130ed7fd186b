"""Autoregressive video models with exact likelihoods: the Video Transformer of "Scaling Autoregressive Video Models".

Everything a person imports is here; each name is loaded when it is first used, so that `framecast --help` is quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOMES = {
    "Store": "data.store",
    "UserError": "errors",
    "VideoTransformer": "model.video_transformer",
    "bits_per_dim": "model.video_transformer",
    "fvd": "evaluation.fvd",
    "preset": "presets",
    "psnr": "evaluation.frame_metrics",
    "sample": "sampling.sampler",
    "ssim": "evaluation.frame_metrics",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'framecast' has no attribute {name!r}")
    value = getattr(import_module(f"framecast.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(_HOMES)
