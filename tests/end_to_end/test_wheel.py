"""The wheel works away from the checkout: built, unpacked into an environment of its own, and used."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(*words: object, folder: Path) -> str:
    done = subprocess.run([str(word) for word in words], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_wheel_works_away_from_the_checkout(tmp_path):
    copy = tmp_path / "checkout"  # so that a build leaves nothing behind
    files = run("git", "ls-files", "src", "pyproject.toml", "README.md", "LICENSE", folder=ROOT).splitlines()
    for file in files:
        if (ROOT / file).is_file():
            (copy / file).parent.mkdir(parents=True, exist_ok=True)
            (copy / file).write_bytes((ROOT / file).read_bytes())
    run(
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        tmp_path,
        copy,
        folder=copy,
    )
    (wheel,) = tmp_path.glob("framecast-*.whl")

    environment = tmp_path / "environment"
    venv.create(environment, with_pip=False)
    own = Path(sysconfig.get_path("purelib", vars={"base": str(environment), "platbase": str(environment)}))
    # What framecast needs comes from here; framecast itself does not, since files of .pth are not followed twice.
    (own / "needs.pth").write_text(sysconfig.get_path("purelib") + "\n")
    run(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", own, wheel, folder=tmp_path)

    python = environment / "bin" / "python"
    place = run(python, "-c", "import framecast; print(framecast.__file__)", folder=tmp_path).strip()
    assert Path(place).is_relative_to(own)
    assert "bair-spatiotemporal-base" in run(python, "-m", "framecast", "info", folder=tmp_path)
    installed = {
        path.relative_to(own).as_posix() for path in (own / "framecast").rglob("*") if "__pycache__" not in str(path)
    }
    for file in files:
        if file.startswith("src/framecast/"):
            assert file.removeprefix("src/") in installed, f"{file} is not in the wheel"
