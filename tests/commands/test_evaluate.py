"""`framecast evaluate` from end to end: what it leaves behind, what it keeps, and what it refuses."""

from __future__ import annotations

import csv
import dataclasses
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch

from framecast import cli
from framecast.config import LayerConfig, ModelConfig
from framecast.data.prepare import prepare_drawn
from framecast.data.sources.moving_mnist import MovingMnist
from framecast.data.store import Store
from framecast.evaluation import likelihood, pieces
from framecast.model.video_transformer import VideoTransformer

LAYERS = (LayerConfig((1, 1, 2), 1),)  # with no masked convolution to speak of: two waves a slice
SIZES = {"embedding_size": 4, "hidden_size": 8, "head_size": 8}
CONFIG = ModelConfig((4, 32, 32), (4, 4, 4), LAYERS, LAYERS, masked_kernel=(1, 1, 1), num_channels=1, **SIZES)


def prepared(folder: Path, test_data: Path, **settings) -> Path:
    prepare_drawn("moving-mnist", MovingMnist(**settings), folder, str(test_data / "mnist"))
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory, test_data) -> Path:
    """A store of 17 frames of 32×32, and models of such frames: uniform, random, scalar."""
    folder = tmp_path_factory.mktemp("evaluate")
    prepared(folder / "store", test_data, size=(32, 32), num_frames=17)
    torch.manual_seed(0)
    model = VideoTransformer(CONFIG)
    model.save(folder / "random")
    torch.nn.init.zeros_(model.head.output.weight)
    model.save(folder / "uniform")
    VideoTransformer(dataclasses.replace(CONFIG, output="scalar")).save(folder / "scalar")
    return folder


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FRAMECAST_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(pieces, "MEASURED_SECONDS", 0.0)


def evaluate(folder: Path, out: Path, *words: object, models: tuple[str, ...] = ("random",)) -> int:
    data = () if "--data" in words else ("--data", folder / "store")
    runs = (folder / model for model in models)
    return cli.run([str(word) for word in ("evaluate", *runs, *data, "--out", out, *words)])


def read(out: Path) -> dict:
    return json.loads((out / "results.json").read_text())


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))


