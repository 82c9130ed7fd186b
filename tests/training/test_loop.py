"""A run as a whole: it learns, it is resumed to the last bit, and it leaves when it is told to."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from framecast.errors import UserError
from framecast.model.video_transformer import VideoTransformer
from framecast.training import checkpoint, loop
from framecast.training import run as runs

from .small import MODEL, small

GOLDEN = Path(__file__).parents[1] / "golden" / "tiny.json"


def tensors_of(folder):
    """Everything in the last checkpoint of a run, by name."""
    from safetensors.torch import load_file

    last = checkpoint.everything(folder / runs.CHECKPOINTS)[-1]
    return {name: tensor for file in last.files for name, tensor in load_file(last.folder / file).items()}


def same(first, second):
    first, second = tensors_of(first), tensors_of(second)
    return first.keys() == second.keys() and all(torch.equal(tensor, second[name]) for name, tensor in first.items())


def curve(folder):
    return [line["bits_per_dim"] for line in runs.read_metrics(folder)]


def test_a_run_and_what_it_leaves(tmp_path, store, capsys):
    outcome = loop.train(small(), store, tmp_path)
    assert (outcome.step, outcome.stopped_by) == (6, None)
    lines = runs.read_metrics(tmp_path)
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert all(line["bits_per_dim"] > 0 and line["slices_per_second"] > 0 for line in lines)
    assert [line["step"] for line in lines if "validation_bits_per_dim" in line] == [3, 6]
    assert VideoTransformer.load(tmp_path).config == MODEL
    assert runs.read_config(tmp_path)[0] == small()
    printed = capsys.readouterr().out
    assert "step 6/6" in printed
    assert "best validation bits/dim" in printed


def test_resuming_is_bit_for_bit(tmp_path, store, capsys):
    loop.train(small(), store, tmp_path / "whole")
    loop.train(small(steps=4), store, tmp_path / "parts")
    (tmp_path / "parts" / "model" / "model.safetensors").unlink()  # as a kill may leave it
    capsys.readouterr()
    loop.train(small(steps=6), store, tmp_path / "parts")
    assert "resumed from step 4" in capsys.readouterr().out
    # The schedule knows how many steps there will be: a run of 4 steps is another run.
    loop.train(small(recipe="paper"), store, tmp_path / "whole paper")
    loop.train(small(recipe="paper", steps=4), store, tmp_path / "parts paper")
    loop.train(small(recipe="paper"), store, tmp_path / "parts paper")
    assert same(tmp_path / "whole paper", tmp_path / "parts paper")
    assert curve(tmp_path / "whole paper") == curve(tmp_path / "parts paper")
    VideoTransformer.load(tmp_path / "parts")


def test_a_finished_run_stays_as_it_is(tmp_path, store, capsys):
    loop.train(small(steps=3), store, tmp_path)
    before = curve(tmp_path)
    assert loop.train(small(steps=3), store, tmp_path).step == 3
    assert curve(tmp_path) == before
    assert "resumed from step 3" in capsys.readouterr().out


def test_another_experiment_in_the_same_folder_is_refused(tmp_path, store):
    loop.train(small(steps=3), store, tmp_path)
    with pytest.raises(UserError, match=r"training\.seed 0, now it is 1"):
        loop.train(small(steps=3, seed=1), store, tmp_path)


def test_a_folder_of_something_else_is_left_alone(tmp_path, store):
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(UserError, match="holds other files and no checkpoint"):
        loop.train(small(), store, tmp_path)


def test_minutes_end_a_run_that_can_be_resumed(tmp_path, store):
    assert loop.train(small(), store, tmp_path, minutes=0.0).step == 1
    assert loop.train(small(), store, tmp_path).step == 6


def test_validation_is_a_callable(tmp_path, store):
    scores = iter([2.0, 1.0, 3.0])
    loop.train(small(checkpoint_every=2, keep=1), store, tmp_path, validate=lambda model: next(scores))
    saved = checkpoint.everything(tmp_path / runs.CHECKPOINTS)
    assert [(each.step, each.score) for each in saved] == [(4, 1.0), (6, 3.0)]


def test_starting_from_another_run(tmp_path, store):
    """Weights alone: its steps and its optimizer are not taken over."""
    loop.train(small(), store, tmp_path / "first")
    model, optimizer = loop.begin(small(), checkpoint.Job(torch.device("cpu")), tmp_path / "first")
    expected = VideoTransformer.load(tmp_path / "first").state_dict()
    assert all(torch.equal(weight, expected[name]) for name, weight in model.state_dict().items())
    assert optimizer.num_steps == 0
    other = small(dataclasses.replace(MODEL, hidden_size=32))
    with pytest.raises(UserError, match="has shape"):
        loop.begin(other, checkpoint.Job(torch.device("cpu")), tmp_path / "first")


def test_the_first_signal_saves_and_the_second_ends():
    with loop.caught_signals() as stop:
        signal.raise_signal(signal.SIGINT)
        assert stop.received == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def tiny_command(store, out, *options):
    words = ["train", "tiny", "--data", str(store.path), "--out", str(out), *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return [sys.executable, "-m", "framecast", *words], environment


def wait_for_step(folder, number, patience=60):
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        if (lines := runs.read_metrics(folder)) and lines[-1]["step"] >= number:
            return
        time.sleep(0.05)
    raise AssertionError(f"no step {number} in {patience} s")


@pytest.mark.slow
def test_kill_and_resume(tmp_path, moving_mnist):
    """kill −9 somewhere, and SIGTERM, and Ctrl-C: what comes out in the end is what comes out undisturbed."""
    command, environment = tiny_command(moving_mnist, tmp_path / "run", "--steps", "30", "--checkpoint-every", "4")
    for number, sent, status in [(7, signal.SIGKILL, -9), (12, signal.SIGTERM, 143), (18, signal.SIGINT, 130)]:
        running = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        wait_for_step(tmp_path / "run", number)
        running.send_signal(sent)
        output, _ = running.communicate(timeout=60)
        assert running.returncode == status, output
    assert "stopped by SIGINT, saved at step" in output
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True)
    assert "resumed from step" in done.stdout
    whole, environment = tiny_command(moving_mnist, tmp_path / "whole", "--steps", "30", "--checkpoint-every", "4")
    subprocess.run(whole, env=environment, capture_output=True, timeout=120, check=True)
    assert same(tmp_path / "run", tmp_path / "whole")
    assert curve(tmp_path / "run") == curve(tmp_path / "whole")


BLOCKED = ["cattrs", "jaxtyping", "rich", "google_crc32c", "tensorboard", "av", "PIL", "tyro", "beartype"]


@pytest.mark.slow
def test_training_needs_torch_numpy_and_safetensors_alone(tmp_path, moving_mnist):
    program = f"""
