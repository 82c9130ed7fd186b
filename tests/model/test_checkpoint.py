"""A model on disk comes back as it was, and whatever was altered is found and named."""

from __future__ import annotations

import functools
import json
import os
import struct
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

from framecast import durable
from framecast.config import LayerConfig
from framecast.errors import UserError
from framecast.model import checkpoint
from framecast.model.video_transformer import VideoTransformer


@pytest.fixture
def saved(make_model, tmp_path):
    model = make_model().float()
    model.save(tmp_path / "model")
    return tmp_path / "model"


def rewrite(folder, change):
    """Change the configuration as somebody would who knows about the checksums."""
    body = json.loads((folder / "config.json").read_text())
    body.pop("checksum")
    change(body)
    body["checksum"] = checkpoint._checksum(body)
    (folder / "config.json").write_bytes(checkpoint._text(body))


def rewrite_weights(folder, change):
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors")
    sha256 = checkpoint._sha256(folder / "model.safetensors")
    rewrite(folder, lambda body: body.update(weights_sha256=sha256))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_model_comes_back_as_it_was(make_model, make_video, tmp_path, dtype):
    model = make_model().to(dtype)
    model.save(tmp_path / "a model é")
    again = VideoTransformer.load(str(tmp_path / "a model é"))
    assert again.config == model.config
    assert again.state_dict().keys() == model.state_dict().keys()
    for name, tensor in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor)
    video = make_video(model.config)
    assert torch.equal(again.log_prob(video), model.log_prob(video))
    assert sorted(os.listdir(tmp_path)) == ["a model é"], "nothing temporary is left"


def test_weights_kept_as_halves_are_computed_with_in_float32(make_model, tmp_path):
    model = make_model().bfloat16()
    model.save(tmp_path / "half")
    again = VideoTransformer.load(tmp_path / "half")
    for name, tensor in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor.float())


def test_a_run_s_folder_stands_for_its_model(make_model, tmp_path):
    make_model().save(tmp_path / "run" / "model")
    assert checkpoint.find(tmp_path / "run") == tmp_path / "run" / "model"
    assert VideoTransformer.load(tmp_path / "run").config == make_model().config


def test_saving_again_replaces_a_model_and_nothing_else(make_model, saved, tmp_path):
    make_model(seed=1).save(saved)
    assert VideoTransformer.load(saved).config == make_model().config
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine.txt").write_text("keep")
    with pytest.raises(UserError, match="exists and is no model: it is not overwritten"):
        make_model().save(tmp_path / "notes")
    assert (tmp_path / "notes" / "mine.txt").read_text() == "keep"


SAVED_AND_KILLED = """
import itertools, os, sys
from pathlib import Path
from framecast.model import checkpoint
from framecast.model.video_transformer import VideoTransformer

path = Path(sys.argv[1])
model = VideoTransformer.load(path)

def die_at(moment):
    calls = itertools.count()
    def deadly(function):
        def instead(*arguments, **options):
            if next(calls) == moment:
                os.kill(os.getpid(), 9)
            return function(*arguments, **options)
        return instead
    Path.rename, Path.mkdir, Path.write_bytes = map(deadly, (Path.rename, Path.mkdir, Path.write_bytes))
    checkpoint.shutil.rmtree, checkpoint._sync = map(deadly, (checkpoint.shutil.rmtree, checkpoint._sync))

for moment in itertools.count():
    if not (child := os.fork()):
        die_at(moment)
        model.save(path)
        os._exit(0)
    if os.waitpid(child, 0)[1] == 0:
        break
    if path.exists():
        VideoTransformer.load(path)
    model.save(path)
    VideoTransformer.load(path)
    assert [each.name for each in path.parent.iterdir()] == [path.name], moment
print(moment)
"""


def test_killed_while_it_is_saved(saved):
    """At every step: what can be read is whole, and saving again brings a whole model and nothing besides."""
    command = [sys.executable, "-c", SAVED_AND_KILLED, saved]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 8


def test_two_that_save_one_model(make_model, saved, monkeypatch):
    with durable.temporary(saved.parent / ".model.lock"):
        monkeypatch.setattr(durable, "temporary", functools.partial(durable.temporary, patience=0))
        with pytest.raises(UserError, match="another process is saving a model at"):
            make_model().save(saved)