@pytest.mark.slow
def test_every_metric_and_all_that_is_left_behind(folder, tmp_path, test_data, capsys, monkeypatch):
    i3d_file = test_data / "i3d" / "i3d-kinetics-400.ckpt"
    words = ("--num-videos", 2, "--trials", 2, "--i3d", i3d_file)
    assert evaluate(folder, tmp_path / "out", *words) == 0
    said = capsys.readouterr()
    assert re.search(r"about .* at the rate just measured \(likelihood .*, samples .*, features .*\)", said.err)
    assert "warning: FVD of 2 real against 2 generated clips says little" in said.err
    assert "bits/dim" in said.out

    results = read(tmp_path / "out")
    (model,) = results["models"]
    assert model["metrics"] == ["bits", "nats", "fvd", "psnr", "ssim"]
    assert model["num_samples"] == 4
    scores, baselines = model["scores"], model["baselines"]
    assert len(scores["bits_per_dim"]["per_frame"]) == 7  # 17 frames, 10 given
    assert 5 < scores["bits_per_dim"]["mean"] < 11
    assert baselines["uniform"]["bits_per_dim"]["mean"] == 8
    assert baselines["floor"]["nats_per_frame"]["mean"] < scores["nats_per_frame"]["mean"]
    assert len(scores["fvd"]["trials"]) == 2
    assert scores["fvd"]["trials"][0] != scores["fvd"]["trials"][1]  # each trial its own continuations
    assert len(scores["fvd_by_window"]["mean"]) == 2
    assert scores["fvd_unrolled"]["mean"] == pytest.approx(np.mean(scores["fvd_by_window"]["mean"]))
    assert baselines["ground_truth"]["sets"] == "2 test against 2 train clips"
    assert scores["psnr"]["best_of_samples"]["mean"] >= scores["psnr"]["mean_of_samples"]["mean"]
    settings = model["settings"]
    assert (settings["prime_frames_samples"], settings["num_frames_samples"], settings["temperature"]) == (10, 17, 0.9)

    with (tmp_path / "out" / "per_video.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["clip"] for row in rows] == ["0", "1"]
    assert np.mean([float(row["bits_per_dim"]) for row in rows]) == pytest.approx(scores["bits_per_dim"]["mean"])

    text = (tmp_path / "out" / "report.html").read_text()
    page = Page(text)
    sources = [attributes["src"] for tag, attributes in page.tags if tag == "img"]
    assert len(sources) > 8
    assert all(source.startswith("data:image/") for source in sources)
    assert not [tag for tag, _ in page.tags if tag in ("script", "link", "iframe", "object")]
    assert "http" not in re.sub(r"data:[^\"]*", "", text)
    assert "VPN" in text  # the paper's table of the dataset

    # Repeated, nothing is computed again, and the same comes out; another trial adds to what is there.
    monkeypatch.setattr(likelihood, "score", None)
    monkeypatch.setattr(pieces, "sample", None)
    monkeypatch.setattr(pieces.fvd, "window_features", None)
    assert evaluate(folder, tmp_path / "out", *words) == 0
    assert read(tmp_path / "out")["models"] == results["models"]
    assert evaluate(folder, tmp_path / "out", "--num-videos", 2, "--trials", 1, "--i3d", i3d_file) == 0
    fewer = read(tmp_path / "out")["models"][0]["scores"]["fvd"]
    assert fewer["trials"] == scores["fvd"]["trials"][:1]
    assert fewer["deviation"] is None


def test_a_uniform_model_scores_eight(folder, tmp_path, capsys):
    words = ("--num-videos", 3, "--metrics", "bits", "--json")
    assert evaluate(folder, tmp_path / "out", *words, models=("uniform",)) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == read(tmp_path / "out")
    assert printed["models"][0]["scores"]["bits_per_dim"]["mean"] == pytest.approx(8, abs=1e-5)


def test_several_models_make_one_comparison(folder, tmp_path):
    words = ("--num-videos", 2, "--trials", 2, "--metrics", "nats", "psnr", "--frames", 12)
    assert evaluate(folder, tmp_path / "out", *words, models=("random", "scalar")) == 0
    first, second = read(tmp_path / "out")["models"]
    assert (first["name"], second["name"]) == ("random", "scalar")
    assert (first["settings"]["temperature"], second["settings"]["temperature"]) == (0.9, None)
    assert (first["settings"]["trials"], second["settings"]["trials"]) == (2, 1)  # a scalar output draws nothing
    text = (tmp_path / "out" / "report.html").read_text()
    assert all(f"{name}, mean of samples" in text for name in ("random", "scalar"))


def test_more_clips_give_the_same_samples_of_the_first(folder, tmp_path):
    """A sample is of its clip and trial, not of the batch."""
    for count in (1, 2):
        words = ("--num-videos", count, "--trials", 1, "--metrics", "psnr", "--frames", 12)
        assert evaluate(folder, tmp_path / f"out{count}", *words) == 0
    samples = [
        np.load(next((tmp_path / f"out{count}" / "work").glob("samples-*/000-*.npz")))["videos"] for count in (1, 2)
    ]
    assert np.array_equal(samples[0][0], samples[1][0])
    assert not np.array_equal(samples[1][0], samples[1][1])


def test_only_the_first_of_several_processes_speaks_and_writes(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    words = ("--num-videos", 1, "--metrics", "bits")
    assert evaluate(folder, tmp_path / "out", *words) == 0
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["work"]
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setattr(likelihood, "score", None)  # the other has done it
    assert evaluate(folder, tmp_path / "out", *words) == 0
    assert (tmp_path / "out" / "report.html").is_file()


def test_the_floor_of_the_standard_generator(test_data, tmp_path):
    """Moving MNIST's, over frames 10–19 of the test set: 85.1 in the paper, 86.3 in VPN's."""
    store = Store(prepared(tmp_path / "store", test_data))
    clips = np.stack([store.frames(index, 10, 20) for index in range(500)])
    assert 85 < likelihood.floor(clips).mean() < 87


REFUSALS = {
    "no model at": ("nowhere", ()),
    "has 10000 clips": ("random", ("--num-videos", 20_000)),
    "--trials is 3: a model with a scalar output draws nothing": ("scalar", ("--trials", 3)),
    "prime_frames_likelihood is 17: of 17 frames": ("random", ("--prime-frames", 17)),
    "the shortest clip of the split 'test' .* has 17 frames, and sampling takes 20": ("random", ("--frames", 20)),
    "FVD reads 16 frames and 12 are sampled": ("random", ("--frames", 12, "--metrics", "fvd")),
    "no file .*weights.ckpt: the weights of I3D are": ("random", ("--metrics", "fvd", "--i3d", "weights.ckpt")),
}


@pytest.mark.parametrize("sentence", REFUSALS)
def test_what_is_refused_in_one_sentence(folder, tmp_path, capsys, sentence):
    model, words = REFUSALS[sentence]
    assert evaluate(folder, tmp_path / "out", *words, models=(model,)) == 2
    said = capsys.readouterr().err
    assert re.search(sentence, said), said
    assert said.count("\n") == 1
    assert not (tmp_path / "out").exists()  # before any work


def test_clips_and_models_that_do_not_belong_together(folder, tmp_path, test_data, capsys):
    short = prepared(tmp_path / "short", test_data, size=(32, 32), num_frames=12)
    assert evaluate(folder, tmp_path / "out", "--data", short, "--metrics", "fvd") == 2
    assert "has 12 frames, and FVD takes 16" in capsys.readouterr().err
    other = prepared(tmp_path / "other", test_data, size=(64, 64))
    assert evaluate(folder, tmp_path / "out", "--data", other) == 2
    assert "models frames of 32×32×1 and" in capsys.readouterr().err
