"""Pieces of work: each is what the model itself would say, and is kept under all that it depends on."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

import framecast as fc
from framecast.config import EvaluationConfig, LayerConfig, ModelConfig
from framecast.data.clip import Clip
from framecast.data.store import Store
from framecast.errors import UserError
from framecast.evaluation import pieces, subject, work
from framecast.evaluation.pieces import Evaluation
from framecast.evaluation.results import results_of
from framecast.evaluation.subject import Clips, Subject, choose_clips, fitted
from framecast.model.video_transformer import VideoTransformer

LAYERS = (LayerConfig((1, 1, 3), 1),)  # with no masked convolution to speak of: three waves a slice
SIZES = {"embedding_size": 4, "hidden_size": 8, "head_size": 8}
CONFIG = ModelConfig((2, 12, 12), (2, 4, 4), LAYERS, LAYERS, masked_kernel=(1, 1, 1), action_size=2, **SIZES)
SETTINGS = EvaluationConfig(1, 2, num_frames_likelihood=3, num_frames_samples=4, trials=2)
NUM_CLIPS = 17  # two blocks


@pytest.fixture(scope="module")
def store(tmp_path_factory, make_store) -> Store:
    rng = np.random.default_rng(0)
    clips = [
        Clip(
            rng.integers(0, 256, (5, 12, 12, 3), dtype=np.uint8),
            f"clip {i}",
            "test" if i % 2 == 0 else "val",
            actions=rng.normal(size=(5, 2)).astype(np.float32),
        )
        for i in range(2 * NUM_CLIPS)
    ]
    return Store(make_store(tmp_path_factory.mktemp("pieces") / "store", clips))


@pytest.fixture(scope="module")
def model() -> VideoTransformer:
    torch.manual_seed(0)
    return VideoTransformer(CONFIG)


@pytest.fixture
def evaluation(store, model, tmp_path) -> Evaluation:
    clips = choose_clips(store, "test", None)
    return Evaluation(Subject("ours", "ours", "0", model, SETTINGS), clips, ("bits", "psnr", "ssim"), tmp_path)


def carry_out(evaluation: Evaluation) -> None:
    for folder, makers in evaluation.work().values():
        work.make_all(folder, makers, lambda name: None)


def test_the_scores_are_those_of_the_model_itself(evaluation, store, model):
    carry_out(evaluation)
    results = results_of([evaluation], {})
    (scored,) = results["models"]
    indices = store.indices("test")
    videos, actions = (np.stack([take(int(i), 0, 3) for i in indices]) for take in (store.frames, store.actions))
    expected = fc.bits_per_dim(model, videos, 1, actions).numpy()
    assert scored["scores"]["bits_per_dim"]["mean"] == pytest.approx(expected.mean())
    error = expected.std(ddof=1) / np.sqrt(NUM_CLIPS)
    assert scored["scores"]["bits_per_dim"]["standard_error"] == pytest.approx(error)
    assert scored["num_samples"] == 2 * NUM_CLIPS

    last = int(indices[16])  # alone in the second block
    drawn = fc.sample(
        model,
        store.frames(last, 0, 2)[None],
        4,
        actions=store.actions(last, 0, 4)[None],
        samples=np.array([1 << 40 | last]),
    )
    piece = work.load(evaluation.samples_folder, "001-000016-000017")
    assert np.array_equal(piece["videos"], drawn)
    truth = store.frames(last, 2, 4)
    np.testing.assert_allclose(piece["psnr"][0], fc.psnr(truth, drawn[0, 2:]))
    np.testing.assert_allclose(piece["ssim"][0], fc.ssim(truth, drawn[0, 2:]))
    copies = work.load(evaluation.copies_folder, "000016-000017")
    copied = store.frames(last, 1, 2).repeat(2, axis=0)
    np.testing.assert_allclose(copies["psnr"][0], fc.psnr(truth, copied))
    assert evaluation.surprise().shape == (8, 3, 12, 12)
    assert not evaluation.surprise()[:, :1].any()


def folders(evaluation: Evaluation) -> dict[str, str]:
    return {kind: folder.name for kind, (folder, _) in evaluation.work().items()}


def test_a_folders_name_tells_what_its_pieces_depend_on(evaluation, store):
    base = folders(evaluation)

    def changed(**changes) -> set[str]:
        settings = dataclasses.replace(SETTINGS, **changes)
        own = dataclasses.replace(evaluation, subject=dataclasses.replace(evaluation.subject, settings=settings))
        return {kind for kind, name in folders(own).items() if name != base[kind]}

    assert changed(temperature=1.0) == {"samples"}
    assert changed(prime_frames_samples=1) == {"samples", "copies"}
    assert changed(num_frames_samples=5) == {"samples", "copies"}
    assert changed(prime_frames_likelihood=2) == {"likelihood"}
    assert changed(trials=1) == set()
    reseeded = folders(dataclasses.replace(evaluation, seed=1))
    assert {kind for kind in base if reseeded[kind] != base[kind]} == {"samples"}
    other = dataclasses.replace(evaluation, subject=dataclasses.replace(evaluation.subject, sha256="1"))
    assert {kind for kind, name in folders(other).items() if name != base[kind]} == {"likelihood", "samples"}
    fewer = dataclasses.replace(evaluation, clips=choose_clips(store, "test", 16))
    assert folders(fewer) == base  # the same pieces are of use for more clips
    assert set(fewer.work()["samples"][1]) < set(evaluation.work()["samples"][1])


def test_a_forecast_covers_what_is_missing(evaluation, store, monkeypatch):
    evaluation = dataclasses.replace(evaluation, clips=choose_clips(store, "test", 2))
    monkeypatch.setattr(pieces, "MEASURED_SECONDS", 0.0)
    assert evaluation.seconds_left().keys() == {"likelihood", "samples"}
    assert all(seconds > 0 for seconds in evaluation.seconds_left().values())
    carry_out(evaluation)
    assert evaluation.seconds_left() == {}


def test_ground_truth_is_compared_with_other_clips_where_there_are_enough(evaluation, store):
    assert evaluation.others is not None
    assert evaluation.others.split == "val"
    assert len(evaluation.others) == NUM_CLIPS
    assert not set(evaluation.others.indices) & set(evaluation.clips.indices)
    more = dataclasses.replace(evaluation, clips=Clips(store, "test", [*evaluation.clips.indices, 1]))
    assert more.others is None  # not as many


def test_settings_are_fitted_to_clips_and_model():
    paper = EvaluationConfig(1, 5, num_frames_likelihood=16, num_frames_samples=30)
    config = dataclasses.replace(CONFIG, video_shape=(4, 12, 12), subscale_factor=(4, 4, 4), prime_frames=2)
    short = fitted(paper, config, shortest=20)
    assert (short.prime_frames_likelihood, short.prime_frames_samples) == (2, 5)  # none that training never scores
    assert (short.num_frames_likelihood, short.num_frames_samples) == (16, 20)
    assert fitted(paper, config, shortest=40).num_frames_samples == 30
    scalar = dataclasses.replace(CONFIG, num_channels=1, output="scalar")
    assert fitted(paper, scalar, shortest=40).trials == 1


def test_a_person_s_priming_counts_before_the_usual_one_is_found_impossible():
    usual = EvaluationConfig(10, 10, num_frames_likelihood=20, num_frames_samples=20)
    config = dataclasses.replace(CONFIG, video_shape=(8, 12, 12), subscale_factor=(4, 4, 4), prime_frames=2)
    with pytest.raises(UserError, match="prime_frames_likelihood is 10: of 8 frames"):
        fitted(usual, config, shortest=8)
    changes = {"prime_frames_likelihood": 3, "prime_frames_samples": 3}
    assert fitted(usual, config, shortest=8, changes=changes).prime_frames_samples == 3


def test_models_and_stores_that_do_not_match(evaluation, store):
    ours = evaluation.subject
    more = dataclasses.replace(ours, model=VideoTransformer(dataclasses.replace(CONFIG, action_size=3)))
    with pytest.raises(UserError, match=r"ours takes actions of 3 numbers and those of .* have 2"):
        subject.check_match(more, evaluation.clips, ("bits",))
    grey = dataclasses.replace(ours, model=VideoTransformer(dataclasses.replace(CONFIG, num_channels=1)))
    with pytest.raises(UserError, match=r"ours models frames of 12×12×1 and .* holds 12×12×3"):
        subject.check_match(grey, evaluation.clips, ("bits",))
    with pytest.raises(UserError, match="no clips of the split 'train': it has 0 of train, 17 of val, 17 of test"):
        choose_clips(store, "train", None)
