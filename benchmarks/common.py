"""What every benchmark shares: the yardsticks, measured in the same process, and the one JSON object it prints."""

from __future__ import annotations

import json
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

if "--device" in sys.argv:  # taken away here, and left to the processes of single cases
    place = sys.argv.index("--device")
    _, os.environ["FRAMECAST_BENCHMARK_DEVICE"] = sys.argv[place : place + 2]
    del sys.argv[place : place + 2]
DEVICE = os.environ.get("FRAMECAST_BENCHMARK_DEVICE") or ("cuda" if torch.cuda.is_available() else "cpu")
"""Where everything is measured: what `--device` says, else a GPU where there is one."""

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def report(benchmark: str, cases: list[dict[str, Any]], **more: Any) -> None:
    """Print the result, with the commit that was measured and the machine it was measured on."""
    root = Path(__file__).parents[1]
    git = ["git", "-C", str(root)]
    commit = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    changed = subprocess.run([*git, "status", "--porcelain", "src"], capture_output=True, text=True).stdout.strip()
    body = {"benchmark": benchmark, "commit": commit + "+changes" * bool(changed), "machine": machine(), **more}
    print(json.dumps({**body, "cases": [{"batch": 1, **case} for case in cases]}, indent=1))


def machine() -> str:
    if DEVICE == "cuda":
        return torch.cuda.get_device_name()
    names = [
        line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line
    ]
    return (
        f"{names[0] if names else platform.processor()}, {torch.get_num_threads()} threads, torch {torch.__version__}"
    )


def gemm_peak(precision: str) -> float:
    """FLOP/s of the best of 30 warm products: 4096×512 by 512×3072 on a CPU, 8192³ in bf16 on a GPU."""
    if DEVICE == "cuda":
        a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    else:
        a, b = torch.randn(4096, 512, dtype=DTYPES[precision]), torch.randn(512, 3072, dtype=DTYPES[precision])
    out = torch.mm(a, b)
    seconds = min(timed(lambda: torch.mm(a, b, out=out)) for _ in range(33))
    return 2 * a.shape[0] * a.shape[1] * b.shape[1] / seconds


def memory_bandwidth() -> float:
    """Bytes/s: of summing a 2 GiB tensor on a CPU, of a copy (read and written) on a GPU."""
    if DEVICE == "cuda":
        source = torch.empty(1 << 32, dtype=torch.uint8, device="cuda")
        copy = torch.empty_like(source)
        return 2 * source.nbytes / min(timed(lambda: copy.copy_(source)) for _ in range(8))
    tensor = torch.ones(1 << 29)
    return tensor.nbytes / min(timed(tensor.sum) for _ in range(5))


def timed(work: Callable[[], Any]) -> float:
    """Seconds that one call takes, on the device too."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def peak_gib() -> float:
    """The most memory that this process ever held."""
    if DEVICE == "cuda":
        return torch.cuda.max_memory_allocated() / 2**30
    status = Path("/proc/self/status")
    if status.exists():  # a child's resource usage begins with its parent's peak there
        return int(status.read_text().split("VmHWM:")[1].split()[0]) / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**30
