"""`framecast sample` writes what `fc.sample` draws, the truth above it, and says what it cannot do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from framecast import media
from framecast.cli import run
from framecast.config import LayerConfig, ModelConfig
from framecast.model.video_transformer import VideoTransformer
from framecast.sampling.sampler import sample

LAYERS = (LayerConfig((1, 2, 2), 1),)


def saved(folder: Path, **changes) -> VideoTransformer:
    torch.manual_seed(0)
    fields = {"video_shape": (4, 8, 8), "subscale_factor": (2, 2, 2), "num_channels": 1, "code_bits": (4, 4)}
    config = ModelConfig(**{**fields, "encoder_layers": LAYERS, "decoder_layers": LAYERS, "embedding_size": 6,
                            "hidden_size": 8, "head_size": 4, **changes})  # fmt: skip
    model = VideoTransformer(config)
    model.save(folder / "model")
    return model


@pytest.fixture
def model(tmp_path) -> VideoTransformer:
    return saved(tmp_path)


@pytest.fixture
def clip(tmp_path) -> np.ndarray:
    video = np.random.default_rng(0).integers(0, 256, (6, 8, 8, 1), dtype=np.uint8)
    np.savez(tmp_path / "clip.npz", video=video)
    return video


def words(folder: Path, out: str, *more: str, prime: str = "clip.npz") -> list[str]:
    return ["sample", str(folder / "model"), "--prime", str(folder / prime), "--out", str(folder / out), *more]


def test_npz_holds_what_sample_draws_and_json_says_so(tmp_path, model, clip, capsys):
    order = words(tmp_path, "out.npz", "--samples", "3", "--seed", "5", "--temperature", "0.8", "--json")
    assert run([*order, "--prime-frames", "2", "--frames", "5"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["samples"] == 3
    assert facts["frames"] == 5
    assert facts["prime_frames"] == 2
    assert facts["complete"] is True
    drawn = np.load(tmp_path / "out.npz")["video"]
    right = sample(model, clip[None, :2], 5, temperature=0.8, seed=5, samples=torch.arange(3))
    np.testing.assert_array_equal(drawn, right.numpy())


def test_the_truth_stands_above_where_it_is_known(tmp_path, model, clip):
    assert run(words(tmp_path, "out.png", "--samples", "2")) == 0
    picture = np.asarray(Image.open(tmp_path / "out.png"))
    assert picture.shape == (3 * 8 + 2 * media.GAP, 4 * 8 + 3 * media.GAP)
    np.testing.assert_array_equal(picture[:8], media.strip(clip[None, :4])[..., 0])
    np.testing.assert_array_equal(picture[8 + media.GAP :][:8, :8], clip[0, ..., 0])
    assert run(words(tmp_path, "longer.png", "--frames", "7")) == 0
    assert np.asarray(Image.open(tmp_path / "longer.png")).shape[0] == 8


@pytest.mark.parametrize("kind", ["mp4", "webp", "gif"])
def test_every_format_is_written(tmp_path, model, clip, kind):
    assert run(words(tmp_path, f"out.{kind}", "--samples", "2")) == 0
    assert (tmp_path / f"out.{kind}").stat().st_size > 100


def test_an_action_sequence_each(tmp_path, clip):
    model = saved(tmp_path, action_size=2)
    actions = np.random.default_rng(1).normal(size=(3, 4, 2)).astype(np.float32)
    np.save(tmp_path / "actions.npy", actions)
    assert run(words(tmp_path, "out.npz", "--actions", str(tmp_path / "actions.npy"))) == 0
    right = sample(model, clip[None, :1], actions=actions)
    np.testing.assert_array_equal(np.load(tmp_path / "out.npz")["video"], right.numpy())


def test_a_clip_of_a_store_by_its_number(tmp_path, capsys):
    model = saved(tmp_path, num_channels=3)
    (tmp_path / "clips").mkdir()
    videos = [np.random.default_rng(i).integers(0, 256, (6, 8, 8, 3), dtype=np.uint8) for i in range(2)]
    for i, video in enumerate(videos):
        np.savez(tmp_path / "clips" / f"{i}.npz", video=video)
    store = str(tmp_path / "store")
    assert run(["prepare", "folder", "--out", store, "--source", str(tmp_path / "clips"), "--size", "8"]) == 0
    assert run(words(tmp_path, "out.npz", prime="store#1")) == 0
    drawn = np.load(tmp_path / "out.npz")["video"]
    first = drawn[0, :1]
    assert any((first == video[:1]).all() for video in videos)
    np.testing.assert_array_equal(drawn, sample(model, first[None]).numpy())
    assert run(words(tmp_path, "out.npz", prime="store#2")) == 2
    assert "has 2 clips, numbered from 0" in capsys.readouterr().err


def test_groups_do_not_matter(tmp_path, model, clip, monkeypatch):
    from framecast.commands import sample as command

    assert run(words(tmp_path, "one.npz", "--samples", "5")) == 0
    monkeypatch.setattr(command, "DRAWN_TOGETHER", 2)
    assert run(words(tmp_path, "two.npz", "--samples", "5")) == 0
    np.testing.assert_array_equal(np.load(tmp_path / "one.npz")["video"], np.load(tmp_path / "two.npz")["video"])


def test_stopped_it_writes_what_is_done(tmp_path, model, clip, monkeypatch):
    from framecast.sampling.sampler import SliceDrawing

    draw, waves = SliceDrawing.draw, []

    def interrupted(self, wave):
        waves.append(wave)
        if len(waves) == 60:
            raise KeyboardInterrupt
        draw(self, wave)

    monkeypatch.setattr(SliceDrawing, "draw", interrupted)
    assert run(words(tmp_path, "out.npz")) == 130
    monkeypatch.undo()
    done = np.load(tmp_path / "out.npz")["video"]
    right = sample(model, clip[None, :1]).numpy()
    np.testing.assert_array_equal(done[:, :1], clip[None, :1])
    assert (done == right)[done != 0].all()
    assert 0 < (done != 0).mean() < 1


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (["--out", "a.avi"], r"a\.avi names no format that can be written"),
        (["--prime-frames", "9"], r"has 6 frame\(s\), 9 shall be given"),
        (["--prime-frames", "-1"], "--prime-frames is -1"),
        (["--samples", "0"], "--samples is 0: at least 1 must be drawn"),
        (["--frames", "3"], "at least 4 frames, this one has 3"),
        (["--temperature", "-1"], r"temperature is -1\.0"),
        (["--prime", "nowhere.mp4"], r"nowhere\.mp4 cannot be used: it does not exist"),
        (["--prime", "store#x"], "must end in the number of a clip"),
        (["--actions", "missing.npy"], r"missing\.npy is no \.npy or \.npz file"),
    ],
)
def test_what_cannot_be_is_said_in_a_sentence(tmp_path, model, clip, more, sentence, capsys, monkeypatch):
    import re

    monkeypatch.chdir(tmp_path)
    assert run([*words(tmp_path, "out.npz"), *more]) == 2
    assert re.search(sentence, capsys.readouterr().err)
    assert not (tmp_path / "out.npz").exists()


@pytest.mark.slow
def test_processes_share_the_samples(tmp_path, model, clip):
    assert run(words(tmp_path, "one.npz", "--samples", "3")) == 0
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
    order = [*torchrun, "framecast", *words(tmp_path, "two.npz", "--samples", "3", "--device", "cpu")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(order, check=True, capture_output=True, timeout=120, env=environment)
    np.testing.assert_array_equal(np.load(tmp_path / "one.npz")["video"], np.load(tmp_path / "two.npz")["video"])
