"""What a person sees of a run: a bar on a terminal, plain lines elsewhere, and TensorBoard where it is installed."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SECONDS_BETWEEN_LINES = 10.0


class Silent:
    """For the processes of a job that leave the talking to the first."""

    def show(self, step: int, line: dict[str, Any]) -> None:
        pass

    def say(self, sentence: str) -> None:
        pass

    def close(self) -> None:
        pass


class Lines:
    """The first step, the last, and one every few seconds."""

    def __init__(self, steps: int, first_step: int) -> None:
        self.steps, self.first_step = steps, first_step
        self.start = self.last = time.monotonic()

    def show(self, step: int, line: dict[str, Any]) -> None:
        now = time.monotonic()
        if step in (self.first_step + 1, self.steps) or now - self.last >= SECONDS_BETWEEN_LINES:
            self.last = now
            left = (now - self.start) / (step - self.first_step) * (self.steps - step)
            self.say(f"step {step}/{self.steps}  {described(line)}  {clock(left)} left")

    def say(self, sentence: str) -> None:
        print(sentence, flush=True)

    def close(self) -> None:
        pass


class Bar:
    def __init__(self, steps: int, first_step: int) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
        self.rich = RichProgress(*columns)
        self.task = self.rich.add_task("", total=steps, completed=first_step)
        self.rich.start()

    def show(self, step: int, line: dict[str, Any]) -> None:
        self.rich.update(self.task, completed=step, description=described(line))

    def say(self, sentence: str) -> None:
        self.rich.console.print(sentence, markup=False, highlight=False)

    def close(self) -> None:
        self.rich.stop()


Progress = Silent | Lines | Bar


def progress(steps: int, first_step: int) -> Progress:
    """A bar where a person looks on and rich is installed."""
    if sys.stdout.isatty():
        try:
            return Bar(steps, first_step)
        except ImportError:
            pass
    return Lines(steps, first_step)


def described(line: dict[str, Any]) -> str:
    """A step in a few words: what it scored, how fast it was."""
    name = "nats_per_frame" if "nats_per_frame" in line else "bits_per_dim"
    unit = "nats/frame" if name == "nats_per_frame" else "bits/dim"
    words = [f"{line[name]:.4g} {unit}"]
    if f"validation_{name}" in line:
        words.append(f"validation {line[f'validation_{name}']:.4g}")
    words += [f"{line['slices_per_second']:.3g} slices/s", f"{line['fraction_of_peak']:.0%} of peak"]
    return "  ".join(words)


def clock(seconds: int | float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


class Board:
    """TensorBoard: every number of a step as a scalar, samples as animated pictures."""

    def __init__(self, folder: Path, first_step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(folder), purge_step=first_step + 1)

    def show(self, step: int, line: dict[str, Any]) -> None:
        for name, value in line.items():
            if name != "step":
                self.writer.add_scalar(name, value, step)

    def picture(self, step: int, name: str, gif: bytes, height: int, width: int) -> None:
        """An animated picture goes in as its file: `add_video` needs another package, and drops it without a word."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        image = Summary.Image(height=height, width=width, colorspace=3, encoded_image_string=gif)
        file = self.writer._get_file_writer()
        file.add_summary(Summary(value=[Summary.Value(tag=name, image=image)]), step)

    def close(self) -> None:
        self.writer.close()


def board(folder: Path, first_step: int, say: Callable[[str], None]) -> Board | None:
    try:
        return Board(folder, first_step)
    except ImportError:
        say("no TensorBoard: pip install 'framecast[tensorboard]' adds it")
        return None


def table(rows: list[tuple[str, str]]) -> str:
    """Two columns, aligned."""
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)
