"""The device that a person names, and memory that stays with the process."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from framecast import device
from framecast.errors import UserError


def test_choose():
    assert device.choose("cpu") == torch.device("cpu")
    assert device.choose().type == ("cuda" if torch.cuda.is_available() else "cpu")


def test_it_says_what_it_computes_on():
    assert device.described(torch.device("cpu")) == f"the CPU, {torch.get_num_threads()} thread(s)"
    assert device.described(torch.device("cpu"), 3).endswith("; 3 processes")


@pytest.mark.parametrize(
    ("name", "sentence"),
    [("toaster", "there is no device 'toaster'"), ("meta", "'meta' is not supported"), ("cuda:99", "no GPU number 99")],
)
def test_a_device_that_is_not_there(name, sentence):
    with pytest.raises(UserError, match=sentence):
        device.choose(name)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="mallopt is glibc's")
def test_large_tensors_are_faulted_in_a_few_times_only():
    """64 MiB are 16,384 pages. A process that keeps its memory meets them anew only until what it has freed holds an
    aligned piece of that size."""
    program = """
import resource, torch
from framecast.device import keep_freed_memory
assert keep_freed_memory()
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.zeros(1 << 24)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(sum(faults() for _ in range(100)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 20 * 16384


def test_product_rate_is_measured_once():
    rate = device.product_rate(torch.device("cpu"), "fp32", num_trials=1)
    assert rate > 1e8
    assert device.product_rate(torch.device("cpu"), "fp32", num_trials=1) == rate
