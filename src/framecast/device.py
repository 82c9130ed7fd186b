"""Where tensors live and how this process uses the machine: the device, the allocator, the rate of a matrix product."""

from __future__ import annotations

import ctypes
import os
import time
from functools import cache

import torch

from framecast.errors import UserError

# glibc's names for what `mallopt` sets.
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX = -1, -2, -4
TOP_PAD = 256 << 20


def choose(name: str | None = None) -> torch.device:
    """The device of that name; without one a GPU where there is one, else the CPU.

    Under torchrun each process of a machine takes the GPU of its local rank.
    """
    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
    except RuntimeError:
        raise UserError(f"there is no device {name!r}: try cpu, cuda or cuda:0.") from None
    if device.type == "cuda":
        num_devices = torch.cuda.device_count()
        index = int(os.environ.get("LOCAL_RANK", 0)) if device.index is None else device.index
        if index >= num_devices:
            raise UserError(f"there is no GPU number {index}: PyTorch sees {num_devices}. Try --device cpu.")
        return torch.device("cuda", index)
    if device.type != "cpu":
        raise UserError(f"the device {name!r} is not supported: it must be cpu or cuda.")
    return device


def described(device: torch.device, world_size: int = 1) -> str:
    """What is computed on, in a few words."""
    if device.type == "cuda":
        here = f"{device}, {torch.cuda.get_device_name(device)} ({memory(device) / 2**30:.0f} GiB)"
    else:
        here = f"the CPU, {torch.get_num_threads()} thread(s)"
    return here if world_size == 1 else f"{here}; {world_size} processes"


def keep_freed_memory() -> bool:
    """Let this process keep the memory that it frees; says whether the C library can do that (glibc can).

    glibc maps every large tensor afresh and unmaps it when it is freed, and the page faults of a training step then
    cost more than its arithmetic. To be called before the first large tensor is made.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):  # another C library
        return False
    mallopt.argtypes = [ctypes.c_int, ctypes.c_int]
    settings = [(M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, -1), (M_TOP_PAD, TOP_PAD)]
    return all(mallopt(name, value) == 1 for name, value in settings)


@cache
def product_rate(device: torch.device, precision: str, num_trials: int = 5) -> float:
    """FLOP/s of the best of a few large matrix products: what a fraction of peak is a fraction of."""
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    rows, inner, columns = (8192, 8192, 8192) if device.type == "cuda" else (4096, 512, 3072)
    a, b = (torch.ones(shape, dtype=dtype, device=device) for shape in ((rows, inner), (inner, columns)))
    out = torch.mm(a, b)  # once, so that no trial counts page faults
    seconds = []
    for _ in range(num_trials):
        synchronize(device)
        start = time.perf_counter()
        torch.mm(a, b, out=out)
        synchronize(device)
        seconds.append(time.perf_counter() - start)
    return 2 * rows * inner * columns / min(seconds)


def synchronize(device: torch.device) -> None:
    """Wait until the device has done what it was told, so that a clock means something."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def memory(device: torch.device) -> int:
    """Bytes that the device has in all."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
