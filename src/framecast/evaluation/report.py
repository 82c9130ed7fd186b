"""report.html: one page that stands alone, with nothing fetched and nothing run.

N clips · T frames · H W C a frame
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from framecast import media
from framecast.evaluation.charts import Curve, chart
from framecast.evaluation.fvd import NUM_FRAMES
from framecast.evaluation.pieces import Evaluation
from framecast.evaluation.published import TABLES, Row
from framecast.evaluation.results import COLUMNS, Results, best_written, mean_written, publish

if TYPE_CHECKING:
    from jaxtyping import Float32, UInt8

REPORT = "report.html"
CLIPS_SHOWN, SAMPLES_SHOWN, FRAMES_SHOWN, SURPRISES_SHOWN = 6, 3, 10, 3
SCALE = 2  # pixels of a screen for one of a playing clip
GIVEN, DRAWN = (34, 139, 94), (224, 122, 31)  # borders of a playing clip's frames
BASELINES = {
    "uniform": "uniform distribution",
    "independent_pixels": "each pixel by itself, counted in training clips",
    "previous_frame": "each pixel given the frame before, counted likewise",
    "floor": "lower bound of this test set",
    "copy_last_frame": "copy of the last frame given",
    "ground_truth": "ground truth against ground truth",
}
NUM_COLOURS = 6

# Of the surprise maps, from least to most.
HEAT = np.array([(12, 10, 36), (86, 20, 110), (187, 55, 84), (249, 142, 8), (252, 255, 164)], np.float64)


def write(folder: Path, results: Results, evaluations: Sequence[Evaluation]) -> None:
    publish(folder / REPORT, page(results, evaluations))


def page(results: Results, evaluations: Sequence[Evaluation]) -> str:
    data = results["data"]
    names = ", ".join(model["name"] for model in results["models"])
    subtitle = f"{data['num_videos']:,} clips of {data['dataset']}, split “{data['split']}”"
    sections = [
        _warnings(results["warnings"]),
        _section("Scores", _table(results)),
        _section("By frame", "".join(_charts(results))),
        _section("Samples under their ground truth", "".join(_strips(evaluations))),
        _section("Playing", "".join(_playing(evaluations))),
        _section("Surprise", "".join(_surprise(evaluations))),
        _section("What the numbers depend on", _settings(results)),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(names)} – evaluation</title><style>{STYLE}</style></head><body><main>"
        f"<header><h1>{escape(names)}</h1><p>{escape(subtitle)}</p></header>{''.join(sections)}</main></body></html>\n"
    )


def _section(title: str, body: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{body}</section>" if body else ""


def _warnings(warnings: Sequence[str]) -> str:
    return "".join(f'<p class="warning">{escape(warning)}</p>' for warning in warnings)


# The table.


def _table(results: Results) -> str:
    """Ours, the baselines, and the paper's table of the dataset."""
    models = results["models"]
    published = TABLES.get(results["data"]["dataset"])
    known = {name for model in models for name in model["scores"]}
    columns = [column for column in COLUMNS if column[0] in known]
    heads = "".join(f"<th>{name} {'↑' if more else '↓'}</th>" for _, name, _, more in columns)
    body = [_group("this evaluation", len(columns))]
    for i, model in enumerate(models):
        label = f'<i class="dot s{i % NUM_COLOURS}"></i>{escape(model["name"])}'
        body.append(_cells(label, model["scores"], columns, "ours"))
        if model["paper"]:
            body.append(_cells(f"the paper’s {escape(model['preset'])}", model["paper"], columns, "paper"))
    body.append(_group("baselines", len(columns)))
    unlike = list(_with_their_own_baselines(models))
    for model in unlike:
        suffix = f" ({escape(model['name'])})" if len(unlike) > 1 else ""
        for name, scores in model["baselines"].items():
            note = f"<small>{escape(scores['sets'])}</small>" if "sets" in scores else ""
            body.append(_cells(BASELINES[name] + suffix + note, scores, columns))
    if published is not None:
        body.append(_group(published.title, len(columns)))
        body += [_published(row, columns) for row in published.rows if set(row.scores) & known]
    return (
        f'<div class="wide"><table><thead><tr><th></th>{heads}</tr></thead><tbody>{"".join(body)}</tbody></table></div>'
    )


