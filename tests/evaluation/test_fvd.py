"""FVD against others' numbers, the Fréchet distance against its closed form, resizing against its definition."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from torch.nn import functional

import framecast as fc
from framecast.errors import UserError
from framecast.evaluation.fvd import (
    Moments,
    _interpolation,
    complaints,
    features,
    frechet,
    network_input,
    window_features,
)


@pytest.fixture(scope="module")
def published(test_data):
    return json.loads((test_data / "reference_values" / "published_reference_values.json").read_text())


@pytest.fixture(scope="module")
def sets(test_data):
    return tuple(np.load(test_data / "fvd_sets" / f"{name}.npz")["videos"] for name in "AB")


@pytest.fixture(scope="module")
def set_features(network, sets):
    return tuple(features(network, videos) for videos in sets)


def samples(count: int, size: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.randn(size, size, generator=generator, dtype=torch.float64)
    return torch.randn(count, size, generator=generator, dtype=torch.float64) @ mixing + seed


# Others' numbers.


@pytest.mark.slow
def test_sets_a_and_b_as_tensorflow_scores_them(set_features, test_data, published):
    activations = np.load(test_data / "reference_values" / "fvd_activations_A.npz")["A"]
    assert np.abs(set_features[0].numpy() - activations).max() / np.abs(activations).max() < 1e-4
    expected = published["fvd_A_B_tf"]
    distance = frechet(*map(Moments.of, set_features))
    assert distance == pytest.approx(expected["tfgan"], rel=1e-3)
    assert distance == pytest.approx(expected["svd_exact_f64"], rel=1e-5)


@pytest.mark.slow
def test_zeros_against_255s_at_every_published_length(network, published):
    """All clips of a set are alike, so one of each tells the distance: the covariances are zero."""
    expected = published["junyaohu_readme"]["fvd_first_n_frames_10_to_30"]
    found = []
    for num_frames in range(10, 31):
        clips = np.repeat(np.array([0, 255], np.uint8), num_frames * 64 * 64 * 3).reshape(2, num_frames, 64, 64, 3)
        zeros, ones = features(network, clips).double()
        found.append(float((zeros - ones).square().sum()))
    np.testing.assert_allclose(found, expected, rtol=5e-3)
    assert found[5] == pytest.approx(published["google_example"]["measured_here_genuine_graph"], rel=5e-3)


# The function that people call.


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:FVD of")
def test_what_people_call(network, sets, set_features, i3d_file):
    real, generated = (videos[:4] for videos in sets)
    copies = real.copy(), generated.copy()
    score = fc.fvd(real, generated, weights=i3d_file)
    assert score == pytest.approx(frechet(*(Moments.of(rows[:4]) for rows in set_features)), rel=1e-6)
    assert (
        fc.fvd(torch.from_numpy(real), torch.from_numpy(generated), weights=i3d_file) == score
    )  # the same value twice
    assert fc.fvd(real, real.copy(), weights=i3d_file) == pytest.approx(0, abs=1e-6)
    assert np.array_equal(real, copies[0])
    assert np.array_equal(generated, copies[1])


def test_sets_too_small_to_mean_anything_are_warned_of(i3d_file):
    clips = np.zeros((2, 9, 8, 8, 1), np.uint8)
    with pytest.warns(UserWarning, match="FVD of") as caught:
        fc.fvd(clips, clips, weights=i3d_file)
    few, short = (str(warning.message) for warning in caught)
    assert few.startswith("FVD of 2 real against 2 generated clips says little")
    assert short == "FVD of 9 frames is not comparable with published numbers, which use 16."
    assert not complaints(256, 300, 16)
    assert len(complaints(300, 255, 16)) == 1


def test_what_is_no_set_of_clips_is_refused():
    clips = np.zeros((2, 16, 8, 8, 3), np.uint8)
    with pytest.raises(UserError, match="the real clips must be uint8, not float32"):
        fc.fvd(clips.astype(np.float32), clips)
    with pytest.raises(UserError, match=r"the generated clips must be .* not \(2, 16, 8, 8, 4\)"):
        fc.fvd(clips, np.zeros((2, 16, 8, 8, 4), np.uint8))
    with pytest.raises(UserError, match=r"the real set has 1 clip\(s\): a covariance takes at least 2"):
        fc.fvd(clips[:1], clips)
    with pytest.raises(
        UserError, match="the real clips have 8 frames: I3D reads at least 9, and FVD is published for 16"
    ):
        fc.fvd(clips[:, :8], clips)
    with pytest.raises(UserError, match=r"one length and size: .* \(16, 8, 8\), \(15, 8, 8\)"):
        fc.fvd(clips, clips[:, :15])


# The Fréchet distance.


def test_closed_form_where_covariances_commute():
    """With one basis for both, the distance is that of the means and of the deviations along it."""
    basis = torch.linalg.qr(samples(6, 6)).Q
    first, second = torch.rand(2, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    means = samples(2, 6, seed=2)
    of = lambda mean, values: Moments(2, mean, basis @ values.square().diag() @ basis.T)  # noqa: E731
    expected = (means[0] - means[1]).square().sum() + (first - second).square().sum()
    assert frechet(of(means[0], first), of(means[1], second)) == pytest.approx(float(expected), rel=1e-10)


def test_trace_of_the_root_of_the_product():
    x, y = (Moments.of(samples(50, 6, seed)) for seed in (1, 2))
    root = torch.linalg.eigvals(x.covariance @ y.covariance).real.sqrt().sum()
    expected = (x.mean - y.mean).square().sum() + x.covariance.trace() + y.covariance.trace() - 2 * root
    assert frechet(x, y) == pytest.approx(float(expected), rel=1e-9)
    assert frechet(x, y) == pytest.approx(frechet(y, x), rel=1e-12)


def test_fewer_samples_than_features():
    """The root's trace is then also the nuclear norm of the samples' own product."""
    x, y = samples(5, 40, 1), samples(7, 40, 2)
    centred = [(rows - rows.mean(dim=0)) / math.sqrt(len(rows) - 1) for rows in (x, y)]
    nuclear = torch.linalg.svdvals(centred[0] @ centred[1].T).sum()
    traces = sum(float(rows.square().sum()) for rows in centred)
    expected = float((x.mean(0) - y.mean(0)).square().sum()) + traces - 2 * float(nuclear)
    assert frechet(Moments.of(x), Moments.of(y)) == pytest.approx(expected, rel=1e-9)
    assert frechet(Moments.of(x), Moments.of(x)) == pytest.approx(0, abs=1e-9)


def test_moments_of_a_union_are_the_sum_of_its_parts():
    x = samples(30, 5) + 1e4  # far from zero, where sums of squares would cancel
    parts = Moments.of(x[:7]) + Moments.of(x[7:8]) + Moments.of(x[8:])
    assert parts.count == 30
    torch.testing.assert_close(parts.covariance, torch.from_numpy(np.cov(x.numpy().T)), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(parts.mean, x.mean(dim=0))


# Resizing.


def legacy_resized(frame: np.ndarray) -> np.ndarray:
    """TensorFlow 1's resize_bilinear of one channel, pixel by pixel."""
    height, width = frame.shape
    resized = np.empty((224, 224))
    for i in range(224):
        for j in range(224):
            y, x = i * height / 224, j * width / 224
            top, left = int(y), int(x)
            bottom, right = min(top + 1, height - 1), min(left + 1, width - 1)
            upper = frame[top, left] + (frame[top, right] - frame[top, left]) * (x - left)
            lower = frame[bottom, left] + (frame[bottom, right] - frame[bottom, left]) * (x - left)
            resized[i, j] = upper + (lower - upper) * (y - top)
    return resized


