"""The kernel against the plain form: under Triton's interpreter where there is no GPU, on it where there is one."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys

import pytest
import torch

from framecast.ops import attention
from framecast.ops.attention import bytes_on_chip, plain_attention, suits_the_kernel
from framecast.ops.blocks import group_shape

pytest.importorskip("triton")
from framecast.ops.attention_triton import block_attention

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

# extent, block, heads, head size: blocks that fill a tile and blocks that do not, one that takes several tiles of rows
VOLUMES = {
    "small": ((2, 4, 4), (1, 2, 4), 2, 8),
    "odd": ((2, 6, 10), (1, 3, 5), 3, 20),
    "128": ((4, 8, 8), (4, 4, 8), 2, 16),
    "256": ((1, 16, 32), (1, 16, 16), 1, 16),
}


def both(volume, *, dtype, dilated=False, masked=False, gate=False, num_videos=2):
    """Outputs and gradients of the plain form in float64, and of the kernel in `dtype`."""
    extent, block, num_heads, head_size = VOLUMES[volume]
    torch.manual_seed(0)
    num_positions = math.prod(group_shape(extent, block, dilated))
    qkv = torch.randn(num_videos, *extent, 3, num_heads, head_size, dtype=dtype, device=DEVICE)
    bias = torch.randn(num_heads, num_positions, num_positions, dtype=torch.float64, device=DEVICE)
    gradient = torch.randn(num_videos, *extent, num_heads * head_size, dtype=dtype, device=DEVICE)
    wide = torch.promote_types(dtype, torch.float32)
    settings = {"dilated": dilated, "masked": masked, "gate": gate}

    def run(form, dtype, bias_dtype):
        given = [qkv.to(dtype).requires_grad_(), bias.to(bias_dtype).requires_grad_()]
        out = form(*given, block, **settings)
        return out, *torch.autograd.grad(out, given, gradient.to(dtype))

    return run(plain_attention, torch.float64, torch.float64), run(block_attention, dtype, wide)


def error(found, expected):
    found, expected = found.detach().double(), expected.detach()
    return float((found - expected).abs().max() / expected.abs().max())


@pytest.mark.parametrize("dilated", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("gate", [False, True])
@pytest.mark.parametrize("volume", ["small", "odd"])
def test_equals_the_plain_form(volume, dilated, masked, gate):
    expected, found = both(volume, dtype=torch.float32, dilated=dilated, masked=masked, gate=gate)
    assert max(map(error, found, expected)) < 2e-6


@pytest.mark.skipif(DEVICE == "cuda", reason="on a GPU float64 takes the plain form")
@pytest.mark.parametrize("volume", ["small", "odd", "128", "256"])
def test_equals_the_plain_form_in_float64(volume):
    expected, found = both(volume, dtype=torch.float64, masked=True, gate=True)
    assert max(map(error, found, expected)) < 1e-13


@pytest.mark.parametrize("volume", ["128", "256"])
@pytest.mark.parametrize("masked", [False, True])
def test_equals_the_plain_form_in_half_precision(volume, masked):
    dtype = torch.bfloat16 if DEVICE == "cuda" else torch.float16  # NumPy, and so the interpreter, has no bfloat16
    expected, found = both(volume, dtype=dtype, masked=masked)
    assert max(map(error, found, expected)) < (2e-2 if DEVICE == "cuda" else 3e-3)


@pytest.mark.parametrize("volume", ["128", "256"])
def test_gradients_are_the_same_bits_each_time(volume):
    (*_, first), (*_, second) = (both(volume, dtype=torch.float32, masked=True)[1] for _ in range(2))
    assert torch.equal(first, second)


def test_more_groups_than_programs():
    """Each program then sums the bias' gradient over several groups."""
    expected, found = both("small", dtype=torch.float32, num_videos=40)
    assert max(map(error, found, expected)) < 2e-6


def test_an_operator_that_compilers_see_through():
    """Its shapes without running it, its gradient registered, nothing mutated behind PyTorch's back."""
    qkv = torch.randn(1, 2, 4, 4, 3, 2, 8, device=DEVICE, requires_grad=True)
    bias = torch.randn(2, 8, 8, device=DEVICE, requires_grad=True)
    torch.library.opcheck(torch.ops.framecast.block_attention, (qkv, bias, [1, 2, 4], False, False))


