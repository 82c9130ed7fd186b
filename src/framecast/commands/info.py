"""`framecast info`: what a preset or a model is, what it costs, what it cannot see. Nothing is trained or computed."""

from __future__ import annotations

import inspect
import json as json_text
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

if TYPE_CHECKING:
    from framecast.config import ModelConfig

MAX_COUNTED = 1 << 16
"""Positions of a slice whose waves and blind spots are counted: of more, their pairs take too much memory."""

PLANES = {"time": "frame", "height": "row", "width": "column"}


def info(
    what: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="PRESET|MODEL", help_behavior_hint="")] = "",
    /,
    *,
    json: bool = False,
) -> None:
    """Tell what a preset or a model is: its shapes, parameters, FLOPs and memory, the steps that sampling takes, and
    what its prediction cannot see. Without an argument, list the presets.

    Args:
        what: a preset, a run's folder, a model's folder, or the name of a model that ships.
        json: print one JSON object.
    """
    from framecast import presets

    if not what:
        purposes = {name: _first_line(name) for name in presets.names()}
        print(json_text.dumps(purposes, indent=2) if json else _columns(purposes))
        return
    config, about = _look_up(what)
    facts = {**about, **describe(config)}
    print(json_text.dumps(facts, indent=2) if json else _columns(_readable(facts)))


def describe(config: ModelConfig) -> dict[str, Any]:
    """The facts of `--json`, all from the configuration alone."""
    import torch

    from framecast.config import AXES, to_json
    from framecast.model import cost
    from framecast.model.video_transformer import VideoTransformer
    from framecast.ops import subscale
    from framecast.sampling import dependencies

    with torch.device("meta"):  # shapes without memory
        model = VideoTransformer(config)
    parameters = cost.num_parameters(model)
    if model.first_slice_decoder is not None:  # the paper's 46M and 373M do not count it
        parameters -= cost.num_parameters(model.first_slice_decoder)
    dropped = subscale.dropped(config.video_shape, config.subscale_factor, config.kernel)
    num_positions = math.prod(config.slice_shape)
    counted = num_positions <= MAX_COUNTED
    return {
        "parameters": parameters,
        "decoder_parameters": cost.num_parameters(model.decoder) + cost.num_parameters(model.head),
        "first_slice_decoder_parameters": cost.num_parameters(model.first_slice_decoder),
        "flops_per_slice_step": cost.flops_per_slice_step(config),
        "slice_shape": list(config.slice_shape),
        "num_slices": config.num_slices,
        "positions_per_slice": num_positions,
        "waves_per_slice": max(dependencies.waves(config, config.decoder_layers)) + 1 if counted else None,
        "blind_spots": dependencies.blind_spots(config, config.decoder_layers) if counted else None,
        "bytes_training": cost.training_bytes(config, cost.num_parameters(model), batch_size=1, precision="fp32"),
        "context_drops": {
            axis: {str(offset): places for offset, places in planes.items()}
            for axis, planes in zip(AXES, dropped, strict=True)
        },
        "config": to_json(config),
    }


def _look_up(what: str) -> tuple[ModelConfig, dict[str, Any]]:
    from framecast import presets
    from framecast.errors import UserError
    from framecast.model import checkpoint

    if what in presets.names():
        return presets.preset(what).model, {"preset": what, "paper": _first_line(what)}
    if not (folder := checkpoint.find(what)).is_dir():
        if Path(what).name == what:  # a word: more likely a preset than a path
            presets.preset(what)  # raises, with the names that are close
        raise UserError(f"{what} is neither a preset nor the folder of a model or a run.")
    config, _ = checkpoint.read(folder)
    return config, {"model": str(folder)}


def _first_line(preset: str) -> str:
    """What a preset's docstring says first."""
    from framecast import presets

    text = inspect.getdoc(getattr(presets, preset.replace("-", "_"))) or ""
    return " ".join(text.split("\n\n")[0].split())


def _readable(facts: dict[str, Any]) -> dict[str, str]:
    """The same facts for a person."""
    config = facts["config"]
    dropped = [
        f"{_counted(PLANES[axis], places)} at {axis} offset {offset}"
        for axis, planes in facts["context_drops"].items()
        for offset, places in planes.items()
    ]
    layers = [[tuple(layer["block"]) for layer in config[f"{part}_layers"]] for part in ("encoder", "decoder")]
    lines: dict[str, str] = {name: facts[name] for name in ("preset", "paper", "model") if name in facts}
    num_channels, num_bits = config["num_channels"], sum(config["code_bits"])
    num_positions = facts["positions_per_slice"]
    lines |= {
        "video": f"{_times(config['video_shape'])}, {num_channels} channels of {num_bits} bits",
        "slices": f"{facts['num_slices']} of {_times(facts['slice_shape'])} ({num_positions:,} positions)",
        "size": f"hidden {config['hidden_size']}, embedding {config['embedding_size']}, heads of {config['head_size']}",
        "encoder blocks": _listed(layers[0]),
        "decoder blocks": _listed(layers[1]),
        "parameters": f"{facts['parameters']:,} ({facts['decoder_parameters']:,} in decoder and head)",
    }
    if facts["first_slice_decoder_parameters"]:
        lines["first slice"] = f"a decoder of its own: {facts['first_slice_decoder_parameters']:,} parameters more"
    lines |= {
        "training step": f"{facts['flops_per_slice_step'] / 1e12:.3g} TFLOP a slice, forward and backward",
        "memory": f"{facts['bytes_training'] / 2**30:.3g} GiB to train on one slice at a time in fp32 (an estimate)",
    }
    if facts["waves_per_slice"] is not None:
        lines |= {
            "sampling": f"{facts['waves_per_slice']:,} waves a slice, of {num_positions:,} positions",
            "blind spots": f"{facts['blind_spots']:.2%} of the (earlier, later) pairs of a slice",
        }
    return lines | {
        "never read": "; ".join(dropped) or "nothing: the context convolution reaches all that is visible",
    }


def _counted(plane: str, places: list[int]) -> str:
    """What is dropped at one offset always lies at one end of the axis, so a range says it."""
    return f"{plane} {places[0]}" if len(places) == 1 else f"{plane}s {places[0]}–{places[-1]}"


def _listed(blocks: list[tuple[int, ...]]) -> str:
    return ", ".join(_times(block) for block in blocks)


def _times(extent: Any) -> str:
    return "×".join(map(str, extent))


def _columns(rows: dict[str, str]) -> str:
    width = max(map(len, rows))
    return "\n".join(f"{name:<{width}}  {text}" for name, text in rows.items())