@pytest.mark.parametrize("file", ["model.safetensors", "config.json"])
def test_every_flipped_bit_is_found(saved, file):
    whole = (saved / file).read_bytes()
    step = max(1, len(whole) // 300)  # every byte of the small file would take a while, so some of each part
    for place in [*range(0, len(whole), step), len(whole) - 1]:
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        (saved / file).write_bytes(damaged)
        with pytest.raises(UserError, match=r"config\.json|model\.safetensors"):
            checkpoint.read(saved)
    (saved / file).write_bytes(whole)
    checkpoint.read(saved)


@pytest.mark.parametrize("file", ["model.safetensors", "config.json"])
def test_every_cut_is_found(saved, file):
    whole = (saved / file).read_bytes()
    for length in {0, 1, 7, 8, 9, 100, len(whole) // 2, len(whole) - 1}:
        (saved / file).write_bytes(whole[:length])
        with pytest.raises(UserError, match=r"config\.json|model\.safetensors"):
            checkpoint.read(saved)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda w: w.pop("head.output.weight"), "lacks the weight head.output.weight"),
        (lambda w: w.update(more=torch.zeros(1)), "has the weight more, which its configuration does not"),
        (
            lambda w: w.update({"head.output.weight": torch.zeros(2, 3)}),
            r"shape \(2, 3\), its configuration says \(4, 8\)",
        ),
        (lambda w: w["head.output.weight"].fill_(float("nan")), "head.output.weight has a NaN or an infinity"),
        (lambda w: w.update({"head.norm.bias": torch.zeros(8, dtype=torch.int32)}), "holds torch.int32"),
        (lambda w: w.update({"head.norm.bias": torch.zeros(8).double()}), "several precisions"),
    ],
)
def test_weights_that_are_not_the_configured_model_s(saved, change, sentence):
    rewrite_weights(saved, change)
    with pytest.raises(UserError, match=sentence):
        VideoTransformer.load(saved)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda body: body["model"].update(hidden_size=16), "shape"),
        (lambda body: body["model"].update(hidden_size="8"), "hidden_size must be of type int, not '8'"),
        (lambda body: body["model"].update(video_shape=[4, 4, 5]), "does not divide"),
        (lambda body: body.update(format="framecast model 2"), "'framecast model 2', this version reads"),
        (lambda body: body.update(more=1), "must hold checksum, format, model, weights_sha256 and nothing else"),
    ],
)
def test_a_configuration_that_does_not_fit(saved, change, sentence):
    rewrite(saved, change)
    with pytest.raises(UserError, match=sentence):
        VideoTransformer.load(saved)


def test_altering_the_configuration_alone_is_found(saved):
    text = (saved / "config.json").read_text()
    (saved / "config.json").write_text(text.replace('"gate": false', '"gate": true'))
    with pytest.raises(UserError, match="was altered: its checksum is"):
        VideoTransformer.load(saved)
    (saved / "config.json").write_text(text + " ")
    with pytest.raises(UserError, match="not written as framecast writes it"):
        VideoTransformer.load(saved)


def test_a_folder_cannot_point_outside_itself(saved, tmp_path):
    (saved / "model.safetensors").rename(tmp_path / "elsewhere")
    (saved / "model.safetensors").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="missing or no plain file"):
        VideoTransformer.load(saved)


def test_what_is_no_model(tmp_path):
    for path in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(UserError, match="there is no model at"):
            VideoTransformer.load(path)
    (tmp_path / "config.json").write_bytes(b" " * (checkpoint.MAX_CONFIG_BYTES + 1))
    with pytest.raises(UserError, match="no configuration has more than"):
        VideoTransformer.load(tmp_path)
    for text in ("[" * 100_000, "{", '{"a": 1, "a": 2}', "\xff"):
        (tmp_path / "config.json").write_text(text, encoding="latin-1")
        with pytest.raises(UserError, match="is no JSON"):
            VideoTransformer.load(tmp_path)


def test_a_header_that_claims_too_much(saved):
    claim = struct.pack("<Q", 2**60) + b"{}"
    (saved / "model.safetensors").write_bytes(claim)
    sha256 = checkpoint._sha256(saved / "model.safetensors")
    rewrite(saved, lambda body: body.update(weights_sha256=sha256))
    with pytest.raises(UserError, match="is no safetensors file"):
        VideoTransformer.load(saved)


def test_a_model_that_claims_to_be_enormous_is_refused_before_memory_is_taken(saved):
    """A configuration comes from elsewhere: what it claims is held against the weights before memory is taken."""

    def enlarge(body):
        body["model"]["hidden_size"] = 2**20

    rewrite(saved, enlarge)
    with pytest.raises(UserError, match="shape"):
        VideoTransformer.load(saved)


def test_layers_survive(make_config, tmp_path):
    config = make_config(decoder_layers=(LayerConfig((1, 2, 1), 3, dilated=True),))
    model = VideoTransformer(config)
    model.save(tmp_path / "model")
    assert VideoTransformer.load(tmp_path / "model").config == config