def test_it_is_chosen_by_kind_and_shape(monkeypatch):
    monkeypatch.setattr(attention, "_room_on_chip", lambda device: 227 << 10)  # an H100's or H200's
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    assert suits_the_kernel(gpu, torch.bfloat16, 128, 128)
    assert suits_the_kernel(gpu, torch.float16, 256, 128)
    assert not suits_the_kernel(cpu, torch.bfloat16, 128, 128)
    assert not suits_the_kernel(gpu, torch.float32, 128, 128)
    assert not suits_the_kernel(gpu, torch.bfloat16, 257, 128)
    assert not suits_the_kernel(gpu, torch.bfloat16, 256, 256)
    monkeypatch.setattr(attention, "_room_on_chip", lambda device: 99 << 10)  # a gaming card's
    assert suits_the_kernel(gpu, torch.bfloat16, 128, 64)
    assert not suits_the_kernel(gpu, torch.bfloat16, 128, 128)


def test_what_suits_it_goes_there(monkeypatch):
    qkv, bias = torch.randn(1, 2, 4, 4, 3, 2, 8, device=DEVICE), torch.randn(2, 8, 8, device=DEVICE)
    calls = []
    monkeypatch.setattr(attention, "suits_the_kernel", lambda *about: calls.append(about) or True)
    found = attention.block_attention(qkv, bias, (1, 2, 4), masked=True)
    assert calls == [(qkv.device, torch.float32, 8, 8)]
    torch.testing.assert_close(found, plain_attention(qkv, bias, (1, 2, 4), masked=True))


COMPILE = """
import json, sys
import torch
from triton import compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from framecast.ops import attention_triton

extent, block, num_heads, head_size = json.loads(sys.argv[1])
qkv = torch.empty(1, *extent, 3, num_heads, head_size, device="meta")
constants = attention_triton._geometry(qkv, tuple(block), False, False)
shares = "*bf16" if constants["TILES"] == 1 else "*fp32"
forward = {"qkv": "*bf16", "bias": "*fp32", "out": "*bf16", "sums": "*fp32"}
backward = {"gradient": "*bf16", "qkv": "*bf16", "bias": "*fp32", "sums": "*fp32", "of_qkv": "*bf16",
            "shares": shares, "of_bias": "*fp32", "num_groups": "i32", "num_chains": "i32"}
for kernel, types in ((attention_triton._forward_kernel, forward), (attention_triton._backward_kernel, backward)):
    place = kernel.arg_names.index
    source = ASTSource(
        kernel,
        signature=types | dict.fromkeys(constants, "constexpr"),
        constexprs={(place(name),): value for name, value in constants.items()},
        attrs={(place(name),): [["tt.divisibility", 16]] for name, kind in types.items() if kind[0] == "*"},
    )
    compiled = compile(source, target=GPUTarget("cuda", 90, 32), options=attention_triton.LAUNCH)
    print(json.dumps({"shared": compiled.metadata.shared, "tensor_cores": "wgmma" in compiled.asm["ptx"]}))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "volume",
    [
        ((4, 32, 32), (4, 8, 4), 8, 128),  # the paper's
        ((1, 64, 64), (1, 2, 64), 16, 128),
        ((4, 32, 32), (4, 8, 4), 4, 64),
        ((1, 64, 64), (1, 16, 16), 8, 128),  # the largest that is taken
        ((4, 30, 30), (4, 5, 5), 3, 48),  # fills no tile
    ],
)
def test_it_compiles_for_a_hopper(volume):
    """To machine code, with its tensor cores, and within the memory that a program has on the chip; no GPU needed."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", COMPILE, json.dumps(volume)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    for line in done.stdout.splitlines():
        found = json.loads(line)
        assert found["tensor_cores"]
        _, block, _, head_size = volume
        assert found["shared"] <= bytes_on_chip(math.prod(block), head_size, 2) <= 227 << 10
    assert len(done.stdout.splitlines()) == 2
