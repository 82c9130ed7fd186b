"""Two processes train as one does: DDP and FSDP2 over gloo, under torchrun."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from framecast.training import checkpoint, distributed, loop
from framecast.training import run as runs

from .small import small
from .test_loop import curve, same, tensors_of

pytestmark = pytest.mark.slow

WORKER = Path(__file__).with_name("worker.py")
KINDS = [(parallel, recipe) for parallel in ("replicate", "shard") for recipe in ("paper", "modern")]


def torchrun(store, folder, *tasks, restarts=0, check=True):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["--max-restarts", str(restarts), str(WORKER), str(store.path), str(folder), *tasks]
    # With torchrun's own store, a process that starts anew may read the address of one that is gone (docs/scaling.md).
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert not check or done.returncode == 0, done.stderr[-4000:]
    return done


@pytest.fixture(scope="module")
def together(tmp_path_factory, store):
    """A folder in which two processes did everything; starting them takes longer than what they do."""
    folder = tmp_path_factory.mktemp("together")
    for parallel, recipe in KINDS:
        begin(store, folder / f"begun-{parallel}-{recipe}", recipe)
    for name in ("replicate", "shard"):
        shutil.copytree(folder / f"begun-{name}-paper", folder / f"copy-{name}-paper")
        shutil.copytree(folder / f"begun-{name}-modern", folder / f"copy-{name}-modern")
    torchrun(store, folder, "gradients", "runs", "scalar")
    return folder


@pytest.fixture(scope="module")
def alone(tmp_path_factory, store):
    """The same runs by one process."""
    folder = tmp_path_factory.mktemp("alone")
    for recipe in ("paper", "modern"):
        loop.train(small(recipe=recipe), store, folder / recipe)
    return folder


def begin(store, folder, recipe):
    """The first half of a run of six steps, by one process: its second checkpoint is taken away."""
    loop.train(small(recipe=recipe), store, folder)
    shutil.rmtree(folder / "checkpoints" / "00000006")


def near(first, second):
    """Equal to rounding, after a few steps that divide by small numbers."""
    first, second = tensors_of_all_files(first), tensors_of_all_files(second)
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        if ".attention.bias." in name and tensor.shape[1] == 1:
            continue  # one distance alone: softmax does not see it, and its gradient is rounding and nothing else
        scale = tensor.abs().max()
        torch.testing.assert_close(second[name], tensor, rtol=1e-3, atol=2e-3 * float(scale) + 1e-9, msg=name)


def tensors_of_all_files(folder):
    """Like `tensors_of`, the parts of sharded tensors put together."""
    run, _ = runs.read_config(folder)
    model, optimizer = loop.begin(run, distributed.Job(torch.device("cpu")))
    last = checkpoint.everything(folder / runs.CHECKPOINTS)[-1]
    checkpoint.load(last, model, optimizer, distributed.Job(torch.device("cpu")))
    return {name: tensor.clone() for name, tensor in checkpoint.tensors(model, optimizer).items()}


@pytest.mark.parametrize("parallel", ["replicate", "shard"])
@pytest.mark.parametrize("micro_batch", [None, 1])
def test_gradients_of_two_are_those_of_one(together, tmp_path, parallel, micro_batch):
    """Also of the first-slice decoder, though one process has only first slices and the other none."""
    from .worker import gradients

    gradients(distributed.Job(torch.device("cpu")), tmp_path)
    expected = torch.load(tmp_path / f"gradients-1-replicate-{micro_batch}.pt", weights_only=True)
    found = torch.load(together / f"gradients-2-{parallel}-{micro_batch}.pt", weights_only=True)
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-7, msg=name)
    for part in ("first_slice_decoder", "decoder", "encoder"):
        assert any(gradient.any() for name, gradient in found.items() if name.startswith(part))


@pytest.mark.parametrize(("parallel", "recipe"), KINDS)
def test_runs_of_two_are_those_of_one(together, alone, parallel, recipe):
    near(together / f"{parallel}-{recipe}", alone / recipe)
    assert curve(together / f"{parallel}-{recipe}") == pytest.approx(curve(alone / recipe), rel=1e-4)


@pytest.mark.parametrize(("parallel", "recipe"), KINDS)
def test_two_resume_what_one_began(together, alone, parallel, recipe):
    """What they load is the same to the last bit, what they make of it to rounding."""
    expected = tensors_of(together / f"copy-{parallel}-{recipe}")
    loaded = torch.load(together / f"loaded-{parallel}-{recipe}.pt", weights_only=True)
    assert loaded.keys() == expected.keys()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in loaded.items())
    near(together / f"begun-{parallel}-{recipe}", alone / recipe)


@pytest.mark.parametrize(("parallel", "recipe"), KINDS)
def test_one_resumes_what_two_began(together, alone, tmp_path, store, parallel, recipe):
    shutil.copytree(together / f"{parallel}-{recipe}", tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "00000006")
    loop.train(small(recipe=recipe), store, tmp_path / "run")
    near(tmp_path / "run", alone / recipe)
    assert curve(tmp_path / "run") == pytest.approx(curve(alone / recipe), rel=1e-4)


def test_a_tensor_smaller_than_the_job_is_sharded(together):
    """`head.output.bias` of the scalar head has one number for two processes."""
    found = tensors_of_all_files(together / "scalar")
    assert found["model/head.output.bias"].shape == (1,)


def test_a_killed_process_ends_the_job_with_a_sentence(tmp_path, store):
    done = torchrun(store, tmp_path, "killed", check=False)
    assert done.returncode != 0
    assert "another process of this job is gone" in done.stderr
    assert "The same command resumes from the last checkpoint" in done.stderr
    assert [each.step for each in checkpoint.everything(tmp_path / "run" / "checkpoints")] == [2]
    done = torchrun(store, tmp_path, "killed")
    assert "resumed from step 2" in done.stdout


def test_an_elastic_restart_resumes(tmp_path, store):
    done = torchrun(store, tmp_path, "killed", restarts=1)
    assert "resumed from step 2" in done.stdout
    assert [line["step"] for line in runs.read_metrics(tmp_path / "run")] == list(range(1, 11))
    loop.train(small(steps=10, checkpoint_every=2), store, tmp_path / "whole", validate=lambda model: 1.0)
    assert curve(tmp_path / "run") == pytest.approx(curve(tmp_path / "whole"), rel=1e-4)
    assert not same(tmp_path / "run", tmp_path / "whole")  # two sum up in another order than one
