"""Whatever the bytes are, a reader takes them or refuses them with a sentence: soon, and within bounded memory.

Short: every input that the long form ever found worth keeping (`corpus/`), and as many new ones from hypothesis.
Long: libFuzzer through atheris (fuzz.py), guided by what the inputs reach. What is aimed at stands in targets.py.
"""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

HERE = Path(__file__).parent
MAX_MIB = 700  # that the largest of all inputs may take

NAMES = """records example shard sealed-shard manifest sealed-manifest run-config config model-config
sealed-model-config weights seal video request""".split()  # noqa: SIM905
SLOW = {
    "weights": 100,
    "video": 400,
    "sealed-model-config": 150,
    "request": 200,
}  # inputs of hypothesis in the short form, else 500
RUNS = {"example": 100_000, "records": 30_000, "weights": 2_000, "video": 10_000}  # in the long form, else 10,000


@pytest.fixture(scope="module")
def fuzz():
    sys.path.insert(0, str(HERE))
    yield importlib.import_module("fuzz")
    sys.path.remove(str(HERE))


def test_every_target_is_aimed_at(targets):
    assert set(NAMES) == set(targets.TARGETS)


@pytest.mark.parametrize("name", NAMES)
def test_inputs_that_were_worth_keeping(targets, fuzz, name, figures, peak):
    inputs = fuzz.read_corpus(name)
    for data in inputs.values():
        targets.TARGETS[name](data)
    assert peak() < MAX_MIB
    figures(inputs=len(inputs), regressions=sum(each.startswith("regression") for each in inputs), peak_mib=peak())


WORDS = [
    b"\0" * 8, b"\xff" * 8, b"\xff\xff\xff\x7f", b"\x7f" * 4, b"\0\0\0\x80", b"NaN", b"-1", b"1e400", b"null", b"[[[[",
    b"{", b'"', b"9" * 30, b"true", b"[]", b"../", b"\\ud800", b"0", b".5", b"9" * 5000, b",", b"\xe2\x80\xae",
]  # fmt: skip


@st.composite
def damaged(draw, seeds: list[bytes]) -> bytes:
    """A whole file in which somebody has been at work."""
    data = bytearray(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, max(len(data) - 1, 0)))
        stop = start + draw(st.sampled_from([0, 1, 1, 1, 2, 4, 8, 64]))
        match draw(st.sampled_from(["flip", "write", "word", "cut", "repeat", "end"])):
            case "flip":
                data[start:stop] = bytes(byte ^ 1 << start % 8 for byte in data[start:stop])
            case "write":
                data[start:stop] = draw(st.binary(max_size=8))
            case "word":
                data[start:stop] = draw(st.sampled_from(WORDS))
            case "cut":
                del data[start:stop]
            case "repeat":
                data[start:start] = data[start:stop]
            case "end":
                del data[start:]
    return bytes(data)


@pytest.mark.parametrize("name", NAMES)
def test_inputs_from_hypothesis(targets, name, figures, peak, length):
    target = targets.TARGETS[name]
    taken: list[bool] = []
    num_inputs = SLOW.get(name, 500) * length(1, 4)

    @settings(
        max_examples=num_inputs, deadline=None, database=None, derandomize=True, suppress_health_check=[*HealthCheck]
    )
    @given(data=damaged(target.seeds()) | st.binary(max_size=300))
    def attack(data: bytes) -> None:
        taken.append(target(data))

    attack()
    assert any(target(seed) for seed in target.seeds()), "whole files are taken"
    assert peak() < MAX_MIB
    figures(inputs=len(taken), taken=sum(taken), peak_mib=peak())


@pytest.mark.torture
@pytest.mark.parametrize("name", NAMES)
def test_inputs_guided_by_what_they_reach(name, figures, tmp_path):
    num_runs = RUNS.get(name, 10_000)
    done = subprocess.run(
        [sys.executable, HERE / "fuzz.py", name, str(num_runs), tmp_path, f"-artifact_prefix={HERE}/"],
        capture_output=True,
        text=True,
        errors="replace",
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (inputs,), (peak_mib,) = (
        re.findall(rf"stat::{what}: *(\d+)", done.stderr) for what in ("number_of_executed_units", "peak_rss_mb")
    )
    figures(inputs=int(inputs), peak_mib=int(peak_mib))