import sys
for name in {BLOCKED}:
    sys.modules[name] = None
import dataclasses
from pathlib import Path
from framecast import presets
from framecast.data.store import Store
from framecast.training import loop
run = presets.preset("tiny")
run = dataclasses.replace(run, training=dataclasses.replace(run.training, steps=2))
print(loop.train(run, Store({str(moving_mnist.path)!r}), Path({str(tmp_path / "run")!r})).step)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.stdout.endswith("2\n"), done.stderr


def golden_run(store, folder):
    """Twenty steps of `tiny` as they come out of its preset, but for how often it is saved."""
    from framecast.presets import preset

    run = preset("tiny")
    run = dataclasses.replace(run, training=dataclasses.replace(run.training, validation_batches=0))
    training = dataclasses.replace(run.training, steps=20)
    loop.train(dataclasses.replace(run, training=training), store, folder)
    return curve(folder)


@pytest.mark.slow
def test_golden_curve(tmp_path, moving_mnist):
    """A change that should not alter results does not. One that does says so in CHANGELOG.md, and runs
    `REGENERATE_GOLDEN=1 pytest -k golden_curve`."""
    found = golden_run(moving_mnist, tmp_path)
    if os.environ.get("REGENERATE_GOLDEN"):
        GOLDEN.write_text(json.dumps(found, indent=1) + "\n")
    assert found == pytest.approx(json.loads(GOLDEN.read_text()), rel=2e-3)
