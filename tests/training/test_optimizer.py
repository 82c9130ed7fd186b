"""Every rule against a plain loop, or against PyTorch's own."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from framecast.model.video_transformer import VideoTransformer
from framecast.training import optimizer as optimizers
from framecast.training.optimizer import Adam, Average, Muon, Optimizer, RMSProp, modern_schedule, orthogonal

from .small import MODEL, small


def weights(*shapes: tuple[int, ...]) -> dict[str, nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    return {f"w{i}": nn.Parameter(tensor) for i, tensor in enumerate(tensors)}


def give_gradients(parameters: dict[str, nn.Parameter], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for weight in parameters.values():
        weight.grad = torch.randn(weight.shape, generator=generator, dtype=weight.dtype) * 10.0 ** (seed % 5 - 4)


def test_rmsprop_is_the_papers():
    """s ← 0.95 s + 0.05 g², m ← 0.9 m + lr · g/√(s + 1e-10), w ← w − m with s₀ = 1 and m₀ = 0, in a NumPy loop."""
    parameters = weights((3, 4), (5,))
    optimizer = Optimizer([(RMSProp(parameters), 2e-5)], lambda step: 1.0)
    w = {name: weight.detach().numpy().copy() for name, weight in parameters.items()}
    s = {name: np.ones_like(value) for name, value in w.items()}
    m = {name: np.zeros_like(value) for name, value in w.items()}
    for seed in range(200):
        give_gradients(parameters, seed)
        for name, weight in parameters.items():
            g = weight.grad.numpy()
            s[name] = 0.95 * s[name] + 0.05 * g**2
            m[name] = 0.9 * m[name] + 2e-5 * g / np.sqrt(s[name] + 1e-10)
            w[name] = w[name] - m[name]
        optimizer.update()
    for name, weight in parameters.items():
        np.testing.assert_allclose(weight.detach().numpy(), w[name], rtol=1e-13)


def test_rmsprop_is_not_pytorchs():
    """The first step of the paper's is short, since its average of squares begins at one."""
    parameters = weights((4, 4))
    give_gradients(parameters, 0)
    other = nn.Parameter(parameters["w0"].detach().clone())
    other.grad = parameters["w0"].grad
    before = other.detach().clone()
    Optimizer([(RMSProp(parameters), 2e-5)], lambda step: 1.0).update()
    torch.optim.RMSprop([other], lr=2e-5, alpha=0.95, eps=1e-10, momentum=0.9).step()
    ours, theirs = (parameters["w0"] - before).abs().mean(), (other - before).abs().mean()
    assert ours < theirs / 100


def test_adam_is_pytorchs():
    parameters = weights((3, 4), (5,))
    theirs = {name: nn.Parameter(weight.detach().clone()) for name, weight in parameters.items()}
    adam = torch.optim.Adam(theirs.values(), lr=1e-3, betas=(0.9, 0.95), eps=1e-8)
    optimizer = Optimizer([(Adam(parameters, (0.9, 0.95), 1e-8), 1e-3)], lambda step: 1.0)
    for seed in range(50):
        give_gradients(parameters, seed)
        give_gradients(theirs, seed)
        optimizer.update()
        adam.step()
    for name, weight in parameters.items():
        torch.testing.assert_close(weight, theirs[name], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("shape", [(8, 8), (4, 16), (16, 4)])
def test_muon_is_pytorchs(shape):
    """To the rounding of bf16, in which PyTorch's orthogonalises."""
    parameters = weights(shape, shape)
    theirs = {name: nn.Parameter(weight.detach().clone()) for name, weight in parameters.items()}
    muon = torch.optim.Muon(list(theirs.values()), lr=0.02, weight_decay=0, momentum=0.95, nesterov=True)
    optimizer = Optimizer([(Muon(parameters, torch.float64), 0.02)], lambda step: 1.0)
    for seed in range(3):
        give_gradients(parameters, seed)
        give_gradients(theirs, seed)
        optimizer.update()
        muon.step()
    for name, weight in parameters.items():
        torch.testing.assert_close(weight, theirs[name], rtol=0, atol=3e-3)


@pytest.mark.parametrize("shape", [(8, 8), (4, 32), (32, 4)])
def test_orthogonal(shape):
    """Singular vectors are kept, singular values come near one."""
    matrix = torch.randn(1, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    near = orthogonal(matrix, torch.float64)[0]
    u, s, v = torch.linalg.svd(matrix[0], full_matrices=False)
    inner = u.T @ near @ v.T
    torch.testing.assert_close(inner, inner.diag().diag(), rtol=0, atol=1e-10)
    assert inner.diag()[s > 0.02 * s.max()].min() > 0.5
    assert inner.diag().max() < 1.3


def test_recipes_split_the_weights():
    """Every weight is changed by exactly one rule; Muon has the layers' matrices and nothing else."""
    model = VideoTransformer(MODEL)
    names = {name for name, _ in model.named_parameters()}
    for recipe in ("paper", "adam", "modern"):
        optimizer = optimizers.make(model, small(recipe=recipe).training)
        changed = [name for rule, _ in optimizer.rules for name in rule.weights]
        assert sorted(changed) == sorted(names)
    muon = optimizer.rules[0][0].weights
    assert len(muon) == 4 * (len(MODEL.encoder_layers) + len(MODEL.decoder_layers))
    assert all(name.split(".")[-2] in ("qkv", "project", "0", "2") for name in muon)


def test_modern_schedule():
    rates = [modern_schedule(step, 1000) for step in range(1000)]
    assert rates[0] == 0.01
    assert rates[:100] == sorted(rates[:100])
    assert rates[99:401] == [1.0] * 302
    assert rates[401:] == sorted(rates[401:], reverse=True)
    assert rates[-1] == pytest.approx(0.02, abs=0.002)
    assert modern_schedule(0, 5) == 1.0  # too short to warm up


def test_average_is_swapped_in_and_out():
    parameters = weights((3, 4))
    optimizer = Optimizer([(Adam(parameters, (0.9, 0.95), 1e-8), 0.1)], lambda step: 1.0, average=Average(parameters))
    seen = []
    for seed in range(5):
        give_gradients(parameters, seed)
        optimizer.update()
        seen.append(parameters["w0"].detach().clone())
    with optimizer.averaged():
        inside = parameters["w0"].detach().clone()
    assert torch.equal(parameters["w0"], seen[-1])
    assert not torch.equal(inside, seen[-1])
    assert (inside >= torch.stack([*seen, weights((3, 4))["w0"]]).amin(0)).all()
    assert (inside <= torch.stack([*seen, weights((3, 4))["w0"]]).amax(0)).all()