def _with_their_own_baselines(models: Sequence[Results]) -> Iterator[Results]:
    """The first model, and those whose baselines are other numbers, since they were primed in another way."""
    seen: list[Any] = []
    for model in models:
        if model["baselines"] not in seen:
            seen.append(model["baselines"])
            yield model


def _group(title: str, num_columns: int) -> str:
    return f'<tr class="group"><th colspan="{num_columns + 1}">{escape(title)}</th></tr>'


def _published(row: Row, columns: Sequence[tuple[str, str, int, bool]]) -> str:
    note = f"<small>{escape(row.note)}</small>" if row.note else ""
    return _cells(escape(row.name) + note, row.scores, columns)


def _cells(label: str, scores: Any, columns: Sequence[tuple[str, str, int, bool]], kind: str = "") -> str:
    cells = "".join(_cell(scores.get(column), digits) for column, _, digits, _ in columns)
    return f'<tr class="{kind}"><th>{label}</th>{cells}</tr>'


def _cell(score: Any, digits: int) -> str:
    if score is None:
        return '<td class="none">–</td>'
    best = best_written(score, digits)
    return f"<td>{mean_written(score, digits)}{f'<small>{best}</small>' if best else ''}</td>"


# Curves.


def _charts(results: Results) -> Iterator[str]:
    models = results["models"]
    for column, name in (("bits_per_dim", "bits/dim"), ("nats_per_frame", "nats/frame")):
        curves = []
        for i, model in enumerate(models):
            first = model["settings"]["prime_frames_likelihood"]
            curves += _by_frame(model["name"], model["scores"].get(column), first, i)
            if i == 0:
                for baseline in ("floor", "previous_frame"):
                    of_it = model["baselines"].get(baseline, {}).get(column)
                    curves += _by_frame(BASELINES[baseline], of_it, first, NUM_COLOURS, dashed=True)
        yield chart(curves, "frame", name)
    curves = []
    for i, model in enumerate(models):
        curves += _by_window(model["name"], model["scores"], i)
        if i == 0:
            curves += _by_window(
                BASELINES["ground_truth"], model["baselines"].get("ground_truth", {}), NUM_COLOURS, True
            )
    if any(len(curve.x) > 1 for curve in curves):
        yield chart(curves, f"first frame of the window of {NUM_FRAMES}", "FVD")
    for column, name in (("psnr", "PSNR, dB"), ("ssim", "SSIM")):
        curves = []
        for i, model in enumerate(models):
            first = model["settings"]["prime_frames_samples"]
            curves += _by_frame(f"{model['name']}, mean of samples", model["scores"].get(column), first, i)
            if i == 0:
                copies = model["baselines"].get("copy_last_frame", {}).get(column)
                curves += _by_frame(BASELINES["copy_last_frame"], copies, first, NUM_COLOURS, dashed=True)
        yield chart(curves, "frame", name)


def _by_frame(name: str, score: Results | None, first: int, colour: int, dashed: bool = False) -> list[Curve]:
    if score is None:
        return []
    values = score["per_frame"]
    frames = range(first, first + len(values))
    spread = None if dashed else score.get("per_frame_standard_error")
    return [Curve(name, frames, values, min(colour, NUM_COLOURS), spread, dashed)]


def _by_window(name: str, scores: Results, colour: int, dashed: bool = False) -> list[Curve]:
    if "fvd_by_window" not in scores:
        return []
    values, deviation = scores["fvd_by_window"]["mean"], scores["fvd_by_window"]["deviation"]
    return [Curve(name, range(len(values)), values, min(colour, NUM_COLOURS), None if dashed else deviation, dashed)]


# Pictures.


