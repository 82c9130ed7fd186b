"""The demo, whole, with hardly any training."""

from __future__ import annotations

import subprocess
import sys

import pytest


def demo(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "framecast", "demo", *words], capture_output=True, text=True)


@pytest.mark.slow
def test_the_demo_ends_with_a_report(tmp_path, test_data):
    out = tmp_path / "a demo"
    done = demo("--out", str(out), "--minutes", "0.05", "--source", str(test_data / "mnist"))
    assert done.returncode == 0, done.stderr
    report = out / "report" / "report.html"
    assert str(report) in done.stdout
    assert f"'{out / 'store'}#0'" in done.stdout or f"'{out / 'store'}'#0" in done.stdout
    assert "bits/dim" in report.read_text()


def test_the_demo_leaves_other_people_s_files_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("years")
    done = demo("--out", str(tmp_path))
    assert done.returncode == 2
    assert "holds other things than a demo" in done.stderr
    assert (tmp_path / "thesis.txt").read_text() == "years"
    assert demo("--minutes", "0").returncode == 2
