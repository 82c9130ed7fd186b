"""The command line as a person meets it: real processes, their output and exit status."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

import framecast
import framecast.presets
from framecast import cli


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "framecast", *words], capture_output=True, text=True, check=False)


def test_help_is_quick_and_names_every_verb():
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        result = run("--help")
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 0.5
    assert result.returncode == 0
    for verb in cli.VERBS:
        assert f"\n  {verb} " in result.stdout
    assert run().stdout == result.stdout


@pytest.mark.parametrize("verb", cli.VERBS)
def test_every_verb_has_a_function_of_its_name(verb):
    assert (Path(framecast.__file__).parent / "commands" / f"{verb}.py").is_file()


def test_a_mistyped_verb_is_answered_with_the_one_meant():
    result = run("inof")
    assert result.returncode == 2
    assert result.stderr == "framecast: there is no command 'inof'. Did you mean 'info'?\n"
    assert run("zzz").stderr.startswith(f"framecast: there is no command 'zzz'. There are {', '.join(cli.VERBS)}.\n")


def test_what_a_person_got_wrong_is_one_sentence_and_status_2():
    result = run("info", "bair-spatiotemporal-bse")
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert "Did you mean bair-spatiotemporal-base" in result.stderr


def test_info_prints_one_json_object():
    facts = json.loads(run("info", "bair-spatiotemporal-base", "--json").stdout)
    assert 45.5e6 <= facts["parameters"] <= 46.5e6
    assert facts["slice_shape"] == [4, 32, 32]
    assert (facts["num_slices"], facts["positions_per_slice"]) == (16, 4096)
    assert 1_373 <= facts["waves_per_slice"] <= 1_428
    assert facts["blind_spots"] == pytest.approx(0.2752, abs=5e-5)
    assert facts["flops_per_slice_step"] == pytest.approx(1.23e12, rel=5e-3)
    assert facts["context_drops"] == {"time": {"3": [0]}, "height": {"0": [63]}, "width": {"0": [63]}}
    assert {"decoder_parameters", "bytes_training"} <= facts.keys()


def test_info_reads_a_model_on_disk(tmp_path):
    model = framecast.VideoTransformer(framecast.preset("tiny").model)
    model.save(tmp_path / "model")
    result = run("info", str(tmp_path / "model"))
    assert result.returncode == 0
    assert "87,200" in result.stdout
    assert "columns 62–63 at width offset 0" in result.stdout
    (tmp_path / "model" / "config.json").unlink()
    result = run("info", str(tmp_path / "model"))
    assert (result.returncode, result.stderr.count("\n")) == (2, 1)


def test_info_lists_the_presets():
    listed = run("info").stdout.splitlines()
    assert [line.split()[0] for line in listed] == framecast.presets.names()
