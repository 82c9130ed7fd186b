"""How the page is started, up to the moment when it listens."""

from __future__ import annotations

import socket
from pathlib import Path

import numpy as np
import pytest
import uvicorn

from framecast import presets
from framecast.cli import run
from framecast.commands import serve as command
from framecast.data.clip import Clip
from framecast.data.store import Store
from framecast.errors import UserError
from framecast.model import checkpoint
from framecast.model.video_transformer import VideoTransformer
from framecast.server.clips import StoreClips


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[uvicorn.Server]:
    """Servers that would have run."""
    servers: list[uvicorn.Server] = []

    def instead(server: uvicorn.Server, sockets: list[socket.socket]) -> None:
        servers.append(server)
        sockets[0].close()

    monkeypatch.setattr(uvicorn.Server, "run", instead)
    return servers


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "tiny"
    VideoTransformer(presets.tiny().model).save(folder)
    return folder


def test_loopback_needs_no_warning_and_the_rest_does(started, model, capsys):
    assert run(["serve", str(model), "--port", "0"]) == 0
    said = capsys.readouterr()
    assert "open http://127.0.0.1:" in said.out
    assert "warning" not in said.err
    assert run(["serve", str(model), "--port", "0", "--host", "0.0.0.0"]) == 0
    assert "0.0.0.0 is not loopback. Everybody who reaches this machine can use the page" in capsys.readouterr().err
    assert len(started) == 2


def test_what_cannot_be_served_is_said_before_it_listens(started, model, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "SHIPPED", tmp_path)
    with pytest.raises(UserError, match="no model ships with this framecast: name the folder"):
        command.serve()
    with pytest.raises(UserError, match="there is no model at"):
        command.serve((str(tmp_path / "none"),))
    with pytest.raises(UserError, match="there is no store at"):
        command.serve((str(model),), data=tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=f"127.0.0.1:{port} cannot be listened on: .* Try another --port"):
            command.serve((str(model),), port=port)
    assert not started


def test_clips_of_a_store_are_cropped_and_resized_for_the_model(make_store, tmp_path):
    rng = np.random.default_rng(0)
    videos = [rng.integers(0, 256, (30, 48, 80, 3), np.uint8) for _ in range(3)]
    clips = [Clip(video, f"clip-{i}", "test" if i else "train") for i, video in enumerate(videos)]
    offered = StoreClips(Store(make_store(tmp_path / "store", clips)))
    config = presets.tiny().model
    assert offered.count(config) == 2
    assert offered.what == "test clips of store"
    name, video, actions = offered.clip(1, config)
    assert (name, video.shape, actions) == ("test clip 1", (30, 64, 64, 1), None)