def test_tf1_resizing_is_its_definition():
    video = torch.randint(0, 256, (1, 1, 5, 7, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    found = network_input(video)[0, 0, :, :, 1]
    expected = legacy_resized(video[0, 0, :, :, 1].double().numpy()) / 127.5 - 1
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_half_pixel_resizing_is_that_of_pytorch():
    video = torch.randint(0, 256, (2, 1, 9, 30, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    expected = functional.interpolate(video[:, 0].permute(0, 3, 1, 2).float(), (224, 224), mode="bilinear")
    found = network_input(video, "half-pixel")[:, 0].permute(0, 3, 1, 2)
    torch.testing.assert_close(found, expected / 127.5 - 1, rtol=0, atol=1e-5)


@pytest.mark.parametrize("resize", ["tf1", "half-pixel"])
def test_resizing_keeps_what_is_flat_and_grey_is_three_times_the_same(resize):
    assert torch.allclose(_interpolation(13, resize, torch.device("cpu")).sum(dim=1), torch.ones(224))
    grey = torch.full((1, 2, 6, 6, 1), 255, dtype=torch.uint8)
    torch.testing.assert_close(network_input(grey, resize), torch.ones(1, 2, 224, 224, 3))


def test_every_contiguous_window(network, monkeypatch):
    """Stand-in features, the first frame's mean: the window is what is looked at."""
    from framecast.evaluation import fvd as module

    monkeypatch.setattr(
        module, "features", lambda network, videos, resize: torch.from_numpy(videos[:, 0].mean(axis=(1, 2)))
    )
    videos = np.arange(30, dtype=np.uint8)[None, :, None, None, None].repeat(2, axis=0)
    assert window_features(network, videos)[1, :, 0].tolist() == list(range(15))
