"""`framecast demo`: the whole of it in some minutes on a CPU, by the same functions that the other commands are."""

from __future__ import annotations

import shlex
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from framecast.errors import UserError

if TYPE_CHECKING:
    from framecast.data.store import Store

PRESET = "moving-mnist-single-frame-nano"
STEPS_A_MINUTE = 160  # what two cores of 2025 do, so that the rate decays within the time
NUM_VIDEOS = 8
METRICS: Final = ("bits", "nats", "psnr", "ssim")


def demo(*, out: Path = Path("demo"), minutes: float = 2.5, source: Path | None = None) -> None:
    """Train a small model on Moving MNIST for some minutes, measure it, sample from it, and leave a report.

    Args:
        out: the folder for all that it makes; repeated, the demo begins anew there.
        minutes: how long to train; measuring and sampling take about as long.
        source: a folder with MNIST's four files, where they are not to be downloaded.
    """
    from framecast.commands.evaluate import evaluate
    from framecast.commands.prepare import MovingMnistOptions, prepare
    from framecast.commands.train import train
    from framecast.data.store import Store
    from framecast.model import checkpoint

    if minutes <= 0:
        raise UserError(f"--minutes is {minutes}: it must be above 0.")
    start = time.monotonic()
    work = _fresh_folder(out)
    _chapter("Data: two digits that move and bounce, drawn whenever a clip is wanted")
    prepare(MovingMnistOptions(source=None if source is None else str(source)), out=work / "store")
    _chapter("Training: a small model that predicts every pixel, code by code")
    steps = max(20, int(STEPS_A_MINUTE * minutes))
    train(PRESET, data=work / "store", out=work / "run", steps=steps, minutes=minutes)
    _chapter(f"Measuring: {NUM_VIDEOS} test clips, ten frames given and ten to predict")
    shipped = [path.name for path in sorted(checkpoint.SHIPPED.glob("*")) if _fits(path, Store(work / "store"))]
    evaluate(
        (str(work / "run"), *shipped),
        data=work / "store",
        out=work / "report",
        metrics=METRICS,
        num_videos=NUM_VIDEOS,
        trials=1,
    )
    seconds = time.monotonic() - start
    print(f"\nThat took {seconds / 60:.1f} minutes. Open this in a browser:\n\n  {work / 'report' / 'report.html'}\n")
    store, run = (shlex.quote(str(work / name)) for name in ("store", "run"))
    print("To try next:\n")
    print(f"  framecast train {PRESET} --data {store} --out longer      # all of its 2,000 steps")
    print(f"  framecast sample {run} --prime {store}#0 --out continued.gif")
    print("  framecast prepare folder --source my-videos --out my-store --size 64")


def _fresh_folder(out: Path) -> Path:
    """A folder of this demo's own: what a demo before it made is replaced, anything else is left alone."""
    own = {"store", "run", "report"}
    if out.exists() and (not out.is_dir() or {path.name for path in out.iterdir()} - own):
        raise UserError(f"{out} holds other things than a demo: choose another folder with --out.")
    shutil.rmtree(out, ignore_errors=True)
    return out


def _fits(folder: Path, store: Store) -> bool:
    """Whether a model that ships is one of such clips."""
    from framecast.model import checkpoint

    config, _ = checkpoint.read(folder)
    return (*config.video_shape[1:], config.num_channels) == store.frame_shape


def _chapter(title: str) -> None:
    print(f"\n── {title}\n", flush=True)
