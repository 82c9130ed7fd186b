from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from framecast import cli
from framecast.config import LayerConfig, ModelConfig
from framecast.model.video_transformer import VideoTransformer


def test_what_is_damaged_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store, videos = tmp_path / "store", tmp_path / "videos"
    videos.mkdir()
    for number in range(3):
        np.save(videos / f"{number}.npy", np.full((4, 12, 10, 3), number, np.uint8))
    words = ["prepare", "folder", "--out", str(store), "--source", str(videos), "--workers", "1"]
    assert cli.run(words) == 0
    whole = {path: path.read_bytes() for path in store.glob("*.shard")}
    first = max(whole, key=lambda path: len(whole[path]))
    damaged = bytearray(whole[first])
    damaged[500] ^= 4
    first.write_bytes(damaged)
    assert cli.run(["verify", str(store)]) == 2
    assert f"{first}: clip 0 is damaged: its CRC-32C is" in capsys.readouterr().err
    first.unlink()
    assert cli.run(["verify", str(store)]) == 2
    assert "is not finished: 1 of 3 parts are missing" in capsys.readouterr().err
    assert cli.run(words) == 0
    assert {path: path.read_bytes() for path in store.glob("*.shard")} == whole
    assert cli.run(["verify", str(store)]) == 0


def test_verify_of_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["verify", str(tmp_path)]) == 2
    assert "there is no model at" in capsys.readouterr().err


def test_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A model as `save` writes it is whole; with one byte changed it is not."""
    layers = (LayerConfig((1, 2, 2), 1),)
    config = ModelConfig((2, 4, 4), (2, 2, 2), layers, layers, hidden_size=8, head_size=8, embedding_size=4)
    VideoTransformer(config).save(tmp_path / "model")
    assert cli.run(["verify", str(tmp_path / "model")]) == 0
    assert "is whole: " in capsys.readouterr().out
    weights = tmp_path / "model" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    assert cli.run(["verify", str(tmp_path / "model")]) == 2
    assert "its SHA-256 is" in capsys.readouterr().err


@pytest.mark.slow
def test_a_run(tmp_path: Path, test_data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store, run = str(tmp_path / "store"), tmp_path / "run"
    assert cli.run(["prepare", "moving-mnist", "--out", store, "--source", str(test_data / "mnist")]) == 0
    assert cli.run(["train", "tiny", "--data", store, "--out", str(run), "--steps", "2"]) == 0
    assert cli.run(["verify", str(run)]) == 0
    out = capsys.readouterr().out
    assert f"{run} is whole: 2 lines of metrics" in out
    assert f"{run / 'model'} is whole: " in out
    checkpoint = max((run / "checkpoints").glob("*/*.safetensors"))
    content = bytearray(checkpoint.read_bytes())
    content[-1] ^= 1
    checkpoint.write_bytes(content)
    assert cli.run(["verify", str(run)]) == 2
    assert "is damaged: its SHA-256 is" in capsys.readouterr().err
