"""What a person sees of a run."""

from __future__ import annotations

import numpy as np
import pytest

from framecast import media
from framecast.training import progress

LINE = {"bits_per_dim": 1.23456, "slices_per_second": 12.34, "fraction_of_peak": 0.345, "validation_bits_per_dim": 1.5}


def test_plain_lines(capsys, monkeypatch):
    """The first step, the last, and one every ten seconds: not one a step."""
    clock = iter(range(0, 1000, 4))
    monkeypatch.setattr(progress.time, "monotonic", lambda: float(next(clock)))
    view = progress.Lines(steps=10, first_step=2)
    for step in range(3, 11):
        view.show(step, LINE)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines] == ["3/10", "6/10", "9/10", "10/10"]
    assert "1.235 bits/dim  validation 1.5  12.3 slices/s  34% of peak  0:28 left" in lines[0]


def test_nats_where_the_output_is_a_scalar():
    words = progress.described({"nats_per_frame": 90.12345, "slices_per_second": 1.0, "fraction_of_peak": 0.5})
    assert words == "90.12 nats/frame  1 slices/s  50% of peak"


def test_a_bar_on_a_terminal(monkeypatch, capsys):
    monkeypatch.setattr(progress.sys.stdout, "isatty", lambda: True)
    view = progress.progress(steps=4, first_step=1)
    assert isinstance(view, progress.Bar)
    view.show(2, LINE)
    view.say("resumed from step [1]")
    view.close()
    printed = capsys.readouterr().out
    assert "resumed from step [1]" in printed
    assert "2/4" in printed


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (59.6, "1:00"), (3599, "59:59"), (3661, "1:01:01")])
def test_clock(seconds, text):
    assert progress.clock(seconds) == text


def test_tensorboard_has_every_number_and_moving_pictures(tmp_path):
    event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    board = progress.board(tmp_path, 0, print)
    board.show(1, LINE)
    clip = np.random.default_rng(0).integers(0, 256, (3, 8, 10, 1), np.uint8)
    gif = media.encode(clip, "gif")
    board.picture(1, "samples", gif, 8, 10)
    board.close()
    found = event_accumulator.EventAccumulator(str(tmp_path)).Reload()
    assert sorted(found.Tags()["scalars"]) == sorted(LINE)
    assert found.Scalars("bits_per_dim")[0].value == pytest.approx(1.23456)
    (picture,) = found.Images("samples")
    assert (picture.height, picture.width) == (8, 10)
    assert picture.encoded_image_string == gif
    assert gif.startswith(b"GIF89a")


def test_without_tensorboard_a_run_says_so_once(monkeypatch, tmp_path):
    monkeypatch.setitem(__import__("sys").modules, "tensorboard", None)
    monkeypatch.delitem(__import__("sys").modules, "torch.utils.tensorboard", raising=False)
    said = []
    assert progress.board(tmp_path, 0, said.append) is None
    assert said == ["no TensorBoard: pip install 'framecast[tensorboard]' adds it"]
