"""The same mathematics on a GPU: against the CPU, itself, and the reference. `benchmarks/gpu.sh` runs it."""

from __future__ import annotations

import copy

import pytest
import torch

from framecast.config import LayerConfig, ModelConfig
from framecast.data.batches import Batch
from framecast.model.video_transformer import VideoTransformer, bits_per_dim
from framecast.sampling import reference
from framecast.sampling.choose import draw
from framecast.sampling.noise import gumbel
from framecast.sampling.sampler import sample
from framecast.training import step
from framecast.training.loop import on_device

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
GPU = torch.device("cuda")
LAYERS = (LayerConfig((4, 8, 4), 4), LayerConfig((4, 4, 8), 4), LayerConfig((1, 8, 16), 2, dilated=True))
SMALL = ModelConfig(
    (8, 32, 32), (2, 2, 2), LAYERS, LAYERS, embedding_size=32, hidden_size=128, head_size=32, action_size=2
)
TINY = ModelConfig(
    (2, 4, 4), (2, 2, 1), (LayerConfig((1, 2, 2), 2),), (LayerConfig((1, 1, 4), 2),),
    num_channels=1, code_bits=(2, 1), embedding_size=6, hidden_size=8, head_size=4,
)  # fmt: skip


def twins(config=SMALL, dtype=torch.float32):
    """The same model on the CPU and on the GPU."""
    torch.manual_seed(0)
    model = VideoTransformer(config).to(dtype)
    for name, weight in model.named_parameters():
        if "bias" in name or "output" in name:  # what begins at nothing or next to it
            torch.nn.init.normal_(weight, std=0.1)
    return model, copy.deepcopy(model).to(GPU)


def noise(config=SMALL, num_videos=4):
    torch.manual_seed(1)
    video = torch.randint(0, 2**config.bits, (num_videos, *config.video_shape, config.num_channels), dtype=torch.uint8)
    actions = torch.randn(num_videos, config.video_shape[0], config.action_size) if config.action_size else None
    return video, torch.arange(num_videos) % config.num_slices, actions


def loss_and_gradients(model, batch, precision="fp32"):
    model.zero_grad(set_to_none=True)
    loss = step.summed_nats(model, batch, precision) / step.count(batch.slice_index, model.config)
    loss.backward()
    return loss.item(), {name: weight.grad.cpu() for name, weight in model.named_parameters()}


def test_losses_and_gradients_are_the_cpu_s():
    on_cpu, on_gpu = twins()
    batch = Batch(*noise())
    loss, gradients = loss_and_gradients(on_cpu, batch)
    found, found_gradients = loss_and_gradients(on_gpu, on_device(batch, GPU))
    assert found == pytest.approx(loss, rel=1e-4)
    for name, gradient in gradients.items():
        assert (found_gradients[name] - gradient).norm() <= 1e-4 * gradient.norm() + 1e-9, name


def test_log_probabilities_are_the_cpu_s():
    on_cpu, on_gpu = twins()
    video, _, actions = noise()
    expected = on_cpu.log_prob(video, actions)
    torch.testing.assert_close(on_gpu.log_prob(video, actions).cpu(), expected, rtol=1e-4, atol=1e-4)


def test_half_precision_scores_alike():
    on_cpu, on_gpu = twins()
    video, _, actions = noise()
    expected = bits_per_dim(on_cpu, video, actions=actions)
    with torch.autocast("cuda", torch.bfloat16):
        found = bits_per_dim(on_gpu, video, actions=actions)
    assert (found.cpu() - expected).abs().max() < 2e-2


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_gradients_are_the_same_bits_each_time(precision):
    _, model = twins()
    batch = on_device(Batch(*noise()), GPU)
    (loss, gradients), (again, others) = (loss_and_gradients(model, batch, precision) for _ in range(2))
    assert loss == again
    for name, gradient in gradients.items():
        assert torch.equal(gradient, others[name]), name


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_samples_are_the_reference_s(temperature):
    on_cpu, on_gpu = twins(TINY, torch.float64)
    video, _, _ = noise(TINY, num_videos=3)
    known = torch.zeros(video.shape[:-1], dtype=torch.bool)
    known[:, :1] = True
    expected = reference.sample(on_cpu, video, known, draw(temperature), seed=7, samples=torch.arange(3))
    found = sample(on_gpu, video[:, :1], temperature=temperature, seed=7)
    assert torch.equal(found.cpu(), expected)


def test_samples_in_half_precision_mostly_agree():
    """How many pixels rounding tips is measured by benchmarks/sampling.py; here, that it is few of the first slice."""
    _, model = twins()
    video, _, actions = noise()
    first = torch.zeros(video.shape[:-1], dtype=torch.bool)
    first[:, ::2, ::2, ::2] = True
    exact = sample(model, video[:, :1], actions=actions, seed=3)
    with torch.autocast("cuda", torch.bfloat16):
        rounded = sample(model, video[:, :1], actions=actions, seed=3)
    assert (exact != rounded).any(-1).cpu()[first].float().mean() < 0.3


def test_what_a_gpu_trained_scores_the_same_on_a_cpu(tmp_path):
    _, model = twins()
    video, slice_index, actions = noise()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    batch = on_device(Batch(video, slice_index, actions), GPU)
    before, _ = loss_and_gradients(model, batch, "bf16")
    for _ in range(5):
        after, _ = loss_and_gradients(model, batch, "bf16")
        optimizer.step()
    assert after < before
    model.save(tmp_path / "model")
    on_cpu = VideoTransformer.load(tmp_path / "model")
    expected = bits_per_dim(model, video, actions=actions).cpu()
    torch.testing.assert_close(bits_per_dim(on_cpu, video, actions=actions), expected, rtol=1e-4, atol=0)


def test_noise_is_the_cpu_s():
    samples, pixels = torch.arange(3), torch.arange(50)
    expected = gumbel(5, samples, pixels, 1, 16)
    assert torch.equal(gumbel(5, samples.to(GPU), pixels.to(GPU), 1, 16).cpu(), expected)