def _strips(evaluations: Sequence[Evaluation]) -> Iterator[str]:
    """A figure a clip: its frames, and the samples that continue it."""
    sampling = [evaluation for evaluation in evaluations if evaluation.wants_samples]
    if not sampling:
        return
    first = sampling[0]
    num_frames = max(evaluation.settings.num_frames_samples for evaluation in sampling)
    step = -(-num_frames // FRAMES_SHOWN)
    yield f'<p class="note">Every frame whose number is a multiple of {step}.</p>' if step > 1 else ""
    for i in first.shown()[:CLIPS_SHOWN]:
        rows = [("ground truth", _whole(first, i, num_frames))]
        for evaluation in sampling:
            rows += [(label, samples[i]) for label, samples in _labelled(evaluation, len(sampling) > 1)]
        prime = first.settings.prime_frames_samples
        head = "".join(
            f'<b class="{"given" if frame < prime else "drawn"}">{frame}</b>' for frame in range(0, num_frames, step)
        )
        body = "".join(f"<span>{escape(label)}</span>{_picture(clip[::step])}" for label, clip in rows)
        yield f'<div class="strip"><span></span><div class="head">{head}</div>{body}</div>'


def _labelled(evaluation: Evaluation, several: bool) -> Iterator[tuple[str, UInt8[np.ndarray, "N T H W C"]]]:
    """The first trials' samples of the shown clips."""
    for trial in range(min(SAMPLES_SHOWN, evaluation.settings.trials)):
        kind = f"sample {trial + 1}" if evaluation.subject.draws else "prediction"
        yield (f"{evaluation.subject.name}, {kind}" if several else kind), evaluation.samples(trial)


def _whole(evaluation: Evaluation, i: int, num_frames: int) -> UInt8[np.ndarray, "T H W C"]:
    return evaluation.clips.videos(range(i, i + 1), min(num_frames, evaluation.clips.shortest))[0]


def _picture(frames: UInt8[np.ndarray, "T H W C"]) -> str:
    """A clip as a row of frames."""
    return _image(media.encode(frames, "png"), "png")


def _image(data: bytes, kind: str) -> str:
    return f'<img alt="" src="data:image/{kind};base64,{base64.b64encode(data).decode()}">'


def _playing(evaluations: Sequence[Evaluation]) -> Iterator[str]:
    """The truth and its continuations side by side, in step; a frame's border tells whether it was given."""
    sampling = [evaluation for evaluation in evaluations if evaluation.wants_samples]
    if not sampling:
        return
    first = sampling[0]
    num_frames = max(evaluation.settings.num_frames_samples for evaluation in sampling)
    labels = ["ground truth"]
    for evaluation in sampling:
        labels += [label for label, _ in _labelled(evaluation, len(sampling) > 1)]
    yield (
        f'<p class="note">From left to right: {escape(", ".join(labels))}. '
        '<b class="given">Green</b> frames are given, <b class="drawn">orange</b> ones drawn.</p><div class="clips">'
    )
    for i in first.shown()[:CLIPS_SHOWN]:
        truth = _whole(first, i, num_frames)
        clips = [_bordered(truth, len(truth))]
        for evaluation in sampling:
            prime = evaluation.settings.prime_frames_samples
            clips += [_bordered(samples[i], prime) for _, samples in _labelled(evaluation, False)]
        side_by_side = media.grid(media.beside(*(clip[None] for clip in clips)), columns=len(clips))
        yield _image(media.encode(side_by_side, "webp", fps=8), "webp").replace(
            "<img", f'<img width="{side_by_side.shape[2] * SCALE}"'
        )
    yield "</div>"


def _bordered(clip: UInt8[np.ndarray, "T H W C"], prime_frames: int) -> UInt8[np.ndarray, "T h w 3"]:
    num_frames, height, width, _ = clip.shape
    framed = np.empty((num_frames, height + 2, width + 2, 3), np.uint8)
    framed[:prime_frames], framed[prime_frames:] = GIVEN, DRAWN
    framed[:, 1:-1, 1:-1] = clip
    return framed


def _surprise(evaluations: Sequence[Evaluation]) -> Iterator[str]:
    """How many bits each pixel cost, under the frames that it belongs to."""
    for evaluation in evaluations:
        if not evaluation.wants_likelihood:
            continue
        bits = evaluation.surprise()[:SURPRISES_SHOWN]
        most = float(np.quantile(bits, 0.999)) or 1.0
        prime, num_frames = evaluation.settings.prime_frames_likelihood, bits.shape[1]
        step = -(-(num_frames - prime) // FRAMES_SHOWN)
        yield (
            f'<p class="note">{escape(evaluation.subject.name)}: what each pixel of the frames after the '
            f'{prime} given cost. 0 <i class="heat"></i> {most:.3g} bits and more.</p>'
        )
        for i in range(len(bits)):
            frames = range(prime, num_frames, step)
            head = "".join(f"<b>{frame}</b>" for frame in frames)
            truth = _whole(evaluation, i, num_frames)[prime::step]
            yield (
                f'<div class="strip"><span></span><div class="head">{head}</div><span>frames</span>{_picture(truth)}'
                f"<span>bits</span>{_picture(_heat(bits[i, prime::step] / most))}</div>"
            )


def _heat(values: Float32[np.ndarray, "T H W"]) -> UInt8[np.ndarray, "T H W 3"]:
    """0 … 1 as colours, linearly between those of HEAT."""
    place = np.clip(values.astype(np.float64), 0, 1) * (len(HEAT) - 1)
    lower = np.minimum(place.astype(int), len(HEAT) - 2)
    share = (place - lower)[..., None]
    return np.rint(HEAT[lower] * (1 - share) + HEAT[lower + 1] * share).astype(np.uint8)


# All that the numbers depend on.


def _settings(results: Results) -> str:
    data = results["data"]
    facts = [
        ("made", results["made"]),
        ("commit", results["commit"] or "not from a source tree"),
        ("versions", ", ".join(f"{name} {version}" for name, version in results["versions"].items())),
        ("data", f"{data['dataset']} at {data['path']}, split {data['split']}"),
        ("clips", f"{data['num_videos']:,} of {data['num_videos_of_split']:,}"),
        ("content of the data", data["fingerprint"]),
    ]
    tables = [_facts(facts)]
    for model in results["models"]:
        settings = model["settings"]
        about = [
            ("model", model["path"]),
            ("SHA-256", model["sha256"]),
            ("preset", model["preset"] or "none known"),
            ("likelihood", _extent(settings, "likelihood")),
            ("samples", _extent(settings, "samples")),
            ("samples of each clip", settings["trials"]),
            ("temperature", "none: a scalar output" if settings["temperature"] is None else settings["temperature"]),
            ("seed", settings["seed"]),
        ]
        if "resize" in settings:
            how = (
                "as TensorFlow 1 did, without half-pixel centres"
                if settings["resize"] == "tf1"
                else "between pixel centres"
            )
            about += [("frames for FVD", f"resized {how}"), ("I3D", f"TF-Hub weights, {settings['i3d_arrays_sha256']}")]
        tables.append(f"<h3>{escape(model['name'])}</h3>" + _facts(about))
    return "".join(tables)


def _extent(settings: dict[str, Any], kind: str) -> str:
    prime, num_frames = settings[f"prime_frames_{kind}"], settings[f"num_frames_{kind}"]
    return f"{prime} of {num_frames} frames given"


def _facts(facts: Sequence[tuple[str, Any]]) -> str:
    rows = "".join(f"<dt>{escape(name)}</dt><dd>{escape(str(value))}</dd>" for name, value in facts)
    return f"<dl>{rows}</dl>"


STYLE = """
:root { color-scheme: light dark;
  --ground: #fbfbfa; --card: #ffffff; --ink: #1d2126; --soft: #69707a; --line: #e3e5e8; --ours: #f1f6fd;
  --warn: #fff6e0; --warn-line: #e7b93c; --given: #228b5e; --drawn: #c8640f;
  --s0: #2f6fde; --s1: #d1495b; --s2: #2a9d6f; --s3: #9157c9; --s4: #d98a1f; --s5: #2a9fb5; --s6: #8a9099; }
@media (prefers-color-scheme: dark) { :root {
  --ground: #14161a; --card: #1c1f25; --ink: #e8eaed; --soft: #9aa1ab; --line: #32363e; --ours: #1f2a3c;
  --warn: #33290f; --warn-line: #a9821f; --given: #4fc38f; --drawn: #f0974a;
  --s0: #6ea4ff; --s1: #ff7b8c; --s2: #58cf9f; --s3: #bd8cf0; --s4: #f2b24d; --s5: #5cc9de; --s6: #8a9099; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main { max-width: 1160px; margin: 0 auto; padding: 40px 24px 80px; }
h1 { font-size: 26px; font-weight: 650; margin: 0; letter-spacing: -0.01em; overflow-wrap: anywhere; }
h2 { font-size: 17px; font-weight: 650; margin: 0 0 16px; }
h3 { font-size: 15px; margin: 20px 0 6px; overflow-wrap: anywhere; }
header p, .note { color: var(--soft); margin: 4px 0 14px; }
section { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 22px 24px;
  margin-top: 20px; }
.warning { background: var(--warn); border-left: 4px solid var(--warn-line); border-radius: 4px; padding: 10px 14px; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 14px; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: 7px 9px; border-bottom: 1px solid var(--line); white-space: nowrap; }
tbody th { text-align: left; font-weight: 400; white-space: normal; overflow-wrap: anywhere; min-width: 190px; }
td.none { color: var(--line); }
thead th { color: var(--soft); font-weight: 550; font-size: 13px; }
tr.group th { color: var(--soft); font-size: 12px; font-weight: 600; padding-top: 18px; letter-spacing: 0.02em; }
tr.ours th, tr.ours td { background: var(--ours); font-weight: 650; }
tr.paper th { padding-left: 34px; color: var(--soft); }
td small, th small { display: block; color: var(--soft); font-size: 12px; font-weight: 400; }
.dot { display: inline-block; width: 10px; height: 10px; border-radius: 50%; margin-right: 10px;
  background: var(--c); }
figure { display: inline-block; vertical-align: top; width: calc(50% - 10px); margin: 0 20px 22px 0; }
figure:nth-of-type(even) { margin-right: 0; }
figcaption { font-weight: 600; font-size: 14px; margin-bottom: 4px; }
svg { width: 100%; height: auto; display: block; }
svg text { fill: var(--soft); font-size: 11px; text-anchor: middle; }
svg text.end { text-anchor: end; }
.grid { stroke: var(--line); }
.curve { fill: none; stroke: var(--c); stroke-width: 2; stroke-linejoin: round; }
.curve.dashed { stroke-dasharray: 5 4; stroke-width: 1.6; }
circle { fill: var(--c); }
.band { fill: var(--c); opacity: 0.16; }
.legend { font-size: 12.5px; color: var(--soft); padding-left: 52px; }
.legend span { margin-right: 16px; display: inline-block; overflow-wrap: anywhere; }
.legend i { display: inline-block; width: 18px; border-top: 2.5px solid var(--c); margin-right: 6px;
  vertical-align: middle; }
.legend i.dashed { border-top-style: dashed; }
.s0 { --c: var(--s0); } .s1 { --c: var(--s1); } .s2 { --c: var(--s2); } .s3 { --c: var(--s3); }
.s4 { --c: var(--s4); } .s5 { --c: var(--s5); } .s6 { --c: var(--s6); }
.strip { display: grid; grid-template-columns: minmax(84px, max-content) 1fr; gap: 3px 12px; align-items: center;
  margin-bottom: 22px; }
.strip > span { font-size: 12.5px; color: var(--soft); text-align: right; max-width: 170px; overflow-wrap: anywhere; }
.strip img { width: 100%; image-rendering: pixelated; display: block; border-radius: 3px; }
.head { display: flex; } .head b { flex: 1; text-align: center; font-size: 11.5px; font-weight: 500;
  color: var(--soft); }
b.given { color: var(--given); font-weight: 650; } b.drawn { color: var(--drawn); font-weight: 650; }
.clips { display: flex; flex-wrap: wrap; gap: 14px; }
.clips img { image-rendering: pixelated; max-width: 100%; height: auto; }
.heat { display: inline-block; width: 90px; height: 10px; border-radius: 3px; vertical-align: baseline;
  background: linear-gradient(90deg, HEAT); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 4px 20px; margin: 0; font-size: 13.5px; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; font-variant-numeric: tabular-nums; }
@media (max-width: 720px) { figure { width: 100%; margin-right: 0; } main { padding: 24px 12px; } }
""".replace("HEAT", ", ".join(f"rgb({red:.0f}, {green:.0f}, {blue:.0f})" for red, green, blue in HEAT))
